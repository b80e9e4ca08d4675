//! How every variable of `envoyproxy/ratelimit` compares: the same, different for a reason, or accepted without
//! effect. `refused` has the values that are refused, `table` the meaning of settings. The page of settings shows all
//! of it.

/// Variables that mean the same there.
pub const SAME: &str = "
    HOST PORT DEBUG_PORT GRPC_HOST GRPC_PORT GRPC_MAX_CONNECTION_AGE GRPC_MAX_CONNECTION_AGE_GRACE
    GRPC_SERVER_USE_TLS LOG_FORMAT CONFIG_TYPE RUNTIME_ROOT MERGE_DOMAIN_CONFIG
    HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED CONFIG_GRPC_XDS_SERVER_URL CONFIG_GRPC_XDS_NODE_ID
    CONFIG_GRPC_XDS_NODE_METADATA CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS CONFIG_GRPC_XDS_SERVER_USE_TLS
    CONFIG_GRPC_XDS_SERVER_TLS_CACERT CONFIG_GRPC_XDS_SERVER_TLS_SAN XDS_CLIENT_BACKOFF_INITIAL_INTERVAL
    XDS_CLIENT_BACKOFF_MAX_INTERVAL XDS_CLIENT_BACKOFF_RANDOM_FACTOR XDS_CLIENT_BACKOFF_JITTER
    XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES NEAR_LIMIT_RATIO SHADOW_MODE QUOTA_MODE RESPONSE_DYNAMIC_METADATA
    LOCAL_CACHE_SIZE_IN_BYTES REDIS_TYPE REDIS_URL REDIS_AUTH REDIS_SENTINEL_AUTH REDIS_TLS REDIS_TLS_CACERT
    REDIS_TLS_SKIP_HOSTNAME_VERIFICATION REDIS_STARTUP_INITIAL_INTERVAL REDIS_STARTUP_MAX_INTERVAL
    REDIS_HEALTH_CHECK_ACTIVE_CONNECTION REDIS_PERSECOND REDIS_PERSECOND_TYPE REDIS_PERSECOND_URL
    REDIS_PERSECOND_AUTH REDIS_PERSECOND_SENTINEL_AUTH REDIS_PERSECOND_TLS DISABLE_STATS
    PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS STATSD_HOST STATSD_PORT STATSD_PROTOCOL USE_DOG_STATSD
    USE_DOG_STATSD_MOGRIFIERS DOG_STATSD_MOGRIFIER_<NAME>_PATTERN DOG_STATSD_MOGRIFIER_<NAME>_NAME
    DOG_STATSD_MOGRIFIER_<NAME>_TAGS TRACING_ENABLED TRACING_EXPORTER_PROTOCOL TRACING_SERVICE_NAME
    TRACING_SERVICE_NAMESPACE TRACING_SERVICE_INSTANCE_ID TRACING_SAMPLING_RATE OTEL_EXPORTER_OTLP_ENDPOINT
    OTEL_EXPORTER_OTLP_HEADERS OTEL_EXPORTER_OTLP_TIMEOUT OTEL_EXPORTER_OTLP_COMPRESSION
    OTEL_EXPORTER_OTLP_INSECURE OTEL_EXPORTER_OTLP_CERTIFICATE OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE
    OTEL_EXPORTER_OTLP_CLIENT_KEY OTEL_EXPORTER_OTLP_TRACES_ENDPOINT OTEL_EXPORTER_OTLP_TRACES_HEADERS
    OTEL_EXPORTER_OTLP_TRACES_TIMEOUT OTEL_EXPORTER_OTLP_TRACES_COMPRESSION OTEL_EXPORTER_OTLP_TRACES_INSECURE
    OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE
    OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY OTEL_RESOURCE_ATTRIBUTES OTEL_SERVICE_NAME OTEL_BSP_SCHEDULE_DELAY
    OTEL_BSP_EXPORT_TIMEOUT OTEL_BSP_MAX_QUEUE_SIZE OTEL_BSP_MAX_EXPORT_BATCH_SIZE DD_ENV DD_SERVICE DD_VERSION
    DD_ENTITY_ID SSL_CERT_FILE SSL_CERT_DIR";

const LIMIT_HEADER: &str = "set but empty: the default (there: a header without a name)";
const CLIENT_PAIR: &str = "refused when only one of certificate and key is set (there: ignored)";
const SOCKET_TYPE: &str = "unset: unix when the URL starts with a slash, else tcp (there: unix, which fails)";
const POOL_SIZE: &str = "an upper bound: requests share connections";
const REDIS_TIMEOUT: &str = "100ms, the budget of one decision (there: 10s, of connecting only), because a stalled Redis must not hold requests";

