//! `examples/tokens/` as it is: a real Envoy in front of its model, with its rules. Calls in flight are bounded, and what a
//! call cost is charged once.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::Value;

use crate::admin::TOKEN;
use crate::harness::envoy::Envoy;
use crate::harness::http::{self, Answer};
use crate::harness::process::Process;
use crate::harness::programs::python;
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{eventually, eventually_true, free_port};
use crate::records::load;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/tokens");
/// As `model.py` says.
const TOKENS_PER_WORD: u64 = 12;
const SLOTS: u64 = 3;

struct Gateway {
    limiter: Tidegate,
    _model: Process,
    model_port: u16,
    envoy: Envoy,
}

impl Gateway {
    fn start() -> Self {
        let rules = format!("{FOLDER}/rules");
        let setup = Setup::new().env("CONFIG_PATH", &rules).env("STRICT_RULES", "true");
        let records = setup.outside().join("records").display().to_string();
        let limiter = setup.env("LIMITS_DIR", &records).env("ADMIN_TOKEN", TOKEN).start();
        let customers = fs::read_to_string(format!("{FOLDER}/customers.json")).expect("a file");
        let loaded = load(&limiter, "json", &customers);
        assert!(loaded.status == 200 && !loaded.body.contains("\"problem\""), "{loaded:?}");
        let model_port = free_port();
        let script = format!("{FOLDER}/model.py");
        let model = Process::spawn(python().arg(script).arg(model_port.to_string()));
        eventually("the model to listen", || http::get(model_port, "/log").ok());
        let envoy = Envoy::start_tokens(&limiter, model_port);
        Self { limiter, _model: model, model_port, envoy }
    }

