//! What a real Envoy 1.40 makes of headers and metadata in our answers.

use crate::harness::envoy::{Envoy, Upstream};
use crate::harness::http::Answer;
use crate::harness::tidegate::{Setup, Tidegate};

const RULES: &str = "
domain: edge
descriptors:
  - key: route
    value: api
    descriptors:
      - key: remote_address
        metadata: {tier: free, plan: {seats: 3}}
        rate_limit: {unit: day, requests_per_unit: 1}
";

/// Shows what the limiter's filter hands to the filters after it.
const SHOW_METADATA: (&str, &str) = (
    "              domains: [\"*\"]",
    "              domains: [\"*\"]
                      response_headers_to_add:
                        - header:
                            key: x-metadata
                            value: \"%DYNAMIC_METADATA(envoy.filters.http.ratelimit)%\"",
);

/// Envoy has a header of this name of its own.
const OUR_RETRY_AFTER: (&str, &str) = ("enable_retry_after_header: true", "enable_retry_after_header: false");

fn start(setting: &str) -> (Tidegate, Envoy) {
    let limiter = Setup::new().rules("edge.yaml", RULES).env(setting, "true").start();
    let envoy = Envoy::start_changed(&Upstream::at(&limiter), &[SHOW_METADATA, OUR_RETRY_AFTER]);
    (limiter, envoy)
}

fn get(envoy: &Envoy, path: &str) -> Answer {
    let client = [("x-forwarded-for", "203.0.113.1")];
    envoy.client().send("GET", path, &client, "").expect("Envoy answers")
}

#[test]
fn headers_reach_the_client() {
    let (_limiter, envoy) = start("LIMIT_RESPONSE_HEADERS_ENABLED");
    let passed = get(&envoy, "/api/x");
    assert_eq!(passed.status, 200, "{passed:?}");
    assert_eq!((passed.number("ratelimit-limit"), passed.number("ratelimit-remaining")), (1, 0));
    assert_eq!(passed.header("retry-after"), None);
    let denied = get(&envoy, "/api/x");
    assert_eq!(denied.status, 429, "{denied:?}");
    assert_eq!(denied.number("ratelimit-remaining"), 0);
    assert!(denied.number("retry-after") > 86_000, "{denied:?}");
    assert_eq!(denied.number("ratelimit-reset"), denied.number("retry-after"));
    assert_eq!(get(&envoy, "/archive/a.txt").header("ratelimit-limit"), None, "no limit applies");
}

#[test]
fn metadata_reaches_what_comes_after_the_filter() {
    let (_limiter, envoy) = start("RESPONSE_DYNAMIC_METADATA");
    let shown = get(&envoy, "/api/x");
    let shown: serde_json::Value =
        serde_json::from_str(shown.header("x-metadata").unwrap_or_else(|| panic!("{shown:?}")))
            .expect("JSON");
    let expected = serde_json::json!({
        "domain": "edge",
        "descriptors": [{"entries": ["route=api", "remote_address=203.0.113.1"]}],
        "metadata": {"tier": "free", "plan": {"seats": 3}},
    });
    assert_eq!(shown, expected);
}
