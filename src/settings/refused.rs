//! Variables, most of them of `envoyproxy/ratelimit`, that would change behaviour and that this version does not
//! support: it is better not to start than to run as something else than the operator asked for.

use crate::settings::Problem;

/// (variable, values that change nothing: a value outside of them is refused, why)
const REFUSED: &[(&str, &[&str], &str)] = &[
    ("LIMIT_RESPONSE_HEADERS_ENABLED", OFF, "response headers are not supported (expected false)"),
    ("RESPONSE_DYNAMIC_METADATA", OFF, "dynamic metadata is not supported (expected false)"),
    ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", OFF, "is not supported (expected false)"),
];

/// Variables each of which makes `envoyproxy/ratelimit` count in Redis, or says how.
const SHARED_STORE: &[&str] = &[
    "REDIS_URL",
    "REDIS_TYPE",
    "REDIS_SOCKET_TYPE",
    "REDIS_AUTH",
    "REDIS_SENTINEL_AUTH",
    "REDIS_TLS",
    "REDIS_TLS_CLIENT_CERT",
    "REDIS_TLS_CLIENT_KEY",
    "REDIS_TLS_CACERT",
    "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION",
    "REDIS_POOL_SIZE",
    "REDIS_TIMEOUT",
    "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
    "REDIS_PERSECOND",
    "REDIS_PERSECOND_URL",
    "REDIS_PERSECOND_TYPE",
    "REDIS_PERSECOND_SOCKET_TYPE",
    "REDIS_PERSECOND_POOL_SIZE",
    "REDIS_PERSECOND_AUTH",
    "REDIS_PERSECOND_SENTINEL_AUTH",
    "REDIS_PERSECOND_TLS",
    "REDIS_PERSECOND_TIMEOUT",
];

const NO_SHARED_STORE: &str = "a shared store is not supported (expected nothing; counters live in memory)";

const OFF: &[&str] = &["", "0", "f", "F", "FALSE", "false", "False"];

/// A problem for each variable of the table that is set to something that would change behaviour.
pub(super) fn refused(variable: &impl Fn(&str) -> Option<String>) -> Vec<Problem> {
    let problem = |(name, harmless, why): (&str, &[&str], &str)| {
        let set = variable(name)?;
        (!harmless.contains(&set.as_str())).then(|| Problem { name: name.to_owned(), what: why.to_owned() })
    };
    let shared_store = SHARED_STORE.iter().map(|&name| (name, OFF, NO_SHARED_STORE));
    REFUSED.iter().copied().chain(shared_store).filter_map(problem).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused_with(name: &str, value: &str) -> Vec<String> {
        let variable = |asked: &str| (asked == name).then(|| value.to_owned());
        refused(&variable).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn any_variable_of_a_shared_store_is_refused_and_its_value_is_not_told() {
        for name in SHARED_STORE {
            assert_eq!(refused_with(name, "hunter2"), [format!("{name}: {NO_SHARED_STORE}")]);
        }
        // What Kubernetes sets for a Service of the name `redis` is none of them.
        assert!(refused_with("REDIS_PORT", "tcp://10.0.0.1:6379").is_empty());
        assert!(refused_with("REDIS_TLS", "false").is_empty());
    }
}