    /// A call that ends soon.
    fn call(&self, customer: &str, words: u64) -> Answer {
        let body = format!(r#"{{"words": {words}, "seconds": 0.01}}"#);
        let headers = [("x-customer", customer)];
        self.envoy.client().send("POST", "/v1/chat/completions", &headers, &body).expect("Envoy answers")
    }

    /// A call that has reached the model and goes on until its connection is dropped.
    fn hold(&self, customer: &str) -> TcpStream {
        let body = r#"{"words": 36000, "seconds": 3600}"#;
        let mut asking = http::connect(self.envoy.port).expect("Envoy listens");
        let head = format!("POST / HTTP/1.1\r\nhost: tests\r\nx-customer: {customer}\r\n");
        let asked = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        asking.write_all(asked.as_bytes()).expect("Envoy reads");
        let mut begin = [0; 12];
        asking.read_exact(&mut begin).expect("the model begins at once");
        assert_eq!(&begin, b"HTTP/1.1 200");
        asking
    }

    /// What the model itself has counted.
    fn of_model(&self, what: &str) -> u64 {
        let log = http::get(self.model_port, "/log").expect("the model answers").body;
        serde_json::from_str::<Value>(&log).expect("JSON")[what].as_u64().expect("a number")
    }

    fn left(&self, limit: &str, customer: &str) -> u64 {
        let path = format!("/check/models?{limit}={customer}&~hits=0");
        http::get(self.limiter.ports().http, &path).expect("an answer").number("ratelimit-remaining")
    }

    /// So many slots are free, when the releases have arrived.
    fn expect_free(&self, customer: &str, slots: u64) {
        eventually_true("slots to be free", || self.left("calls", customer) == slots);
    }

    /// So much is left, of a month and of a minute, when the reports have arrived.
    fn expect_left(&self, customer: &str, month: u64, minute: u64) {
        let left = || (self.left("month", customer), self.left("minute", customer));
        eventually(&format!("{customer} to have {month} and {minute} left"), || {
            (left() == (month, minute)).then_some(())
        });
    }
}

#[test]
fn a_client_reserves_the_most_that_a_call_may_cost_and_commits_the_cost() {
    let gateway = Gateway::start();
    let client = |customer: &str, words: u64, most: u64| {
        let ports = [gateway.limiter.ports().http, gateway.model_port].map(|port| port.to_string());
        let mut client = python();
        client.arg(format!("{FOLDER}/client.py")).args([customer, &words.to_string(), &most.to_string()]);
        let output = client.args(ports).output().expect("Python runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    };
    let cost = 30 * TOKENS_PER_WORD;
    let said = client("globex", 30, 1_000);
    assert_eq!(said, (true, format!("{{\"tokens\": {cost}, \"was\": \"open\"}}\n")));
    // The minute of globex is that of its record.
    gateway.expect_left("globex", 500_000 - cost, 50_000 - cost);
    // It would fit, and it might not.
    let (is_done, said) = client("initech", 30, 1_001);
    assert!(!is_done && said.starts_with("429: "), "{said}");
    gateway.expect_left("initech", 1_000, 20_000);
    assert_eq!(gateway.of_model("tokens"), cost);
}

#[test]
fn calls_in_flight_are_bounded_and_slots_come_back() {
    let gateway = Gateway::start();
    let mut held: Vec<_> = (1..SLOTS).map(|_| gateway.hold("acme")).collect();
    // One slot is left: it comes back after each call that ends.
    for _ in 0..5 {
        gateway.expect_free("acme", 1);
        assert_eq!(gateway.call("acme", 10).status, 200);
    }
    gateway.expect_free("acme", 1);
    held.push(gateway.hold("acme"));
    for _ in 0..5 {
        let denied = gateway.call("acme", 10);
        assert_eq!((denied.status, denied.header("retry-after")), (429, Some("1")), "{denied:?}");
    }
    assert_eq!(gateway.call("globex", 10).status, 200, "each customer has slots of its own");
    assert_eq!(gateway.of_model("most"), SLOTS + 1, "those of acme, and one of globex");

    // Clients that leave in the middle of the stream: their slots come back too.
    drop(held);
    gateway.expect_free("acme", SLOTS);
    eventually_true("the model to notice", || gateway.of_model("in_flight") == 0);
    let again: Vec<_> = (0..SLOTS).map(|_| gateway.hold("acme")).collect();
    assert_eq!(gateway.call("acme", 10).status, 429);
    drop(again);
    // Only the calls that ended had a usage.
    gateway.expect_left("acme", 2_000_000 - 5 * 10 * TOKENS_PER_WORD, 20_000 - 5 * 10 * TOKENS_PER_WORD);
    assert_eq!(gateway.of_model("tokens"), 6 * 10 * TOKENS_PER_WORD);
}

#[test]
fn tokens_are_charged_once_until_the_month_is_used_up() {
    let gateway = Gateway::start();
    let cost = 30 * TOKENS_PER_WORD;
    for calls in 1..=3 {
        let answer = gateway.call("initech", 30);
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(
            answer.body.contains(&format!(r#"data: {{"usage": {{"total_tokens": {cost}}}}}"#)),
            "{answer:?}"
        );
        // The third goes beyond what was bought, and is charged in full.
        gateway.expect_left("initech", 1_000_u64.saturating_sub(calls * cost), 20_000 - calls * cost);
    }
    for _ in 0..5 {
        let denied = gateway.call("initech", 30);
        assert_eq!(denied.status, 429, "{denied:?}");
        let wait: u64 = denied.number("retry-after");
        assert!((1..=31 * 86_400).contains(&wait), "until the month ends: {wait}");
    }
    assert_eq!(gateway.call("hooli", 30).status, 429, "who has bought nothing");
    gateway.expect_left("initech", 0, 20_000 - 3 * cost);
    assert_eq!((gateway.of_model("tokens"), gateway.of_model("most")), (3 * cost, 1));

    // Without Tidegate there is no call.
    let Gateway { mut limiter, envoy, .. } = gateway;
    limiter.kill();
    let answer = envoy.client().send("POST", "/", &[("x-customer", "acme")], "{}").expect("an answer");
    assert_eq!(answer.status, 500, "{answer:?}");
}
