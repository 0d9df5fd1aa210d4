{{/* Names and labels. */}}

{{- define "retrofill.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end }}
{{- end }}

{{/* What is part of this release; and, with (list $ "run-starter"), one part of it. */}}
{{- define "retrofill.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "retrofill.partSelector" -}}
{{- include "retrofill.selector" (index . 0) }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "retrofill.labels" -}}
{{- include "retrofill.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "retrofill.partLabels" -}}
{{- include "retrofill.labels" (index . 0) }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* (list $ "run-starter"): the image of a target of deploy/Dockerfile. */}}
{{- define "retrofill.image" -}}
{{- $root := index . 0 -}}
{{- with $root.Values.image.registry }}{{ . }}/{{ end }}{{ $root.Values.image.prefix }}{{ index . 1 }}:
{{- default $root.Chart.AppVersion $root.Values.image.tag }}
{{- end }}

{{/* (list $ "run-starter"): what Kafka calls it, and the Secret with its password where none is named (Strimzi makes it so). */}}
{{- define "retrofill.kafkaUser" -}}
{{ (index . 0).Values.topicPrefix }}{{ index . 1 }}
{{- end }}

{{- define "retrofill.kafkaSecret" -}}
{{ default (include "retrofill.kafkaUser" .) (index . 2) }}
{{- end }}

{{/* A service's values: the defaults with its own block over them, as YAML. */}}
{{- define "retrofill.service" -}}
{{- $root := index . 0 -}}
{{- toYaml (mergeOverwrite (deepCopy $root.Values.defaults) (deepCopy (default dict (index $root.Values.services (index . 1))))) }}
{{- end }}

{{/* A setting of a service: its own, or that of all (list $ service name default). */}}
{{- define "retrofill.setting" -}}
{{- $own := include "retrofill.service" . | fromYaml }}
{{- $name := index . 2 }}
{{- $value := index . 3 }}
{{- range list (index . 0).Values.settings $own.settings }}
{{- if include "retrofill.given" (index . $name) }}{{ $value = index . $name }}{{ end }}
{{- end }}
{{- include "retrofill.text" $value }}
{{- end }}

{{/* How long a service may take to stop (list $ service). A run-starter first waits for its drivers. */}}
{{- define "retrofill.gracePeriod" -}}
{{- $own := include "retrofill.service" . | fromYaml }}
{{- $drain := ternary (include "retrofill.setting" (list (index . 0) (index . 1) "DRAIN_SECONDS" 0)) "0" (eq (index . 1) "run-starter") }}
{{- add (int $own.terminationGracePeriodSeconds) (ceil (float64 $drain)) }}
{{- end }}

{{/* "true" where clients log in to Kafka. */}}
{{- define "retrofill.login" -}}
{{- if hasPrefix "SASL_" .Values.kafka.securityProtocol }}true{{ end }}
{{- end }}

{{/* "true" where Kafka's authority is one's own, in a Secret or ConfigMap. */}}
{{- define "retrofill.ownCa" -}}
{{- if and (hasSuffix "SSL" .Values.kafka.securityProtocol) (or .Values.kafka.ca.secret .Values.kafka.ca.configMap) }}true{{ end }}
{{- end }}
