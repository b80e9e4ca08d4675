//! Settings of decisions and answers, one by one, as a client sees them.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::grpc::{OK, OVER_LIMIT, ask_only, question};
use crate::harness::http::Client;
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{eventually_true, http};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 2, algorithm: fixed_window}
    metadata: {tier: free}
  - key: path
    rate_limit: {unit: year, requests_per_unit: 5, algorithm: fixed_window}
    metadata: {tier: gold, owner: web}
";

const USER: &[(&str, &str)] = &[("user", "alice")];
const PATH: &[(&str, &str)] = &[("path", "/")];

fn with(settings: &[(&str, &str)]) -> Tidegate {
    let setup = Setup::new().rules("shop.yaml", RULES);
    settings.iter().fold(setup, |setup, (name, value)| setup.env(name, value)).start()
}

/// What `/json` answers to a request for these users' paths.
fn shown(limiter: &Tidegate) -> Value {
    let body = json!({"domain": "shop", "descriptors": [
        {"entries": [{"key": "user", "value": "alice"}]},
        {"entries": [{"key": "path", "value": "/"}], "hitsAddend": 0},
    ]});
    let mut client = Client::new(limiter.ports().http);
    let answer = client.send("POST", "/json", &[], &body.to_string()).expect("an answer");
    serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
}

#[test]
fn response_headers_are_sent_under_the_names_that_were_set() {
    let names =
        [("LIMIT_LIMIT_HEADER", "X-Limit"), ("LIMIT_REMAINING_HEADER", ""), ("LIMIT_RESET_HEADER", "X-Wait")];
    let limiter = with(&[&[("LIMIT_RESPONSE_HEADERS_ENABLED", "true")][..], &names].concat());
    let mut headers = Vec::new();
    for _ in 0..3 {
        headers = shown(&limiter)["responseHeadersToAdd"].as_array().expect("headers").clone();
    }
    let names: Vec<_> = headers.iter().map(|header| header["key"].as_str().expect("a name")).collect();
    assert_eq!(names, ["X-Limit", "RateLimit-Remaining", "X-Wait", "Retry-After"]);
    assert_eq!((&headers[0]["value"], &headers[1]["value"]), (&json!("2"), &json!("0")));
    assert_eq!(headers[2]["value"], headers[3]["value"]);
    assert_eq!(shown(&with(&[])).get("responseHeadersToAdd"), None, "off by default");
}

#[test]
fn dynamic_metadata_is_sent_when_it_is_on() {
    let limiter = with(&[("RESPONSE_DYNAMIC_METADATA", "1")]);
    let expected = json!({
        "domain": "shop",
        "descriptors": [{"entries": ["user=alice"]}, {"entries": ["path=/"], "hitsAddend": 0.0}],
        "metadata": {"tier": "free", "owner": "web"},
    });
    assert_eq!(shown(&limiter)["dynamicMetadata"], expected);
    assert_eq!(shown(&with(&[])).get("dynamicMetadata"), None, "off by default");
}

/// The overall code of the third hit of a user, and its status' code.
fn third_hit(limiter: &Tidegate, descriptors: &[&[(&str, &str)]]) -> (i32, i32) {
    let client = limiter.client();
    let answers: Vec<_> = (0..3).map(|_| client.ask(question("shop", descriptors))).collect();
    (answers[2].overall_code, answers[2].statuses[0].code)
}

#[test]
fn shadow_mode_turns_the_overall_code_alone_and_is_counted() {
    let limiter = with(&[("SHADOW_MODE", "true")]);
    assert_eq!(third_hit(&limiter, &[USER]), (OK, OVER_LIMIT));
    assert_eq!(limiter.metric("ratelimit_service_global_shadow_mode"), 1.0);
    assert_eq!(third_hit(&with(&[]), &[USER]), (OVER_LIMIT, OVER_LIMIT));
}

#[test]
fn quota_mode_denies_when_all_are_over() {
    let limiter = with(&[("QUOTA_MODE", "true")]);
    assert_eq!(third_hit(&limiter, &[USER, PATH]), (OK, OVER_LIMIT));
    assert_eq!(third_hit(&limiter, &[USER, PATH]), (OVER_LIMIT, OVER_LIMIT), "6 of 5 paths");
    assert_eq!(third_hit(&with(&[]), &[USER, PATH]), (OVER_LIMIT, OVER_LIMIT));
}

