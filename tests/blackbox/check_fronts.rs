//! The same rules and requests over gRPC, `/json` and `/check`: the same decisions.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::harness::grpc::{self, RateLimitResponse, question};
use crate::harness::http::{Answer, Client};
use crate::harness::tidegate::Setup;

/// A day, so that no hit leaves its window; every mode, so that headers are chosen among all of them.
const DESCRIPTORS: &str = "
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 40}
    descriptors:
      - {key: path, value: '/a*', rate_limit: {unit: day, requests_per_unit: 15}}
      - {key: path, rate_limit: {unit: day, requests_per_unit: 25, algorithm: sliding_log}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 10}}
  - {key: quota, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 12, algorithm: fixed_window}}
  - {key: free, rate_limit: {unlimited: true}}
";

/// One domain a front, so that each counts for itself.
const DOMAINS: [&str; 3] = ["grpc", "json", "http"];

type Entries = Vec<(&'static str, &'static str)>;

fn requests() -> impl Strategy<Value = (Vec<Entries>, Option<u32>)> {
    let value = prop::sample::select(vec!["alice", "a&b", "a=b", "ä ö", "%41", "/a/1", "/b", "+", ""]);
    let one = |key: &'static str| value.clone().prop_map(move |value| vec![(key, value)]);
    let both = (value.clone(), value.clone()).prop_map(|(user, path)| vec![("user", user), ("path", path)]);
    let entries = prop_oneof![one("user"), both, one("shadow"), one("quota"), one("free"), one("none")];
    (vec(entries, 1..4), prop::option::of(0..5_u32))
}

fn percent_encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

fn url(domain: &str, descriptors: &[Entries], hits: Option<u32>) -> String {
    let parameter = |(key, value): &(&str, &str)| format!("{key}={}", percent_encoded(value));
    let descriptor = |entries: &Entries| entries.iter().map(parameter).collect::<Vec<_>>().join("&");
    let descriptors = descriptors.iter().map(descriptor).collect::<Vec<_>>().join("&&");
    let hits = hits.map(|hits| format!("&~hits={hits}")).unwrap_or_default();
    format!("/check/{domain}?{descriptors}{hits}")
}

fn json(domain: &str, descriptors: &[Entries], hits: Option<u32>) -> String {
    let entry = |(key, value): &(&str, &str)| serde_json::json!({"key": key, "value": value});
    let descriptor = |entries: &Entries| {
        let entries: Vec<_> = entries.iter().map(entry).collect();
        // As with ~hits=0: nobody can ask without counting but in the descriptor.
        match hits {
            Some(0) => serde_json::json!({"entries": entries, "hitsAddend": 0}),
            _ => serde_json::json!({"entries": entries}),
        }
    };
    let descriptors: Vec<_> = descriptors.iter().map(descriptor).collect();
    serde_json::json!({"domain": domain, "descriptors": descriptors, "hitsAddend": hits.unwrap_or(1)})
        .to_string()
}

/// The limit and what remains that headers show, by the statuses of the same answer over gRPC: the last that is denied
/// and not in quota mode, else the first of the least.
fn shown(descriptors: &[Entries], answer: &RateLimitResponse) -> Option<(u64, u64)> {
    let statuses = || answer.statuses.iter().zip(descriptors);
    let denied =
        statuses().rfind(|(status, entries)| status.code == grpc::OVER_LIMIT && entries[0].0 != "quota");
    let least = || {
        let limited = statuses().filter(|(status, _)| status.current_limit.is_some());
        limited.min_by_key(|(status, _)| status.limit_remaining)
    };
    let (status, _) = denied.or_else(least)?;
    let limit = status.current_limit.as_ref().expect("it was denied or filtered").requests_per_unit;
    Some((limit.into(), status.limit_remaining.into()))
}

fn numbers(answer: &Answer) -> Option<(u64, u64)> {
    answer.header("ratelimit-limit")?;
    Some((answer.number("ratelimit-limit"), answer.number("ratelimit-remaining")))
}

/// What of a JSON answer can be compared: the overall code, then code, limit and remaining of each status.
fn comparable(answer: &serde_json::Value) -> Vec<(bool, u64, u64)> {
    let code = |value: &serde_json::Value| value == "OVER_LIMIT";
    let number = |value: &serde_json::Value| value.as_u64().unwrap_or(0);
    let statuses = answer["statuses"].as_array().expect("a list").iter();
    let status = |status: &serde_json::Value| {
        let limit = number(&status["currentLimit"]["requestsPerUnit"]);
        (code(&status["code"]), limit, number(&status["limitRemaining"]))
    };
    std::iter::once((code(&answer["overallCode"]), 0, 0)).chain(statuses.map(status)).collect()
}

fn comparable_of_grpc(answer: &RateLimitResponse) -> Vec<(bool, u64, u64)> {
    let status = |status: &grpc::DescriptorStatus| {
        let limit = status.current_limit.as_ref().map_or(0, |limit| limit.requests_per_unit);
        (status.code == grpc::OVER_LIMIT, limit.into(), status.limit_remaining.into())
    };
    std::iter::once((answer.overall_code == grpc::OVER_LIMIT, 0, 0))
        .chain(answer.statuses.iter().map(status))
        .collect()
}

#[test]
fn the_same_requests_are_decided_alike_by_every_front() {
    let mut setup = Setup::new();
    for domain in DOMAINS {
        setup = setup.rules(&format!("{domain}.yaml"), &format!("domain: {domain}\n{DESCRIPTORS}"));
    }
    let limiter = setup.start();
    let grpc_client = limiter.client();
    let http = std::cell::RefCell::new(Client::new(limiter.ports().http));
    let denied = std::cell::Cell::new(0);

    let config = Config { cases: 400, failure_persistence: None, max_shrink_iters: 0, ..Config::default() };
    let alike = |(descriptors, hits): (Vec<Entries>, Option<u32>)| {
        let mut http = http.borrow_mut();
        let slices: Vec<&[(&str, &str)]> = descriptors.iter().map(Vec::as_slice).collect();
        let mut request = question(DOMAINS[0], &slices);
        request.hits_addend = hits.unwrap_or(1);
        if hits == Some(0) {
            request.descriptors.iter_mut().for_each(|descriptor| descriptor.hits_addend = Some(0));
        }
        let by_grpc = grpc_client.ask(request);
        let by_json =
            http.send("POST", "/json", &[], &json(DOMAINS[1], &descriptors, hits)).expect("an answer");
        let by_check = http.get(&url(DOMAINS[2], &descriptors, hits));

        let body: serde_json::Value = serde_json::from_str(&by_json.body).expect("JSON");
        prop_assert_eq!(comparable(&body), comparable_of_grpc(&by_grpc));
        let over = by_grpc.overall_code == grpc::OVER_LIMIT;
        prop_assert_eq!(by_check.status, if over { 429 } else { 200 });
        prop_assert_eq!(by_json.status, by_check.status);
        prop_assert_eq!(numbers(&by_check), shown(&descriptors, &by_grpc));
        prop_assert_eq!(by_check.header("retry-after").is_some(), over);
        denied.set(denied.get() + u32::from(over));
        Ok(())
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    TestRunner::new_with_rng(config, rng).run(&requests(), alike).unwrap_or_else(|error| panic!("{error}"));
    assert!((20..380).contains(&denied.get()), "a mixture: {} of 400 denied", denied.get());
}
