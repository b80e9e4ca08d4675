//! Resets below a path: in memory with restarts and reloads, on several nodes with Redis, and under load.

use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::admin::{TOKEN, call};
use crate::harness::redis::Redis;
use crate::harness::tidegate::{Setup, Tidegate, binary};
use crate::harness::{eventually_true, grpc};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: &limit {unit: day, requests_per_unit: 3}
    descriptors:
      - {key: path, value: '/a*', rate_limit: *limit}
  - {key: tenant, rate_limit: *limit}
";

fn setup() -> Setup {
    Setup::new().rules("shop.yaml", RULES).env("ADMIN_TOKEN", TOKEN)
}

fn with_redis(redis: &Redis) -> Setup {
    setup().env("REDIS_URL", &redis.url()).env("REDIS_TIMEOUT", "10s")
}

fn ask(limiter: &Tidegate, entries: &[(&str, &str)]) -> bool {
    limiter.client().ask(grpc::question("shop", &[entries])).overall_code == grpc::OK
}

/// How many of five hits pass.
fn passed(limiter: &Tidegate, entries: &[(&str, &str)]) -> usize {
    (0..5).filter(|_| ask(limiter, entries)).count()
}

pub fn reset(limiter: &Tidegate, entries: &Value, more: &Value) -> (u16, Value) {
    let mut body = json!({"domain": "shop", "entries": entries, "who": "jane", "why": "a mistake"});
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    let answer = call(limiter, "POST", "/admin/resets", &body);
    (answer.status, serde_json::from_str(&answer.body).expect("JSON"))
}

const USER: [(&str, &str); 1] = [("user", "a")];
const PATH: [(&str, &str); 2] = [("user", "a"), ("path", "/a1")];
const TENANT: [(&str, &str); 1] = [("tenant", "a")];

fn all_passed(limiter: &Tidegate) -> [usize; 3] {
    [passed(limiter, &USER), passed(limiter, &PATH), passed(limiter, &TENANT)]
}

#[test]
fn all_counters_below_a_path_begin_anew_and_stay_so_across_reloads_and_restarts() {
    let mut limiter = setup().keeping_counters().start();
    assert_eq!(all_passed(&limiter), [3, 3, 3]);
    let (status, reply) = reset(&limiter, &json!([{"key": "user", "value": "a"}]), &json!({}));
    assert!(status == 404 && reply["error"].as_str().is_some_and(|it| it.starts_with("no rule")), "{reply}");
    let (status, reply) = reset(&limiter, &json!([{"key": "user"}]), &json!({}));
    assert_eq!((status, &reply["done"], &reply["rules"]), (200, &json!("reset"), &json!(2)));
    assert_eq!(all_passed(&limiter), [3, 3, 0]);

    // The same set of rules again, and then another one with a rule more.
    limiter.setup.write("shop.yaml", &format!("{RULES}  - {{key: new, rate_limit: *limit}}\n"));
    eventually_true("the new rule", || !ask(&limiter, &[("new", "a")]));
    assert_eq!(all_passed(&limiter), [0, 0, 0], "a reload keeps epochs");
    let again = reset(&limiter, &json!([{"key": "user"}]), &json!({"id": reply["id"]}));
    assert_eq!((again.0, &again.1["done"]), (200, &json!("unchanged")));
    let one = json!([{"key": "user"}, {"key": "path", "value": "/a*"}]);
    assert_eq!(reset(&limiter, &one, &json!({})).1["rules"], 1);
    assert_eq!(all_passed(&limiter), [0, 3, 0]);

    limiter.signal(Signal::TERM);
    assert_eq!(limiter.exit_code(), 0, "{:#?}", limiter.output());
    let limiter = limiter.restart();
    assert_eq!(all_passed(&limiter), [0, 0, 0], "counters and epochs are those of before");
    let listed = call(&limiter, "GET", "/admin/resets", &Value::Null).body;
    let listed: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(listed.len(), 2);
    assert_eq!((&listed[0]["id"], &listed[0]["entries"]), (&reply["id"], &json!([{"key": "user"}])));
    assert_eq!(reset(&limiter, &json!([]), &json!({})).1["rules"], 4);
    assert_eq!(all_passed(&limiter), [3, 3, 3]);
}

