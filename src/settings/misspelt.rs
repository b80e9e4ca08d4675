//! Variables that look like settings and are none. Their author expects an effect, so the log says that they have
//! none.
//!
//! In: the names of the environment, and their values. Out: a [`Problem`] for each that looks like a mistake. Values
//! are never shown. Variables that Kubernetes sets for a Service are no mistakes.

use strsim::osa_distance;

use crate::settings::switching::{DIFFERS, NO_EFFECT, SAME, words};
use crate::settings::{Problem, TABLE};

/// A variable whose name begins like this is meant for a rate limiter.
const FAMILIES: &[&str] = &["REDIS_", "GRPC_", "LIMIT_", "CONFIG_"];

/// Variables of gRPC's own libraries. `*` stands for any ending.
const READ_BY_LIBRARIES: &[&str] = &[
    "GRPC_ABORT_ON_LEAKS",
    "GRPC_ARENA_*",
    "GRPC_BINARY_LOG_FILTER",
    "GRPC_CFSTREAM*",
    "GRPC_CLIENT_CHANNEL_*",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "GRPC_DNS_RESOLVER",
    "GRPC_ENABLE_FORK_SUPPORT",
    "GRPC_ENFORCE_ALPN_ENABLED",
    "GRPC_EXPERIMENTAL_*",
    "GRPC_EXPERIMENTS",
    "GRPC_FORK_SUPPORT_ENABLED",
    "GRPC_GCP_OBSERVABILITY_CONFIG*",
    "GRPC_GO_*",
    "GRPC_NODE_*",
    "GRPC_POLL_STRATEGY",
    "GRPC_PROXY_EXP",
    "GRPC_SSL_CIPHER_SUITES",
    "GRPC_SYSTEM_SSL_ROOTS_DIR",
    "GRPC_TRACE",
    "GRPC_TRACE_FUZZER",
    "GRPC_USE_SYSTEM_SSL_ROOTS",
    "GRPC_VERBOSITY",
    "GRPC_XDS_BOOTSTRAP*",
    "OTEL_BLRP_*",
];

/// Names that are usual elsewhere, and our names for the same.
const USUAL: &[(&[&str], &str)] = &[
    (
        &[
            "REDIS_HOST",
            "REDIS_HOSTNAME",
            "REDIS_SERVER",
            "REDIS_ADDR",
            "REDIS_ADDRESS",
            "REDIS_PORT",
            "REDIS_URI",
        ],
        "has no effect (expected REDIS_URL=HOST:PORT; without it, counters are not in this Redis)",
    ),
    (
        &["REDIS_PASSWORD", "REDIS_PASS", "REDIS_USER", "REDIS_USERNAME"],
        "has no effect (expected REDIS_AUTH=PASSWORD, or REDIS_AUTH=USER:PASSWORD)",
    ),
    (
        &["MEMCACHE_HOST", "MEMCACHE_URL", "MEMCACHED_HOST", "MEMCACHED_URL"],
        "has no effect: there is no memcache here, because its increments race (expected REDIS_URL for counters that nodes \
         share)",
    ),
];

/// Names of at most this many letters have to match exactly: they are too close to everything.
const EXACT_LETTERS_MAX: usize = 4;
/// In names of at least this many letters two may be wrong, in shorter ones one.
const TWO_WRONG_LETTERS_MIN: usize = 8;
/// Mistakes that are reported at most: there may be any number of variables.
const REPORTED_MAX: usize = 20;

/// A warning for each variable that has no effect but looks like a setting.
pub fn misspelt<'a>(
    names: impl Iterator<Item = &'a str>,
    variable: impl Fn(&str) -> Option<String>,
) -> Vec<Problem> {
    let is_set_to_an_address = |name: &str| variable(name).is_some_and(|value| is_service_address(&value));
    let mut mistakes: Vec<_> = names.filter_map(|name| mistake(name, is_set_to_an_address)).collect();
    mistakes.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    let left_out = mistakes.len().saturating_sub(REPORTED_MAX);
    mistakes.truncate(REPORTED_MAX);
    if let Some(last) = mistakes.last_mut().filter(|_| left_out > 0) {
        last.what += &format!("; and {left_out} more variables like these");
    }
    mistakes
}

/// What is wrong with a name, if it looks like a mistake.
fn mistake(name: &str, is_set_to_an_address: impl Fn(&str) -> bool) -> Option<Problem> {
    if let Some((_, what)) = USUAL.iter().find(|(names, _)| names.contains(&name)) {
        let is_meant = !name.ends_with("_PORT") || !is_set_to_an_address(name);
        return is_meant.then(|| Problem { name: name.to_owned(), what: (*what).to_owned() });
    }
    if is_read(name) || is_of_a_service(name) {
        return None;
    }
    // Kubernetes gives the port of a Service an address as its value. Any other value was set by a person.
    let may_be_a_service = name.ends_with("_PORT");
    let what = match closest(name) {
        Some(_) if may_be_a_service && is_set_to_an_address(name) => return None,
        Some(meant) => format!("has no effect: no setting has this name (closest is {meant})"),
        None if !may_be_a_service && FAMILIES.iter().any(|family| name.starts_with(family)) => {
            "has no effect: no setting has this name (`tidegate --help` lists all)".to_owned()
        }
        None => return None,
    };
    Some(Problem { name: name.to_owned(), what })
}

