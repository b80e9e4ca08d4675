//! Calls in flight: slots that are taken and released over HTTP and gRPC, by nodes that share Redis, and through a real
//! Envoy and a real NGINX, whose application counts them too.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::admin::{TOKEN, call as call_admin};
use crate::commands::tidegate;
use crate::harness::envoy::{Envoy, Upstream};
use crate::harness::grpc::{self, OK, OVER_LIMIT};
use crate::harness::http::{self, Client};
use crate::harness::inside::Inside;
use crate::harness::proxy::Proxy;
use crate::harness::redis::{Redis, cluster};
use crate::harness::slow::Slow;
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{eventually, eventually_true};

const RULES: &str = "
domain: edge
descriptors:
  - key: user
    concurrency: {slots: 3, ttl: 1h, id: request_id, name: calls}
";

fn limiter(redis: Option<&Redis>) -> Tidegate {
    let setup = Setup::new().rules("edge.yaml", RULES);
    match redis {
        Some(redis) => setup.env("REDIS_URL", &redis.url()).start(),
        None => setup.start(),
    }
}

/// The token of a call that found a slot.
fn take(limiter: &Tidegate, id: &str) -> Option<String> {
    let answer = http::get(limiter.setup.ports.http, &format!("/check/edge?user=alice&request_id={id}"))
        .expect("an answer");
    assert_eq!(answer.header("tidegate-slots").is_some(), answer.status == 200, "{answer:?}");
    answer.header("tidegate-slots").map(str::to_owned)
}

fn release(limiter: &Tidegate, token: &str) {
    let path = format!("/release/edge?user=alice&request_id={token}");
    let answer = Client::new(limiter.setup.ports.http).send("POST", &path, &[], "").expect("an answer");
    assert_eq!(answer.status, 200, "{answer:?}");
}