#[test]
fn nodes_that_share_redis_hear_of_a_reset_and_redis_may_forget_it() {
    for sync in ["strict", "leased"] {
        let redis = Redis::start(&[]);
        let setup = || with_redis(&redis).env("REDIS_SYNC", sync);
        let (one, two) = (setup().start(), setup().start());
        assert_eq!((passed(&one, &USER), passed(&two, &USER), passed(&two, &TENANT)), (3, 0, 3));
        let (status, reply) = reset(&one, &json!([{"key": "user"}]), &json!({}));
        assert_eq!((status, &reply["rules"]), (200, &json!(2)), "{reply}");
        assert!(ask(&one, &USER), "at once where it was asked for");
        let resets = |limiter: &Tidegate| call(limiter, "GET", "/admin/resets", &Value::Null).body;
        eventually_true("the other node to hear of it", || resets(&two) == resets(&one));
        assert_eq!((passed(&two, &USER), passed(&one, &USER)), (2, 0), "{sync}: they count together");
        assert_eq!(passed(&one, &TENANT), 0);

        let three = setup().start();
        assert_eq!(resets(&three), resets(&one), "a new node hears of it");
        assert_eq!(passed(&three, &USER), 0);
        redis.ask::<()>(&["FLUSHALL"]);
        eventually_true("it to be written again", || redis.ask::<u64>(&["HLEN", "tidegate:epochs"]) == 2);
        let four = setup().start();
        assert_eq!(resets(&four), resets(&one), "a new node hears of it");
    }
}

#[test]
fn a_node_that_resets_knows_what_others_have_reset_just_before() {
    let redis = Redis::start(&[]);
    let (one, two) = (with_redis(&redis).start(), with_redis(&redis).start());
    let counter =
        json!({"domain": "shop", "entries": [{"key": "user", "value": "a"}], "who": "jane", "why": "a test"});
    let resets = |limiter: &Tidegate| call(limiter, "GET", "/admin/resets", &Value::Null).body;
    for _ in 0..5 {
        assert_eq!(reset(&one, &json!([]), &json!({})).0, 200);
        assert_eq!(call(&two, "POST", "/admin/counters/reset", &counter).status, 200);
        assert_eq!(passed(&two, &USER), 3);
        eventually_true("both to know both", || resets(&one) == resets(&two));
        assert_eq!((passed(&one, &USER), passed(&two, &USER)), (0, 0), "all N of the last reset have passed");
    }
}

#[test]
fn a_node_that_starts_knows_of_a_reset_at_its_first_decision() {
    let redis = Redis::start(&[]);
    let one = with_redis(&redis).start();
    assert!(ask(&one, &USER), "two hits are left of the epoch before the reset");
    assert_eq!(reset(&one, &json!([{"key": "user"}]), &json!({})).0, 200);
    assert_eq!(passed(&one, &USER), 3);
    for _ in 0..5 {
        let next = with_redis(&redis).start();
        assert_eq!(passed(&next, &USER), 0);
    }
}

#[test]
fn what_redis_does_not_take_is_not_done() {
    let redis = Redis::start(&[]);
    let limiter = with_redis(&redis).env("REDIS_TIMEOUT", "1s").env("REDIS_FAILURE_MODE", "local").start();
    eventually_true("Redis", || passed(&limiter, &USER) == 0);
    drop(redis);
    // Until the limiter knows that Redis is gone, it sends the reset and gets no answer.
    eventually_true("the reset to be refused", || {
        let (status, reply) = reset(&limiter, &json!([{"key": "user"}]), &json!({}));
        let error = reply["error"].as_str().unwrap_or_default();
        assert!(status == 503 && !error.contains("in force"), "{status} {reply}");
        error.starts_with("not done, because Redis does not take it")
    });
    assert_eq!(call(&limiter, "GET", "/admin/resets", &Value::Null).body, "");
}

#[test]
fn a_reset_of_one_counter_that_gets_no_answer_says_whether_it_is_done() {
    let redis = Redis::start(&[]);
    let limiter = with_redis(&redis).env("REDIS_TIMEOUT", "1s").start();
    let body = json!({"domain": "shop", "entries": [{"key": "user", "value": "a"}], "who": "jane", "why": "a mistake"});
    let reset = || call(&limiter, "POST", "/admin/counters/reset", &body);
    eventually_true("Redis", || reset().status == 200);
    redis.stop();
    // Until the limiter knows that Redis does not answer, it sends the reset; then it does not.
    for said in ["it is not known whether the reset ", "not done, because Redis does not take it"] {
        eventually_true(said, || {
            let answer = reset();
            assert_eq!(answer.status, 503, "{answer:?}");
            answer.body.contains(said)
        });
    }
}

