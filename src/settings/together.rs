//! Settings that have no effect without another one, and variables of a proxy that have no effect here.

use crate::settings::value::{ConfigType, GrpcFront, Value};
use crate::settings::{Problem, Settings};

/// (a setting, what it needs)
const NEEDS: &[(&str, &str)] = &[
    ("GRPC_SERVER_USE_TLS", "GRPC_SERVER_TLS_CERT"),
    ("GRPC_SERVER_USE_TLS", "GRPC_SERVER_TLS_KEY"),
    // Setting one of these two suggests that clients are checked.
    ("GRPC_CLIENT_TLS_CACERT", "GRPC_SERVER_USE_TLS"),
    ("GRPC_CLIENT_TLS_SAN", "GRPC_CLIENT_TLS_CACERT"),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY"),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT"),
    ("REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY"),
    ("REDIS_TLS_CLIENT_KEY", "REDIS_TLS_CLIENT_CERT"),
    ("HTTP_SERVER_TLS_CERT", "HTTP_SERVER_TLS_KEY"),
    ("DEBUG_SERVER_TLS_CERT", "DEBUG_SERVER_TLS_KEY"),
    ("DEBUG_SERVER_TLS_KEY", "DEBUG_SERVER_TLS_CERT"),
    // As for gRPC: setting one of these two suggests that clients are checked.
    ("DEBUG_SERVER_TLS_CLIENT_CACERT", "DEBUG_SERVER_TLS_CERT"),
    ("ADMIN_TLS_SAN", "DEBUG_SERVER_TLS_CLIENT_CACERT"),
    ("STATE_INTERVAL", "STATE_DIR"),
    ("STATE_SEQUENCE_FILE", "STATE_DIR"),
    ("SHARD_MEMBERS", "STATE_DIR"),
    ("SHARD_NAME", "STATE_DIR"),
    ("SHARD_GREW_FROM", "SHARD_MEMBERS"),
    ("HTTP_SERVER_TLS_KEY", "HTTP_SERVER_TLS_CERT"),
    ("EVENTS_WEBHOOK_SECRET", "EVENTS_WEBHOOK_URL"),
    ("EVENTS_WEBHOOK_CACERT", "EVENTS_WEBHOOK_URL"),
    ("EVENTS_WEBHOOK_PROXY", "EVENTS_WEBHOOK_URL"),
];

/// A problem for each setting that lacks one that it needs. `text` is the value of a setting.
pub(super) fn incomplete(text: impl Fn(&str) -> Option<String>) -> Vec<Problem> {
    let is_on =
        |name: &str| text(name).is_some_and(|text| !text.is_empty() && bool::parse(&text) != Some(false));
    let in_vain = NEEDS.iter().filter(|(name, needed)| is_on(name) && !is_on(needed));
    in_vain
        .map(|(name, needed)| Problem {
            name: (*name).to_owned(),
            what: format!("means nothing without {needed}, which is not set (expected both)"),
        })
        .collect()
}

/// A warning for a file of the token that is not read, because the settings hold the token itself.
pub(super) fn token_twice(settings: &Settings) -> Option<Problem> {
    settings.admin_token.as_ref().and(settings.admin_token_file.as_ref()).map(|_| Problem {
        name: "ADMIN_TOKEN_FILE".to_owned(),
        what: "has no effect, because ADMIN_TOKEN is set (expected one of them)".to_owned(),
    })
}

/// A warning for the gRPC server that resets calls with the names of clusters that Istio and Envoy send.
pub(super) fn authorities_refused(settings: &Settings) -> Option<Problem> {
    (settings.grpc_front == GrpcFront::Tonic).then(|| Problem {
        name: "GRPC_FRONT".to_owned(),
        what:
            "tonic resets calls whose :authority has `|` or `/`, as names of clusters in Envoy and Istio may \
               (expected lane, or an `authority` in the proxy's grpc_service)"
                .to_owned(),
    })
}

