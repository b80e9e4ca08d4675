//! Reservations over HTTP and for Kuadrant: in memory, between nodes that share Redis, in a Cluster, over restarts and losses.

use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::grpc::{self, OK, OVER_LIMIT};
use crate::harness::http::{self, Client};
use crate::harness::redis::{Redis, cluster};
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{eventually, eventually_true};

const RULES: &str = "
domain: models
descriptors:
  - key: customer
    rate_limit: {unit: hour, requests_per_unit: 1000}
    reserve: {ttl: 60s}
  - key: team
    rate_limit: {period: {calendar: month, tz: UTC}, requests_per_unit: 5000}
    reserve: {ttl: 60s, retry: 7s}
  - key: calls
    rate_limit: {unit: hour, requests_per_unit: 3}
  - key: money
    rate_limit: {period: {calendar: year, tz: UTC}, requests_per_unit: 9007199254740991}
    reserve: {ttl: 60s}
";

fn setup() -> Setup {
    Setup::new().rules("models.yaml", RULES)
}

fn on(redis: &Redis) -> Setup {
    setup().env("REDIS_URL", &redis.url()).env("REDIS_TIMEOUT", "10s")
}

fn descriptors(entries: &[(&str, &str)]) -> Value {
    entries.iter().map(|(key, value)| json!({"entries": [{"key": key, "value": value}]})).collect()
}

fn send(limiter: &Tidegate, verb: &str, body: &Value) -> (u16, Value) {
    let answer = Client::new(limiter.setup.ports.http).send("POST", verb, &[], &body.to_string());
    let answer = answer.expect("an answer");
    (answer.status, serde_json::from_str(&answer.body).unwrap_or_else(|_| answer.body.clone().into()))
}

fn reserve(limiter: &Tidegate, id: &str, amount: u64, entries: &[(&str, &str)]) -> (u16, Value) {
    let body = json!({"domain": "models", "id": id, "amount": amount, "descriptors": descriptors(entries)});
    send(limiter, "/reserve", &body)
}

/// Whether so much is reserved for the customer `acme`.
fn holds(limiter: &Tidegate, id: &str, amount: u64) -> bool {
    let (status, body) = reserve(limiter, id, amount, &[("customer", "acme")]);
    assert!(status == 200 || status == 429, "{status}: {body}");
    status == 200
}

fn commit(limiter: &Tidegate, id: &str, amount: u64, entries: &[(&str, &str)]) -> Value {
    let body = json!({"domain": "models", "id": id, "amount": amount, "descriptors": descriptors(entries)});
    let (status, body) = send(limiter, "/commit", &body);
    assert_eq!(status, 200, "{body}");
    body["was"].clone()
}

fn release(limiter: &Tidegate, id: &str, entries: &[(&str, &str)]) -> Value {
    let body = json!({"domain": "models", "id": id, "descriptors": descriptors(entries)});
    send(limiter, "/release", &body).1["was"].clone()
}

/// What is left for a customer, as a question by gRPC says.
fn left(limiter: &Tidegate, customer: &str) -> u32 {
    let question = grpc::question("models", &[&[("customer", customer)]]);
    let mut question = question;
    question.descriptors[0].hits_addend = Some(0);
    limiter.client().ask(question).statuses[0].limit_remaining
}

fn nodes_hold_together([one, other]: [&Tidegate; 2]) {
    let acme = &[("customer", "acme")];
    assert!(holds(one, "a", 600));
    assert!(!holds(other, "b", 401), "600 of 1000 are held");
    assert!(holds(other, "a", 600), "the same again");
    assert_eq!([left(one, "acme"), left(other, "acme")], [400, 400]);
    let (status, body) = reserve(other, "a", 599, acme);
    assert_eq!((status, &body["error"]), (409, &json!("the id is that of a reservation of another amount")));
    assert_eq!(commit(other, "a", 250, acme), "open");
    assert_eq!([left(one, "acme"), left(other, "acme")], [750, 750]);
    assert_eq!(commit(one, "a", 250, acme), "ended", "who repeats a commit pays once");
    assert_eq!(commit(one, "unknown", 50, acme), "unknown", "it is a report");
    assert_eq!(left(other, "acme"), 700);
    assert!(holds(one, "b", 700));
    // A plain request finds no room, and a report is charged all the same.
    let asked = one.client().ask(grpc::question("models", &[&[("customer", "acme")]]));
    assert_eq!(asked.overall_code, OVER_LIMIT);
    assert_eq!(
        asked.statuses[0].duration_until_reset.as_ref().expect("a wait").seconds,
        1,
        "holds may end soon"
    );
    assert_eq!(release(other, "b", acme), "open");
    assert_eq!(left(one, "acme"), 700);
    assert_eq!(reserve(one, "b", 1, acme).0, 409, "it has ended");
    assert_eq!(one.client().ask(grpc::question("models", &[&[("customer", "acme")]])).overall_code, OK);
    amounts_have_53_bits([one, other]);
}

