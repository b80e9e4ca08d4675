//! The handler takes any bytes.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use prost::Message;

use super::{metrics, service, service_at};
use crate::clock::Clock;
use crate::front::{Answer, Handler, Reply, proto};
use proto::envoy::service::ratelimit::v3::RateLimitResponse;
use tidegate_serve::metrics::Front;
use tidegate_serve::refusal::{Bounds, Refusal, RefusalCode};
use tidegate_serve::service::BATCH_MAX;

fn handler(bounds: Bounds) -> Handler {
    handler_at(Clock::start(), bounds)
}

fn handler_at(clock: Clock, bounds: Bounds) -> Handler {
    let metrics = metrics();
    Handler::new(service_at(clock, Some(super::RULES), &metrics).into(), metrics, bounds)
}

/// The immediate answer of a handler with these bounds.
fn answered(bounds: Bounds, request: &[u8]) -> Result<Answer, Refusal> {
    match handler(bounds).answer(Front::Grpc, request, None, None) {
        Reply::Now(answer) => answer,
        Reply::Later(_) => panic!("the memory store never waits"),
    }
}

/// A request of the domain `shop` for the user `alice`, by hand.
const ALICE: &[u8] = b"\x0a\x04shop\x12\x0f\x0a\x0d\x0a\x04user\x12\x05alice";

#[test]
fn bytes_in_bytes_out() {
    let answer = answered(Bounds::default(), ALICE).expect("an answer");
    let answer = RateLimitResponse::decode(answer.message).expect("an encoded answer");
    assert_eq!(answer.statuses[0].limit_remaining, 9);
}

#[test]
fn the_bound_on_bytes_lets_in_exactly_as_much_as_it_says() {
    let bounds = |request_bytes_max| Bounds { request_bytes_max, ..Bounds::default() };
    assert!(answered(bounds(ALICE.len()), ALICE).is_ok());
    let refusal = answered(bounds(ALICE.len() - 1), ALICE).expect_err("too large");
    assert_eq!(refusal.code, RefusalCode::ResourceExhausted);
}

/// Random bytes, and good requests of which some bytes were changed, added or lost.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let changed = (vec((0..ALICE.len(), any::<u8>()), 1..4), vec(any::<u8>(), 0..8), 0..ALICE.len())
        .prop_map(|(changes, more, lost)| {
            let mut bytes = ALICE.to_vec();
            changes.into_iter().for_each(|(at, byte)| bytes[at] = byte);
            bytes.splice(lost.., more).for_each(drop);
            bytes
        });
    prop_oneof![vec(any::<u8>(), 0..200), changed]
}

/// The answers of one limiter to these requests, one by one.
fn alone(handler: &Handler, requests: &[Option<Vec<u8>>]) -> Vec<Option<Result<Vec<u8>, Refusal>>> {
    let answer = |request: &Vec<u8>| match handler.answer(Front::Grpc, request, None, None) {
        Reply::Now(answer) => answer.map(|answer| answer.message.to_vec()),
        Reply::Later(_) => panic!("the memory store never waits"),
    };
    requests.iter().map(|request| request.as_ref().map(answer)).collect()
}

/// The answers to the same requests in one batch, in which some places have no request.
fn together(handler: &Handler, requests: &[Option<Vec<u8>>]) -> Vec<Option<Result<Vec<u8>, Refusal>>> {
    let mut answers = vec![None; requests.len()];
    let messages: Vec<Option<&[u8]>> = requests.iter().map(Option::as_deref).collect();
    handler.answer_batch(Front::Grpc, &messages, &mut [], |place, answer, _| {
        let answer = answer.expect("the memory store never waits");
        assert_eq!(answers[place].replace(answer.map(<[u8]>::to_vec)), None, "answered once");
    });
    answers
}

#[test]
fn without_rules_all_that_came_together_are_refused() {
    let metrics = metrics();
    let handler = Handler::new(service(None, &metrics).into(), metrics, Bounds::default());
    for answer in together(&handler, &vec![Some(ALICE.to_vec()); 3]) {
        assert_eq!(answer.expect("answered").expect_err("no rules").code, RefusalCode::Unavailable);
    }
}

proptest! {
    #[test]
    fn what_comes_together_is_answered_as_if_it_came_alone(
        requests in vec(option::of(prop_oneof![3 => Just(ALICE.to_vec()), 1 => bytes()]), 0..=BATCH_MAX),
    ) {
        let clock = Clock::standing();
        let [one, other] = [(), ()].map(|()| handler_at(clock, Bounds::default()));
        prop_assert_eq!(together(&one, &requests), alone(&other, &requests));
    }

    #[test]
    fn no_bytes_make_it_panic(request in bytes()) {
        match answered(Bounds::default(), &request) {
            Ok(answer) => prop_assert!(RateLimitResponse::decode(answer.message).is_ok()),
            Err(Refusal { code, message }) => {
                prop_assert_eq!(code, RefusalCode::InvalidArgument);
                prop_assert!(!message.is_empty());
            }
        }
    }
}

#[test]
fn what_waits_is_small() {
    let waiting = handler(Bounds::default()).finish(Front::Grpc, ALICE, None, None);
    let bytes = size_of_val(&waiting);
    assert!(bytes <= 2_048, "{bytes} bytes");
}