/// Variables that differ: (name, how and why).
pub const DIFFERS: &[(&str, &str)] = &[
    (
        "DEBUG_HOST",
        "the same for pages that only read; pages that change state answer only loopback, or a bearer of ADMIN_TOKEN or of a certificate (ADMIN_TLS_SAN)",
    ),
    ("GRPC_UDS", "a stale socket that nobody listens on is removed (there: fatal)"),
    (
        "GRPC_SERVER_TLS_CERT",
        "a bad new one is logged and the old one stays; may lie in another folder than the key",
    ),
    ("GRPC_SERVER_TLS_KEY", "may lie in another folder than the certificate"),
    (
        "GRPC_CLIENT_TLS_CACERT",
        "only this authority is trusted (there: the system's as well, so that any public authority's certificate passes); read again when it changes",
    ),
    ("GRPC_CLIENT_TLS_SAN", "refused without GRPC_CLIENT_TLS_CACERT, because nothing would be checked"),
    (
        "LOG_LEVEL",
        "info (there: WARN), because reloads and failures should be seen; panic and fatal mean error",
    ),
    ("RUNTIME_SUBDIRECTORY", "empty means the root itself (there, with RUNTIME_WATCH_ROOT: no rules at all)"),
    (
        "RUNTIME_APPDIRECTORY",
        "a file that is not called .yaml or .yml is loaded when it is a mapping with a domain, else skipped with a warning",
    ),
    (
        "RUNTIME_WATCH_ROOT",
        "has no effect on watching: every way of changing the files is noticed with either value",
    ),
    (
        "RUNTIME_IGNOREDOTFILES",
        "names that start with two dots are never rules, because a mounted ConfigMap would load twice",
    ),
    ("FORCE_START_WITHOUT_INITIAL_CONFIG", "starts with a bad set too"),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", CLIENT_PAIR),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", CLIENT_PAIR),
    ("LIMIT_RESPONSE_HEADERS_ENABLED", "adds Retry-After when the request is over the limit"),
    ("LIMIT_LIMIT_HEADER", LIMIT_HEADER),
    ("LIMIT_REMAINING_HEADER", LIMIT_HEADER),
    ("LIMIT_RESET_HEADER", LIMIT_HEADER),
    (
        "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
        "fixed windows only, because all other algorithms always do so",
    ),
    ("CACHE_KEY_PREFIX", "the rest of a key is different, so counts do not carry over when you switch"),
    (
        "BACKEND_TYPE",
        "unset: redis when a REDIS_* variable of this page is set, else memory, because one node needs no Redis; memcache is refused, because its increments race",
    ),
    ("REDIS_SOCKET_TYPE", SOCKET_TYPE),
    ("REDIS_TLS_CLIENT_CERT", CLIENT_PAIR),
    ("REDIS_TLS_CLIENT_KEY", CLIENT_PAIR),
    ("REDIS_POOL_SIZE", POOL_SIZE),
    ("REDIS_TIMEOUT", REDIS_TIMEOUT),
    ("REDIS_STARTUP_MAX_ELAPSED_TIME", "ends with exit code 1 (there: 2)"),
    ("REDIS_PERSECOND_SOCKET_TYPE", SOCKET_TYPE),
    ("REDIS_PERSECOND_POOL_SIZE", POOL_SIZE),
    ("REDIS_PERSECOND_TIMEOUT", REDIS_TIMEOUT),
    (
        "USE_PROMETHEUS",
        "on unless set to false, because a limiter without metrics is blind; when only defaulted, a port in use is a warning; several outputs may be on",
    ),
    ("PROMETHEUS_ADDR", "a port in use is fatal when USE_PROMETHEUS=true (there: ignored silently)"),
    ("PROMETHEUS_PATH", "its port does not serve Go profiles and variables"),
    (
        "PROMETHEUS_MAPPER_YAML",
        "unknown keys are refused; an unreadable file is a warning and the built-in mapping stays (there: no mapping at all, silently)",
    ),
    (
        "USE_STATSD",
        "unset: on when STATSD_HOST, STATSD_PORT or STATSD_PROTOCOL is set and neither USE_PROMETHEUS nor USE_DOG_STATSD is, because nobody listens on localhost:8125 by default",
    ),
    ("STATS_FLUSH_INTERVAL", "does not delay Prometheus"),
    ("EXTRA_TAGS", "constant labels on Prometheus (there: they break its mapping)"),
];

