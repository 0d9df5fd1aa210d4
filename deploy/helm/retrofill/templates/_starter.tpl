{{/* What the run-starter has beside the others: Spark, and its drivers' login. */}}
{{- define "retrofill.starterEnvironment" -}}
{{- if include "retrofill.login" . }}
- name: DRIVER_KAFKA_PASSWORD
  valueFrom:
    secretKeyRef: {name: {{ include "retrofill.kafkaSecret" (list . "driver" .Values.driver.kafka.secret) | quote }}, key: {{ .Values.driver.kafka.key | quote }}}
- {name: RETROFILL_KAFKA_PASSWORDS, value: '{"driver": "$(DRIVER_KAFKA_PASSWORD)"}'}
{{- end }}
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
