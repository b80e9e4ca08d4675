{{- define "tidegate.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* Short enough for what is added to it. */}}
{{- define "tidegate.fullname" -}}
{{- $name := include "tidegate.name" . -}}
{{- $release := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{ default $release .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- /* These never change during the life of a release: a selector cannot. */}}
{{- define "tidegate.selector" -}}
app.kubernetes.io/name: {{ include "tidegate.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | toYaml }}
{{- end }}

{{- define "tidegate.metadata" -}}
name: {{ include "tidegate.fullname" . | quote }}
labels:
  {{- include "tidegate.selector" . | nindent 2 }}
{{- end }}

{{- /* The metadata of another one of a kind: (list CONTEXT SUFFIX). */}}
{{- define "tidegate.metadataOf" -}}
name: {{ printf "%s-%v" (include "tidegate.fullname" (index . 0)) (index . 1) | quote }}
labels:
  {{- include "tidegate.selector" (index . 0) | nindent 2 }}
{{- end }}

{{- define "tidegate.replicas" -}}
{{ default (get (dict "memory" 1 "redis" 2 "sharded" 3) .Values.store.type) .Values.replicas }}
{{- end }}

{{- define "tidegate.rulesConfigMap" -}}
{{ default (printf "%s-rules" (include "tidegate.fullname" .)) .Values.rules.existingConfigMap }}
{{- end }}

{{- define "tidegate.tlsSecret" -}}
{{ default (printf "%s-tls" (include "tidegate.fullname" .)) .Values.tls.existingSecret }}
{{- end }}

{{- /* Empty where operators have no token. */}}
{{- define "tidegate.adminSecret" -}}
{{- if .Values.operators.existingSecret }}{{ .Values.operators.existingSecret }}
{{- else if .Values.operators.createSecret }}{{ include "tidegate.fullname" . }}-admin
{{- end }}
{{- end }}