const AS_THERE: &str = "it has none there either";
const PIPELINE: &str = "speed only: writes are gathered, and keys asked in parallel, without a setting";
const SPANS: &str = "spans stay far below the limits";
const GO_ONLY: &str = "for programs in Go only (threads: WORKER_THREADS)";
const PROXIES: &str = "connections are direct; the start warns if one of these would have been used for a control plane or a collector";
const MEMCACHE: &str = "read only with BACKEND_TYPE=memcache, which is refused";

/// Variables that are accepted and change nothing: (names, why that is harmless).
pub const NO_EFFECT: &[(&str, &str)] = &[
    ("EXPIRATION_JITTER_MAX_SECONDS", "it only spreads the expiry of keys, not that of limits"),
    ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", AS_THERE),
    (
        "
         REDIS_PIPELINE_WINDOW REDIS_PIPELINE_LIMIT REDIS_CLUSTER_PIPELINE_PARALLELISM
         REDIS_PERSECOND_PIPELINE_WINDOW REDIS_PERSECOND_PIPELINE_LIMIT
         REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM",
        PIPELINE,
    ),
    (
        "REDIS_POOL_ON_EMPTY_BEHAVIOR REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR",
        "WAIT: requests in flight are bounded; CREATE and ERROR are refused, as there",
    ),
    ("REDIS_POOL_ON_EMPTY_WAIT_DURATION REDIS_PERSECOND_POOL_ON_EMPTY_WAIT_DURATION", AS_THERE),
    (
        "
         MEMCACHE_HOST_PORT MEMCACHE_SRV MEMCACHE_SRV_REFRESH MEMCACHE_MAX_IDLE_CONNS MEMCACHE_TLS
         MEMCACHE_TLS_CLIENT_CERT MEMCACHE_TLS_CLIENT_KEY MEMCACHE_TLS_CACERT
         MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION",
        MEMCACHE,
    ),
    (
        "
         OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT OTEL_SPAN_EVENT_COUNT_LIMIT
         OTEL_SPAN_LINK_COUNT_LIMIT OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT OTEL_ATTRIBUTE_COUNT_LIMIT
         OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT OTEL_LINK_ATTRIBUTE_COUNT_LIMIT",
        SPANS,
    ),
    ("OTEL_TRACES_SAMPLER OTEL_TRACES_SAMPLER_ARG OTEL_GO_X_*", AS_THERE),
    ("GOSTATS_FLUSH_INTERVAL_SECONDS GOSTATS_LOGGING_SINK_DISABLED", AS_THERE),
    ("DD_ORIGIN_DETECTION_ENABLED", "it adds an optional field"),
    ("DD_AGENT_HOST DD_DOGSTATSD_PORT DD_DOGSTATSD_URL", AS_THERE),
    ("HTTPS_PROXY NO_PROXY ALL_PROXY https_proxy no_proxy all_proxy", PROXIES),
    ("GOMAXPROCS GOGC GOMEMLIMIT GODEBUG GOTRACEBACK GRPC_GO_LOG_*", GO_ONLY),
    (
        "GRPC_SERVER_TLS_CA_CERT",
        "it has none there either; it is not another name of GRPC_CLIENT_TLS_CACERT, which demands client certificates",
    ),
    ("DOG_STATSD_MOGRIFIERS DOG_STATSD_MOGRIFIERS_<NAME>_*", AS_THERE),
];

