{{- /* Values that contradict each other: one sentence each, all at once. */}}
{{- define "tidegate.check" }}
{{- $problems := "" }}
{{- range $part := list "rules" "memory" "redis" "sharded" "autoscaling" "operators" "tls" "records" "network" "metrics" "mounts" "image" "labels" "settings" }}
{{- $problems = print $problems (include (print "tidegate.check." $part) $) }}
{{- end }}
{{- with trim $problems }}
{{- fail (print "the values contradict each other:\n" .) }}
{{- end }}
{{- end }}

{{- define "tidegate.check.rules" }}
{{- with .Values.rules }}
{{- $sources := compact (list (ternary "rules.files" "" (not (empty .files))) (ternary "rules.existingConfigMap" "" (not (empty .existingConfigMap))) (ternary "rules.xds.server" "" (not (empty .xds.server)))) }}
{{- if not $sources }}
rules: there are none (expected rules.files, such as `--set-file 'rules.files.shop\.yaml=shop.yaml'`, or rules.existingConfigMap, or rules.xds.server)
{{- else if gt (len $sources) 1 }}
{{ join " and " $sources }}: all are set (expected one of them)
{{- end }}
{{- if and .files (not (regexMatch `\.ya?ml( |$)` (keys .files | join " "))) }}
rules.files: no name ends with .yaml or .yml (expected one at least: only those are rules)
{{- end }}
{{- if and (not .xds.server) (or .xds.tlsSecret .xds.serverName .xds.startWithoutRules (ne .xds.nodeId "default")) }}
rules.xds: has no effect without rules.xds.server (expected HOST:PORT of the control plane)
{{- end }}
{{- end }}
{{- end }}

{{- define "tidegate.check.memory" }}
{{- if and (eq .Values.store.type "memory") (not .Values.store.iKnowThatEachReplicaAdmitsN) }}
{{- if .Values.autoscaling.enabled }}
autoscaling.enabled: with store.type memory each replica counts alone, so more replicas admit more than N (expected store.type redis; or store.iKnowThatEachReplicaAdmitsN: true)
{{- else if gt (include "tidegate.replicas" . | int) 1 }}
replicas: with store.type memory {{ .Values.replicas }} replicas admit {{ .Values.replicas }} times N (expected 1, or store.type redis or sharded; or store.iKnowThatEachReplicaAdmitsN: true)
{{- end }}
{{- end }}
{{- end }}

{{- define "tidegate.check.redis" }}
{{- $type := .Values.store.type }}
{{- with .Values.store.redis }}
{{- $secret := .existingSecret }}
{{- if eq $type "redis" }}
{{- include "tidegate.check.url" (list "store.redis" .type .url $secret.urlKey) }}
{{- else if or .url $secret.name .tls.enabled .tls.caSecret .tls.clientSecret (ne .type "single") }}
store.redis: has no effect with store.type {{ $type }} (expected store.type redis, or none of these values)
{{- end }}
{{- include "tidegate.check.secret" (list "store.redis" $secret.name (list $secret.urlKey $secret.authKey $secret.sentinelAuthKey)) }}
{{- if and $secret.sentinelAuthKey (ne .type "sentinel") }}
store.redis.existingSecret.sentinelAuthKey: there are no sentinels (expected store.redis.type sentinel)
{{- end }}
{{- if and (not .tls.enabled) (or .tls.caSecret .tls.clientSecret) }}
store.redis.tls: the connection is in clear text (expected store.redis.tls.enabled: true, or neither caSecret nor clientSecret)
{{- end }}
{{- end }}
{{- end }}

{{- /* (list PATH TYPE URL URLKEY) */}}
{{- define "tidegate.check.url" }}
{{- $path := index . 0 }}
{{- $type := index . 1 }}
{{- $url := index . 2 }}
{{- $key := index . 3 }}
{{- if and $url $key }}
{{ $path }}.url and {{ $path }}.existingSecret.urlKey: both are set (expected one of them)
{{- else if not (or $url $key) }}
{{ $path }}.url: is empty (expected HOST:PORT, or {{ $path }}.existingSecret with urlKey)
{{- end }}
{{- if and $url (eq $type "sentinel") (not (regexMatch `^[^,:]+,.*[^,]` $url)) }}
{{ $path }}.url: is {{ $url }}, without the name of the master or without a sentinel (expected MASTER,HOST:PORT,…)
{{- end }}
{{- if contains "@" $url }}
{{ $path }}.url: holds a password, which everybody who may read pods would see (expected {{ $path }}.existingSecret with urlKey or authKey)
{{- end }}
{{- end }}