fn amounts_have_53_bits([one, other]: [&Tidegate; 2]) {
    let (all, held, spent) = (9_007_199_254_740_991, 5_000_000_000_000_001, 6_000_000_000_000_003);
    let money = &[("money", "acme")];
    let status = |node, id, amount| reserve(node, id, amount, money).0;
    assert_eq!(status(one, "a", held), 200);
    assert_eq!(status(other, "b", all - held + 1), 429);
    assert_eq!(commit(other, "a", spent, money), "open");
    assert_eq!([status(one, "b", all - spent + 1), status(one, "c", all - spent)], [429, 200]);
}

#[test]
fn a_node_holds_and_charges() {
    let limiter = setup().start();
    nodes_hold_together([&limiter, &limiter]);
}

#[test]
fn nodes_that_share_redis_hold_together() {
    for redis in Redis::and_valkey() {
        nodes_hold_together([&on(&redis).start(), &on(&redis).start()]);
    }
}

const LEARNING: &str = "
domain: models
descriptors:
  - key: customer
    rate_limit: {unit: hour, requests_per_unit: 1000}
    reserve: {ttl: 60s, overdraft: 0.5, hold: {percentile: 99, of: counter, initial: 400, max: 600}}
  - key: plain
    rate_limit: {unit: hour, requests_per_unit: 1000}
    reserve: {ttl: 60s}
";

fn learns(limiter: &Tidegate) {
    let acme = &[("customer", "acme")];
    let unsaid = |id: &str, entries: &[(&str, &str)]| {
        let body = json!({"domain": "models", "id": id, "descriptors": descriptors(entries)});
        send(limiter, "/reserve", &body)
    };
    assert!(holds(limiter, "a", 5_000));
    assert_eq!(left(limiter, "acme"), 600);
    assert_eq!(unsaid("a", acme).0, 200, "as much as `max`: the same reservation");
    assert!(holds(limiter, "b", 600));
    assert_eq!(left(limiter, "acme"), 200);
    assert!(!holds(limiter, "c", 600), "1,800 of 1,500 might be spent");
    assert!(holds(limiter, "c", 150), "a call that costs less");
    for (id, cost) in [("a", 700), ("b", 10), ("c", 10)] {
        assert_eq!(commit(limiter, id, cost, acme), "open");
    }
    assert_eq!(left(limiter, "acme"), 280);
    let other = &[("customer", "zoe")];
    for call in 0..20 {
        let id = format!("call-{call}");
        assert_eq!(reserve(limiter, &id, 600, other).0, 200);
        assert_eq!(commit(limiter, &id, 10, other), "open");
    }
    assert_eq!(reserve(limiter, "learnt", 600, other).0, 200);
    assert_eq!(left(limiter, "zoe"), 700, "200 are spent, and 600 of 1,500 may be");
    assert_eq!(unsaid("d", other).0, 200, "ten more are held");
    assert_eq!(left(limiter, "zoe"), 100);
    let (status, body) = unsaid("e", &[("customer", "zoe"), ("plain", "x")]);
    assert_eq!(status, 400, "{body}");
    assert!(body["error"].as_str().is_some_and(|error| error.starts_with("amount")), "{body}");
    assert_eq!(limiter.metric("tidegate_commits_above_max_total"), 1.0);
    assert_eq!(limiter.metric("tidegate_commits_above_hold_total"), 1.0);
    assert_eq!(
        limiter.metric("tidegate_hold"),
        600.0,
        "what a counter holds that has learnt nothing by itself"
    );
}

#[test]
fn a_hold_is_learnt_and_the_overdraft_bounds_worst_cases() {
    learns(&Setup::new().rules("models.yaml", LEARNING).start());
}

#[test]
fn the_same_with_redis() {
    let redis = Redis::start(&[]);
    let setup = Setup::new().rules("models.yaml", LEARNING).env("REDIS_URL", &redis.url());
    learns(&setup.env("REDIS_TIMEOUT", "10s").start());
}

/// Several limits: all of them or none, in a Cluster too, where their counters have different slots.
fn all_or_none([one, other]: [&Tidegate; 2]) {
    for number in 0..20 {
        let (customer, team) = (format!("c{number}"), format!("t{number}"));
        let both = &[("customer", &*customer), ("team", &*team)];
        assert_eq!(reserve(one, "fills", 4_500, &[("team", &team)]).0, 200);
        let (status, body) = reserve(other, "both", 800, both);
        assert_eq!(status, 429, "{body}");
        eventually_true("what the denied one held to be free", || left(one, &customer) == 1_000);
        assert_eq!(release(other, "fills", &[("team", &team)]), "open");
        assert_eq!(reserve(one, "again", 800, both).0, 200);
        assert_eq!(left(other, &customer), 200);
        assert_eq!(commit(other, "again", 900, both), "open");
        assert_eq!(left(one, &customer), 100);
    }
}

