//! Writes codes and limits of a decision as the bytes of a `RateLimitResponse`, byte for byte as prost would. Every
//! call has an answer, so no message objects are created in between.

use crate::front::proto::envoy::service::ratelimit::v3::rate_limit_response;
use tidegate_engine::decision::{Code, Decision, Limited, Status};
use tidegate_engine::limit::Algorithm;

/// Tags: a field's number and its wire type.
const VARINT: u8 = 0;
const MESSAGE: u8 = 2;
const OVERALL_CODE: u8 = 1 << 3 | VARINT;
const STATUSES: u8 = 2 << 3 | MESSAGE;
/// Fields of a status.
const CODE: u8 = 1 << 3 | VARINT;
const CURRENT_LIMIT: u8 = 2 << 3 | MESSAGE;
const LIMIT_REMAINING: u8 = 3 << 3 | VARINT;
const DURATION_UNTIL_RESET: u8 = 4 << 3 | MESSAGE;
/// Fields of a limit.
const REQUESTS_PER_UNIT: u8 = 1 << 3 | VARINT;
const UNIT: u8 = 2 << 3 | VARINT;
const NAME: u8 = 3 << 3 | MESSAGE;
const UNIT_MULTIPLIER: u8 = 4 << 3 | MESSAGE;
/// Fields of a duration, and of an optional number.
const SECONDS: u8 = 1 << 3 | VARINT;
const VALUE: u8 = 1 << 3 | VARINT;

/// Appends the overall code and the status of each descriptor.
pub fn encode(decision: &Decision<'_>, out: &mut Vec<u8>) {
    number(out, OVERALL_CODE, code(decision.code));
    for status in &decision.statuses {
        nested(out, STATUSES, |out| encode_status(status, out));
    }
}

fn encode_status(status: &Status<'_>, out: &mut Vec<u8>) {
    number(out, CODE, code(status.code()));
    match status {
        Status::NoLimit | Status::Replaced(_) => {}
        Status::Unlimited(_) => number(out, LIMIT_REMAINING, u32::MAX.into()),
        Status::Limited(limited) => {
            nested(out, CURRENT_LIMIT, |out| encode_limit(limited, out));
            number(out, LIMIT_REMAINING, saturated(limited.remaining()));
            let seconds = limited.reset_secs().min(i64::MAX as u64);
            nested(out, DURATION_UNTIL_RESET, |out| number(out, SECONDS, seconds));
        }
    }
}

fn encode_limit(limited: &Limited<'_>, out: &mut Vec<u8>) {
    let (window, name) = (limited.origin.window(), limited.origin.rule().map_or("", |rule| &rule.name));
    number(out, REQUESTS_PER_UNIT, saturated(limited.limit.requests()));
    // Slots are no hits in a time.
    let has_window = limited.limit.algorithm() != Algorithm::Concurrency;
    if has_window {
        number(out, UNIT, window.unit as u64);
    }
    if !name.is_empty() {
        nested(out, NAME, |out| out.extend_from_slice(name.as_bytes()));
    }
    if window.multiplier != 1 && has_window {
        nested(out, UNIT_MULTIPLIER, |out| number(out, VALUE, window.multiplier.into()));
    }
}

/// A number that has 32 bits on the wire.
fn saturated(number: u64) -> u64 {
    number.min(u32::MAX.into())
}

fn code(code: Code) -> u64 {
    let code = match code {
        Code::Ok => rate_limit_response::Code::Ok,
        Code::OverLimit => rate_limit_response::Code::OverLimit,
    };
    code as u64
}

/// Appends a number. 0 is left out.
#[inline]
fn number(out: &mut Vec<u8>, tag: u8, number: u64) {
    match number {
        0 => {}
        // Each growth of the vector would be a check.
        1..0x80 => out.extend_from_slice(&[tag, number as u8]),
        0x80..0x4000 => out.extend_from_slice(&[tag, number as u8 | 0x80, (number >> 7) as u8]),
        _ => {
            out.push(tag);
            varint(out, number);
        }
    }
}

