//! Refuses values of variables of `envoyproxy/ratelimit` that would change behaviour and are not supported: it is
//! better not to start than to behave differently from what the operator asked for.

use crate::settings::Problem;

/// (variables, their values that are refused, why)
pub(super) const REFUSED_VALUES: &[(&[&str], &[&str], &str)] = &[
    (
        &["REDIS_POOL_ON_EMPTY_BEHAVIOR", "REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR"],
        &["CREATE", "ERROR"],
        "a pool is never empty (expected WAIT; envoyproxy/ratelimit refuses the others too)",
    ),
    (
        &["BACKEND_TYPE"],
        &["memcache", "memcached"],
        "memcache admits too many, because its increments race (expected REDIS_URL for counters that nodes share, or BACKEND_TYPE=memory)",
    ),
];

/// A problem for each variable that is set to something that would change behaviour.
pub(super) fn refused(variable: &dyn Fn(&str) -> Option<String>) -> Vec<Problem> {
    let refused = REFUSED_VALUES.iter().flat_map(|(names, bad, why)| {
        let is_bad = |name: &&&str| variable(name).is_some_and(|set| bad.contains(&set.as_str()));
        names.iter().filter(is_bad).map(|name| Problem { name: (*name).to_owned(), what: (*why).to_owned() })
    });
    refused.collect()
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
        for name in refused_values().filter(|name| name.starts_with("REDIS_POOL_")) {
            for bad in ["CREATE", "ERROR"] {
                assert_eq!(refused_with(name, bad).len(), 1, "{name}={bad}");
            }
            assert!(refused_with(name, "WAIT").is_empty(), "{name}");
        }
    }

    #[test]
    fn what_kubernetes_sets_for_a_service_of_that_name_is_ignored() {
        assert!(refused_with("REDIS_PORT", "tcp://10.0.0.1:6379").is_empty());
        assert_eq!(refused_with("REDIS_POOL_ON_EMPTY_BEHAVIOR", "CREATE").len(), 1);
    }
}