{{- /* (list PATH NAME KEYS) */}}
{{- define "tidegate.check.secret" }}
{{- $keys := compact (index . 2) }}
{{- if and (index . 1) (not $keys) }}
{{ index . 0 }}.existingSecret.name: no key of it is read (expected urlKey or authKey)
{{- else if and $keys (not (index . 1)) }}
{{ index . 0 }}.existingSecret: has keys, but no Secret (expected its name)
{{- end }}
{{- end }}

{{- define "tidegate.check.sharded" }}
{{- $replicas := include "tidegate.replicas" . | int }}
{{- with .Values.store.sharded }}
{{- if eq $.Values.store.type "sharded" }}
{{- if $.Values.autoscaling.enabled }}
autoscaling.enabled: another number of pods moves users between them, so it is changed by hand (expected false with store.type sharded)
{{- end }}
{{- if and .addresses (ne (len .addresses) $replicas) }}
store.sharded.addresses: has {{ len .addresses }} (expected {{ $replicas }}, one for each pod, or none)
{{- else if ne (len (uniq .addresses)) (len .addresses) }}
store.sharded.addresses: names one twice (expected another one for each pod)
{{- end }}
{{- if and .grewFrom (ge (int .grewFrom) $replicas) }}
store.sharded.grewFrom: is {{ .grewFrom }}, with {{ $replicas }} replicas (expected fewer: the number before pods were added)
{{- end }}
{{- if not $.Values.service.headless }}
service.headless: the pods of a StatefulSet have no names without it (expected true with store.type sharded)
{{- end }}
{{- else if or .addresses .grewFrom }}
store.sharded: has no effect with store.type {{ $.Values.store.type }} (expected store.type sharded, or neither addresses nor grewFrom)
{{- end }}
{{- end }}
{{- end }}

{{- define "tidegate.check.autoscaling" }}
{{- with .Values.autoscaling }}
{{- if .enabled }}
{{- if not (kindIs "invalid" $.Values.replicas) }}
replicas: the autoscaler decides the number (expected null, and autoscaling.minReplicas)
{{- end }}
{{- if gt (int .minReplicas) (int .maxReplicas) }}
autoscaling.minReplicas: is {{ .minReplicas }}, and maxReplicas is {{ .maxReplicas }} (expected no more than that)
{{- end }}
{{- if not (or .cpu .memory .metrics) }}
autoscaling: there is nothing to scale by (expected cpu, memory or metrics)
{{- end }}
{{- range $name := list "cpu" "memory" }}
{{- if and (get $.Values.autoscaling $name) (not (dig "requests" $name "" $.Values.resources)) }}
autoscaling.{{ $name }}: is a share of resources.requests.{{ $name }}, which is not set (expected both)
{{- end }}
{{- end }}
{{- else if or (ne (int .minReplicas) 2) (ne (int .maxReplicas) 6) (ne (print .cpu) "60") .memory .metrics .behavior }}
autoscaling: has no effect (expected autoscaling.enabled: true, or none of its other values)
{{- end }}
{{- end }}
{{- end }}

{{- define "tidegate.check.operators" }}
{{- with .Values.operators }}
{{- if and .existingSecret .createSecret }}
operators.existingSecret and operators.createSecret: both are set (expected one of them)
{{- else if and .createSecret (not (or (lookup "v1" "ServiceAccount" $.Release.Namespace "default") (lookup "v1" "Namespace" "" "kube-system"))) }}
operators.createSecret: no cluster can be looked into, so each rendering would make another token. Make the Secret, and set operators.existingSecret: {{ include "tidegate.adminSecret" $ }}
  kubectl --namespace {{ $.Release.Namespace }} create secret generic {{ include "tidegate.adminSecret" $ }} --from-literal=token="$(openssl rand -hex 32)"
{{- end }}
{{- with .certificates }}
{{- if ne (empty .caSecret) (empty .names) }}
operators.certificates: caSecret and names belong together (expected both)
{{- end }}
{{- if and .caSecret (not (has "debug" $.Values.tls.ports)) }}
operators.certificates: the debug port speaks no TLS (expected debug among tls.ports)
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "tidegate.check.tls" }}
{{- with .Values.tls }}
{{- $manager := .certManager.enabled }}
{{- if and .existingSecret $manager }}
tls.existingSecret and tls.certManager.enabled: both are set (expected one of them)
{{- else if and .ports (not (or .existingSecret $manager)) }}
tls.ports: there is no certificate (expected tls.existingSecret or tls.certManager)
{{- else if and (not .ports) (or .existingSecret $manager) }}
tls.ports: no port uses the certificate (expected some of grpc, http, debug)
{{- end }}
{{- if and $manager (not .certManager.issuer.name) }}
tls.certManager.issuer.name: is empty (expected the name of an {{ .certManager.issuer.kind }})
{{- end }}
{{- if and .clients.name (not .clients.caSecret) }}
tls.clients.name: would not be checked (expected tls.clients.caSecret too)
{{- end }}
{{- if and .clients.caSecret (not (has "grpc" .ports)) }}
tls.clients: the gRPC port speaks no TLS (expected grpc among tls.ports)
{{- end }}
{{- end }}
{{- end }}

