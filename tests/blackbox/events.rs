//! Events as somebody gets them: lines in a file or on standard output, and requests to a webhook that takes them,
//! refuses them, hangs, or is not there.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::grpc::{Client, OK, OVER_LIMIT, question};
use crate::harness::pki::Authority;
use crate::harness::programs::succeed;
use crate::harness::redis::Redis;
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::webhook::{Mood, Webhook, connect_proxy};
use crate::harness::{eventually, eventually_true, free_port};

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 10}}
  - {key: early, rate_limit: {unit: day, requests_per_unit: 10, near: 0.3}}
  - {key: trial, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: blocked, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: busy, rate_limit: {unit: second, requests_per_unit: 5}}
";

/// A limiter that writes its events to a file.
struct Emitter {
    limiter: Tidegate,
    client: Client,
    file: PathBuf,
}

impl Emitter {
    fn start(setup: Setup) -> Self {
        let file = setup.outside().join("events.jsonl");
        let limiter = setup.env("EVENTS_LOG", &file.display().to_string()).start();
        Self { client: limiter.client(), limiter, file }
    }

    /// Asks so many times for one key.
    fn ask(&self, key: &str, value: &str, times: usize) {
        ask(&self.client, key, value, times);
    }

    /// What the file holds once there are so many events.
    fn events(&self, count: usize) -> Vec<Value> {
        let events = eventually(&format!("{count} events"), || {
            let text = fs::read_to_string(&self.file).ok()?;
            let lines: Vec<_> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
            (lines.len() >= count).then_some(lines)
        });
        assert_eq!(events.len(), count, "{events:#?}");
        events
    }
}

fn setup() -> Setup {
    Setup::new().rules("shop.yaml", RULES)
}

fn ask(client: &Client, key: &str, value: &str, times: usize) {
    for _ in 0..times {
        client.ask(question("shop", &[&[(key, value)]]));
    }
}

/// These fields of events.
fn shown(events: &[Value], fields: &[&str]) -> Vec<Vec<Value>> {
    events.iter().map(|event| fields.iter().map(|field| event[*field].clone()).collect()).collect()
}

#[test]
fn a_key_has_an_event_when_it_comes_near_its_limit_and_when_it_is_denied() {
    let emitter = Emitter::start(setup());
    for (key, times) in [("user", 13), ("early", 3), ("trial", 3)] {
        emitter.ask(key, "alice", times);
    }
    let fields = ["event", "rule", "used", "limit", "unit", "enforced"];
    let expected = [
        json!(["near_limit", "shop.user", 8, 10, "day", true]),
        json!(["denied", "shop.user", 11, 10, "day", true]),
        json!(["near_limit", "shop.early", 3, 10, "day", true]),
        json!(["near_limit", "shop.trial", 1, 1, "day", false]),
        json!(["denied", "shop.trial", 2, 1, "day", false]),
    ];
    let events = emitter.events(expected.len());
    assert_eq!(json!(shown(&events, &fields)), json!(expected));
    for event in &events {
        assert!(event["time"].as_str().is_some_and(|time| time.starts_with("20") && time.ends_with('Z')));
        assert_eq!(
            (&event["domain"], &event["hits"], &event["left_out"]),
            (&json!("shop"), &json!(1), &json!(0))
        );
    }
    let page = emitter.limiter.scrape();
    assert_eq!(page.sum("tidegate_events_total", &[("event", "denied")]), 2.0);
    eventually_true("all to be sent", || {
        emitter.limiter.scrape().sum("tidegate_events_sent_total", &[("to", "log")]) == 5.0
    });
}

#[test]
fn keys_are_hashed_unless_their_names_may_be_kept() {
    let hashes = |events: &[Value]| -> Vec<String> {
        assert!(events.iter().all(|event| event["entries"].is_null()), "{events:?}");
        events.iter().map(|event| event["key_hash"].as_str().expect("a hash").to_owned()).collect()
    };
    let ask_both = |emitter: &Emitter| {
        for user in ["alice", "bob"] {
            emitter.ask("blocked", user, 1);
        }
        emitter.events(2)
    };
    let secret = |text: &str| {
        let setup = setup();
        let file = setup.outside().join("secret");
        fs::write(&file, text).expect("the folder is ours");
        setup.env("KEY_SECRET_FILE", &file.display().to_string())
    };
    let hidden = hashes(&ask_both(&Emitter::start(secret("a secret of some length"))));
    assert_ne!(hidden[0], hidden[1], "each key has its own");
    let again = hashes(&ask_both(&Emitter::start(secret("a secret of some length"))));
    assert_eq!(hidden, again, "the same under the same secret");
    assert_ne!(hidden, hashes(&ask_both(&Emitter::start(setup()))), "another under another secret");
    let shown = ask_both(&Emitter::start(setup().env("KEEP_KEYS", "true")));
    assert_eq!(shown[0]["entries"], json!([{"key": "blocked", "value": "alice"}]));
    let long = Emitter::start(setup().env("KEEP_KEYS", "true"));
    long.ask("blocked", &"\n\"".repeat(100), 1);
    let entries = &long.events(1)[0]["entries"];
    assert_eq!(entries[0]["value"], json!("\n\"".repeat(32) + "…"), "cut, and still one line");
}

