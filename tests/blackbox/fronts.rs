//! The fronts as clients meet them: both count together, refuse alike, and never admit one more.

use tonic::Code;

use crate::harness::grpc::{self, ask_only, question};
use crate::harness::http::Client;
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::whole_machine;

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 1000, name: per_user}
  - key: fixed
    rate_limit: {unit: year, requests_per_unit: 1000, algorithm: fixed_window}
";

const USER: &[(&str, &str)] = &[("user", "alice")];

fn start() -> Tidegate {
    Setup::new().rules("shop.yaml", RULES).start()
}

fn remaining(limiter: &Tidegate) -> u32 {
    limiter.client().ask(ask_only("shop", &[USER])).statuses[0].limit_remaining
}

#[test]
fn both_fronts_count_together() {
    let limiter = start();
    let answer = limiter.client().ask(question("shop", &[USER]));
    assert_eq!((answer.overall_code, answer.statuses[0].limit_remaining), (grpc::OK, 999));
    let body =
        r#"{"domain":"shop","hitsAddend":999,"descriptors":[{"entries":[{"key":"user","value":"alice"}]}]}"#;
    let mut http = Client::new(limiter.ports().http);
    let answer = http.send("POST", "/json", &[], body).expect("an answer");
    assert_eq!(answer.status, 200, "{answer:?}");
    let shown: serde_json::Value = serde_json::from_str(&answer.body).expect("JSON");
    assert_eq!(shown["statuses"][0]["currentLimit"]["requestsPerUnit"], 1000);
    assert_eq!(shown["statuses"][0]["currentLimit"]["unit"], "DAY");
    let answer = http.send("POST", "/json", &[], body).expect("an answer");
    assert_eq!(answer.status, 429, "{answer:?}");
    assert_eq!(limiter.client().ask(question("shop", &[USER])).overall_code, grpc::OVER_LIMIT);
}

#[test]
fn what_is_refused_is_refused_precisely_and_counts_nothing() {
    let limiter = start();
    let client = limiter.client();
    let refused = |request| client.call(request).expect_err("to be refused");

    let status = refused(question("", &[USER]));
    assert_eq!(
        (status.code(), status.message()),
        (Code::InvalidArgument, "rate limit domain must not be empty")
    );
    let status = refused(question("shop", &[]));
    assert_eq!(status.message(), "rate limit descriptor list must not be empty");
    assert_eq!(refused(question("shop", &[USER; 65])).code(), Code::InvalidArgument);
    let entries = [("user", "alice"); 33];
    assert_eq!(refused(question("shop", &[USER, &entries])).code(), Code::InvalidArgument);
    let long = "x".repeat(70_000);
    assert_eq!(refused(question("shop", &[USER, &[("k", &long)]])).code(), Code::ResourceExhausted);
    assert_eq!(remaining(&limiter), 1000);

    let mut http = Client::new(limiter.ports().http);
    let typo = r#"{"domain":"shop","descriptor":[]}"#;
    let answer = http.send("POST", "/json", &[], typo).expect("an answer");
    assert_eq!(answer.status, 400);
    assert!(answer.body.contains("descriptor"), "names the unknown field: {answer:?}");
}

#[test]
fn hits_are_taken_asked_for_and_given_back() {
    let limiter = start();
    let client = limiter.client();
    let with = |hits, is_negative_hits| {
        let mut request = question("shop", &[USER]);
        request.descriptors[0].hits_addend = Some(hits);
        request.descriptors[0].is_negative_hits = is_negative_hits;
        client.ask(request).statuses[0].limit_remaining
    };
    assert_eq!(with(700, false), 300);
    assert_eq!(with(0, false), 300);
    assert_eq!(with(200, true), 500);
    assert_eq!(with(5000, true), 1000, "never below nothing");
}

/// Eight connections at once against one counter.
fn admitted_of_many(key: &str) -> usize {
    let limiter = start();
    let ports = limiter.ports();
    let admitted = std::thread::scope(|scope| {
        let ask = || {
            let client = grpc::Client::new(ports.grpc);
            let passes =
                |_: &u32| client.ask(question("shop", &[&[(key, "alice")]])).overall_code == grpc::OK;
            (0..500).filter(passes).count()
        };
        let askers: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        askers.into_iter().map(|asker| asker.join().expect("every call is answered")).sum()
    });
    let scrape = limiter.scrape();
    assert_eq!(scrape.sum("ratelimit_service_total_requests", &[]), 4000.0);
    assert_eq!(scrape.sum("tidegate_requests_total", &[("front", "grpc"), ("code", "OK")]), admitted as f64);
    admitted
}

#[test]
fn many_connections_at_once_are_admitted_exactly_n_times() {
    let _machine = whole_machine();
    assert_eq!(admitted_of_many("user"), 1000);
    assert_eq!(admitted_of_many("fixed"), 1000);
}