#[test]
fn several_limits_hold_all_or_none() {
    let limiter = setup().start();
    all_or_none([&limiter, &limiter]);
    let cluster = cluster();
    let urls = cluster.iter().map(Redis::url).collect::<Vec<_>>().join(",");
    let on_cluster = || on(&cluster[0]).env("REDIS_TYPE", "cluster").env("REDIS_URL", &urls);
    all_or_none([&on_cluster().start(), &on_cluster().start()]);
}

/// 16 threads at two nodes reserve, and end what they hold: never is more than N held and spent, and all of N is used.
fn never_more_than_n(nodes: [&Tidegate; 2]) {
    let reserved: u64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..16)
            .map(|thread| {
                scope.spawn(move || {
                    let ids = (0..20).map(|number| format!("{thread}-{number}"));
                    ids.filter(|id| holds(nodes[thread % 2], id, 10)).count() as u64
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("it ends")).sum()
    });
    assert_eq!(reserved, 100, "1000 hits, 10 each");
    assert_eq!(left(nodes[0], "acme"), 0);
    for thread in 0..16 {
        for number in 0..20 {
            commit(nodes[(thread + number) % 2], &format!("{thread}-{number}"), 0, &[("customer", "acme")]);
        }
    }
    assert_eq!(left(nodes[1], "acme"), 1_000);
}

#[test]
fn threads_and_nodes_hold_exactly_n() {
    let limiter = setup().start();
    never_more_than_n([&limiter, &limiter]);
    let redis = Redis::start(&[]);
    never_more_than_n([&on(&redis).start(), &on(&redis).start()]);
}

#[test]
fn holds_survive_a_restart() {
    let limiter = setup().keeping_counters().start();
    assert!(holds(&limiter, "a", 600));
    limiter.signal(Signal::TERM);
    let mut limiter = limiter;
    assert_eq!(limiter.exit_code(), 0);
    let limiter = limiter.restart();
    assert_eq!(left(&limiter, "acme"), 400);
    assert_eq!(commit(&limiter, "a", 100, &[("customer", "acme")]), "open");
    assert_eq!(left(&limiter, "acme"), 900);
}

/// What was held may be held still, so nothing passes until it would have expired.
#[test]
fn after_redis_lost_its_data_nothing_passes_for_one_ttl() {
    let redis = Redis::start(&[]);
    let rules = RULES.replace("unit: hour", "unit: second").replace("ttl: 60s", "ttl: 4s");
    let limiter = on(&redis).rules("models.yaml", &rules).env("COLD_START", "deny").start();
    eventually_true("the mark to be old", || holds(&limiter, "a", 1));
    redis.ask::<String>(&["FLUSHALL"]);
    assert!(!holds(&limiter, "b", 1));
    thread::sleep(Duration::from_secs(2));
    assert!(!holds(&limiter, "b", 1), "the window is over, the ttl is not");
    eventually_true("a ttl to be over", || holds(&limiter, "b", 1));
}

#[test]
fn without_redis_nothing_ends_and_nothing_is_lost() {
    let redis = Redis::start(&[]);
    let limiter = setup().env("REDIS_URL", &redis.url()).env("REDIS_FAILURE_MODE", "local").start();
    assert!(holds(&limiter, "a", 600));
    redis.stop();
    let acme = descriptors(&[("customer", "acme")]);
    let body = json!({"domain": "models", "id": "a", "amount": 250, "descriptors": acme});
    assert_eq!(send(&limiter, "/commit", &body).0, 503, "it has to be repeated");
    assert!(!holds(&limiter, "b", 1), "this node does not know what others hold");
    redis.wake();
    let done = eventually("Redis", || {
        let (status, body) = send(&limiter, "/commit", &body);
        (status == 200).then_some(body["was"].clone())
    });
    assert!(done == "open" || done == "ended", "{done}");
    assert_eq!(left(&limiter, "acme"), 750, "it was charged once");
}