#[test]
fn settings_choose_the_events_and_how_many() {
    let emitter = Emitter::start(setup().env("EVENTS_KINDS", "near_limit").env("EVENTS_NEAR", "0.5"));
    emitter.ask("user", "alice", 12);
    emitter.ask("blocked", "alice", 2);
    emitter.ask("user", "bob", 5);
    assert_eq!(json!(shown(&emitter.events(2), &["used"])), json!([[5], [5]]));

    let emitter = Emitter::start(setup().env("EVENTS_PER_SECOND", "3"));
    let (mut users, mut events) = (0, Vec::new());
    eventually_true("an event that has the number of those before it", || {
        users += 1;
        emitter.ask("blocked", &users.to_string(), 1);
        let text = fs::read_to_string(&emitter.file).unwrap_or_default();
        events = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")).collect();
        events.iter().any(|event| event["left_out"].as_u64() > Some(0))
    });
    let left_out = |event: &Value| event["left_out"].as_u64().expect("a number");
    let counted = events.len() as u64 + events.iter().map(left_out).sum::<u64>();
    assert!(counted <= users, "each is emitted or left out, once: {counted} of {users}");
    assert!(emitter.limiter.metric("tidegate_events_left_out_total") >= 1.0);
}

#[test]
fn a_key_that_is_denied_all_the_time_has_an_event_of_its_own() {
    let emitter = Emitter::start(setup().env("EVENTS_KINDS", "denied_whole_window"));
    eventually_true("a window of denials", || {
        emitter.ask("busy", "alice", 3);
        fs::read_to_string(&emitter.file).is_ok_and(|text| text.contains('\n'))
    });
    let event: Value = serde_json::from_str(
        fs::read_to_string(&emitter.file).expect("it is there").lines().next().expect("a line"),
    )
    .expect("JSON");
    assert_eq!((&event["event"], &event["rule"]), (&json!("denied_whole_window"), &json!("shop.busy")));
    assert!(event["denied_seconds"].as_u64() >= Some(1), "{event}");
}

#[test]
fn lines_go_to_standard_output_too() {
    let limiter = setup().env("EVENTS_LOG", "-").start();
    ask(&limiter.client(), "blocked", "alice", 1);
    eventually_true("a line", || limiter.lines_with("\"event\":\"denied\"") == 1);
}

#[test]
fn a_file_may_be_moved_away_and_one_that_cannot_be_written_is_an_error() {
    let emitter = Emitter::start(setup());
    emitter.ask("blocked", "alice", 1);
    emitter.events(1);
    fs::rename(&emitter.file, emitter.file.with_extension("1")).expect("the folder is ours");
    emitter.ask("blocked", "bob", 1);
    emitter.events(1);
    let mut refused = setup().env("EVENTS_LOG", "/nowhere/events").spawn();
    assert_eq!(refused.exit_code(), 1);
    assert_eq!(refused.lines_with("EVENTS_LOG: cannot write /nowhere/events: "), 1);
}

