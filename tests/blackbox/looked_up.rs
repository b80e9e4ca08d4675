//! Limits for single keys on the way of requests: from a folder, and from a Redis that several nodes share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use serde_json::{Value, json};

use crate::admin::{TOKEN, call};
use crate::harness::grpc::{Client, OK, question};
use crate::harness::redis::Redis;
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{eventually_true, http};
use crate::records::{all, load, record};
use crate::status_page;

const RULES: &str = "
domain: shop
descriptors:
  - key: tenant
    limits_from: store
    rate_limit: {unit: day, requests_per_unit: 3}
";

fn setup() -> Setup {
    // A busy machine is not what is tested.
    Setup::new().rules("shop.yaml", RULES).env("ADMIN_TOKEN", TOKEN).env("LIMITS_TIMEOUT", "10s")
}

fn in_folder() -> Setup {
    let setup = setup();
    let folder = setup.outside().join("limits").display().to_string();
    setup.env("LIMITS_DIR", &folder)
}

fn in_redis(redis: &Redis) -> Setup {
    setup().env("LIMITS_URL", &redis.url())
}

pub fn put(limiter: &Tidegate, tenant: &str, says: &Value) {
    assert!(is_put(limiter, tenant, says));
}

fn is_put(limiter: &Tidegate, tenant: &str, says: &Value) -> bool {
    let mut body = json!({
        "domain": "shop", "entries": [{"key": "tenant", "value": tenant}], "who": "jane", "why": "a contract",
    });
    for (name, value) in says.as_object().expect("fields") {
        body[name] = value.clone();
    }
    call(limiter, "PUT", "/admin/records", &body).status < 300
}

pub fn delete(limiter: &Tidegate, tenant: &str) {
    let body = json!({
        "domain": "shop", "entries": [{"key": "tenant", "value": tenant}], "who": "jane", "why": "it ended",
    });
    assert_eq!(call(limiter, "DELETE", "/admin/records", &body).status, 200);
}

fn of(requests: u64) -> Value {
    json!({"requests_per_unit": requests})
}

fn passes(client: &Client, tenant: &str) -> bool {
    client.ask(question("shop", &[&[("tenant", tenant)]])).overall_code == OK
}

fn passing(client: &Client, tenant: &str, requests: usize) -> usize {
    (0..requests).filter(|_| passes(client, tenant)).count()
}

/// The limit that an answer shows.
fn limit_shown(client: &Client, tenant: &str) -> u32 {
    let answer = client.ask(question("shop", &[&[("tenant", tenant)]]));
    answer.statuses[0].current_limit.as_ref().expect("a limit").requests_per_unit
}

/// What `/ask` shows of a key.
fn asked_of(limiter: &Tidegate, tenant: &str) -> String {
    let question =
        json!({"domain": "shop", "descriptors": [{"entries": [{"key": "tenant", "value": tenant}]}]});
    call(limiter, "POST", "/ask", &question).body
}

/// The answer to the same question over HTTP.
fn over_http(limiter: &Tidegate, tenant: &str) -> u16 {
    let question =
        json!({"domain": "shop", "descriptors": [{"entries": [{"key": "tenant", "value": tenant}]}]});
    let mut client = http::Client::new(limiter.ports().http);
    client.send("POST", "/json", &[("host", "limiter")], &question.to_string()).expect("an answer").status
}

#[test]
fn a_record_in_a_folder_holds_on_both_fronts_from_the_moment_it_is_put() {
    for front in ["lane", "tonic"] {
        let limiter = in_folder().env("GRPC_FRONT", front).start();
        let client = limiter.client();
        put(&limiter, "acme", &of(5));
        assert_eq!((passing(&client, "acme", 9), passing(&client, "other", 9)), (5, 3), "{front}");
        put(&limiter, "acme", &of(7));
        assert_eq!(passing(&client, "acme", 9), 2, "{front}: what was counted stays");
        delete(&limiter, "acme");
        assert_eq!((limit_shown(&client, "acme"), passing(&client, "acme", 9)), (3, 0), "{front}");
        put(&limiter, "acme", &json!({"unlimited": true}));
        assert_eq!(passing(&client, "acme", 9), 9, "{front}");
        put(&limiter, "web", &of(1));
        assert_eq!([over_http(&limiter, "web"), over_http(&limiter, "web")], [200, 429], "{front}");
        assert_eq!([(); 4].map(|()| over_http(&limiter, "unknown")), [200, 200, 200, 429], "{front}");
        let scrape = limiter.scrape();
        assert!(scrape.sum("tidegate_limits_known_total", &[]) > 20.0, "{front}");
        assert_eq!(scrape.sum("tidegate_limits_fetch_failures_total", &[]), 0.0, "{front}");
    }
}

