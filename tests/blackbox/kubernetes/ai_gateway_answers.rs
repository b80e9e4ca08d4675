//! The questions of Envoy AI Gateway, to the limiter of `values-ai-gateway.yaml` and to the real envoyproxy/ratelimit: both have
//! the same rules from a control plane and a Redis of their own, and every answer has to be the same.

use super::ai_gateway::{DOMAIN, Limiter, state};
use crate::envoy_descriptors::random::Random;
use crate::harness::control_plane::ControlPlane;
use crate::harness::grpc::{Client, OVER_LIMIT, RateLimitRequest, RateLimitResponse, ask_only, question};
use crate::harness::process::Process;
use crate::harness::programs::installed;
use crate::harness::redis::Redis;
use crate::harness::{eventually_true, free_port};

const CALLS: u32 = 400;
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
    fn start() -> Self {
        let (redis, mut plane) = (Redis::start(&[]), ControlPlane::start());
        let [http, grpc, debug] = [(); 3].map(|()| free_port());
        let mut command = installed("service_cmd");
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

/// The answer without the waits, of which each must have one if the other has: one may be given a second later.
fn without_waits(mut answer: RateLimitResponse) -> RateLimitResponse {
    for wait in answer.statuses.iter_mut().filter_map(|status| status.duration_until_reset.as_mut()) {
        wait.seconds = 0;
    }
    answer
}

fn waits(answer: &RateLimitResponse) -> Vec<i64> {
    let waits = answer.statuses.iter().filter_map(|status| status.duration_until_reset.as_ref());
    waits.map(|wait| wait.seconds).collect()
}

/// Asks both the same. How many of the answers were denials, and how many were not.
fn compare(limiter: &Limiter, waits_too: bool) -> [u32; 2] {
    let (reference, limiter) = (Reference::start(), limiter.client());
    let (mut random, mut seen) = (Random(37), [0; 2]);
    for call in 0..CALLS {
        let asked = before(&mut random);
        let done = after(asked.clone(), &mut random);
        for asked in [asked, done] {
            let [ours, theirs] = [limiter.ask(asked.clone()), reference.client.ask(asked.clone())];
            seen[usize::from(theirs.overall_code == OVER_LIMIT)] += 1;
            if waits_too {
                let mut pairs = waits(&ours).into_iter().zip(waits(&theirs));
                assert!(pairs.all(|(one, other)| one.abs_diff(other) <= 1), "{call}: {ours:?} {theirs:?}");
            }
            assert_eq!(without_waits(ours), without_waits(theirs), "{call}: {asked:?}");
        }
    }
    seen
}

#[test]
fn every_answer_is_that_of_envoyproxy_ratelimit() {
    let limiter = Limiter::start(&[("DEFAULT_ALGORITHM", "fixed_window")], &state(UNIT));
    let [passed, denied] = compare(&limiter, true);
    assert!(passed > 100 && denied > 100, "{passed} passed, {denied} denied");
}