#[test]
fn refused_rules_and_a_store_that_is_lost_and_back_have_events() {
    let mut redis = Redis::start(&[]);
    let emitter = Emitter::start(
        setup()
            .env("REDIS_URL", &redis.url())
            .env("REDIS_STARTUP_INITIAL_INTERVAL", "50ms")
            .env("REDIS_STARTUP_MAX_INTERVAL", "200ms"),
    );
    emitter.limiter.setup.write("shop.yaml", "domain: shop\ndescriptors: 1\n");
    let refused = &emitter.events(1)[0];
    assert_eq!((&refused["event"], &refused["problem_count"]), (&json!("reload_refused"), &json!(1)));
    assert!(
        refused["problems"][0].as_str().is_some_and(|problem| problem.contains("shop.yaml:2:")),
        "{refused}"
    );
    redis.kill();
    let lost = &emitter.events(2)[1];
    assert_eq!((&lost["event"], &lost["store"]), (&json!("store_lost"), &json!("main")));
    assert!(lost["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{lost}");
    redis.restart();
    assert_eq!(emitter.events(3)[2]["event"], json!("store_back"));
}

/// With a webhook at this port.
fn calling(port: u16) -> Setup {
    setup().env("EVENTS_WEBHOOK_URL", &format!("http://127.0.0.1:{port}/hook?key=hunter2"))
}

#[test]
fn a_webhook_gets_signed_requests() {
    let webhook = Webhook::start(Mood::Takes);
    let limiter = calling(webhook.port).env("EVENTS_WEBHOOK_SECRET", "hunter3").start();
    ask(&limiter.client(), "user", "alice", 12);
    eventually_true("both events", || webhook.events().len() == 2);
    assert_eq!(json!(shown(&webhook.events(), &["event"])), json!([["near_limit"], ["denied"]]));
    for request in webhook.requests() {
        assert_eq!(request.target, "/hook?key=hunter2");
        assert_eq!(request.headers["content-type"], "application/json");
        assert_eq!(request.headers["tidegate-delivery"].len(), 32);
        check_signature(&request.headers["tidegate-signature"], &request.body, "hunter3");
    }
    assert_eq!(limiter.lines_with("hunter"), 0, "neither the path nor the secret is logged");
    let unsigned = Webhook::start(Mood::Takes);
    let limiter = calling(unsigned.port).start();
    ask(&limiter.client(), "blocked", "alice", 1);
    eventually_true("the event", || unsigned.events().len() == 1);
    assert!(!unsigned.requests()[0].headers.contains_key("tidegate-signature"));
}

/// By Python's own library.
fn check_signature(header: &str, body: &str, secret: &str) {
    let code = "
import hashlib, hmac, sys, time
parts = dict(part.split('=') for part in sys.argv[1].split(','))
signed = hmac.new(sys.argv[3].encode(), f'{parts[\"t\"]}.{sys.argv[2]}'.encode(), hashlib.sha256)
assert hmac.compare_digest(signed.hexdigest(), parts['v1']), 'signature'
assert abs(time.time() - int(parts['t'])) < 300, 'time'
";
    succeed(Command::new("python3").args(["-c", code, header, body, secret]));
}

#[test]
fn a_webhook_may_have_tls_and_stand_behind_a_proxy() {
    let authority = Authority::new("an authority");
    let webhook = Webhook::with_tls(&authority.issue("localhost"), Mood::Takes);
    let (proxy, asked) = connect_proxy();
    let start = |setup: Setup| {
        let file = setup.outside().join("ca.pem");
        fs::write(&file, authority.pem()).expect("the folder is ours");
        setup
            .env("EVENTS_WEBHOOK_URL", &format!("https://localhost:{}/", webhook.port))
            .env("EVENTS_WEBHOOK_CACERT", &file.display().to_string())
            .start()
    };
    let direct = start(setup());
    ask(&direct.client(), "blocked", "alice", 1);
    eventually_true("the event", || webhook.events().len() == 1);
    assert_eq!(asked.lock().expect("no panic").len(), 0);
    let proxied = start(setup().env("EVENTS_WEBHOOK_PROXY", &format!("http://127.0.0.1:{proxy}")));
    ask(&proxied.client(), "blocked", "alice", 1);
    eventually_true("the event by the proxy", || webhook.events().len() == 2);
    assert_eq!(*asked.lock().expect("no panic"), [format!("localhost:{}", webhook.port)]);
    assert_eq!(proxied.lines_with(&format!("(by the proxy http://127.0.0.1:{proxy})")), 1);
    let distrusting =
        setup().env("EVENTS_WEBHOOK_URL", &format!("https://localhost:{}/", webhook.port)).start();
    ask(&distrusting.client(), "blocked", "alice", 1);
    eventually_true("the refusal of its certificate", || distrusting.lines_with("UnknownIssuer") == 1);
}

fn dropped(limiter: &Tidegate, reason: &str) -> f64 {
    limiter.scrape().sum("tidegate_events_dropped_total", &[("to", "webhook"), ("reason", reason)])
}

#[test]
fn a_request_that_fails_is_sent_again_and_arrives_once() {
    let port = free_port();
    let limiter = calling(port).env("EVENTS_WEBHOOK_TIMEOUT", "500ms").start();
    ask(&limiter.client(), "blocked", "alice", 1);
    eventually_true("an attempt", || limiter.lines_with("does not accept events, which wait") == 1);
    let webhook = Webhook::start_on(port, Mood::Says(500));
    eventually_true("an answer of 500", || !webhook.requests().is_empty());
    webhook.become_(Mood::Hangs);
    // Several may have got the answer of 500.
    let answered = webhook.requests().len();
    eventually_true("a request that is not answered", || webhook.requests().len() > answered);
    webhook.become_(Mood::Takes);
    eventually_true("the event", || webhook.events().len() == 1);
    let requests = webhook.requests();
    assert!(
        requests
            .iter()
            .all(|request| request.headers["tidegate-delivery"] == requests[0].headers["tidegate-delivery"])
    );
    eventually_true("the log to say so", || limiter.lines_with("accepts events again") == 1);
    assert_eq!((dropped(&limiter, "failed"), dropped(&limiter, "queue")), (0.0, 0.0));
    assert!(limiter.metric("tidegate_events_failures_total") >= 3.0);
}

#[test]
fn a_request_that_is_refused_or_fails_for_too_long_is_dropped_and_counted() {
    let webhook = Webhook::start(Mood::Says(404));
    let limiter = calling(webhook.port).env("EVENTS_WEBHOOK_RETRY_TIME", "100ms").start();
    let client = limiter.client();
    ask(&client, "blocked", "alice", 1);
    eventually_true("the end of it", || dropped(&limiter, "failed") == 1.0);
    assert_eq!(webhook.requests().len(), 1, "a 404 stays one");
    webhook.become_(Mood::Says(503));
    ask(&client, "blocked", "bob", 1);
    eventually_true("the end of that too", || dropped(&limiter, "failed") == 2.0);
    webhook.become_(Mood::Takes);
    ask(&client, "blocked", "carol", 1);
    eventually_true("the next one", || webhook.events().len() == 1);
}

const MIB: u64 = 1 << 20;

#[test]
fn a_webhook_that_hangs_costs_a_queue_and_no_decision() {
    let webhook = Webhook::start(Mood::Hangs);
    let limiter = calling(webhook.port)
        .env("EVENTS_QUEUE", "20")
        .env("EVENTS_PER_SECOND", "1000000")
        .env("EVENTS_WEBHOOK_TIMEOUT", "1h")
        .start();
    let client = limiter.client();
    ask(&client, "blocked", "first", 1);
    eventually_true("a request that hangs", || webhook.requests().len() == 1);
    limiter.forget_memory_peak();
    let before = limiter.memory_peak_bytes();
    for user in 0..1_000 {
        let user = user.to_string();
        let answer = client.ask(question("shop", &[&[("blocked", &user)], &[("early", &user)]]));
        assert_eq!((answer.overall_code, answer.statuses[1].code), (OVER_LIMIT, OK));
    }
    let page = limiter.scrape();
    assert_eq!(page.sum("tidegate_events_waiting", &[("to", "webhook")]), 20.0);
    assert_eq!(dropped(&limiter, "queue"), 1_000.0 - 20.0);
    let grown = limiter.memory_peak_bytes().saturating_sub(before);
    // New counters touch pages of their own.
    assert!(grown < 16 * MIB, "{grown} bytes");
    // Its end does not wait for the webhook.
    let mut limiter = limiter;
    limiter.signal(rustix::process::Signal::TERM);
    assert_eq!(limiter.exit_code(), 0);
}

#[test]
fn what_waits_is_sent_at_the_end() {
    let webhook = Webhook::start(Mood::Says(500));
    let mut limiter = calling(webhook.port).start();
    ask(&limiter.client(), "blocked", "alice", 1);
    eventually_true("an attempt", || !webhook.requests().is_empty());
    ask(&limiter.client(), "blocked", "bob", 1);
    webhook.become_(Mood::Takes);
    limiter.signal(rustix::process::Signal::TERM);
    assert_eq!(limiter.exit_code(), 0);
    assert_eq!(webhook.events().len(), 2);
}

#[test]
fn a_proxy_that_other_programs_use_has_no_effect_and_a_line_says_so() {
    let limiter = calling(free_port()).env("HTTPS_PROXY", "http://proxy:3128").start();
    assert_eq!(limiter.lines_with("HTTPS_PROXY: has no effect"), 1);
}