#[test]
fn a_counter_that_was_reset_is_full_in_no_nodes_memory() {
    let redis = Redis::start(&[]);
    for sync in ["strict", "leased"] {
        let setup = || with_redis(&redis).env("REDIS_SYNC", sync).env("LOCAL_CACHE_SIZE_IN_BYTES", "1000000");
        let (one, two) = (setup().start(), setup().start());
        assert_eq!((passed(&one, &USER), passed(&two, &USER), passed(&two, &USER)), (3, 0, 0));
        assert!(two.metric("ratelimit_localcache_entryCount") > 0.0, "{sync}: it denies from memory");
        let entries = json!([{"key": "user", "value": "a"}]);
        let body = json!({"domain": "shop", "entries": entries, "who": "jane", "why": "a mistake"});
        let answer = call(&one, "POST", "/admin/counters/reset", &body);
        assert_eq!(answer.status, 200, "{answer:?}");
        // The capacity comes back in a day.
        eventually_true("the other node to ask Redis", || ask(&two, &USER));
        assert_eq!((passed(&two, &USER), passed(&one, &USER)), (2, 0), "{sync}");
        redis.ask::<()>(&["FLUSHALL"]);
    }
}

#[test]
fn a_reset_of_one_counter_is_one_for_all_nodes_and_stays_across_reloads_and_restarts() {
    let mut limiter = setup().keeping_counters().start();
    let reset = |limiter: &Tidegate, id: Option<&Value>| -> Value {
        let entries = json!([{"key": "user", "value": "a"}, {"key": "path", "value": "/a1"}]);
        let mut body = json!({"domain": "shop", "entries": entries, "who": "jane", "why": "a mistake"});
        id.into_iter().for_each(|id| body["id"] = id.clone());
        let answer = call(limiter, "POST", "/admin/counters/reset", &body);
        assert_eq!(answer.status, 200, "{answer:?}");
        serde_json::from_str(&answer.body).expect("JSON")
    };
    assert_eq!(all_passed(&limiter), [3, 3, 3]);
    let reply = reset(&limiter, None);
    let counted = |reply: &Value, when: &str| reply[when]["descriptors"][0]["counter"]["counted"].clone();
    assert_eq!(
        (&reply["done"], counted(&reply, "before"), counted(&reply, "after")),
        (&json!("reset"), json!(3), json!(0))
    );
    assert_eq!(all_passed(&limiter), [0, 3, 0], "of no other counter");
    let again = reset(&limiter, Some(&reply["id"]));
    assert_eq!((&again["done"], counted(&again, "after")), (&json!("unchanged"), json!(3)));
    limiter.setup.write("shop.yaml", &format!("{RULES}  - {{key: new, rate_limit: *limit}}\n"));
    eventually_true("the new rule", || !ask(&limiter, &[("new", "a")]));
    assert_eq!(all_passed(&limiter), [0, 0, 0], "a reload keeps it");
    limiter.signal(Signal::TERM);
    assert_eq!(limiter.exit_code(), 0, "{:#?}", limiter.output());
    let limiter = limiter.restart();
    assert_eq!(all_passed(&limiter), [0, 0, 0], "a restart keeps it");
    let listed = call(&limiter, "GET", "/admin/resets", &Value::Null).body;
    let listed: Value = serde_json::from_str(&listed).expect("one line");
    assert_eq!((&listed["counter"], &listed["id"]), (&json!(true), &reply["id"]));
}

#[test]
fn hostile_resets_are_refused() {
    let limiter = setup().start();
    for (entries, more, expected) in [
        (json!({}), json!({}), "entries: expected a list"),
        (json!([{"key": 7}]), json!({}), "entries[0].key: expected a text of at most 1024 bytes, not 7"),
        (json!([]), json!({"id": "7"}), "id: expected sixteen digits"),
        (json!([]), json!({"id": "ffffffffffffffff"}), "the id is in the future"),
        (json!([]), json!({"why": ""}), "why: is missing"),
        (json!([]), json!({"belwo": true}), "belwo: is unknown"),
    ] {
        let (status, reply) = reset(&limiter, &entries, &more);
        let error = reply["error"].as_str().unwrap_or_default();
        assert!(status == 400 && error.starts_with(expected), "{status} {reply}");
    }
    assert_eq!(reset(&limiter, &json!([]), &json!({"domain": "<b>"})).0, 404);
    let (_, first) = reset(&limiter, &json!([]), &json!({}));
    let (status, reply) = reset(&limiter, &json!([]), &json!({"id": "0000000000000001"}));
    let later = format!("a later reset of this path is in force: {}", first["id"].as_str().expect("an id"));
    assert!(status == 409 && reply["error"].as_str().is_some_and(|it| it.starts_with(&later)), "{reply}");
}

