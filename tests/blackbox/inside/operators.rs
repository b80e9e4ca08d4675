//! What operators see of the limiter inside Envoy, and what they change.

use std::fs;

use super::{ALICE, EXAMPLE, get, start_with_rules, statuses};
use crate::harness::envoy::Envoy;
use crate::harness::eventually_true;
use crate::harness::redis::Redis;

/// A named limit and one without a name.
const RULES: &str = "
domain: edge
rate_limits:
  - actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
descriptors:
  - {key: user, value: bot, rate_limit: {name: bots, unit: hour, requests_per_unit: 0}}
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 2}}
";

#[test]
fn the_rule_of_the_tightest_limit_is_in_the_metadata() {
    let header =
        "headers_to_add: [{ header: { key: x-rule, value: \"%DYNAMIC_METADATA(tidegate:rule)%\" } }]";
    let on_pass = format!("response_{header}\n                  virtual_hosts:");
    let on_denial = format!("stat_prefix: edge
                local_reply_config:
                  mappers:
                    - filter: {{ status_code_filter: {{ comparison: {{ op: EQ, value: {{ default_value: 429, runtime_key: x }} }} }} }}
                      {header}");
    // Without the field, denials alone have it.
    for (field, of_an_admitted) in [("metadata: always", "edge.user"), ("", "")] {
        let changes =
            [("virtual_hosts:", &*on_pass), ("stat_prefix: edge", &on_denial), ("headers: always", field)];
        let envoy = start_with_rules(RULES, &changes);
        let rule = |user| {
            let answer = get(&envoy, "/", ALICE, user);
            (answer.status, answer.header("x-rule").unwrap_or_default().to_owned())
        };
        assert_eq!(rule("ann"), (200, of_an_admitted.to_owned()));
        assert_eq!(rule("bot"), (429, "bots".to_owned()));
    }
}

/// Two filters with the same settings are two configurations of one limiter, which both show its metrics.
#[test]
fn metrics_are_in_envoys_statistics_by_rule_and_counted_once() {
    let rules = format!("rules_inline: {RULES:?}");
    let config = EXAMPLE.replace("rules: examples/inside/rules", &rules);
    let filter = &config[config.find("- name: tidegate").expect("a filter")..];
    let filter = &filter[..filter.find("- name: envoy.filters.http.router").expect("the next one")];
    let envoy = Envoy::start_config(&config.replacen(filter, &filter.repeat(2), 1));
    assert_eq!(statuses(&envoy, "/", ALICE, "ann", 2), [200, 429], "each request is asked about twice");
    assert_eq!(statuses(&envoy, "/", ALICE, "bot", 1), [429]);
    let all = "dynamicmodulescustom.ratelimit_service_rate_limit_";
    let expected = "\
        near_limit.domain.edge.key1.user.key2..rule.: 1\n\
        over_limit.domain.edge.key1.user.key2..rule.: 1\n\
        over_limit.domain.edge.key1.user_bot.key2..rule.: 1\n\
        total_hits.domain.edge.key1.user.key2..rule.: 3\n\
        total_hits.domain.edge.key1.user_bot.key2..rule.: 1\n\
        within_limit.domain.edge.key1.user.key2..rule.: 2";
    eventually_true("all to be shown", || envoy.touched(all).replace(all, "") == expected);
    eventually_true("gauges", || envoy.stat("dynamicmodulescustom.tidegate_rules") == 2);
    let labels = "rate_limit_over_limit{domain=\"edge\",key1=\"user_bot\",key2=\"\",rule=\"\"} 1";
    assert!(envoy.prometheus().contains(labels), "{}", envoy.prometheus());
}

#[test]
fn leases_and_failures_of_redis_are_in_envoys_statistics() {
    let redis = Redis::start(&[]);
    let settings = format!("settings: {{ REDIS_URL: \"{}\" }}", redis.url());
    let envoy = Envoy::start_inside(&[("headers: always", &settings)]);
    let stat = |name: &str| envoy.stat(&format!("dynamicmodulescustom.tidegate_redis_{name}"));
    eventually_true("a lease that is spent", || {
        get(&envoy, "/", ALICE, "ann");
        stat("lease_hits_spent_total") > 0
    });
    assert!(stat("round_trips_total.store.main") > 0);
    redis.stop();
    eventually_true("the breaker to open", || {
        get(&envoy, "/", ALICE, "ben");
        stat("breaker_open.store.main") == 1
    });
    let failures = envoy.touched("dynamicmodulescustom.tidegate_redis_failures_total.store.main.kind.");
    assert!(!failures.is_empty());
    redis.wake();
}

#[test]
fn exceptions_of_a_file_hold_with_memory_and_follow_it() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("exceptions");
    let settings = format!("settings: {{ EXCEPTIONS_FILE: \"{}\" }}", path.display());
    let envoy = Envoy::start_inside(&[("headers: always", &settings)]);
    assert_eq!(statuses(&envoy, "/", ALICE, "ann", 6), [200, 200, 200, 200, 200, 429]);

    let exception = r#"{"id": "ann", "domain": "edge", "entries": [{"key": "user", "value": "ann"}], "unlimited": true, "who": "joe", "why": "-"}"#;
    fs::write(&path, exception).expect("the folder is ours");
    eventually_true("the exception", || get(&envoy, "/", ALICE, "ann").status == 200);
    assert_eq!(statuses(&envoy, "/", ALICE, "ben", 6)[5], 429, "it is for one user");
    fs::write(&path, "no exception").expect("the folder is ours");
    eventually_true("a refusal", || envoy.output().contains("the exceptions before stay"));
    assert_eq!(get(&envoy, "/", ALICE, "ann").status, 200);
    fs::remove_file(&path).expect("it is there");
    eventually_true("a warning", || envoy.output().contains("No such file"));
    assert_eq!(get(&envoy, "/", ALICE, "ann").status, 200, "whoever replaces a file may remove it first");
    fs::write(&path, "").expect("the folder is ours");
    eventually_true("its end", || get(&envoy, "/", ALICE, "ann").status == 429);
}

#[test]
fn a_route_to_a_domain_without_rules_is_warned_of() {
    let envoy = Envoy::start_inside(&[("domain: login", "domain: logn")]);
    assert!(!envoy.output().contains("logn"), "{}", envoy.output());
    assert_eq!(statuses(&envoy, "/login", ALICE, "ann", 4), [200; 4]);
    let warned =
        || envoy.output().matches("no rules have the domain \"logn\" yet: its requests pass").count();
    eventually_true("the warning", || warned() > 0);
    assert_eq!(warned(), 1, "once");
}
