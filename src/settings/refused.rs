//! Variables, most of them of `envoyproxy/ratelimit`, that would change behaviour and that this version does not
//! support: it is better not to start than to run as something else than the operator asked for.

use crate::settings::Problem;

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

/// (variables, the values of them that are refused, why)
pub(super) const REFUSED_VALUES: &[(&[&str], &[&str], &str)] = &[(
    &["REDIS_POOL_ON_EMPTY_BEHAVIOR", "REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR"],
    &["CREATE", "ERROR"],
    "a pool is never empty (expected WAIT; envoyproxy/ratelimit refuses the others too)",
)];

const OFF: &[&str] = &["", "0", "f", "F", "FALSE", "false", "False"];

/// Each variable that is refused when it would change behaviour, and why.
pub(super) fn not_supported() -> impl Iterator<Item = (&'static str, &'static str)> {
    SHARED_STORE.iter().map(|&name| (name, NO_SHARED_STORE))
}

/// A problem for each variable that is set to something that would change behaviour.
pub(super) fn refused(variable: &impl Fn(&str) -> Option<String>) -> Vec<Problem> {
    let problem = |(name, why): (&str, &str)| Problem { name: name.to_owned(), what: why.to_owned() };
    let is_on = |name: &str| variable(name).is_some_and(|set| !OFF.contains(&set.as_str()));
    let values = REFUSED_VALUES.iter().flat_map(|(names, bad, why)| {
        let is_bad = |name: &&&str| variable(name).is_some_and(|set| bad.contains(&set.as_str()));
        names.iter().filter(is_bad).map(|name| (*name, *why))
    });
    not_supported().filter(|(name, _)| is_on(name)).chain(values).map(problem).collect()
}

/// Variables of which some values are refused.
#[cfg(test)]
pub(super) fn refused_values() -> impl Iterator<Item = &'static str> {
    REFUSED_VALUES.iter().flat_map(|(names, ..)| names.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused_with(name: &str, value: &str) -> Vec<String> {
        let variable = |asked: &str| (asked == name).then(|| value.to_owned());
        refused(&variable).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_pool_that_would_grow_or_fail_when_empty_is_refused_and_one_that_waits_is_not() {
        for name in refused_values() {
            for bad in ["CREATE", "ERROR"] {
                assert_eq!(refused_with(name, bad).len(), 1, "{name}={bad}");
            }
            assert!(refused_with(name, "WAIT").is_empty(), "{name}");
        }
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