#[test]
fn other_limits_of_the_request_are_asked_once() {
    let limiter = setup().start();
    let both = &[("customer", "acme"), ("calls", "acme")];
    for id in ["1", "2", "3"] {
        assert_eq!(reserve(&limiter, id, 10, both).0, 200);
        assert_eq!(commit(&limiter, id, 10, both), "open");
    }
    let (status, body) = reserve(&limiter, "4", 10, both);
    assert_eq!((status, &body["limits"][1]["over"]), (429, &json!(true)), "three calls an hour");
    assert_eq!(left(&limiter, "acme"), 970);
    // Their hits are asked for, and not reported: they count if they fit, and a commit does not count them again.
    let descriptors = json!([
        {"entries": [{"key": "customer", "value": "b"}]},
        {"entries": [{"key": "calls", "value": "b"}], "hits": 2},
    ]);
    let body = |id: &str| json!({"domain": "models", "id": id, "amount": 10, "descriptors": descriptors});
    assert_eq!(send(&limiter, "/reserve", &body("1")).0, 200);
    assert_eq!(send(&limiter, "/commit", &body("1")).0, 200);
    assert_eq!(send(&limiter, "/reserve", &body("2")).0, 429, "one is left");
    let one = json!({"domain": "models", "descriptors": [{"entries": [{"key": "calls", "value": "b"}]}]});
    let answer = send(&limiter, "/json", &one).1;
    assert_eq!((&answer["overallCode"], answer["statuses"][0].get("limitRemaining")), (&json!("OK"), None));
}

#[test]
fn several_are_asked_for_in_one_body() {
    let limiter = setup().start();
    let acme = descriptors(&[("customer", "acme")]);
    let one =
        |id: &str, amount: u64| json!({"domain": "models", "id": id, "amount": amount, "descriptors": acme});
    let all = json!([one("a", 600), one("b", 600), one("a", 600), one("", 1)]);
    let (status, body) = send(&limiter, "/reserve", &all);
    let statuses: Vec<&Value> = body.as_array().expect("a list").iter().map(|it| &it["status"]).collect();
    assert_eq!((status, statuses), (200, vec![&json!(200), &json!(429), &json!(200), &json!(400)]));
    let many: Vec<Value> = (0..101).map(|number| one(&number.to_string(), 1)).collect();
    let (status, body) = send(&limiter, "/reserve", &many.into());
    assert_eq!(
        (status, &body["error"]),
        (400, &json!("the body: expected a list of at most 100, not of 101"))
    );
}

#[test]
fn a_denied_reservation_says_when_to_come_back() {
    let limiter = setup().start();
    assert_eq!(reserve(&limiter, "a", 5_000, &[("team", "x")]).0, 200);
    let body =
        json!({"domain": "models", "id": "b", "amount": 1, "descriptors": descriptors(&[("team", "x")])});
    let denied = Client::new(limiter.setup.ports.http).send("POST", "/reserve", &[], &body.to_string());
    let denied = denied.expect("an answer");
    assert_eq!((denied.status, denied.header("retry-after")), (429, Some("7")), "not the end of the month");
}

#[test]
fn what_is_no_reservation_is_refused_and_holds_nothing() {
    let limiter = setup().start();
    let good = json!({"domain": "models", "id": "a", "amount": 5, "descriptors": descriptors(&[("customer", "acme")])});
    let with = |field: &str, value: Value| {
        let mut body = good.clone();
        body[field] = value;
        body
    };
    for (verb, body, expected) in [
        (
            "/reserve",
            with("amount", json!(-1)),
            "amount: expected a whole number, 0 to 9007199254740984, not -1",
        ),
        ("/reserve", with("amount", json!(1.5)), "amount: expected a whole number"),
        ("/reserve", with("amount", json!("5")), "amount: expected a whole number"),
        ("/reserve", with("amount", json!(0)), "amount: expected the most that the call may cost, not 0"),
        ("/reserve", with("amount", Value::Null), "amount: expected a whole number"),
        ("/reserve", with("ttl", json!("0s")), "ttl: expected a time such as `90s` or `5m`"),
        ("/reserve", with("ttl", json!("soon")), "ttl: expected a time"),
        ("/reserve", with("id", json!("")), "id: expected 1 to 128 bytes"),
        ("/reserve", with("id", json!("x".repeat(129))), "id: expected 1 to 128 bytes"),
        ("/reserve", with("id", json!("a\nb")), "id: expected 1 to 128 bytes without control characters"),
        ("/reserve", with("domain", json!("")), "domain: is empty"),
        ("/reserve", with("descriptors", json!([])), "descriptors: is empty"),
        ("/reserve", with("descriptors", json!([{"entries": []}])), "descriptors[0].entries: is empty"),
        ("/reserve", with("amuont", json!(5)), "amuont: is unknown"),
        ("/commit", with("ttl", json!("5s")), "ttl: is unknown"),
        ("/release", with("amount", json!(5)), "amount: is unknown"),
        ("/commit", json!({"domain": "models"}), "id: is missing"),
        ("/commit", json!(5), "the body: expected an object, not 5"),
    ] {
        let (status, answer) = send(&limiter, verb, &body);
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(status == 400 && error.starts_with(expected), "{verb} {body}: {status} {answer}");
    }
    assert_eq!(left(&limiter, "acme"), 1_000);
    let get = http::get(limiter.setup.ports.http, "/reserve").expect("an answer");
    assert_eq!(get.status, 405);
}
