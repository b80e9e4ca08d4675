//! What operators see of the limiter inside Envoy, and what they change.

use std::fs;

use serde_json::json;

use super::{ALICE, EXAMPLE, get, start_with_rules, statuses};
use crate::admin::{self, TOKEN};
use crate::admin_resets::reset;
use crate::commands::tidegate;
use crate::harness::envoy::Envoy;
use crate::harness::eventually_true;
use crate::harness::inside::{Inside, filter, rules};
use crate::harness::redis::Redis;
use crate::harness::tidegate::Setup;
use crate::looked_up;

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
fn access_logs_may_have_the_flag_and_the_rule_of_the_tightest_limit() {
    let header =
        "headers_to_add: [{ header: { key: x-rule, value: \"%DYNAMIC_METADATA(tidegate:rule)%\" } }]";
    let header_of_flag = "headers_to_add: [{ header: { key: x-flag, value: \"%CUSTOM_FLAGS%\" } }]";
    let on_pass = format!("response_{header}\n                  virtual_hosts:");
    let on_denial = format!("stat_prefix: edge
                local_reply_config:
                  mappers:
                    - filter: {{ status_code_filter: {{ comparison: {{ op: EQ, value: {{ default_value: 429, runtime_key: x }} }} }} }}
                      {header_of_flag}");
    // Without the field, denials alone have it.
    for (field, of_an_admitted) in [("metadata: always", "edge.user"), ("", "")] {
        let changes =
            [("virtual_hosts:", &*on_pass), ("stat_prefix: edge", &on_denial), ("headers: always", field)];
        let envoy = start_with_rules(RULES, &changes);
        let shown = |user| {
            let answer = get(&envoy, "/", ALICE, user);
            let header = |name| answer.header(name).unwrap_or_default().to_owned();
            (answer.status, header("x-rule"), header("x-flag"))
        };
        let (status, rule, _) = shown("ann");
        assert_eq!((status, &*rule), (200, of_an_admitted));
        assert_eq!(shown("bot"), (429, "bots".to_owned(), "RL".to_owned()));
    }
}

/// Two filters with the same settings are two configurations of one limiter, which both show its metrics.
#[test]
fn metrics_are_in_envoys_statistics_by_rule_and_counted_once() {
    let rules = format!("rules_inline: {RULES:?}");
    let config = EXAMPLE.replace("rules: examples/inside/rules", &rules);
    let filter = filter(&config);
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
    assert_eq!(envoy.stat("dynamicmodulescustom.tidegate_counters_shared"), 0);
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
    eventually_true("gauges", || envoy.stat("dynamicmodulescustom.tidegate_counters_shared") == 1);
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
fn what_a_server_changes_in_redis_holds_inside_envoy() {
    let redis = Redis::start(&[]);
    let rules = "domain: shop
rate_limits:
  - actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
  - actions: [{request_headers: {header_name: x-tenant, descriptor_key: tenant}}]
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: tenant, limits_from: store, rate_limit: {unit: day, requests_per_unit: 1000}}
";
    let settings = [("REDIS_URL", redis.url()), ("LIMITS_URL", redis.url())];
    let inside = settings.iter().fold(Inside::new(rules), |inside, (name, url)| inside.setting(name, url));
    let server = Setup::new().rules("shop.yaml", rules).env("ADMIN_TOKEN", TOKEN);
    let server = settings.iter().fold(server, |server, (name, url)| server.env(name, url)).start();
    let envoy = Envoy::start_config(&inside.config().replace("domain: edge", "domain: shop"));
    assert_eq!(statuses(&envoy, "/", ALICE, "ann", 3), [200, 200, 429]);
    let status = || get(&envoy, "/", ALICE, "ann").status;
    admin::put(&server, "ann", &admin::exception(Some("ann"), &json!({"unlimited": true})));
    eventually_true("the exception", || status() == 200);
    let ended = admin::call(&server, "DELETE", "/admin/exceptions/ann", &json!({"who": "joe"}));
    assert_eq!(ended.status, 200, "{ended:?}");
    eventually_true("its end", || status() == 429);
    assert_eq!(reset(&server, &json!([{"key": "user"}]), &json!({})).0, 200);
    eventually_true("the reset", || status() == 200);
    let limit_of = |tenant| {
        let answer = envoy.client().send("GET", "/", &[("x-tenant", tenant)], "").expect("Envoy answers");
        answer.number("ratelimit-limit")
    };
    assert_eq!(limit_of("acme"), 1_000);
    looked_up::put(&server, "acme", &json!({"requests_per_unit": 7}));
    eventually_true("the record", || limit_of("acme") == 7);
    assert_eq!(limit_of("other"), 1_000);
}

/// No server runs.
#[test]
fn ask_explains_a_counter_that_modules_alone_use() {
    let redis = Redis::start(&[]);
    let rules = rules("{unit: day, requests_per_unit: 3, sync: strict}");
    let inside = Inside::new(&rules).setting("REDIS_URL", &redis.url()).setting("CACHE_KEY_PREFIX", "edge:");
    let envoy = inside.start();
    assert_eq!(statuses(&envoy, "/", ALICE, "ann", 2), [200; 2]);
    let folder = inside.folder().display().to_string();
    let (prefix, bad) = (("CACHE_KEY_PREFIX", "edge:"), ("REDIS_TYPE", "cloud"));
    let ask_at = |url: &str, more: &[&str], variables: &[_]| {
        let words = ["ask", "edge", "user=ann", "--rules", &folder, "--redis-url", url];
        tidegate(&[&words[..], more].concat(), variables)
    };
    let ask = |more: &[&str], variables: &[_]| ask_at(&redis.url(), more, variables);
    for _ in 0..2 {
        let (code, text, complaints) = ask(&[], &[prefix]);
        assert_eq!((code, &*complaints), (0, ""), "{text}");
        assert!(text.contains("  counter   2 counted, 1 left\n"), "{text}");
    }
    assert!(ask(&[], &[]).1.contains(" 0 counted, 3 left\n"), "another prefix is another counter");
    assert!(ask(&["--hits", "2"], &[prefix]).1.contains("2 hits would get OVER_LIMIT"));
    assert_eq!(statuses(&envoy, "/", ALICE, "ann", 2), [200, 429], "nothing was charged");
    let (code, _, complaints) = ask(&[], &[bad]);
    assert!(code == 64 && complaints.contains("\"cloud\" is no kind of Redis"), "{complaints}");
    inside.write(&rules.replace("day", "fortnight"));
    let (code, _, complaints) = ask(&[], &[prefix]);
    assert!(code == 1 && complaints.contains("edge.yaml:3:46"), "{complaints}");
    inside.write(&rules);
    let (code, _, complaints) = ask_at("127.0.0.1:1", &[], &[]);
    assert!(code == 1 && complaints.contains("the shared store does not answer"), "{complaints}");
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
    let warned = || envoy.output().matches("no rules have the domain \"logn\": its requests pass").count();
    eventually_true("the warning", || warned() > 0);
    assert_eq!(warned(), 1, "once");
}

/// Envoy goes on with its configuration, so nothing is refused.
#[test]
fn reloaded_rules_that_no_longer_limit_the_domain_are_warned_of() {
    let inside = Inside::new(RULES);
    let envoy = inside.start();
    assert_eq!(statuses(&envoy, "/", ALICE, "ann", 3), [200, 200, 429]);
    let warned = |of: &str| eventually_true(of, || envoy.lines_with(of) == 1);
    inside.write(&RULES.replace("domain: edge", "domain: egde"));
    warned("no rules have the domain \"edge\": its requests pass");
    inside.write(RULES);
    eventually_true("the limit", || get(&envoy, "/", ALICE, "ann").status == 429);
    let (_, limits) = RULES.split_once("descriptors:").expect("it has some");
    inside.write(&format!("domain: edge\ndescriptors:{limits}"));
    warned("the rules of \"edge\" have no `rate_limits`: its requests are not decided");
    assert_eq!(envoy.lines_with("no rules have the domain"), 1, "once");
}
