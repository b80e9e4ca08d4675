{{- define "tidegate.pod" -}}
metadata:
  labels:
    {{- include "tidegate.selector" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with include "tidegate.pod.annotations" . | trim }}
  annotations:
    {{- . | nindent 4 }}
  {{- end }}
spec:
  # Otherwise Kubernetes sets variables for each Service, and some of them look like settings.
  enableServiceLinks: false
  automountServiceAccountToken: false
  # DRAIN_GRACE, at most 10 s for calls that are under way{{ if eq .Values.store.type "sharded" }}, at most STATE_GRACE to write counters{{ end }}, and 15 s to spare.
  terminationGracePeriodSeconds: {{ add .Values.drainSeconds 25 (ternary 60 0 (eq .Values.store.type "sharded")) }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65534
    runAsGroup: 65534
    # Volumes are readable, and where they are not read-only writable, for it.
    fsGroup: 65534
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  {{- with .Values.topologySpread }}
  # A machine or a zone that fails takes few pods with it.
  topologySpreadConstraints:
    {{- range . }}
    - maxSkew: 1
      topologyKey: {{ . | toYaml }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "tidegate.selector" $ | nindent 10 }}
    {{- end }}
  {{- end }}
  containers:
    {{- include "tidegate.container" . | nindent 4 }}
  {{- with include "tidegate.pod.volumes" . | trim }}
  volumes:
    {{- . | nindent 4 }}
  {{- end }}
  {{- with include "tidegate.pod.placement" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "tidegate.pod.annotations" -}}
{{- $own := dict }}
{{- if eq .Values.metrics.scrape "annotations" }}
{{- $own = dict "prometheus.io/scrape" "true" "prometheus.io/port" (toString .Values.metrics.port) }}
{{- end }}
{{- with merge (deepCopy .Values.podAnnotations) $own }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{- define "tidegate.pod.placement" }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | toYaml }}
  {{- end }}
{{- end }}
{{- with .Values.serviceAccountName }}
serviceAccountName: {{ . | toYaml }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | toYaml }}
{{- end }}
{{- range $name := list "nodeSelector" "tolerations" "affinity" }}
{{- with get $.Values $name }}
{{ $name }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "tidegate.container" -}}
- name: tidegate
  {{- with .Values.image }}
  image: {{ printf "%s%s" .repository (ternary (printf ":%s" (default $.Chart.AppVersion .tag)) (printf "@%s" .digest) (empty .digest)) | quote }}
  imagePullPolicy: {{ .pullPolicy }}
  {{- end }}
  env:
    {{- include "tidegate.environment" . | nindent 4 }}
  ports:
    - {name: grpc, containerPort: 8081}
    - {name: http, containerPort: 8080}
    - {name: debug, containerPort: 6070}
    - {name: metrics, containerPort: {{ .Values.metrics.port }}}
  {{- $scheme := ternary ", scheme: HTTPS" "" (has "http" .Values.tls.ports) }}
  # Time to read counters back.
  startupProbe:
    httpGet: {path: /livez, port: http{{ $scheme }}}
    periodSeconds: 1
    failureThreshold: 120
  readinessProbe:
    httpGet: {path: /readyz, port: http{{ $scheme }}}
    periodSeconds: 1
  # Patient: it kills, and a kill costs counters, or calls.
  livenessProbe:
    httpGet: {path: /livez, port: http{{ $scheme }}}
    periodSeconds: 10
    failureThreshold: 6
  {{- with .Values.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    readOnlyRootFilesystem: true
    allowPrivilegeEscalation: false
    capabilities: {drop: [ALL]}
  {{- with include "tidegate.pod.mounts" . | trim }}
  volumeMounts:
    {{- . | nindent 4 }}
  {{- end }}
{{- end }}

{{- /* The Secrets that are mounted, each at a folder of its name; an empty name is none. */}}
{{- define "tidegate.pod.secrets" -}}
{{- $values := .Values }}
{{- $redis := $values.store.redis.tls -}}
{{- dict
  "admin" (include "tidegate.adminSecret" .)
  "operators" $values.operators.certificates.caSecret
  "redis-ca" $redis.caSecret
  "redis-client" $redis.clientSecret
  "tls" (ternary (include "tidegate.tlsSecret" .) "" (not (empty $values.tls.ports)))
  "tls-clients" $values.tls.clients.caSecret
  "xds" $values.rules.xds.tlsSecret
  | merge (deepCopy $values.mountedSecrets)
  | toJson }}
{{- end }}

{{- define "tidegate.pod.mounts" }}
{{- if not .Values.rules.xds.server }}
- {name: rules, mountPath: /rules, readOnly: true}
{{- end }}
{{- range $name, $secret := include "tidegate.pod.secrets" . | fromJson }}
{{- if $secret }}
- {name: {{ $name }}, mountPath: /{{ $name }}, readOnly: true}
{{- end }}
{{- end }}
{{- if eq .Values.store.type "sharded" }}
- {name: state, mountPath: /state}
{{- end }}
{{- end }}

{{- define "tidegate.pod.volumes" }}
{{- if not .Values.rules.xds.server }}
- name: rules
  configMap: {name: {{ include "tidegate.rulesConfigMap" . | toYaml }}}
{{- end }}
{{- range $name, $secret := include "tidegate.pod.secrets" . | fromJson }}
{{- if $secret }}
- name: {{ $name }}
  {{- if eq $name "admin" }}
  # Until it exists, nobody has a token.
  secret: {secretName: {{ $secret | toYaml }}, optional: true}
  {{- else }}
  secret: {secretName: {{ $secret | toYaml }}}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}
