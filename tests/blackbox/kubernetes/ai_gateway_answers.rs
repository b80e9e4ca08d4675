//! The questions of Envoy AI Gateway, to the limiter of `values-ai-gateway.yaml` and to the real envoyproxy/ratelimit: both have
//! the same rules from a control plane and a Redis of their own, and every answer has to be the same.
//!
//! The answers of envoyproxy/ratelimit are recorded, one line each. They are recorded again by a run of this test with
//! TIDEGATE_REFERENCE, the path of its program: `go install github.com/envoyproxy/ratelimit/src/service_cmd@f2fb15770f7f`. Older
//! versions do not read `quota_mode` from a control plane.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use super::ai_gateway::{DOMAIN, Limiter, state};
use crate::envoy_descriptors::random::Random;
use crate::harness::control_plane::ControlPlane;
use crate::harness::grpc::{Client, OVER_LIMIT, RateLimitRequest, RateLimitResponse, ask_only, question};
use crate::harness::process::Process;
use crate::harness::redis::Redis;
use crate::harness::{eventually_true, free_port};

const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/ai_gateway_answers.txt");
const CALLS: u32 = 200;
/// A unit whose end no test meets.
const UNIT: &str = "YEAR";

/// The real envoyproxy/ratelimit.
struct Reference {
    client: Client,
    _process: Process,
    _plane: ControlPlane,
    _redis: Redis,
}

impl Reference {
    fn start(program: OsString) -> Self {
        let (redis, mut plane) = (Redis::start(&[]), ControlPlane::start());
        let [http, grpc, debug] = [(); 3].map(|()| free_port());
        let mut command = Command::new(program);
        for (name, value) in [
            ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
            ("CONFIG_GRPC_XDS_SERVER_URL", &format!("127.0.0.1:{}", plane.port)),
            ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
            ("REDIS_SOCKET_TYPE", "tcp"),
            ("REDIS_URL", &redis.url()),
            ("USE_STATSD", "false"),
            ("LOG_LEVEL", "warn"),
            ("HOST", "127.0.0.1"),
            ("GRPC_HOST", "127.0.0.1"),
            ("DEBUG_HOST", "127.0.0.1"),
            ("PORT", &http.to_string()),
            ("GRPC_PORT", &grpc.to_string()),
            ("DEBUG_PORT", &debug.to_string()),
        ] {
            command.env(name, value);
        }
        let process = Process::spawn(&mut command);
        plane.event(0, "request");
        plane.send("1", "n1", &state(UNIT));
        assert_eq!(plane.event(1, "request")["versionInfo"], "1");
        let client = Client::new(grpc);
        let small = [("backend_name", "default/openai"), ("model_name_override", "small")];
        // It acknowledges rules before they are in force.
        eventually_true("its rules", || {
            let answer = client.call(ask_only(DOMAIN, &[&small]));
            answer.is_ok_and(|answer| answer.statuses[0].current_limit.is_some())
        });
        Self { client, _process: process, _plane: plane, _redis: redis }
    }
}

/// What the filter asks before a call: the model, and each of its buckets that the call's headers choose.
fn before(random: &mut Random) -> RateLimitRequest {
    let backend = ("backend_name", random.pick(&["default/openai", "default/openai", "default/other"]));
    let model = ("model_name_override", random.pick(&["small", "large", "large", "large", "other"]));
    let user = ("rule-1-x-user-match-0", random.pick(&["ann", "ben", "cid"]));
    let mut descriptors = vec![vec![backend, model]];
    if random.one_in(3) {
        let gold = "rule-0-x-tier|gold-match-0";
        descriptors.push(vec![backend, model, (gold, gold)]);
    }
    if !random.one_in(3) {
        descriptors.push(vec![backend, model, user]);
    }
    descriptors.push(vec![backend, model, ("rule-2-match--1", "rule-2-match--1")]);
    let descriptors: Vec<&[_]> = descriptors.iter().map(Vec::as_slice).collect();
    question(DOMAIN, &descriptors)
}

/// What it reports when the stream is done: the tokens, to each of them.
fn after(mut asked: RateLimitRequest, random: &mut Random) -> RateLimitRequest {
    let tokens = random.below(6);
    for descriptor in &mut asked.descriptors {
        descriptor.hits_addend = Some(tokens);
    }
    asked
}

/// An answer as a line: its code, and for each status its code, N and what remains. Waits are those of the day of the record.
fn line_of(answer: &RateLimitResponse) -> String {
    let code = |code: i32| if code == OVER_LIMIT { "over" } else { "ok" };
    let mut line = code(answer.overall_code).to_owned();
    for status in &answer.statuses {
        let limit = status
            .current_limit
            .as_ref()
            .map_or_else(|| "-".to_owned(), |limit| limit.requests_per_unit.to_string());
        write!(line, " {}:{limit}:{}", code(status.code), status.limit_remaining)
            .expect("a string takes all");
        assert_eq!(status.duration_until_reset.is_some(), status.current_limit.is_some(), "{answer:?}");
    }
    line + "\n"
}

/// The answers to all questions, in order.
fn answers(client: &Client) -> String {
    let mut random = Random(37);
    let mut lines = String::new();
    for _ in 0..CALLS {
        let asked = before(&mut random);
        let done = after(asked.clone(), &mut random);
        for asked in [asked, done] {
            lines += &line_of(&client.ask(asked));
        }
    }
    lines
}

#[test]
fn every_answer_is_that_of_envoyproxy_ratelimit() {
    if let Some(program) = std::env::var_os("TIDEGATE_REFERENCE") {
        fs::write(RECORDED, answers(&Reference::start(program).client)).expect("the record can be written");
    }
    let limiter = Limiter::start(&[("DEFAULT_ALGORITHM", "fixed_window")], &state(UNIT));
    let (ours, theirs) =
        (answers(&limiter.client()), fs::read_to_string(RECORDED).expect("it is in the repository"));
    let denied = theirs.lines().filter(|line| line.starts_with("over")).count();
    assert!(denied > 50 && theirs.lines().count() - denied > 50, "{denied} denied");
    for (place, (ours, theirs)) in ours.lines().zip(theirs.lines()).enumerate() {
        assert_eq!(ours, theirs, "answer {place}");
    }
    assert_eq!(ours.lines().count(), theirs.lines().count());
}
