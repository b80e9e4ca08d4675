//! The seam takes any bytes.

use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;

use super::{metrics, service};
use crate::front::{Answer, Bounds, Refusal, RefusalCode, Reply, Seam, proto};
use crate::metrics::Front;
use proto::envoy::service::ratelimit::v3::RateLimitResponse;

fn seam(bounds: Bounds) -> Seam {
    let metrics = metrics();
    Seam::new(service(Some(super::RULES), &metrics).into(), metrics, bounds)
}

/// What a seam with these bounds answers at once.
fn answered(bounds: Bounds, request: &[u8]) -> Result<Answer, Refusal> {
    match seam(bounds).answer(Front::Grpc, request, None) {
        Reply::Now(answer) => answer,
        Reply::Later(_) => panic!("the memory store never waits"),
    }
}

/// A request of the domain `shop` for the user `alice`, by hand.
const ALICE: &[u8] = b"\x0a\x04shop\x12\x0f\x0a\x0d\x0a\x04user\x12\x05alice";

#[test]
fn bytes_in_bytes_out() {
    let answer = answered(Bounds::default(), ALICE).expect("an answer");
    let told = RateLimitResponse::decode(answer.message).expect("an encoded answer");
    assert_eq!(told.statuses[0].limit_remaining, 9);
}

#[test]
fn the_bound_on_bytes_lets_in_exactly_as_much_as_it_says() {
    let bounds = |request_bytes_max| Bounds { request_bytes_max, ..Bounds::default() };
    assert!(answered(bounds(ALICE.len()), ALICE).is_ok());
    let refusal = answered(bounds(ALICE.len() - 1), ALICE).expect_err("too large");
    assert_eq!(refusal.code, RefusalCode::ResourceExhausted);
}

/// Bytes without any sense, and a good request of which some bytes were changed, added or lost.
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

proptest! {
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