/// Variables that name a proxy for connections of other programs.
const PROXIES: &[&str] = &["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];

/// A warning for each variable that `envoyproxy/ratelimit` would use with these settings, and that has no effect here.
pub(super) fn ignored(settings: &Settings, variable: impl Fn(&str) -> Option<String>) -> Vec<Problem> {
    let is_webhook_direct = settings.events_webhook_url.is_some() && settings.events_webhook_proxy.is_none();
    if settings.config_type == ConfigType::File && !settings.tracing_enabled && !is_webhook_direct {
        return Vec::new();
    }
    let set = PROXIES.iter().filter(|name| variable(name).is_some_and(|proxy| !proxy.is_empty()));
    set.map(|name| Problem {
        name: (*name).to_owned(),
        what: "has no effect: control planes, collectors and webhooks are spoken to directly (EVENTS_WEBHOOK_PROXY \
               names a proxy for a webhook)"
            .to_owned(),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::TABLE;
    use crate::settings::fixture::{read, variables};

    fn reported(pairs: &[(&str, &str)]) -> Vec<String> {
        incomplete(variables(pairs)).iter().map(|problem| problem.name.clone()).collect()
    }

    #[test]
    fn a_setting_that_needs_another_is_reported_when_it_is_alone() {
        for (name, needed) in NEEDS {
            assert!(reported(&[(name, "true")]).contains(&(*name).to_owned()), "{name}");
            assert!(reported(&[(name, "true"), (needed, "")]).contains(&(*name).to_owned()), "{name}");
            for unset in ["", "false"] {
                assert!(reported(&[(name, unset)]).is_empty(), "{name}");
            }
        }
        assert!(reported(&[("GRPC_SERVER_TLS_CERT", "/c"), ("GRPC_SERVER_TLS_KEY", "/k")]).is_empty());
        assert!(reported(&[("HTTP_SERVER_TLS_CERT", "/c"), ("HTTP_SERVER_TLS_KEY", "/k")]).is_empty());
        let off = [("GRPC_CLIENT_TLS_CACERT", "/ca"), ("GRPC_SERVER_USE_TLS", "false")];
        assert_eq!(reported(&off), ["GRPC_CLIENT_TLS_CACERT"]);
    }

    #[test]
    fn a_proxy_is_warned_of_where_it_would_have_been_used() {
        let warnings = |pairs: &[(&str, &str)]| {
            let settings = read(pairs).expect("good");
            settings.warnings.into_iter().map(|warning| warning.name).collect::<Vec<_>>()
        };
        let proxies = [("HTTPS_PROXY", "http://u:p@proxy"), ("all_proxy", "x"), ("NO_PROXY", "y")];
        assert!(warnings(&proxies).is_empty(), "nothing is sent");
        let webhook = ("EVENTS_WEBHOOK_URL", "https://example.com");
        assert!(
            warnings(&[&proxies[..], &[webhook, ("EVENTS_WEBHOOK_PROXY", "http://p:1")]].concat()).is_empty()
        );
        for uses in [("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("TRACING_ENABLED", "true"), webhook] {
            assert_eq!(warnings(&[&proxies[..], &[uses]].concat()), ["HTTPS_PROXY", "all_proxy"]);
            assert!(warnings(&[uses, ("HTTPS_PROXY", "")]).is_empty());
        }
    }

    #[test]
    fn the_front_that_resets_names_of_clusters_is_warned_of() {
        let warned = |front| read(&[("GRPC_FRONT", front)]).expect("good").warnings.len();
        assert_eq!(["lane", "tonic"].map(warned), [0, 1]);
    }

    #[test]
    fn all_of_them_are_settings() {
        let is_known = |name: &str| TABLE.iter().any(|row| row.name == name);
        assert!(NEEDS.iter().all(|(name, needed)| is_known(name) && is_known(needed)));
    }
}