#[test]
fn a_record_with_another_window_is_shown_in_answers_and_in_explanations() {
    let limiter = in_folder().start();
    let client = limiter.client();
    assert_eq!(passing(&client, "acme", 9), 3);
    put(&limiter, "acme", &json!({"requests_per_unit": 4, "unit": "hour"}));
    let shown = asked_of(&limiter, "acme");
    assert!(shown.contains("record    4 instead of 3, per hour"), "{shown}");
    assert_eq!(passing(&client, "acme", 9), 4, "a counter of its own");
    put(&limiter, "acme", &of(6));
    assert_eq!(passing(&client, "acme", 9), 3, "the counter of the rule");
}

/// More than are stored at a time.
#[test]
fn a_long_load_is_in_redis_completely() {
    let redis = Redis::start(&[]);
    let limiter = in_redis(&redis).start();
    let records: Vec<Value> = (0..2_500).map(|at| record(&format!("t{at:04}"), at)).collect();
    let lines: Vec<String> = records.iter().map(Value::to_string).collect();
    assert_eq!(load(&limiter, "json", &lines.join("\n")).status, 200);
    assert!(all(&limiter, 1_000) == records, "some are missing");
}

#[test]
fn more_keys_than_the_cache_holds_are_limited_all_the_same() {
    let limiter = in_folder().env("LIMITS_CACHE_SIZE", "100").start();
    let client = limiter.client();
    let tenants: Vec<String> = (0..300).map(|at| format!("t{at}")).collect();
    tenants.iter().step_by(3).for_each(|tenant| put(&limiter, tenant, &of(1)));
    for (at, tenant) in tenants.iter().enumerate() {
        assert_eq!(passing(&client, tenant, 2), if at % 3 == 0 { 1 } else { 2 }, "{tenant}");
    }
    let cached = limiter.metric("tidegate_limits_cached");
    assert!((1.0..=150.0).contains(&cached), "{cached}");
    assert!(limiter.metric("tidegate_limits_fetches_total") >= 300.0);
}

/// The counters are in Redis too, in one that is another.
#[test]
fn a_change_at_one_of_three_nodes_holds_on_all_under_load_and_nothing_fails() {
    for sync in ["strict", "leased"] {
        let (counters, limits) = (Redis::start(&[]), Redis::start(&[]));
        let node = |_| {
            in_redis(&limits)
                .env("BACKEND_TYPE", "redis")
                .env("REDIS_URL", &counters.url())
                .env("REDIS_TIMEOUT", "10s")
                .env("REDIS_SYNC", sync)
                .start()
        };
        let nodes = [(); 3].map(node);
        nodes
            .iter()
            .for_each(|node| eventually_true("the stream", || node.metric("tidegate_limits_up") == 1.0));
        let (is_over, asked) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for node in &nodes {
                scope.spawn(|| {
                    let client = node.client();
                    while !is_over.load(Relaxed) {
                        for tenant in ["a", "b", "c", "d"] {
                            client.call(question("shop", &[&[("tenant", tenant)]])).expect("no call fails");
                            asked.fetch_add(1, Relaxed);
                        }
                    }
                });
            }
            let clients = [0, 1, 2].map(|at: usize| nodes[at].client());
            let all_tell = |tenant: &str, requests: u32| {
                eventually_true("all nodes to hear of it", || {
                    clients.iter().all(|client| limit_shown(client, tenant) == requests)
                });
            };
            all_tell("a", 3);
            for (at, requests) in [(0, 10), (1, 20), (2, 1_000_000)] {
                put(&nodes[at], "a", &of(requests));
                all_tell("a", requests as u32);
            }
            delete(&nodes[0], "a");
            all_tell("a", 3);
            is_over.store(true, Relaxed);
        });
        assert!(asked.load(Relaxed) > 0);
        put(&nodes[0], "new", &of(12));
        let passed: usize = nodes.iter().map(|node| passing(&node.client(), "new", 12)).sum();
        assert!(passed <= 12, "{sync}: {passed} of 12");
        if sync == "strict" {
            assert_eq!(passed, 12);
        }
    }
}

