//! Bans: keys that are denied too often, in memory and between nodes that share a Redis; what operators see of them and
//! change.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::admin::{TOKEN, call};
use crate::harness::eventually_true;
use crate::harness::grpc::{self, OK, RateLimitResponse};
use crate::harness::http::{self, Client};
use crate::harness::redis::{Redis, cluster};
use crate::harness::tidegate::{Setup, Tidegate};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 1}
    ban: {after: 3 denials, within: 60s, every: 0, for: 1h, doubling_to: 4h}
";

fn setup() -> Setup {
    Setup::new().rules("shop.yaml", RULES).env("ADMIN_TOKEN", TOKEN)
}

fn ask(limiter: &Tidegate, user: &str) -> RateLimitResponse {
    limiter.client().ask(grpc::question("shop", &[&[("user", user)]]))
}

fn passes(limiter: &Tidegate, user: &str) -> bool {
    ask(limiter, user).overall_code == OK
}

/// For how long the user has to wait, in seconds.
fn wait(limiter: &Tidegate, user: &str) -> i64 {
    let answer = ask(limiter, user);
    answer.statuses[0].duration_until_reset.as_ref().expect("a wait").seconds
}

/// Whether the user has to wait as long as a ban lasts, and not until the limit has room.
fn is_banned(limiter: &Tidegate, user: &str, hours: i64) -> bool {
    (hours * 3_600 - 120..=hours * 3_600).contains(&wait(limiter, user))
}

fn change(limiter: &Tidegate, method: &str, user: &str, more: &Value) -> (u16, Value) {
    let mut body = json!({
        "domain": "shop", "entries": [{"key": "user", "value": user}], "who": "jane", "why": "a test",
    });
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    let answer = call(limiter, method, "/admin/bans", &body);
    (answer.status, serde_json::from_str(&answer.body).expect("JSON"))
}

fn listed(limiter: &Tidegate) -> Vec<Value> {
    let answer = call(limiter, "GET", "/admin/bans", &Value::Null);
    answer.body.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn peek(limiter: &Tidegate, user: &str) -> Value {
    let of = json!({"domain": "shop", "entries": [{"key": "user", "value": user}]});
    serde_json::from_str(&call(limiter, "POST", "/admin/counters/peek", &of).body).expect("JSON")
}

#[test]
fn a_key_that_is_denied_too_often_is_banned_and_everybody_sees_why() {
    let setup = setup().env("RESPONSE_DYNAMIC_METADATA", "true").env("KEEP_KEYS", "true").keeping_counters();
    let events = setup.outside().join("events");
    let limiter = setup.env("EVENTS_LOG", &events.display().to_string()).start();
    assert_eq!([0, 1, 2].map(|_| passes(&limiter, "mallory")), [true, false, false]);
    assert_eq!(peek(&limiter, "mallory")["descriptors"][0]["ban"]["denials"], 2);
    assert!(wait(&limiter, "mallory") <= 3_600, "the third denial says how long the ban lasts");
    let denied = ask(&limiter, "mallory");
    assert_eq!(denied.statuses[0].current_limit.as_ref().expect("a limit").requests_per_unit, 1);
    let question =
        r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "mallory"}]}]}"#;
    let json =
        Client::new(limiter.setup.ports.http).send("POST", "/json", &[], question).expect("an answer").body;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let ban = &json["dynamicMetadata"]["bans"][0];
    assert!(
        ban["rule"] == "shop.user" && ban["seconds"].as_f64().is_some_and(|left| left > 3_000.0),
        "{json}"
    );
    assert!(passes(&limiter, "alice"));

    let ban = &peek(&limiter, "mallory")["descriptors"][0];
    assert_eq!((&ban["ban"]["banned"], &ban["code"]), (&json!(true), &json!("OVER_LIMIT")));
    assert!(ban["why"].as_str().is_some_and(|why| why.starts_with("banned for")), "{ban}");
    let all = listed(&limiter);
    assert_eq!(all.len(), 1);
    assert_eq!(all[0]["entries"], json!([{"key": "user", "value": "mallory"}]));
    assert_eq!((&all[0]["rule"], &all[0]["domain"]), (&json!("shop.user"), &json!("shop")));
    let metrics = |name| limiter.metric(name) as u64;
    let totals = ["tidegate_bans", "tidegate_bans_seen_total", "tidegate_banned_total"].map(metrics);
    assert_eq!(totals, [1, 1, 3]);

    let problem = http::get(limiter.setup.ports.http, "/check/shop?user=mallory").expect("an answer");
    assert_eq!(problem.status, 429);
    let shown = || fs::read_to_string(&events).unwrap_or_default();
    eventually_true("the event", || shown().contains("\"ban_began\""));
    let began = shown();
    let began = began.lines().find(|line| line.contains("ban_began")).expect("the event");
    let began: Value = serde_json::from_str(began).expect("JSON");
    assert_eq!((&began["ban_seconds"], &began["entries"][0]["value"]), (&json!(3600), &json!("mallory")));

    // It survives as counters do, and a counter that is reset is not banned.
    limiter.signal(Signal::TERM);
    let mut limiter = limiter;
    assert_eq!(limiter.exit_code(), 0);
    let limiter = limiter.restart();
    assert!(is_banned(&limiter, "mallory", 1));
    let reset =
        json!({"domain": "shop", "entries": [{"key": "user", "value": "mallory"}], "who": "j", "why": "t"});
    assert_eq!(call(&limiter, "POST", "/admin/counters/reset", &reset).status, 200);
    assert!(passes(&limiter, "mallory"));
}