/// Whether a variable is a setting, or documented as having no effect.
fn is_read(name: &str) -> bool {
    let rows = TABLE.iter().map(|row| row.name);
    let there = words(SAME).chain(DIFFERS.iter().map(|(name, _)| *name));
    let no_effect = NO_EFFECT.iter().flat_map(|(names, _)| words(names));
    rows.chain(there).chain(no_effect).chain(READ_BY_LIBRARIES.iter().copied()).any(|known| fits(known, name))
}

/// Whether `known` is this name, or its beginning up to a `*` or `<NAME>`, which stand for any text.
fn fits(known: &str, name: &str) -> bool {
    match known.find(['*', '<']) {
        Some(end) => name.starts_with(&known[..end]),
        None => name == known,
    }
}

/// The names that Kubernetes sets for a Service, except `*_PORT`: `*_SERVICE_HOST`, `*_SERVICE_PORT*`,
/// `*_PORT_<n>_*`.
fn is_of_a_service(name: &str) -> bool {
    let has_port_number = || {
        name.match_indices("_PORT_").any(|(at, port)| {
            let number = name[at + port.len()..].split('_').next().unwrap_or_default();
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    name.ends_with("_SERVICE_HOST") || name.contains("_SERVICE_PORT") || has_port_number()
}

/// `tcp://10.0.0.1:6379`: the form of the values of `*_PORT` that Kubernetes sets.
fn is_service_address(value: &str) -> bool {
    ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme))
}

/// The setting that was probably meant.
fn closest(name: &str) -> Option<&'static str> {
    // `grpc_port` is no setting either.
    let name = name.to_ascii_uppercase();
    let near = TABLE.iter().filter_map(|row| {
        let letters = row.name.len().min(name.len());
        let wrong_max = match letters {
            0..=EXACT_LETTERS_MAX => return None,
            letters if letters < TWO_WRONG_LETTERS_MIN => 1,
            _ => 2,
        };
        if row.name.len().abs_diff(name.len()) > wrong_max {
            return None;
        }
        let wrong = osa_distance(row.name, &name);
        (wrong <= wrong_max).then_some((wrong, row.name))
    });
    near.min().map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(pairs: &[(&str, &str)]) -> Vec<String> {
        let value = |name: &str| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.to_owned());
        misspelt(pairs.iter().map(|pair| pair.0), value).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_name_near_to_a_setting_is_reported_with_that_setting_and_without_its_value() {
        for (wrong, meant) in [
            ("REDIS_ULR", "REDIS_URL"),
            ("LOG_LEVL", "LOG_LEVEL"),
            ("DEFAULT_ALGORYTM", "DEFAULT_ALGORITHM"),
            ("CONFIG_PAHT", "CONFIG_PATH"),
            ("SHADOWMODE", "SHADOW_MODE"),
            ("GPRC_PORT", "GRPC_PORT"),
            ("grpc_port", "GRPC_PORT"),
            ("DD_ENVV", "DD_ENV"),
        ] {
            let expected = format!("{wrong}: has no effect: no setting has this name (closest is {meant})");
            assert_eq!(found(&[(wrong, "hunter2")]), [expected]);
        }
    }

    #[test]
    fn a_name_of_our_families_that_nobody_reads_is_reported() {
        for name in ["REDIS_HOST", "REDIS_PASSWORD", "GRPC_KEEPALIVE", "LIMIT_BODY", "CONFIG_FOLDER"] {
            let found = found(&[(name, "hunter2")]);
            assert!(found.len() == 1 && found[0].starts_with(&format!("{name}: has no effect")), "{found:?}");
            assert!(!found[0].contains("hunter2"), "{found:?}");
        }
    }

    #[test]
    fn what_somebody_reads_or_kubernetes_sets_is_not_reported() {
        let read = TABLE.iter().map(|row| row.name);
        let known = ["SSL_CERT_FILE", "DOG_STATSD_MOGRIFIER_HITS_NAME", "GRPC_GO_LOG_SEVERITY_LEVEL"];
        let others =
            ["GRPC_VERBOSITY", "GRPC_XDS_BOOTSTRAP", "no_proxy", "PATH", "HOME", "USER", "TERM", "MY_ENV"];
        let service = [
            "REDIS_SERVICE_HOST",
            "REDIS_SERVICE_PORT",
            "REDIS_SERVICE_PORT_HTTP",
            "GRPC_PORT_8081_TCP_ADDR",
        ];
        let ports = ["REDIS_PORT", "LIMIT_PORT", "REDIS_PORT_6379_TCP", "GRPCS_PORT", "CONFIG_MAP_PORT"];
        for name in read.chain(known).chain(others).chain(service).chain(ports) {
            assert!(found(&[(name, "tcp://10.0.0.1:6379")]).is_empty(), "{name}");
        }
    }

    #[test]
    fn what_is_usual_elsewhere_is_reported_with_what_says_it_here() {
        for (name, expected) in [
            ("REDIS_HOST", "expected REDIS_URL=HOST:PORT"),
            ("REDIS_PORT", "expected REDIS_URL=HOST:PORT"),
            ("REDIS_PASSWORD", "expected REDIS_AUTH="),
            ("MEMCACHED_HOST", "there is no memcache here"),
        ] {
            let found = found(&[(name, "6379")]);
            assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
        }
    }

    #[test]
    fn any_number_of_mistakes_is_reported_in_a_bounded_number_of_lines() {
        let names: Vec<_> = (0..100).map(|number| format!("REDIS_HOST_{number:02}")).collect();
        let found = misspelt(names.iter().map(String::as_str), |_| None);
        assert_eq!(found.len(), REPORTED_MAX);
        assert!(found[REPORTED_MAX - 1].what.ends_with("; and 80 more variables like these"), "{found:?}");
    }
}