{{- define "tidegate.check.records" }}
{{- with .Values.records }}
{{- $secret := .redis.existingSecret }}
{{- if or .redis.url $secret.name $secret.urlKey $secret.authKey }}
{{- include "tidegate.check.url" (list "records.redis" .redis.type .redis.url $secret.urlKey) }}
{{- include "tidegate.check.secret" (list "records.redis" $secret.name (list $secret.urlKey $secret.authKey)) }}
{{- if .onVolume }}
records.redis and records.onVolume: both are set (expected one of them)
{{- end }}
{{- end }}
{{- if and .onVolume (ne $.Values.store.type "sharded") }}
records.onVolume: there is no volume with store.type {{ $.Values.store.type }} (expected records.redis, or store.type sharded)
{{- end }}
{{- end }}
{{- end }}

{{- define "tidegate.check.network" }}
{{- with .Values.networkPolicy }}
{{- if and .enabled (not .askers) }}
networkPolicy.askers: is empty, so nobody could ask (expected the peers where the proxies are)
{{- else if and (not .enabled) (or .askers .scrapers .operators) }}
networkPolicy: has no effect (expected networkPolicy.enabled: true, or none of these values)
{{- end }}
{{- if and .enabled (not .scrapers) (ne $.Values.metrics.scrape "none") }}
networkPolicy.scrapers: is empty, so nobody could scrape (expected the peers where Prometheus is, or metrics.scrape: none)
{{- end }}
{{- end }}
{{- end }}

{{- define "tidegate.check.metrics" }}
{{- if has (int .Values.metrics.port) (list 8080 8081 6070) }}
metrics.port: {{ .Values.metrics.port }} is another port of the pod (expected a free one, such as 9090)
{{- end }}
{{- end }}

{{- define "tidegate.check.mounts" }}
{{- range $folder := keys .Values.mountedSecrets | sortAlpha }}
{{- if has $folder (list "admin" "operators" "redis-ca" "redis-client" "tls" "tls-clients" "xds" "rules" "state" "bin" "etc") }}
mountedSecrets.{{ $folder }}: something else is at /{{ $folder }} (expected another folder)
{{- end }}
{{- end }}
{{- end }}

{{- define "tidegate.check.image" }}
{{- if and .Values.image.tag .Values.image.digest }}
image.tag and image.digest: both are set (expected one of them)
{{- end }}
{{- end }}

{{- define "tidegate.check.labels" }}
{{- range $label := list "app.kubernetes.io/name" "app.kubernetes.io/instance" }}
{{- if hasKey $.Values.podLabels $label }}
podLabels.{{ $label }}: pods are found by it (expected another label{{ if hasSuffix "name" $label }}, or nameOverride{{ end }})
{{- end }}
{{- end }}
{{- end }}