fn slots_of(nodes: [&Tidegate; 2]) {
    let [one, other] = nodes;
    let tokens: Vec<String> = ["a", "b", "c"].map(|id| take(one, id).expect("a slot is free")).into();
    assert_eq!(take(other, "d"), None, "three are in flight");
    release(other, &tokens[0]);
    assert_eq!(take(one, "b"), None, "it runs already");
    let again = take(other, "a").expect("its slot is free again");
    release(one, &tokens[0]);
    assert_eq!(take(one, "d"), None, "a token releases once");
    release(one, &again);
    // As over gRPC, the token is in dynamic metadata, also where these are off.
    let json = |node: &Tidegate, id: &str, more: &str| {
        let entries = json!([{"key": "user", "value": "alice"}, {"key": "request_id", "value": id}]);
        let question = format!(r#"{{"domain": "edge", "descriptors": [{{"entries": {entries}{more}}}]}}"#);
        let answer = Client::new(node.setup.ports.http).send("POST", "/json", &[], &question);
        serde_json::from_str::<Value>(&answer.expect("an answer").body).expect("JSON")
    };
    let admitted = json(one, "e", "");
    let token = admitted["dynamicMetadata"]["slots"]["calls"].as_str().expect("the token");
    assert_eq!(admitted["statuses"][0]["currentLimit"]["unit"], Value::Null, "slots have no unit of time");
    assert_eq!(json(other, "f", "").get("dynamicMetadata"), None, "it is denied");
    json(other, token, r#", "isNegativeHits": true"#);
    assert!(take(one, "f").is_some());
}

#[test]
fn a_slot_is_released_by_its_token_alone() {
    let limiter = limiter(None);
    slots_of([&limiter, &limiter]);
    let get = http::get(limiter.setup.ports.http, "/release/edge?user=alice").expect("an answer");
    assert_eq!(get.status, 405);
}

/// What is no id is the fault of whoever sent it, and takes nothing.
fn what_is_no_id(limiter: &Tidegate) {
    let (long, port) = ("x".repeat(129), limiter.setup.ports.http);
    for (id, encoded, what) in [
        (&*long, &*long, "an id of 129 bytes is too long (at most 128)"),
        ("a\tb", "a%09b", "an id with a control character (expected none)"),
    ] {
        let sentence = format!("descriptor 0: request_id: {what}");
        for verb in ["check", "release"] {
            let path = format!("/{verb}/edge?user=alice&request_id={encoded}");
            let answer = Client::new(port).send("POST", &path, &[], "").expect("an answer");
            assert_eq!((answer.status, &*answer.body), (400, &*format!("{sentence}\n")), "{path}");
        }
        let calls = [id, "1"].map(|id| [("user", "alice"), ("request_id", id)]);
        let refused = limiter.client().call(grpc::question("edge", &[&calls[0], &calls[1]]));
        let refused = refused.expect_err("it is no id");
        assert_eq!((refused.code(), refused.message()), (tonic::Code::InvalidArgument, &*sentence));
    }
    assert!(["1", "2", "3"].iter().all(|id| take(limiter, id).is_some()), "nothing was counted");
    assert_eq!(take(limiter, &"4".repeat(128)), None);
}

#[test]
fn what_is_no_id_is_refused_and_takes_nothing() {
    what_is_no_id(&limiter(None));
    what_is_no_id(&limiter(Some(&Redis::start(&[]))));
}

#[test]
fn nodes_share_slots_in_redis() {
    for redis in Redis::and_valkey() {
        slots_of([&limiter(Some(&redis)), &limiter(Some(&redis))]);
    }
}

#[test]
fn a_call_keeps_its_slot_for_longer_than_its_ttl() {
    let rules = RULES.replace("slots: 3, ttl: 1h", "slots: 1, ttl: 2s");
    let redis = Redis::start(&[]);
    let setup = || Setup::new().rules("edge.yaml", &rules);
    for limiter in [setup().start(), setup().env("REDIS_URL", &redis.url()).start()] {
        let renew = |token: &str| {
            let path = format!("/renew/edge?user=alice&request_id={token}");
            Client::new(limiter.setup.ports.http).send("POST", &path, &[], "").expect("an answer")
        };
        let began = Instant::now();
        let token = take(&limiter, "a").expect("a slot is free");
        while began.elapsed() < Duration::from_secs(4) {
            let renewed = renew(&token);
            assert_eq!((renewed.status, renewed.header("tidegate-slots")), (200, Some(&*token)));
            assert_eq!(take(&limiter, "b"), None, "it runs still");
        }
        let next = eventually("its slot to end", || take(&limiter, "b"));
        assert_eq!(renew(&token).status, 404, "it has ended");
        release(&limiter, &next);
        assert_eq!(renew("a").status, 400);
    }
}

/// What `tidegate ask` says of a call.
fn explained(limiter: &Tidegate, id: &str) -> String {
    let node = format!("127.0.0.1:{}", limiter.ports().debug);
    let (code, text, complaints) =
        tidegate(&["ask", "edge", "user=alice", &format!("request_id={id}"), "--to", &node], &[]);
    assert_eq!(code, 0, "{complaints}");
    text
}

/// Calls at one time and calls an hour in one rule.
fn slots_and_a_rate(limiter: &Tidegate) {
    let tokens: Vec<String> = ["a", "b", "c"].map(|id| take(limiter, id).expect("a slot is free")).into();
    assert_eq!(take(limiter, "d"), None, "three are in flight");
    let text = explained(limiter, "d");
    assert!(text.contains("capacity  1 hit fits in 1 s"), "{text}");
    release(limiter, &tokens[0]);
    let last = take(limiter, "d").expect("a denied call is charged nothing, so this is the fourth");
    tokens[1..].iter().chain([&last]).for_each(|token| release(limiter, token));
    assert_eq!(take(limiter, "e"), None, "four an hour");
    let text = explained(limiter, "f");
    let shown = "limit     4 per hour";
    assert!(text.contains(shown) && text.contains("also      3 in flight, ttl 3600 s"), "{text}");
}

#[test]
fn calls_in_flight_and_calls_an_hour_are_counted_by_one_rule() {
    let rules = RULES.to_owned() + "    rate_limit: {unit: hour, requests_per_unit: 4}\n";
    let setup = || Setup::new().rules("edge.yaml", &rules);
    slots_and_a_rate(&setup().start());
    for redis in Redis::and_valkey() {
        slots_and_a_rate(&setup().env("REDIS_URL", &redis.url()).start());
        let mut keys = redis.ask::<Vec<String>>(&["KEYS", "*"]);
        keys.retain(|key| redis.ask::<String>(&["TYPE", key]) == "zset");
        let [slots] = &keys[..] else { panic!("{keys:?}") };
        assert_eq!(redis.ask::<Vec<String>>(&["ZRANGE", slots, "0", "-1"]), ["latest"], "none is held");
    }
    let masters = cluster();
    let limiter = setup().env("REDIS_URL", &masters[0].url()).env("REDIS_TYPE", "CLUSTER").start();
    slots_and_a_rate(&limiter);
}

/// Whoever releases a slot learns that it was not released, and can repeat it.
#[test]
fn without_redis_no_slot_is_given_and_no_release_is_acknowledged() {
    let mut redis = Redis::start(&[]);
    let setup = Setup::new().rules("edge.yaml", RULES).env("REDIS_URL", &redis.url());
    let limiter = setup.env("REDIS_FAILURE_MODE", "local").start();
    let token = take(&limiter, "a").expect("a slot is free");
    redis.kill();
    assert_eq!(take(&limiter, "b"), None);
    let path = format!("/release/edge?user=alice&request_id={token}");
    let answer = Client::new(limiter.setup.ports.http).send("POST", &path, &[], "").expect("an answer");
    assert_eq!(answer.status, 503, "{answer:?}");
}

/// A `ttl` is no unit: also 90 s is not per second.
#[test]
fn slots_are_never_in_the_redis_of_limits_per_second() {
    let (main, quick) = (Redis::start(&[]), Redis::start(&[]));
    let rules = RULES.replace("ttl: 1h", "ttl: 90s");
    let setup = Setup::new().rules("edge.yaml", &rules).env("REDIS_URL", &main.url());
    let limiter = setup.env("REDIS_PERSECOND", "true").env("REDIS_PERSECOND_URL", &quick.url()).start();
    let token = take(&limiter, "a").expect("a slot is free");
    let sorted_sets = |redis: &Redis| {
        let keys: Vec<String> = redis.ask(&["KEYS", "*"]);
        keys.iter().filter(|key| redis.ask::<String>(&["TYPE", key]) == "zset").count()
    };
    assert_eq!((sorted_sets(&main), sorted_sets(&quick)), (1, 0));
    release(&limiter, &token);
    assert_eq!(sorted_sets(&main), 1, "`latest` stays");
    assert!(["a", "b", "c"].iter().all(|id| take(&limiter, id).is_some()));
    assert_eq!(take(&limiter, "d"), None);
}

#[test]
fn an_exception_changes_the_burst_of_a_bucket_with_slots() {
    let bucket = "    rate_limit: {unit: hour, requests_per_unit: 4, algorithm: token_bucket, burst: 9}\n";
    let setup = Setup::new().rules("edge.yaml", &(RULES.to_owned() + bucket)).env("ADMIN_TOKEN", TOKEN);
    let limiter = setup.start();
    let body =
        json!({"domain": "edge", "entries": [{"key": "user"}], "who": "jane", "why": "a launch", "burst": 1});
    let answer = call_admin(&limiter, "PUT", "/admin/exceptions/a", &body);
    assert_eq!(answer.status, 201, "{answer:?}");
}

#[test]
fn an_exception_changes_the_slots_and_no_burst() {
    let setup = Setup::new().rules("edge.yaml", RULES).env("ADMIN_TOKEN", TOKEN);
    let limiter = setup.start();
    let put = |more: Value| {
        let mut body =
            json!({"domain": "edge", "entries": [{"key": "user"}], "who": "jane", "why": "a launch"});
        more.as_object().expect("an object").iter().for_each(|(name, value)| body[name] = value.clone());
        call_admin(&limiter, "PUT", "/admin/exceptions/a", &body)
    };
    for more in [json!({"burst": 9}), json!({"requests_per_unit": 1, "burst": 9})] {
        let answer = put(more);
        let expected = "burst: expected requests_per_unit alone: this rule counts calls in flight";
        assert!(answer.status == 400 && answer.body.contains(expected), "{answer:?}");
    }
    assert_eq!(put(json!({"requests_per_unit": 1})).status, 201);
    eventually_true("one slot", || {
        let token = take(&limiter, "a").expect("a slot is free");
        let another = take(&limiter, "b");
        another.iter().chain([&token]).for_each(|token| release(&limiter, token));
        another.is_none()
    });
}

/// In a Cluster, a slot may be taken before another counter denies the request.
#[test]
fn a_request_that_is_denied_elsewhere_holds_no_slot() {
    let masters = cluster();
    let rules = RULES.replace("slots: 3", "slots: 1")
        + "  - {key: closed, rate_limit: {unit: hour, requests_per_unit: 0}}\n";
    let setup = Setup::new().rules("edge.yaml", &rules).env("REDIS_TYPE", "CLUSTER");
    let limiter = setup.env("REDIS_URL", &masters[0].url()).start();
    let client = limiter.client();
    for user in (0..30).map(|user| user.to_string()) {
        let slot = [("user", &*user), ("request_id", "a")];
        let denied = client.ask(grpc::question("edge", &[&slot, &[("closed", "x")]]));
        assert_eq!(denied.overall_code, OVER_LIMIT);
        eventually_true("its slot to be free", || {
            client.ask(grpc::question("edge", &[&slot])).overall_code == OK
        });
    }
}

/// Asks with the call's id, and releases by the token in the answer's metadata when the stream is done. A call that was
/// denied has none: then Envoy has no descriptor to send.
const ROUTE: &str = r#"                        - match: { prefix: /model }
                          route: { cluster: application, timeout: 0s }
                          typed_per_filter_config:
                            envoy.filters.http.ratelimit:
                              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                              rate_limits:
                                - actions:
                                    - request_headers: { header_name: x-user, descriptor_key: user }
                                    - request_headers: { header_name: x-request-id, descriptor_key: request_id }
                                - apply_on_stream_done: true
                                  hits_addend: { number: 1, is_negative_hits: true }
                                  actions:
                                    - request_headers: { header_name: x-user, descriptor_key: user }
                                    - metadata:
                                        descriptor_key: request_id
                                        metadata_key:
                                          key: envoy.filters.http.ratelimit
                                          path: [{ key: slots }, { key: calls }]
"#;

const RATE_LIMITS: &str = "rate_limits:
  - actions:
      - request_headers: {header_name: x-user, descriptor_key: user}
      - request_headers: {header_name: x-request-id, descriptor_key: request_id}
descriptors:";

/// Where the application of `examples/inside` is.
const ENDPOINT: &str =
    "- endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 10080 } } }";

/// A call through the proxy on this port.
fn call(proxy: u16) -> JoinHandle<u16> {
    let mut client = Client::new(proxy);
    std::thread::spawn(move || {
        client.send("GET", "/model/", &[("x-user", "alice")], "").map_or(0, |answer| answer.status)
    })
}

/// Envoy in front of this application, with the route, and with these changes too.
pub fn envoy(limiters: &Upstream, application: &Slow, changes: &[(&str, &str)]) -> Envoy {
    let everything_else = "                        # Everything else:";
    let route = format!("{ROUTE}{everything_else}");
    let changes = [&[(everything_else, &*route)], changes].concat();
    Envoy::start_before_changed(limiters, application.start(), &changes)
}

fn through_envoy(limiter: &Tidegate) {
    let application = Slow::default();
    let envoy = envoy(&Upstream::at(limiter), &application, &[]);
    slots_come_back(envoy.port, &application);
}

/// The limiter inside Envoy keeps the token by itself.
fn slots_inside_end_with_streams(settings: &[(&str, &str)]) {
    let (application, rules) = (Slow::default(), RULES.replace("descriptors:", RATE_LIMITS));
    let of = |inside: Inside, &(name, value): &(&str, &str)| inside.setting(name, value);
    let inside = settings.iter().fold(Inside::new(&rules), of);
    let (config, own) = (inside.config(), ENDPOINT.replace("10080", &application.start().to_string()));
    assert!(config.contains(ENDPOINT));
    let envoy = Envoy::start_config(&config.replace(ENDPOINT, &own));
    slots_come_back(envoy.port, &application);
}

/// Three calls have slots, and each slot is free when its call has ended or its client has left.
fn slots_come_back(proxy: u16, application: &Slow) {
    let held: Vec<_> = (0..3).map(|_| call(proxy)).collect();
    eventually_true("three calls in flight", || application.in_flight() == 3);
    for _ in 0..5 {
        assert_eq!(call(proxy).join().expect("no panic"), 429, "the end of a denied call releases nothing");
    }
    application.answer(3);
    assert_eq!(held.into_iter().map(|call| call.join().expect("no panic")).collect::<Vec<_>>(), [200; 3]);
    // Clients that leave, one more than there are slots.
    for _ in 0..4 {
        drop(call_that_can_leave(proxy, application));
    }
    application.answer(100);
    eventually_true("all slots are free", || {
        let calls: Vec<_> = (0..3).map(|_| call(proxy)).collect();
        calls.into_iter().all(|call| call.join().expect("no panic") == 200)
    });
    assert!(application.most() <= 3 + 4, "those that were left, and three more: {}", application.most());
}

/// The connection of a call that is in flight.
fn call_that_can_leave(proxy: u16, application: &Slow) -> TcpStream {
    let before = application.in_flight();
    eventually("a call in flight", || {
        let mut asking = http::connect(proxy).expect("the proxy listens");
        asking
            .write_all(b"GET /model/ HTTP/1.1\r\nhost: tests\r\nx-user: alice\r\n\r\n")
            .expect("it is sent");
        // Either it reaches the application, or its denial can be read.
        asking.set_read_timeout(Some(Duration::from_millis(10))).expect("above 0");
        while application.in_flight() == before {
            if asking.read(&mut [0; 512]).is_ok() {
                return None;
            }
        }
        Some(asking)
    })
}

#[test]
fn the_end_of_a_stream_releases_its_slot_through_envoy() {
    through_envoy(&limiter(None));
}

#[test]
fn the_end_of_a_stream_releases_its_slot_in_redis_through_envoy() {
    let redis = Redis::start(&[]);
    through_envoy(&limiter(Some(&redis)));
}

#[test]
fn the_end_of_a_stream_releases_its_slot_inside_envoy() {
    slots_inside_end_with_streams(&[]);
}

#[test]
fn the_end_of_a_stream_releases_its_slot_in_redis_inside_envoy() {
    let redis = Redis::start(&[]);
    slots_inside_end_with_streams(&[("REDIS_URL", &redis.url())]);
}

/// The lines in docs/proxies.md, added to the recipe.
#[test]
fn the_end_of_a_call_releases_its_slot_through_nginx() {
    let rules = RULES.replace("domain: edge", "domain: calls");
    let limiter = Setup::new().rules("calls.yaml", &rules).start();
    let application = Slow::default();
    let page = include_str!("../../docs/proxies.md");
    let section = page.split("### Calls in flight in NGINX").nth(1).expect("it is there");
    let blocks: Vec<_> = section.split("```nginx\n").skip(1).take(2).collect();
    let added = |block: &str, before: &'static str| {
        let lines = block.split("```").next().expect("a block");
        (before, format!("{lines}{before}"))
    };
    let changes = [
        added(blocks[0], "# Most of the site."),
        added(blocks[1], "# Without an answer of Tidegate the request passes."),
    ];
    let address = format!("127.0.0.1:{}", limiter.ports().http);
    let proxy = Proxy::start_nginx_changed(&address, application.start(), &changes);
    slots_come_back(proxy.port, &application);
}