#[test]
fn the_command_resets_below_a_path_at_every_limiter_once() {
    let (one, two) = (setup().start(), setup().start());
    let both = format!("127.0.0.1:{},127.0.0.1:{}", one.ports().debug, two.ports().debug);
    let tidegate = |words: &[&str]| {
        let mut command = Command::new(binary());
        let done = command.env_clear().env("ADMIN_TOKEN", TOKEN).args(words).args(["--to", &both]).output();
        done.expect("it runs")
    };
    for limiter in [&one, &two] {
        assert_eq!(all_passed(limiter), [3, 3, 3]);
    }
    let by = ["--who", "jane", "--why", "a mistake"];
    let done = tidegate(&[&["counter", "reset-all", "shop", "user", "path=/a*"], &by[..]].concat());
    assert!(done.status.success(), "{done:?}");
    for limiter in [&one, &two] {
        assert_eq!(all_passed(limiter), [0, 3, 0]);
    }
    let listed =
        String::from_utf8_lossy(&tidegate(&["counter", "resets", "--format", "json"]).stdout).into_owned();
    let lines = listed.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let ids: Vec<_> = lines.map(|line| line["id"].as_str().expect("a text").to_owned()).collect();
    assert!(ids.len() == 2 && ids[0] == ids[1], "{listed}");
    let id = ids[0].as_str();
    let again =
        tidegate(&[&["counter", "reset-all", "shop", "user", "path=/a*", "--id", id], &by[..]].concat());
    assert_eq!(String::from_utf8_lossy(&again.stdout).matches("unchanged").count(), 2, "{again:?}");
    assert!(tidegate(&[&["counter", "reset-all", "shop"], &by[..]].concat()).status.success());
    assert_eq!(all_passed(&one), [3, 3, 3]);
}

#[test]
fn the_fullest_and_the_most_denied_counters_of_a_rule_are_shown() {
    let limiter = setup().start();
    let rule = json!({"domain": "shop", "entries": [{"key": "user"}]});
    let top = |rule: &Value| call(&limiter, "POST", "/admin/counters/top", rule);
    let shown = || -> Value { serde_json::from_str(&top(&rule).body).expect("JSON") };
    assert_eq!((shown()["fullest"].clone(), shown()["denied"].clone()), (json!([]), json!([])));
    assert_eq!((passed(&limiter, &USER), ask(&limiter, &[("user", "b")])), (3, true));
    assert_eq!((passed(&limiter, &TENANT), passed(&limiter, &PATH)), (3, 3), "other rules");
    let reply = shown();
    let fullest = reply["fullest"].as_array().expect("a list");
    assert_eq!(reply["rule"], "shop.user");
    let of = |full: &Value| (full["entries"].clone(), full["used"].clone(), full["limit"].clone());
    let expected = [(json!("user=a"), json!(3), json!(3)), (json!("user=b"), json!(1), json!(3))];
    assert_eq!(fullest.iter().map(of).collect::<Vec<_>>(), expected);
    assert_eq!(reply["denied"].as_array().map(Vec::len), Some(1), "{reply}");
    assert_eq!((&reply["denied"][0]["count"], &reply["denied"][0]["entries"]), (&json!(2), &json!("user=a")));
    assert_eq!(reply["denied"][0]["key"], fullest[0]["key"]);
    let unknown = json!({"domain": "shop", "entries": [{"key": "user", "value": "a"}]});
    assert_eq!(top(&unknown).status, 404);
    let bad = json!({"domain": "shop", "entries": [{"key": "user"}], "most": -1});
    assert_eq!(top(&bad).status, 400);
    let to = format!("127.0.0.1:{}", limiter.ports().debug);
    let mut command = Command::new(binary());
    command.env_clear().env("ADMIN_TOKEN", TOKEN).args(["counter", "top", "shop", "user", "--most", "1"]);
    let done = command.args(["--format", "json", "--to", &to]).output().expect("it runs");
    let reply: Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert_eq!(reply["fullest"].as_array().map(Vec::len), Some(1), "{reply}");
}
