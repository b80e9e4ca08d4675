//! Reload under load: 1,000 rules change while a real Envoy asks as fast as it can.
//!
//! Every generation of the rules has its number in the limits of both descriptors that Envoy sends, one at the start of
//! the file and one at its end: an answer with two different numbers, or with one limit only, would come from a
//! half-loaded set. The counts are asserted by what remains at the end, to the hit.

use std::fs;

use crate::harness::envoy::Envoy;
use crate::harness::grpc::{self, ask_only};
use crate::harness::http::Answer;
use crate::harness::mount::Mount;
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::traffic::{Traffic, address};
use crate::harness::{eventually_true, whole_machine};

const ROUNDS: u32 = 20;
const RULES: u32 = 1000;
/// Far beyond what is sent, so that nothing is denied.
const MANY: u32 = 1_000_000_000;

/// The rules of one generation.
fn edge(generation: u32) -> String {
    let limit = |requests: u32| format!("rate_limit: {{unit: day, requests_per_unit: {requests}}}");
    let mut text = "domain: edge\ndescriptors:\n".to_owned();
    text += &format!("  - key: remote_address\n    {}\n    descriptors:\n", limit(MANY + generation));
    for filler in 0..RULES - 2 {
        text += &format!("      - {{key: segment, value: /unused{filler}, {}}}\n", limit(filler));
    }
    text + &format!("      - {{key: segment, {}}}\n", limit(2 * MANY + generation))
}

/// A second file of the same generation.
fn probe(generation: u32) -> String {
    format!(
        "domain: edge\ndescriptors:\n  - {{key: probe, rate_limit: {{unit: day, requests_per_unit: {generation}}}}}\n"
    )
}

/// The limits of both descriptors in Envoy's header: `8, 8;w=60, 9;w=60` holds 8 and 9.
fn limits_shown(header: &str) -> Vec<u32> {
    let policies = header.split(", ").skip(1);
    policies
        .map(|policy| policy.split(';').next().and_then(|limit| limit.parse().ok()).expect("a number"))
        .collect()
}

/// Under one whole generation.
fn check(answer: &Answer) {
    let header = answer.header("x-ratelimit-limit").unwrap_or_else(|| panic!("no limit applied: {answer:?}"));
    let limits = limits_shown(header);
    assert!(matches!(limits[..], [one, two] if one + MANY == two), "half a generation: {header}");
}

/// Runs the reloads while Envoy sends, then checks what is true whatever they were.
fn under_load(limiter: &Tidegate, last_generation: u32, reloads: impl FnOnce(&grpc::Client)) {
    let envoy = Envoy::start(limiter);
    let traffic = Traffic::begin(&envoy, check);
    reloads(&limiter.client());
    let sent = traffic.end(&envoy);

    let total: u32 = sent.iter().sum();
    assert!(total > 50 * ROUNDS, "a load: {total}");
    for (client, sent) in (0..).zip(&sent) {
        let address = address(client);
        let one: &[(&str, &str)] = &[("remote_address", &address)];
        let two: &[(&str, &str)] = &[("remote_address", &address), ("segment", "/load")];
        let answer = limiter.client().ask(ask_only("edge", &[one, two]));
        let remaining: Vec<u32> = answer.statuses.iter().map(|status| status.limit_remaining).collect();
        assert_eq!(remaining, [MANY + last_generation - sent, 2 * MANY + last_generation - sent]);
    }
    assert_eq!(limiter.metric("ratelimit_service_should_rate_limit_error"), 0.0);
    assert_eq!(limiter.metric("ratelimit_service_config_load_error"), 0.0);
}

/// The limit that a key of a domain has now.
fn limit_of(client: &grpc::Client, domain: &str, key: &str) -> Option<u32> {
    let answer = client.ask(ask_only(domain, &[&[(key, "x")]]));
    answer.statuses[0].current_limit.as_ref().map(|limit| limit.requests_per_unit)
}

#[test]
fn files_that_are_written_renamed_created_and_removed_under_load() {
    let _machine = whole_machine();
    let limiter = Setup::new().rules("edge.yaml", &edge(0)).start();
    let folder = limiter.setup.folder();
    let aside = limiter.setup.outside().join("aside");
    let extra = folder.join("extra.yaml");

    under_load(&limiter, 2 * ROUNDS, |client| {
        for round in 1..=ROUNDS {
            let generation = 2 * round - 1;
            limiter.setup.write("edge.yaml", &edge(generation));
            eventually_true("a write", || {
                limit_of(client, "edge", "remote_address") == Some(MANY + generation)
            });

            fs::write(&extra, format!("domain: extra\ndescriptors: [{{key: k, rate_limit: {{unit: day, requests_per_unit: {round}}}}}]\n")).expect("the folder is ours");
            eventually_true("a created file", || limit_of(client, "extra", "k") == Some(round));

            let generation = 2 * round;
            fs::write(&aside, edge(generation)).expect("the folder is ours");
            fs::rename(&aside, folder.join("edge.yaml")).expect("the folder is ours");
            eventually_true("a rename", || {
                limit_of(client, "edge", "remote_address") == Some(MANY + generation)
            });

            fs::remove_file(&extra).expect("the folder is ours");
            eventually_true("a removed file", || limit_of(client, "extra", "k").is_none());
        }
    });
    assert!(limiter.metric("ratelimit_service_config_load_success") >= f64::from(4 * ROUNDS + 1));
}

#[test]
fn a_config_map_that_is_swapped_under_load() {
    let _machine = whole_machine();
    let setup = Setup::new().env("MERGE_DOMAIN_CONFIG", "true");
    let files = |generation| [("edge.yaml", edge(generation)), ("probe.yaml", probe(generation))];
    let mut mount = Mount::new(&setup.folder(), &files(0));
    let limiter = setup.start();

    under_load(&limiter, ROUNDS, |client| {
        for generation in 1..=ROUNDS {
            mount.swap(&files(generation));
            // Both files change in one step; no answer may mix them.
            eventually_true("a swap", || {
                let both = ask_only("edge", &[&[("remote_address", "x")], &[("probe", "x")]]);
                let limits: Vec<u32> = client
                    .ask(both)
                    .statuses
                    .iter()
                    .map(|status| {
                        status.current_limit.as_ref().expect("both rules are always there").requests_per_unit
                    })
                    .collect();
                assert_eq!(limits[0], MANY + limits[1], "two generations in one answer");
                limits[1] == generation
            });
        }
    });
}