/// Appends what `body` appends, with its length before it.
#[inline]
fn nested(out: &mut Vec<u8>, tag: u8, body: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(&[tag, 0]);
    let start = out.len();
    body(out);
    let length = out.len() - start;
    if let Ok(byte @ ..0x80) = u8::try_from(length) {
        out[start - 1] = byte;
    } else {
        let end = out.len();
        varint(out, length as u64);
        let bytes: Vec<u8> = out.drain(end..).collect();
        out.splice(start - 1..start, bytes);
    }
}

#[inline]
fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;

    use super::*;
    use crate::front::proto::envoy::service::ratelimit::v3::RateLimitResponse;
    use tidegate_engine::limit::{Algorithm, Limit, Verdict};
    use tidegate_engine::plan::Hits;
    use tidegate_engine::plan::Origin;
    use tidegate_engine::rules::{Rule, Unit};
    use tidegate_engine::unit::Window;
    use tidegate_serve::service::fixture::rules;

    fn limited<'r>(origin: Origin<'r>, requests: u32, verdict: Verdict) -> Status<'r> {
        let limit = Limit::new(Algorithm::FixedWindow, requests.into(), Unit::Hour.nanos());
        Status::Limited(Limited { origin, limit, hits: Hits::Take(1), verdict, shadow: false, quota: false })
    }

    /// The bytes, decoded by prost, which would encode them alike.
    fn decoded(statuses: &[Status<'_>]) -> RateLimitResponse {
        let statuses = statuses.iter().copied().collect();
        let mut bytes = Vec::new();
        encode(&Decision { domain_known: true, statuses, ..Decision::empty() }, &mut bytes);
        let decoded = RateLimitResponse::decode(&*bytes).expect("it is one");
        assert_eq!(decoded.encode_to_vec(), bytes);
        decoded
    }

    #[test]
    fn a_status_may_be_longer_than_a_byte_can_say() {
        for length in [0, 1, 90, 120, 127, 128, 200, 20_000] {
            let name = "n".repeat(length);
            let limit = "unit: hour, requests_per_unit: 3, unit_multiplier: 300";
            let text =
                format!("domain: d\ndescriptors: [{{key: k, rate_limit: {{{limit}, name: \"{name}\"}}}}]");
            let rules = rules(&text);
            let rule: &Rule = rules.rule(0).expect("there is one");
            let verdict =
                Verdict { over: false, before: 0, after: 1, remaining: 2, reset_nanos: 1, is_counted: true };
            let status = limited(Origin::of(rule), 3, verdict);
            let decoded = decoded(&[status, Status::NoLimit, status]);
            let limit = decoded.statuses[2].current_limit.clone().expect("a limit");
            assert_eq!((limit.name, limit.unit_multiplier, decoded.statuses.len()), (name, Some(300), 3));
        }
    }

    proptest! {
        #[test]
        fn every_number_is_encoded(
            requests in any::<u32>(),
            multiplier in 1..u32::MAX,
            (over, remaining, reset_nanos) in any::<(bool, u32, u64)>(),
        ) {
            let verdict = Verdict { over, before: 0, after: 1, remaining: remaining.into(), reset_nanos, is_counted: true };
            let origin = Origin::Override { window: Window { unit: Unit::Week, multiplier } };
            let decoded = decoded(&[limited(origin, requests, verdict)]);
            let status = &decoded.statuses[0];
            let limit = status.current_limit.as_ref().expect("a limit");
            prop_assert_eq!((limit.requests_per_unit, limit.unit, status.code), (requests, 7, 1 + i32::from(over)));
            prop_assert_eq!(limit.unit_multiplier.unwrap_or(1), multiplier);
            prop_assert_eq!(status.limit_remaining, remaining);
            let seconds = reset_nanos.div_ceil(1_000_000_000).max(over.into());
            prop_assert_eq!(status.duration_until_reset.as_ref().map(|wait| wait.seconds as u64), Some(seconds));
        }
    }
}
