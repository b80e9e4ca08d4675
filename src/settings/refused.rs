//! Variables of `envoyproxy/ratelimit` that would change behaviour and that this version does not support: it is
//! better not to start than to run as something else than the operator asked for.

use crate::settings::Problem;

/// (variable, values that change nothing: a value outside of them is refused, why)
const REFUSED: &[(&str, &[&str], &str)] = &[
    ("CONFIG_TYPE", &["", "FILE"], "only FILE is supported (expected FILE)"),
    ("GRPC_UDS", &[""], "a unix socket is not supported (expected GRPC_HOST and GRPC_PORT)"),
    ("GRPC_SERVER_USE_TLS", OFF, "TLS is not supported (expected false)"),
    ("GRPC_CLIENT_TLS_CACERT", &[""], "TLS is not supported (expected nothing)"),
    (
        "REDIS_URL",
        &[""],
        "a shared store is not supported (expected nothing; BACKEND_TYPE=memory needs none)",
    ),
    (
        "REDIS_TYPE",
        &[""],
        "a shared store is not supported (expected nothing; BACKEND_TYPE=memory needs none)",
    ),
    ("REDIS_PERSECOND", OFF, "a shared store is not supported (expected false)"),
    ("LIMIT_RESPONSE_HEADERS_ENABLED", OFF, "response headers are not supported (expected false)"),
    ("RESPONSE_DYNAMIC_METADATA", OFF, "dynamic metadata is not supported (expected false)"),
    ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", OFF, "is not supported (expected false)"),
    ("USE_STATSD", OFF, "StatsD is not supported (expected false)"),
    ("USE_DOG_STATSD", OFF, "DogStatsD is not supported (expected false)"),
    ("DISABLE_STATS", OFF, "is not supported (expected false)"),
    ("PROMETHEUS_MAPPER_YAML", &[""], "a mapping of metrics is not supported (expected nothing)"),
    ("TRACING_ENABLED", OFF, "tracing is not supported (expected false)"),
];

const OFF: &[&str] = &["", "0", "f", "F", "FALSE", "false", "False"];

/// A problem for each variable of the table that is set to something that would change behaviour.
pub(super) fn refused(variable: &impl Fn(&str) -> Option<String>) -> Vec<Problem> {
    let problem = |&(name, harmless, why): &(&str, &[&str], &str)| {
        let set = variable(name)?;
        (!harmless.contains(&set.as_str())).then(|| Problem { name: name.to_owned(), what: why.to_owned() })
    };
    REFUSED.iter().filter_map(problem).collect()
}