{{- define "tidegate.check.settings" }}
{{- $values := include "tidegate.settings.values" . | fromYaml }}
{{- $settings := .Files.Get "files/settings.md" }}
{{- range $where := list "settings" "settingsFromSecrets" }}
{{- range $name := keys (get $.Values $where) | sortAlpha }}
{{- if hasKey $values $name }}
{{ $where }}.{{ $name }}: is made from another value (expected {{ get $values $name }})
{{- else if not (contains (printf "\n| %s |" $name) $settings) }}
{{ $where }}.{{ $name }}: is no setting (expected one of docs/settings.md)
{{- else if and (eq $where "settings") (or (regexMatch `_(AUTH|SECRET|TOKEN|HEADERS)$` $name) (regexMatch `://[^/]*@` (get $.Values.settings $name))) }}
settings.{{ $name }}: is a secret, which everybody who may read pods would see (expected settingsFromSecrets.{{ $name }})
{{- else if and (eq $where "settings") (hasKey $.Values.settingsFromSecrets $name) }}
settings.{{ $name }} and settingsFromSecrets.{{ $name }}: both are set (expected one of them)
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The settings that other values make, and which. */}}
{{- define "tidegate.settings.values" -}}
CONFIG_PATH: rules
CONFIG_TYPE: rules.xds
RUNTIME_ROOT: rules
RUNTIME_SUBDIRECTORY: rules
RUNTIME_APPDIRECTORY: rules
CONFIG_GRPC_XDS_SERVER_URL: rules.xds.server
CONFIG_GRPC_XDS_NODE_ID: rules.xds.nodeId
CONFIG_GRPC_XDS_SERVER_USE_TLS: rules.xds.tlsSecret
CONFIG_GRPC_XDS_CLIENT_TLS_CERT: rules.xds.tlsSecret
CONFIG_GRPC_XDS_CLIENT_TLS_KEY: rules.xds.tlsSecret
CONFIG_GRPC_XDS_SERVER_TLS_CACERT: rules.xds.tlsSecret
CONFIG_GRPC_XDS_SERVER_TLS_SAN: rules.xds.serverName
FORCE_START_WITHOUT_INITIAL_CONFIG: rules.xds.startWithoutRules
BACKEND_TYPE: store.type
REDIS_TYPE: store.redis.type
REDIS_SOCKET_TYPE: store.redis
REDIS_URL: store.redis.url
REDIS_AUTH: store.redis.existingSecret.authKey
REDIS_SENTINEL_AUTH: store.redis.existingSecret.sentinelAuthKey
REDIS_TLS: store.redis.tls.enabled
REDIS_TLS_CACERT: store.redis.tls.caSecret
REDIS_TLS_CLIENT_CERT: store.redis.tls.clientSecret
REDIS_TLS_CLIENT_KEY: store.redis.tls.clientSecret
STATE_DIR: store.type sharded
STATE_GRACE: none, it is 60s
SHARD_KEY: store.sharded.key
SHARD_MEMBERS: replicas
SHARD_GREW_FROM: store.sharded.grewFrom
SHARD_NAME: none, it is the name of the pod
{{- if eq .Values.store.type "sharded" }}
COLD_START: store.sharded.coldStart
{{- end }}
ADMIN_TOKEN: operators.existingSecret
ADMIN_TOKEN_FILE: operators.existingSecret
ADMIN_TLS_SAN: operators.certificates.names
DEBUG_SERVER_TLS_CLIENT_CACERT: operators.certificates.caSecret
AUDIT_LOG: operators.audit
KEEP_KEYS: operators.keepKeys
EXCEPTIONS_FILE: store.type sharded
LIMITS_TYPE: records.redis.type
LIMITS_URL: records.redis.url
LIMITS_AUTH: records.redis.existingSecret.authKey
LIMITS_DIR: records.onVolume
GRPC_SERVER_USE_TLS: tls.ports
GRPC_SERVER_TLS_CERT: tls
GRPC_SERVER_TLS_KEY: tls
HTTP_SERVER_TLS_CERT: tls
HTTP_SERVER_TLS_KEY: tls
DEBUG_SERVER_TLS_CERT: tls
DEBUG_SERVER_TLS_KEY: tls
GRPC_CLIENT_TLS_CACERT: tls.clients.caSecret
GRPC_CLIENT_TLS_SAN: tls.clients.name
DRAIN_GRACE: drainSeconds
GRPC_PORT: none, it is 8081
PORT: none, it is 8080
DEBUG_PORT: none, it is 6070
PROMETHEUS_ADDR: metrics.port
PROMETHEUS_PATH: none, it is /metrics
HOST: none, a pod is asked over the network
GRPC_HOST: none, a pod is asked over the network
DEBUG_HOST: none, networkPolicy.operators says who may operate
USE_PROMETHEUS: metrics.scrape
DISABLE_STATS: metrics.scrape
GRPC_UDS: none, a pod is asked over the network
HTTP_UDS: none, a pod is asked over the network
{{- end }}