#[test]
fn an_operator_bans_and_lifts_and_both_are_audited() {
    let limiter = setup().start();
    let (status, done) = change(&limiter, "POST", "eve", &json!({"for": "2h"}));
    assert_eq!((status, &done["done"]), (200, &json!("banned")));
    assert!(is_banned(&limiter, "eve", 2));
    let (status, done) = change(&limiter, "POST", "eve", &json!({"for": "3h"}));
    assert_eq!((status, &done["done"]), (200, &json!("banned")));
    assert!(is_banned(&limiter, "eve", 3), "in place of the ban of before");
    assert_eq!(listed(&limiter).len(), 1);
    assert_eq!(change(&limiter, "DELETE", "eve", &json!({})).1["done"], "lifted");
    assert_eq!(change(&limiter, "DELETE", "eve", &json!({})).1["done"], "unchanged");
    assert!(passes(&limiter, "eve") && listed(&limiter).is_empty());
    let audit = call(&limiter, "GET", "/admin/audit", &Value::Null).body;
    let does =
        |verb: &str| audit.lines().filter(|line| line.contains(&format!("\"does\":\"{verb}\""))).count();
    assert_eq!((does("ban"), does("lift_ban")), (2, 2), "{audit}");

    for (more, expected) in [
        (json!({}), "for: is missing"),
        (json!({"for": "0s"}), "for: is no time from 1 second to 366 days"),
        (json!({"for": "1500ms"}), "for: is no time from 1 second"),
        (json!({"for": "1h", "until": "x"}), "until"),
    ] {
        let (status, error) = change(&limiter, "POST", "eve", &more);
        assert!(status == 400 && error["error"].to_string().contains(expected), "{more}: {error}");
    }
    let other = json!({"entries": [{"key": "unknown", "value": "x"}], "for": "1h"});
    let (status, error) = change(&limiter, "POST", "eve", &other);
    assert!(status == 404 && error["error"].to_string().contains("no rule with a `ban`"), "{error}");
}

/// Both nodes deny, and the third denial bans the user at both.
fn nodes_ban_together(setup: &dyn Fn() -> Setup) {
    let nodes = [setup().start(), setup().start()];
    let [one, other] = &nodes;
    for user in ["a", "b", "c"] {
        assert!(passes(one, user));
        assert!(![one, other, one].iter().any(|node| passes(node, user)));
        eventually_true("the ban at both nodes", || nodes.iter().all(|node| is_banned(node, user, 1)));
    }
    assert!(passes(other, "d"), "another user");
    assert_eq!(change(other, "DELETE", "a", &json!({})).1["done"], "lifted");
    eventually_true("no ban at either", || !is_banned(one, "a", 1) && !is_banned(other, "a", 1));
    assert_eq!(change(one, "POST", "e", &json!({"for": "2h"})).1["done"], "banned");
    eventually_true("the ban of an operator", || nodes.iter().all(|node| is_banned(node, "e", 2)));
}

#[test]
fn nodes_that_share_redis_ban_together() {
    for redis in Redis::and_valkey() {
        nodes_ban_together(&|| setup().env("REDIS_URL", &redis.url()).env("REDIS_TIMEOUT", "10s"));
    }
}

#[test]
fn nodes_that_share_a_cluster_ban_together() {
    let cluster = cluster();
    let urls = cluster.iter().map(Redis::url).collect::<Vec<_>>().join(",");
    nodes_ban_together(&|| {
        setup().env("REDIS_TYPE", "cluster").env("REDIS_URL", &urls).env("REDIS_TIMEOUT", "10s")
    });
}

/// Denials that a node remembers are not asked in Redis, and count all the same.
#[test]
fn denials_from_the_deny_cache_count() {
    let redis = Redis::start(&[]);
    let setup = || {
        let rules = RULES.replace("after: 3 denials", "after: 30 denials");
        let setup = Setup::new().rules("shop.yaml", &rules).env("ADMIN_TOKEN", TOKEN);
        setup.env("REDIS_URL", &redis.url()).env("LOCAL_CACHE_SIZE_IN_BYTES", "1000000")
    };
    let (one, other) = (setup().start(), setup().start());
    assert!(passes(&one, "a"));
    assert!(!(0..30).any(|_| passes(&one, "a")));
    let calls = || {
        let stats: String = redis.ask(&["INFO", "commandstats"]);
        let of = |line: &str| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok();
        stats.lines().filter(|line| line.starts_with("cmdstat_evalsha:")).filter_map(of).sum::<u64>()
    };
    eventually_true("the ban", || is_banned(&other, "a", 1));
    eventually_true("the ban here", || is_banned(&one, "a", 1));
    // A ban is remembered for a second, and then asked for again.
    let before = calls();
    (0..50).for_each(|_| assert!(!passes(&one, "a")));
    assert!(calls() - before < 25, "{} calls", calls() - before);
}

#[test]
fn a_ban_does_not_outlive_what_it_says() {
    let rules = RULES.replace("for: 1h, doubling_to: 4h", "for: 1s").replace("unit: minute", "unit: second");
    for redis in [None, Some(Redis::start(&[]))] {
        let setup = Setup::new().rules("shop.yaml", &rules).env("ADMIN_TOKEN", TOKEN);
        let setup = match &redis {
            Some(redis) => setup.env("REDIS_URL", &redis.url()),
            None => setup,
        };
        let limiter = setup.start();
        eventually_true("a ban", || {
            assert!((0..8).any(|_| !passes(&limiter, "a")));
            !listed(&limiter).is_empty()
        });
        eventually_true("its end", || passes(&limiter, "a"));
        eventually_true("no ban in the list", || listed(&limiter).is_empty());
    }
}
