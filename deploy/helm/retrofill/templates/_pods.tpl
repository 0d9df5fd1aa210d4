{{/* What every pod has: nothing runs as root, and the API of Kubernetes is nobody's business. */}}
{{- define "retrofill.podSecurity" -}}
# A Service named retrofill-postgres would set RETROFILL_POSTGRES_PORT to an address.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- define "retrofill.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* On which nodes the pods of a part run (list $ name values). */}}
{{- define "retrofill.placement" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "retrofill.partSelector" (list (index . 0) (index . 1)) | nindent 8 }}
{{- with index . 2 }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* Where a container may write; and the pipelines for those that run user code (list $ true). */}}
{{- define "retrofill.mounts" -}}
- {name: home, mountPath: /var/lib/retrofill}
- {name: tmp, mountPath: /tmp}
- {name: secrets, mountPath: /etc/retrofill, readOnly: true}
{{- if and (index . 1) (include "retrofill.hasPipelines" (index . 0)) }}
- {name: pipelines, mountPath: {{ (index . 0).Values.pipelines.mountPath | quote }}, readOnly: true}
{{- end }}
{{- end }}

{{- define "retrofill.hasPipelines" -}}
{{- if or .Values.pipelines.claim .Values.pipelines.image }}true{{ end }}
{{- end }}

{{- define "retrofill.pipelinesVolume" -}}
{{- with .Values.pipelines }}
{{- if .claim }}
- {name: pipelines, persistentVolumeClaim: {claimName: {{ .claim | quote }}, readOnly: true}}
{{- else if .image }}
- {name: pipelines, image: {reference: {{ .image | quote }}, pullPolicy: {{ $.Values.image.pullPolicy }}}}
{{- end }}
{{- end }}
{{- end }}

{{/* The store of the pipelines' archives: (list $ readOnly). */}}
{{- define "retrofill.codeStoreMount" -}}
{{- with (index . 0).Values.codeStore }}{{ if .claim }}
- {name: code-store, mountPath: {{ .mountPath | quote }}, readOnly: {{ index $ 1 }}}
{{- end }}{{ end }}
{{- end }}

{{- define "retrofill.codeStoreVolume" -}}
{{- with .Values.codeStore }}{{ if .claim }}
- {name: code-store, persistentVolumeClaim: {claimName: {{ .claim | quote }}}}
{{- end }}{{ end }}
{{- end }}

{{- define "retrofill.codeStoreSetting" -}}
{{- with .Values.codeStore }}{{ if .claim }}
- {name: RETROFILL_CODE_STORE, value: {{ .mountPath | quote }}}
{{- end }}{{ end }}
{{- end }}

{{/* (dict "root" $ "files" … "scratch" "1Gi") */}}
{{- define "retrofill.volumes" -}}
- {name: home, emptyDir: {sizeLimit: {{ .scratch }}}}
- {name: tmp, emptyDir: {sizeLimit: {{ .scratch }}}}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      {{- include "retrofill.mounted" . | trim | nindent 6 }}
{{- end }}
