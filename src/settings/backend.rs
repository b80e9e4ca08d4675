//! Whether counters live in Redis when BACKEND_TYPE is not set.

use crate::settings::value::Backend;
use crate::settings::{TABLE, Texts};

/// Variables of `envoyproxy/ratelimit` that have no effect here, but show that counters are in Redis.
const OTHERS: &[&str] = &[
    "REDIS_PIPELINE_WINDOW",
    "REDIS_PIPELINE_LIMIT",
    "REDIS_CLUSTER_PIPELINE_PARALLELISM",
    "REDIS_POOL_ON_EMPTY_BEHAVIOR",
    "REDIS_PERSECOND_PIPELINE_WINDOW",
    "REDIS_PERSECOND_PIPELINE_LIMIT",
    "REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM",
    "REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR",
];

/// Where counters are when BACKEND_TYPE is not set: in Redis as soon as a setting of Redis is. (Not with every
/// variable whose name begins with REDIS_, because Kubernetes sets some.)
pub(super) fn backend(texts: Texts<'_>) -> Option<Backend> {
    let is_given = |value: Option<String>| value.is_some_and(|value| !value.is_empty());
    let mut rows = TABLE.iter().filter(|row| row.name.starts_with("REDIS_"));
    let redis =
        rows.any(|row| is_given(texts.of(row))) || OTHERS.iter().any(|name| is_given((texts.variable)(name)));
    Some(if redis { Backend::Redis } else { Backend::Memory })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::fixture::read;

    #[test]
    fn any_variable_of_redis_means_redis() {
        let backend = |pairs: &[(&str, &str)]| read(pairs).expect("good").backend_type;
        assert_eq!(backend(&[]), Some(Backend::Memory));
        assert_eq!(backend(&[("REDIS_PORT", "tcp://10.0.0.1:6379")]), Some(Backend::Memory));
        assert_eq!(backend(&[("REDIS_URL", "redis:6379")]), Some(Backend::Redis));
        assert_eq!(backend(&[("REDIS_PIPELINE_WINDOW", "1ms")]), Some(Backend::Redis));
        assert_eq!(
            backend(&[("REDIS_URL", "redis:6379"), ("BACKEND_TYPE", "memory")]),
            Some(Backend::Memory)
        );
    }
}
