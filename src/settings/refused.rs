//! Variables, most of them of `envoyproxy/ratelimit`, that would change behaviour and that this version does not
//! support: it is better not to start than to run as something else than the operator asked for.

use crate::settings::Problem;

/// (variable, values that change nothing: a value outside of them is refused, why)
const REFUSED: &[(&str, &[&str], &str)] = &[
    ("LIMIT_RESPONSE_HEADERS_ENABLED", OFF, "response headers are not supported (expected false)"),
    ("RESPONSE_DYNAMIC_METADATA", OFF, "dynamic metadata is not supported (expected false)"),
    ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", OFF, "is not supported (expected false)"),
    ("REDIS_SYNC", &["", "strict"], "leases are not supported (expected strict)"),
    ("REDIS_WAIT_REPLICAS", &["", "0"], "waiting for replicas is not supported (expected 0)"),
    ("REDIS_POOL_ON_EMPTY_BEHAVIOR", &["", "WAIT"], "connections are never waited for here (expected WAIT)"),
    (
        "REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR",
        &["", "WAIT"],
        "connections are never waited for here (expected WAIT)",
    ),
];

const OFF: &[&str] = &["", "0", "f", "F", "FALSE", "false", "False"];

/// A problem for each variable of the table that is set to something that would change behaviour.
pub(super) fn refused(variable: &impl Fn(&str) -> Option<String>) -> Vec<Problem> {
    let problem = |(name, harmless, why): (&str, &[&str], &str)| {
        let set = variable(name)?;
        (!harmless.contains(&set.as_str())).then(|| Problem { name: name.to_owned(), what: why.to_owned() })
    };
    REFUSED.iter().copied().filter_map(problem).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused_with(name: &str, value: &str) -> Vec<String> {
        let variable = |asked: &str| (asked == name).then(|| value.to_owned());
        refused(&variable).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_kubernetes_sets_for_a_service_of_that_name_is_ignored() {
        assert!(refused_with("REDIS_PORT", "tcp://10.0.0.1:6379").is_empty());
        assert_eq!(refused_with("REDIS_POOL_ON_EMPTY_BEHAVIOR", "CREATE").len(), 1);
    }
}
