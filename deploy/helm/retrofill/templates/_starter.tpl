{{/* What the run-starter has beside the others: Spark. */}}
{{- define "retrofill.starterEnvironment" -}}
{{- with .Values.spark.remote }}
- {name: RETROFILL_SPARK_REMOTE, value: {{ . | quote }}}
{{- end }}
{{- if .Values.spark.kubernetes.enabled }}
- {name: RETROFILL_SPARK_SUBMIT_MASTER, value: {{ .Values.spark.kubernetes.master | quote }}}
- {name: SPARK_CONF_DIR, value: /etc/spark}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
# Executors find the driver by the pod's address: pods have no names.
- {name: SPARK_LOCAL_HOSTNAME, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
{{- end }}
{{- end }}

{{/* Triggers of KEDA: one for each pool with slots of its own, one for the others that are served. */}}
{{- define "retrofill.seatTriggers" -}}
{{- $serves := fromYamlArray (include "retrofill.setting" (list . "run-starter" "SERVES" (list))) }}
{{- $named := list }}
{{- range $pool, $slots := .Values.keda.seats.slots }}
{{- if or (not $serves) (has $pool $serves) }}
{{- include "retrofill.seatTrigger" (list $ (printf "seats-%s" $pool) (printf "pool = '%s'" $pool) $slots) }}
{{- end }}
{{- $named = append $named (printf "'%s'" $pool) }}
{{- end }}
{{- $others := list }}
{{- range $serves }}
{{- if not (hasKey $.Values.keda.seats.slots .) }}{{ $others = append $others (printf "'%s'" .) }}{{ end }}
{{- end }}
{{- $which := "true" }}
{{- if $others }}{{ $which = printf "pool IN (%s)" (join ", " $others) }}
{{- else if $named }}{{ $which = printf "pool NOT IN (%s)" (join ", " $named) }}{{ end }}
{{- if or $others (not $serves) }}
{{- include "retrofill.seatTrigger" (list $ "seats" $which (include "retrofill.setting" (list . "run-starter" "DRIVER_SLOTS" 2))) }}
{{- end }}
{{- end }}

{{/* One of them (list $ name condition slots). */}}
{{- define "retrofill.seatTrigger" }}
- type: postgresql
  name: {{ index . 1 }}
  metadata:
    targetQueryValue: {{ index . 3 | toString | quote }}
    query: |
      {{- (index . 0).Files.Get "files/seats.sql" | trim | nindent 6 }}
      WHERE {{ index . 2 }}
  authenticationRef: {name: {{ include "retrofill.fullname" (index . 0) }}-seats}
{{- end }}

{{/* How large all logs of attempts get: they share a volume with the unpacked code, and a pod that exceeds its limit is evicted. */}}
{{- define "retrofill.logLimit" -}}
{{- $store := include "retrofill.setting" (list . "run-starter" "LOG_STORE" "") }}
{{- $total := include "retrofill.setting" (list . "run-starter" "LOG_TOTAL_BYTES" "") }}
{{- if not (or $store $total) }}
{{- $scratch := include "retrofill.bytes" (include "retrofill.service" (list . "run-starter") | fromYaml).scratch }}
- {name: RETROFILL_LOG_TOTAL_BYTES, value: {{ div $scratch 4 | quote }}}
{{- end }}
{{- end }}