/// The names in a list of them.
pub fn words(names: &'static str) -> impl Iterator<Item = &'static str> {
    names.split_ascii_whitespace()
}

/// How a setting of ours compares with `envoyproxy/ratelimit`.
pub fn compared(name: &str) -> &'static str {
    if let Some((_, how)) = DIFFERS.iter().find(|(differing, _)| *differing == name) {
        return how;
    }
    if words(SAME).any(|same| same == name) { "the same" } else { "" }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::settings::TABLE;
    use crate::settings::refused::refused_values;

    /// Variables that its settings file, its libraries and known deployments read or set.
    const READ_THERE: &str = "
        HOST PORT DEBUG_HOST DEBUG_PORT GRPC_HOST GRPC_PORT GRPC_UDS
        GRPC_MAX_CONNECTION_AGE GRPC_MAX_CONNECTION_AGE_GRACE GRPC_SERVER_USE_TLS GRPC_SERVER_TLS_CERT
        GRPC_SERVER_TLS_KEY GRPC_CLIENT_TLS_CACERT GRPC_CLIENT_TLS_SAN
        LOG_LEVEL LOG_FORMAT
        CONFIG_TYPE RUNTIME_ROOT RUNTIME_SUBDIRECTORY RUNTIME_APPDIRECTORY RUNTIME_WATCH_ROOT RUNTIME_IGNOREDOTFILES
        MERGE_DOMAIN_CONFIG FORCE_START_WITHOUT_INITIAL_CONFIG HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED
        CONFIG_GRPC_XDS_SERVER_URL CONFIG_GRPC_XDS_NODE_ID CONFIG_GRPC_XDS_NODE_METADATA
        CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL
        CONFIG_GRPC_XDS_SERVER_USE_TLS CONFIG_GRPC_XDS_CLIENT_TLS_CERT CONFIG_GRPC_XDS_CLIENT_TLS_KEY
        CONFIG_GRPC_XDS_SERVER_TLS_CACERT CONFIG_GRPC_XDS_SERVER_TLS_SAN
        XDS_CLIENT_BACKOFF_INITIAL_INTERVAL XDS_CLIENT_BACKOFF_MAX_INTERVAL XDS_CLIENT_BACKOFF_RANDOM_FACTOR
        XDS_CLIENT_BACKOFF_JITTER XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES
        NEAR_LIMIT_RATIO SHADOW_MODE QUOTA_MODE RESPONSE_DYNAMIC_METADATA LIMIT_RESPONSE_HEADERS_ENABLED
        LIMIT_LIMIT_HEADER LIMIT_REMAINING_HEADER LIMIT_RESET_HEADER STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT
        EXPIRATION_JITTER_MAX_SECONDS LOCAL_CACHE_SIZE_IN_BYTES CACHE_KEY_PREFIX
        BACKEND_TYPE REDIS_TYPE REDIS_URL REDIS_SOCKET_TYPE REDIS_AUTH REDIS_SENTINEL_AUTH REDIS_TLS
        REDIS_TLS_CLIENT_CERT REDIS_TLS_CLIENT_KEY REDIS_TLS_CACERT REDIS_TLS_SKIP_HOSTNAME_VERIFICATION
        REDIS_POOL_SIZE REDIS_TIMEOUT REDIS_PIPELINE_WINDOW REDIS_PIPELINE_LIMIT REDIS_CLUSTER_PIPELINE_PARALLELISM
        REDIS_POOL_ON_EMPTY_BEHAVIOR REDIS_STARTUP_INITIAL_INTERVAL REDIS_STARTUP_MAX_INTERVAL
        REDIS_STARTUP_MAX_ELAPSED_TIME REDIS_HEALTH_CHECK_ACTIVE_CONNECTION
        REDIS_PERSECOND REDIS_PERSECOND_SOCKET_TYPE REDIS_PERSECOND_TYPE REDIS_PERSECOND_URL
        REDIS_PERSECOND_POOL_SIZE REDIS_PERSECOND_AUTH REDIS_PERSECOND_SENTINEL_AUTH REDIS_PERSECOND_TLS
        REDIS_PERSECOND_TIMEOUT REDIS_PERSECOND_PIPELINE_WINDOW REDIS_PERSECOND_PIPELINE_LIMIT
        REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR
        MEMCACHE_HOST_PORT MEMCACHE_SRV MEMCACHE_SRV_REFRESH MEMCACHE_MAX_IDLE_CONNS
        MEMCACHE_TLS MEMCACHE_TLS_CLIENT_CERT MEMCACHE_TLS_CLIENT_KEY MEMCACHE_TLS_CACERT
        MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION
        DISABLE_STATS USE_PROMETHEUS PROMETHEUS_ADDR PROMETHEUS_PATH PROMETHEUS_MAPPER_YAML
        PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS USE_STATSD STATSD_HOST STATSD_PORT STATSD_PROTOCOL
        STATS_FLUSH_INTERVAL EXTRA_TAGS USE_DOG_STATSD USE_DOG_STATSD_MOGRIFIERS
        DOG_STATSD_MOGRIFIER_<NAME>_PATTERN DOG_STATSD_MOGRIFIER_<NAME>_NAME DOG_STATSD_MOGRIFIER_<NAME>_TAGS
        TRACING_ENABLED TRACING_EXPORTER_PROTOCOL TRACING_SERVICE_NAME TRACING_SERVICE_NAMESPACE
        TRACING_SERVICE_INSTANCE_ID TRACING_SAMPLING_RATE
        OTEL_EXPORTER_OTLP_ENDPOINT OTEL_EXPORTER_OTLP_HEADERS OTEL_EXPORTER_OTLP_TIMEOUT
        OTEL_EXPORTER_OTLP_COMPRESSION OTEL_EXPORTER_OTLP_INSECURE OTEL_EXPORTER_OTLP_CERTIFICATE
        OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE OTEL_EXPORTER_OTLP_CLIENT_KEY
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT OTEL_EXPORTER_OTLP_TRACES_HEADERS OTEL_EXPORTER_OTLP_TRACES_TIMEOUT
        OTEL_EXPORTER_OTLP_TRACES_COMPRESSION OTEL_EXPORTER_OTLP_TRACES_INSECURE
        OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE
        OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY
        OTEL_RESOURCE_ATTRIBUTES OTEL_SERVICE_NAME
        OTEL_BSP_SCHEDULE_DELAY OTEL_BSP_EXPORT_TIMEOUT OTEL_BSP_MAX_QUEUE_SIZE OTEL_BSP_MAX_EXPORT_BATCH_SIZE
        OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT OTEL_SPAN_EVENT_COUNT_LIMIT
        OTEL_SPAN_LINK_COUNT_LIMIT OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT OTEL_ATTRIBUTE_COUNT_LIMIT
        OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT OTEL_LINK_ATTRIBUTE_COUNT_LIMIT
        OTEL_TRACES_SAMPLER OTEL_TRACES_SAMPLER_ARG OTEL_GO_X_*
        GOSTATS_FLUSH_INTERVAL_SECONDS GOSTATS_LOGGING_SINK_DISABLED
        DD_ENV DD_SERVICE DD_VERSION DD_ENTITY_ID DD_ORIGIN_DETECTION_ENABLED
        DD_AGENT_HOST DD_DOGSTATSD_PORT DD_DOGSTATSD_URL
        SSL_CERT_FILE SSL_CERT_DIR
        HTTPS_PROXY NO_PROXY ALL_PROXY https_proxy no_proxy all_proxy
        GOMAXPROCS GOGC GOMEMLIMIT GODEBUG GOTRACEBACK GRPC_GO_LOG_*
        GRPC_SERVER_TLS_CA_CERT REDIS_POOL_ON_EMPTY_WAIT_DURATION REDIS_PERSECOND_POOL_ON_EMPTY_WAIT_DURATION
        DOG_STATSD_MOGRIFIERS DOG_STATSD_MOGRIFIERS_<NAME>_*";

    /// Read by other code than a row of the table: a family of names, and those of a library.
    const READ_ELSEWHERE: &[&str] = &["DOG_STATSD_MOGRIFIER_<NAME>_", "SSL_CERT_"];

    /// These variables are for a shared store.
    const NOT_YET: &[&str] = &[
        "LOCAL_CACHE_SIZE_IN_BYTES",
        "CACHE_KEY_PREFIX",
        "REDIS_STARTUP_INITIAL_INTERVAL",
        "REDIS_STARTUP_MAX_INTERVAL",
        "REDIS_STARTUP_MAX_ELAPSED_TIME",
    ];

    fn same_or_differs() -> impl Iterator<Item = &'static str> {
        words(SAME).chain(DIFFERS.iter().map(|(name, _)| *name))
    }

    fn no_effect() -> impl Iterator<Item = &'static str> {
        NO_EFFECT.iter().flat_map(|(names, _)| words(names))
    }

    #[test]
    fn every_variable_there_has_exactly_one_place_here() {
        let mut here: Vec<_> = same_or_differs().chain(no_effect()).collect();
        let mut there: Vec<_> = READ_THERE.split_whitespace().collect();
        here.sort_unstable();
        there.sort_unstable();
        assert_eq!(here, there);
    }

    #[test]
    fn what_has_an_effect_is_a_setting() {
        let settings: HashSet<_> = TABLE.iter().map(|row| row.name).collect();
        let unread = |name: &&str| {
            !settings.contains(name) && !READ_ELSEWHERE.iter().any(|family| name.starts_with(family))
        };
        let unread: Vec<_> =
            same_or_differs().filter(unread).filter(|name| !NOT_YET.contains(name)).collect();
        assert!(unread.is_empty(), "not settings: {unread:?}");
        assert!(!no_effect().any(|name| settings.contains(name)), "a setting has an effect");
        assert!(refused_values().all(|name| same_or_differs().chain(no_effect()).any(|known| known == name)));
    }
}