#[test]
fn what_was_known_holds_while_redis_is_away_and_then_the_mode_does() {
    for (mode, known, unknown) in [("rule", 3, 3), ("last", 9, 3), ("deny", 0, 0)] {
        let limits = Redis::start(&[]);
        let limiter = in_redis(&limits)
            .env("LIMITS_TIMEOUT", "1s")
            .env("LIMITS_STALE_MAX", "4s")
            .env("LIMITS_STALE_MODE", mode)
            .start();
        let client = limiter.client();
        eventually_true("the stream", || limiter.metric("tidegate_limits_up") == 1.0);
        // Another node changes it: so this one shows it only after it has followed the change, and forgets nothing later.
        assert_eq!(limit_shown(&client, "acme"), 3, "{mode}");
        let other = in_redis(&limits).start();
        eventually_true("the change", || is_put(&other, "acme", &of(9)));
        eventually_true("the record", || limit_shown(&client, "acme") == 9);
        limits.stop();
        assert_eq!(limit_shown(&client, "acme"), 9, "{mode}: the last known");
        eventually_true("the loss", || limiter.metric("tidegate_limits_up") == 0.0);
        let expected = if known == 9 { 9 } else { known };
        eventually_true("what is known to be too old", || limit_shown(&client, "acme") == expected);
        assert_eq!(limit_shown(&client, "unknown"), unknown, "{mode}");
        let instead = if mode == "deny" { "nothing passes" } else { "the rule's limit applies" };
        let away = "the store of records does not answer";
        let expected = format!("record    not known: {away}; until it does, {instead}\n");
        let shown = asked_of(&limiter, "unknown");
        assert!(shown.contains(&expected), "{mode}: {shown}");
        let expected = match mode {
            "last" => format!("record    9 instead of 3, by the last known record: {away}\n"),
            _ => expected,
        };
        eventually_true(&expected, || asked_of(&limiter, "acme").contains(&expected));
        assert!(limiter.metric("tidegate_limits_stale_total") > 0.0, "{mode}");
        limits.wake();
        eventually_true("the store to be back", || limit_shown(&client, "acme") == 9);
        for (tenant, expected) in
            [("acme", "record    9 instead of 3\n"), ("unknown", "record    none: the limit is the rule's\n")]
        {
            eventually_true(expected, || asked_of(&limiter, tenant).contains(expected));
        }
        // Each worker comes back by its own connection: `/ask` and this client may be served by different ones.
        eventually_true("the client's worker to be back", || limit_shown(&client, "unknown") == 3);
    }
}

/// The server accepts, and says nothing.
#[test]
fn a_redis_that_hangs_is_waited_for_no_longer_than_limits_timeout() {
    let limits = Redis::start(&[]);
    let limiter = in_redis(&limits).env("LIMITS_TIMEOUT", "50ms").start();
    let client = limiter.client();
    eventually_true("the stream", || limiter.metric("tidegate_limits_up") == 1.0);
    limits.stop();
    assert_eq!(passing(&client, "acme", 9), 3, "the rule holds");
    assert!(limiter.metric("tidegate_limits_stale_total") > 0.0);
    limits.wake();
    eventually_true("the change", || is_put(&limiter, "acme", &of(9)));
    eventually_true("the record", || limit_shown(&client, "acme") == 9);
}

#[test]
fn a_redis_that_lost_everything_is_noticed() {
    let mut limits = Redis::start(&[]);
    let limiter = in_redis(&limits).start();
    let client = limiter.client();
    eventually_true("the stream", || limiter.metric("tidegate_limits_up") == 1.0);
    put(&limiter, "acme", &of(9));
    eventually_true("the record", || limit_shown(&client, "acme") == 9);
    limits.kill();
    limits.restart();
    eventually_true("the loss", || limit_shown(&client, "acme") == 3);
}

#[test]
fn a_store_that_never_answered_is_reported() {
    let limiter = setup().env("LIMITS_URL", "127.0.0.1:1").start();
    eventually_true("the log to say so", || limiter.lines_with("records: LIMITS_URL: ") == 1);
    let troubles = status_page::troubles(&limiter);
    assert!(troubles.contains("The store of records does not answer."), "{troubles}");
    assert_eq!(limit_shown(&limiter.client(), "acme"), 3, "the rule holds");
}

#[test]
fn the_login_and_the_kind_of_redis_are_settings_of_their_own() {
    let limits = Redis::start(&["--requirepass", "hunter2"]);
    let limiter = in_redis(&limits).env("LIMITS_AUTH", "hunter2").env("LIMITS_TYPE", "single").start();
    eventually_true("the stream", || limiter.metric("tidegate_limits_up") == 1.0);
    put(&limiter, "acme", &of(5));
    eventually_true("the record", || limit_shown(&limiter.client(), "acme") == 5);
    let cloud = setup().env("LIMITS_URL", "127.0.0.1:1").env("LIMITS_TYPE", "cloud");
    let mut bad = cloud.spawn();
    assert_eq!(bad.exit_code(), 64);
    assert_eq!(bad.lines_with("LIMITS_URL: \"cloud\" is no kind of Redis"), 1);
}

#[test]
fn rules_that_ask_for_records_need_one_store() {
    let asks = setup();
    let mut without = asks.spawn();
    assert_eq!(without.exit_code(), 1);
    let expected =
        "shop.yaml:5:18: `limits_from: store` without a store of records (expected LIMITS_DIR or LIMITS_URL)";
    assert_eq!(without.lines_with(expected), 1);
    let asks = in_folder().env("LIMITS_URL", "127.0.0.1:1");
    let mut both = asks.spawn();
    assert_eq!(both.exit_code(), 64);
    assert_eq!(both.lines_with("LIMITS_URL: together with LIMITS_DIR (expected one of the two"), 1);

    let limiter = Setup::new().rules("shop.yaml", &RULES.replace("    limits_from: store\n", "")).start();
    limiter.setup.write("shop.yaml", RULES);
    eventually_true("the refusal", || {
        limiter.scrape().sum("ratelimit_service_config_load_error", &[]) == 1.0
    });
    assert_eq!(passing(&limiter.client(), "acme", 9), 3, "the rules of before");
}
