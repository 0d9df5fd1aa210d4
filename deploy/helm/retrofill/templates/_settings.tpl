{{/* Settings as environment variables: a value as text. Numbers are not written as 1e+06. */}}
{{- define "retrofill.text" -}}
{{- if kindIs "float64" . }}{{ if eq . (floor .) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- else if or (kindIs "map" .) (kindIs "slice" .) }}{{ toJson . }}
{{- else }}{{ . }}{{ end }}
{{- end }}

{{/* "true" unless the value is null, which is no text: an empty one is refused, or taken as the working directory. */}}
{{- define "retrofill.given" -}}
{{- if not (kindIs "invalid" .) }}true{{ end }}
{{- end }}

{{/* What all have, as YAML: variable → text. */}}
{{- define "retrofill.settings" -}}
RETROFILL_TOPIC_PREFIX: {{ .Values.topicPrefix | quote }}
RETROFILL_PARTITIONS: {{ .Values.partitions | quote }}
RETROFILL_KAFKA_BOOTSTRAP_SERVERS: {{ required "kafka.bootstrapServers is needed: host:port of Kafka's brokers" .Values.kafka.bootstrapServers | quote }}
RETROFILL_KAFKA_SECURITY_PROTOCOL: {{ .Values.kafka.securityProtocol }}
{{- if include "retrofill.login" . }}
RETROFILL_KAFKA_SASL_MECHANISM: {{ .Values.kafka.saslMechanism }}
{{- end }}
{{- if include "retrofill.ownCa" . }}
RETROFILL_KAFKA_SSL_CA: /etc/retrofill/kafka-ca.crt
{{- end }}
{{- range $name, $value := .Values.settings }}
{{- if include "retrofill.given" $value }}
RETROFILL_{{ $name }}: {{ include "retrofill.text" $value | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* The sources of the volume /etc/retrofill: (dict "root" $ "files" (list (dict "secret" … "key" … "path" …))). */}}
{{- define "retrofill.mounted" -}}
{{- range .files }}
- secret: {name: {{ .secret | quote }}, items: [{key: {{ .key | quote }}, path: {{ .path }}}]}
{{- end }}
{{- if include "retrofill.ownCa" .root }}
{{- with .root.Values.kafka.ca }}
- {{ ternary "secret" "configMap" (ne .secret "") }}: {name: {{ default .configMap .secret | quote }}, items: [{key: {{ .key | quote }}, path: kafka-ca.crt}]}
{{- end }}
{{- end }}
{{- end }}

{{/* Settings whose values are secrets: which Secrets to mount where, as JSON; and the variables that name the files. */}}
{{- define "retrofill.secretFiles" -}}
{{- $files := list }}
{{- range $setting, $from := . }}
{{- $files = append $files (dict "secret" $from.secret "key" $from.key "path" (lower $setting | replace "_" "-")) }}
{{- end }}
{{- toJson $files }}
{{- end }}

{{- define "retrofill.secretSettings" -}}
{{- range $setting, $_ := . }}
- {name: RETROFILL_{{ $setting }}_FILE, value: /etc/retrofill/{{ lower $setting | replace "_" "-" }}}
{{- end }}
{{- end }}

{{/* A quantity of Kubernetes, as 4Gi, in bytes. */}}
{{- define "retrofill.bytes" -}}
{{- $number := regexFind "^[0-9.]+" . }}
{{- $k := 1000 }}
{{- $ki := 1024 }}
{{- $units := dict "" 1 "k" $k "M" (mul $k $k) "G" (mul $k $k $k) "T" (mul $k $k $k $k) }}
{{- $units = merge $units (dict "Ki" $ki "Mi" (mul $ki $ki) "Gi" (mul $ki $ki $ki) "Ti" (mul $ki $ki $ki $ki)) }}
{{- mulf $number (get $units (trimPrefix $number .)) | int64 }}
{{- end }}
