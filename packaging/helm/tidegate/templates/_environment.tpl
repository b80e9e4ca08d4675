{{- /* The settings of the program, as the environment of its container. */}}
{{- define "tidegate.environment" -}}
{{- include "tidegate.env.rules" . }}
{{- include "tidegate.env.store" . }}
{{- include "tidegate.env.operators" . }}
{{- include "tidegate.env.records" . }}
{{- include "tidegate.env.tls" . }}
# Health turns first; the ports close this much later. No preStop hook is needed.
- {name: DRAIN_GRACE, value: {{ printf "%ds" (int .Values.drainSeconds) }}}
{{- if ne (int .Values.metrics.port) 9090 }}
- {name: PROMETHEUS_ADDR, value: ":{{ .Values.metrics.port }}"}
{{- end }}
{{- range $name, $value := .Values.settings }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- range $name, $from := .Values.settingsFromSecrets }}
{{ include "tidegate.env.secret" (list $name $from.secret $from.key) }}
{{- end }}
{{- end }}

{{- /* One of them from a Secret: (list NAME SECRET KEY). */}}
{{- define "tidegate.env.secret" -}}
- name: {{ index . 0 }}
  valueFrom: {secretKeyRef: {name: {{ index . 1 | toYaml }}, key: {{ index . 2 | toYaml }}}}
{{- end }}

{{- define "tidegate.env.rules" -}}
{{- with .Values.rules.xds }}
{{- if .server -}}
- {name: CONFIG_TYPE, value: GRPC_XDS_SOTW}
- {name: CONFIG_GRPC_XDS_SERVER_URL, value: {{ .server | quote }}}
- {name: CONFIG_GRPC_XDS_NODE_ID, value: {{ .nodeId | quote }}}
{{- if .tlsSecret }}
- {name: CONFIG_GRPC_XDS_SERVER_USE_TLS, value: "true"}
- {name: CONFIG_GRPC_XDS_CLIENT_TLS_CERT, value: /xds/tls.crt}
- {name: CONFIG_GRPC_XDS_CLIENT_TLS_KEY, value: /xds/tls.key}
- {name: CONFIG_GRPC_XDS_SERVER_TLS_CACERT, value: /xds/ca.crt}
{{- end }}
{{- if .serverName }}
- {name: CONFIG_GRPC_XDS_SERVER_TLS_SAN, value: {{ .serverName | quote }}}
{{- end }}
{{- if .startWithoutRules }}
- {name: FORCE_START_WITHOUT_INITIAL_CONFIG, value: "true"}
{{- end }}
{{- else -}}
- {name: CONFIG_PATH, value: /rules}
{{- end }}
{{- end }}
{{- end }}

{{- define "tidegate.env.store" }}
{{- if eq .Values.store.type "redis" }}
- {name: BACKEND_TYPE, value: redis}
{{- include "tidegate.env.redis" .Values.store.redis }}
{{- else }}
- {name: BACKEND_TYPE, value: memory}
{{- end }}
{{- if eq .Values.store.type "sharded" }}
{{- with .Values.store.sharded }}
- {name: STATE_DIR, value: /state}
- {name: STATE_GRACE, value: 60s}
# With deny a pod that was killed denies its users for one window, and no window has more than N.
- {name: COLD_START, value: {{ .coldStart }}}
- {name: SHARD_KEY, value: {{ .key | quote }}}
- {name: SHARD_MEMBERS, value: {{ include "tidegate.replicas" $ | quote }}}
{{- if .grewFrom }}
- {name: SHARD_GREW_FROM, value: {{ .grewFrom | quote }}}
{{- end }}
# The pod's name. A volume that another pod has written is not taken.
- name: SHARD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- end }}
{{- end }}
{{- end }}

{{- define "tidegate.env.redis" }}
{{- if ne .type "single" }}
- {name: REDIS_TYPE, value: {{ .type | upper }}}
{{- end }}
- {name: REDIS_SOCKET_TYPE, value: tcp}
{{- if .url }}
- {name: REDIS_URL, value: {{ .url | quote }}}
{{- end }}
{{- with .existingSecret }}
{{- range $setting, $key := dict "REDIS_URL" .urlKey "REDIS_AUTH" .authKey "REDIS_SENTINEL_AUTH" .sentinelAuthKey }}
{{- if $key }}
{{ include "tidegate.env.secret" (list $setting $.existingSecret.name $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- if .tls.enabled }}
- {name: REDIS_TLS, value: "true"}
{{- end }}
{{- if .tls.caSecret }}
- {name: REDIS_TLS_CACERT, value: /redis-ca/ca.crt}
{{- end }}
{{- if .tls.clientSecret }}
- {name: REDIS_TLS_CLIENT_CERT, value: /redis-client/tls.crt}
- {name: REDIS_TLS_CLIENT_KEY, value: /redis-client/tls.key}
{{- end }}
{{- end }}

{{- define "tidegate.env.operators" }}
{{- $onVolume := eq .Values.store.type "sharded" }}
{{- if include "tidegate.adminSecret" . }}
- {name: ADMIN_TOKEN_FILE, value: /admin/token}
{{- end }}
{{- with .Values.operators }}
{{- if .certificates.caSecret }}
- {name: DEBUG_SERVER_TLS_CLIENT_CACERT, value: /operators/ca.crt}
- {name: ADMIN_TLS_SAN, value: {{ join "," .certificates.names | quote }}}
{{- end }}
{{- if and .audit (or .existingSecret .createSecret .certificates.caSecret) }}
- {name: AUDIT_LOG, value: {{ ternary "/state/audit" "-" $onVolume | quote }}}
{{- end }}
{{- if .keepKeys }}
- {name: KEEP_KEYS, value: "true"}
{{- end }}
{{- end }}
{{- if $onVolume }}
- {name: EXCEPTIONS_FILE, value: /state/exceptions}
{{- end }}
{{- end }}

{{- define "tidegate.env.records" }}
{{- with .Values.records.redis }}
{{- if or .url .existingSecret.urlKey }}
- {name: LIMITS_TYPE, value: {{ .type | upper }}}
{{- if .url }}
- {name: LIMITS_URL, value: {{ .url | quote }}}
{{- end }}
{{- range $setting, $key := dict "LIMITS_URL" .existingSecret.urlKey "LIMITS_AUTH" .existingSecret.authKey }}
{{- if $key }}
{{ include "tidegate.env.secret" (list $setting $.Values.records.redis.existingSecret.name $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.records.onVolume }}
- {name: LIMITS_DIR, value: /state/records}
{{- end }}
{{- end }}

{{- define "tidegate.env.tls" }}
{{- range .Values.tls.ports }}
{{- if eq . "grpc" }}
- {name: GRPC_SERVER_USE_TLS, value: "true"}
{{- end }}
- {name: {{ upper . }}_SERVER_TLS_CERT, value: /tls/tls.crt}
- {name: {{ upper . }}_SERVER_TLS_KEY, value: /tls/tls.key}
{{- end }}
{{- with .Values.tls.clients }}
{{- if .caSecret }}
- {name: GRPC_CLIENT_TLS_CACERT, value: /tls-clients/ca.crt}
{{- end }}
{{- if .name }}
- {name: GRPC_CLIENT_TLS_SAN, value: {{ .name | quote }}}
{{- end }}
{{- end }}
{{- end }}
