//! Settings that make no sense without another one.

use crate::settings::Problem;

/// (setting, the one that it needs, why): refused when the first is set and the second is not.
const NEEDS: &[(&str, &str, &str)] = &[
    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY", A_CERTIFICATE_HAS_A_KEY),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT", A_CERTIFICATE_HAS_A_KEY),
];

const A_CERTIFICATE_HAS_A_KEY: &str = "a certificate and its key are used together";

/// A problem for each setting that stands alone. `text` is what a setting is set to.
pub(super) fn alone(text: impl Fn(&str) -> Option<String>) -> Vec<Problem> {
    let is_set = |name: &str| text(name).is_some_and(|text| !text.is_empty());
    let alone = NEEDS.iter().filter(|(name, needed, _)| is_set(name) && !is_set(needed));
    alone
        .map(|(name, needed, why)| Problem {
            name: (*name).to_owned(),
            what: format!("{why} (expected {needed} too)"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_refused_alone_and_taken_with_what_it_needs() {
        for &(name, needed, _) in NEEDS {
            let set = |set: &[&str], asked: &str| set.contains(&asked).then(|| "x".to_owned());
            let problems = alone(|asked| set(&[name], asked));
            assert_eq!(problems.len(), 1, "{name}");
            assert!(problems[0].to_string().starts_with(&format!("{name}: ")), "{problems:?}");
            assert!(problems[0].what.contains(needed), "{problems:?}");
            assert_eq!(alone(|asked| set(&[name, needed], asked)), []);
        }
    }
}