#[test]
fn fixed_windows_stop_counting_when_set_so() {
    let left = |limiter: &Tidegate| {
        third_hit(limiter, &[USER, PATH]);
        limiter.client().ask(ask_only("shop", &[PATH])).statuses[0].limit_remaining
    };
    assert_eq!(left(&with(&[])), 2, "denied hits count");
    assert_eq!(left(&with(&[("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true")])), 3);
}

#[test]
fn near_the_limit_is_where_the_ratio_says() {
    let near = |limiter: &Tidegate| {
        for _ in 0..4 {
            limiter.client().ask(question("shop", &[PATH]));
        }
        limiter.scrape().sum("ratelimit_service_rate_limit_near_limit", &[("key1", "path")])
    };
    assert_eq!(near(&with(&[])), 0.0, "4 is 0.8 of 5");
    assert_eq!(near(&with(&[("NEAR_LIMIT_RATIO", "0.5")])), 2.0, "beyond 2");
}

#[test]
fn a_domain_may_have_several_files_when_set_so() {
    let other =
        "domain: shop\ndescriptors:\n  - key: tier\n    rate_limit: {unit: day, requests_per_unit: 9}\n";
    let setup = || Setup::new().rules("a.yaml", RULES).rules("b.yaml", other);
    let limiter = setup().env("MERGE_DOMAIN_CONFIG", "true").start();
    let client = limiter.client();
    let limit = |entries| client.ask(ask_only("shop", &[entries])).statuses[0].current_limit.is_some();
    assert!(limit(USER) && limit(&[("tier", "gold")]));
    let without = setup();
    let mut refused = without.spawn();
    assert_eq!(refused.exit_code(), 1);
    assert_eq!(refused.lines_with("MERGE_DOMAIN_CONFIG"), 1);
}

#[test]
fn health_waits_for_a_domain_when_set_so() {
    let setup = Setup::new().env("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true");
    assert_eq!(setup.variables()["RULES_MAY_BE_EMPTY"], "true");
    let ports = setup.ports;
    let (limiter, setup) = (setup.spawn(), setup);
    let ready = || http::get(ports.http, "/readyz").ok().map(|page| (page.status, page.body));
    let unhealthy = || ready() == Some((500, "no domain is loaded".to_owned()));
    eventually_true("the limiter to be up and unhealthy", unhealthy);
    assert_eq!(http::get(ports.http, "/livez").expect("it runs").status, 200);
    setup.write("shop.yaml", RULES);
    eventually_true("a domain to make it healthy", || ready() == Some((200, "OK".to_owned())));
    std::fs::remove_file(setup.folder().join("shop.yaml")).expect("it was written");
    eventually_true("no domain to make it unhealthy again", unhealthy);
    drop(limiter);
    // Without it, an empty folder is no reason.
    Setup::new().start();
}

#[test]
fn a_full_store_answers_as_it_is_set_to() {
    let passed = |mode: &str| {
        let limiter = with(&[("MAX_COUNTER_BYTES", "1"), ("STORE_FULL_MODE", mode)]);
        limiter.client().ask(question("shop", &[USER])).overall_code
    };
    assert_eq!((passed("deny"), passed("allow")), (OVER_LIMIT, OK));
}

#[test]
fn clients_that_are_denied_together_do_not_come_back_together() {
    let waits = |limiter: &Tidegate| {
        let client = limiter.client();
        let denied = (0..22).map(|_| client.ask(question("shop", &[USER, PATH]))).skip(2);
        let seconds = denied.map(|answer| {
            assert_eq!(answer.overall_code, OVER_LIMIT);
            answer.statuses[0].duration_until_reset.as_ref().expect("a time").seconds
        });
        seconds.collect::<Vec<_>>()
    };
    let exact = waits(&with(&[]));
    let (shortest, longest) = (exact[19], exact[0]);
    assert!(longest - shortest < 60, "they all wait for the same moment: {exact:?}");
    let spread = waits(&with(&[("RETRY_AFTER_JITTER", "0.5")]));
    assert!(
        spread.iter().all(|&wait| wait > shortest - 60 && wait <= longest + longest / 2 + 1),
        "{spread:?}"
    );
    let distinct: BTreeSet<_> = spread.iter().collect();
    assert!(distinct.len() > 15, "{spread:?}");
}
