{{/* The pod of `retrofill init`. */}}
{{- define "retrofill.initPod" -}}
{{- $own := .Values.init }}
{{- $login := include "retrofill.login" . }}
{{- $acls := and $login $own.kafka.acls (not .Values.strimzi.enabled) }}
{{- $files := list (dict "secret" $own.postgres.secret "key" $own.postgres.ownerKey "path" "postgres-dsn") }}
{{- with $own.postgres.servicesKey }}
{{- $files = append $files (dict "secret" $own.postgres.secret "key" . "path" "postgres-service-dsns") }}
{{- end }}
{{- if $login }}
{{- $files = append $files (dict "secret" (include "retrofill.kafkaSecret" (list . "init" $own.kafka.secret)) "key" $own.kafka.key "path" "kafka-password") }}
{{- end }}
{{- if $acls }}
{{- $files = append $files (dict "secret" $own.kafka.passwords.secret "key" $own.kafka.passwords.key "path" "kafka-passwords") }}
{{- end }}
{{- $settings := include "retrofill.settings" . | fromYaml }}
{{- /* It grants the services what they are told, which may not be what all are told. */}}
{{- range $name, $service := dict "CALLBACK_TOPICS" "callback-runner" "OPENLINEAGE_TOPIC" "run-starter" }}
{{- $variable := printf "RETROFILL_%s" $name }}
{{- $_ := unset $settings $variable }}
{{- with include "retrofill.setting" (list $ $service $name "") }}{{ $_ := set $settings $variable . }}{{ end }}
{{- end }}
{{- if and $login $own.kafka.saslMechanism }}
{{- $_ := set $settings "RETROFILL_KAFKA_SASL_MECHANISM" $own.kafka.saslMechanism }}
{{- end -}}
metadata:
  labels: {{- include "retrofill.partLabels" (list . "init") | nindent 4 }}
spec:
  restartPolicy: OnFailure
  automountServiceAccountToken: false
  {{- include "retrofill.podSecurity" . | nindent 2 }}
  containers:
    - name: init
      image: {{ include "retrofill.image" (list . "cli") | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [init]
      {{- include "retrofill.containerSecurity" . | nindent 6 }}
      env:
        {{- /* Not from the ConfigMap: a hook runs before there is one. */}}
        {{- range $name, $value := $settings }}
        - {name: {{ $name }}, value: {{ $value | quote }}}
        {{- end }}
        - {name: RETROFILL_REPLICATION_FACTOR, value: {{ .Values.replicationFactor | quote }}}
        - {name: RETROFILL_POSTGRES_DSN_FILE, value: /etc/retrofill/postgres-dsn}
        {{- if $own.postgres.servicesKey }}
        - {name: RETROFILL_POSTGRES_SERVICE_DSNS_FILE, value: /etc/retrofill/postgres-service-dsns}
        {{- end }}
        {{- if $login }}
        - {name: RETROFILL_KAFKA_USERNAME, value: {{ default (include "retrofill.kafkaUser" (list . "init")) $own.kafka.username | quote }}}
        - {name: RETROFILL_KAFKA_PASSWORD_FILE, value: /etc/retrofill/kafka-password}
        {{- end }}
        - {name: RETROFILL_KAFKA_ACLS, value: {{ ternary "true" "false" (not (empty $acls)) | quote }}}
        {{- if $acls }}
        - {name: RETROFILL_KAFKA_PASSWORDS_FILE, value: /etc/retrofill/kafka-passwords}
        {{- end }}
      resources: {{- toYaml $own.resources | nindent 8 }}
      volumeMounts:
        {{- include "retrofill.mounts" (list . false) | nindent 8 }}
  volumes:
    {{- include "retrofill.volumes" (dict "root" . "files" $files "scratch" "64Mi") | nindent 4 }}
{{- end }}
