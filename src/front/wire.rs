//! Turns the protocol's messages into the engine's types (`parse`) and back (`encode`).
//!
//! Checks everything that the engine relies on, in the order in which the refusals are documented. Knows no transport
//! and reads no rules.

mod answer;
mod headers;
pub(super) mod in_place;
mod metadata;

use prost::Message;

use crate::front::client_answer::{ClientOptions, Draft};
use crate::front::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use crate::front::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tidegate_engine::decision::Decision;
use tidegate_engine::request::{DescriptorOptions, Entry, Override, Request};
use tidegate_engine::rules::Unit;
use tidegate_engine::unit::Window;
use tidegate_serve::refusal::{Bounds, Refusal};

pub use self::headers::LimitHeaders;

/// Bytes of an answer to a few descriptors.
pub(super) const ANSWER_BYTES: usize = 256;

/// What answers have in addition to codes and limits. Options that are off cost nothing.
#[derive(Clone, Debug, Default)]
pub struct AnswerOptions {
    /// Headers for the answer to the client, over gRPC.
    pub headers: Option<LimitHeaders>,
    /// Which families of headers, and whether they have partition keys.
    pub client: ClientOptions,
    /// Dynamic metadata for the next filters.
    pub dynamic_metadata: bool,
}

/// Checks that a request has a domain and descriptors.
pub(super) fn check_asked(message: &RateLimitRequest) -> Result<(), Refusal> {
    if message.domain.is_empty() {
        return Err(Refusal::invalid("rate limit domain must not be empty"));
    }
    if message.descriptors.is_empty() {
        return Err(Refusal::invalid("rate limit descriptor list must not be empty"));
    }
    Ok(())
}

/// Parses a message into a request that is within `bounds`. The request borrows its texts.
pub(super) fn parse<'a>(message: &'a RateLimitRequest, bounds: &Bounds) -> Result<Request<'a>, Refusal> {
    bounds.check(message.descriptors.iter().map(|descriptor| descriptor.entries.len()))?;
    let mut request = Request::new(&message.domain, message.hits_addend);
    for (index, descriptor) in message.descriptors.iter().enumerate() {
        let limit = descriptor.limit.as_ref().map(|limit| parse_override(limit, index)).transpose()?;
        let options = DescriptorOptions {
            limit,
            hits_addend: descriptor.hits_addend,
            is_negative_hits: descriptor.is_negative_hits,
            ..DescriptorOptions::default()
        };
        let entries = descriptor.entries.iter().map(|entry| Entry { key: &entry.key, value: &entry.value });
        request.push(entries, options);
    }
    Ok(request)
}

/// The limit that the descriptor at `index` has itself.
fn parse_override(limit: &RateLimitOverride, index: usize) -> Result<Override, Refusal> {
    let invalid = |what: String| Refusal::invalid(format!("descriptor {index}: limit: {what}"));
    let unit = unit(limit.unit).ok_or_else(|| invalid(format!("unit {} is none of 1 to 7", limit.unit)))?;
    let unit_multiplier = limit.unit_multiplier.unwrap_or(1);
    if unit_multiplier == 0 {
        return Err(invalid("unit_multiplier 0 is not at least 1".to_owned()));
    }
    let window = Window { unit, multiplier: unit_multiplier };
    Ok(Override { requests_per_unit: limit.requests_per_unit, window })
}

/// The unit with this number. The enumeration of requests ends at 6; 7 is WEEK, as in answers.
fn unit(number: i32) -> Option<Unit> {
    u64::try_from(number).ok().and_then(Unit::from_number)
}

/// Appends the decision on this request to `out`, as an encoded `RateLimitResponse`.
pub(super) fn encode(
    options: &AnswerOptions,
    request: &Request<'_>,
    decision: &Decision<'_>,
    out: &mut Vec<u8>,
) {
    answer::encode(decision, out);
    let AnswerOptions { headers, client, dynamic_metadata } = options;
    let takes_slots = decision.slots().next().is_some();
    if headers.is_none() && !dynamic_metadata && !takes_slots {
        return;
    }
    let metadata = || match dynamic_metadata {
        true => metadata::render(request, decision),
        false => metadata::of_slots(decision),
    };
    let mut more = RateLimitResponse {
        dynamic_metadata: (*dynamic_metadata || takes_slots).then(metadata),
        ..RateLimitResponse::default()
    };
    if let Some(names) = headers {
        let draft = Draft::of(*client, request, decision);
        more.response_headers_to_add = headers::render(names, client.format, decision, draft.as_ref());
        more.raw_body = draft.and_then(|draft| draft.problem).unwrap_or_default().into_bytes();
    }
    more.encode(out).expect("a vector has room");
}

#[cfg(test)]
mod tests {
    use prost_types::Duration;
    use smallvec::smallvec;

    use super::*;
    use crate::front::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
    use crate::front::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry as ProtoEntry;
    use crate::front::proto::envoy::service::ratelimit::v3::rate_limit_response::{
        DescriptorStatus, RateLimit,
    };
    use tidegate_engine::decision::{Code, Limited, Status};
    use tidegate_engine::limit::{Algorithm, Limit, Verdict};
    use tidegate_engine::plan::{Hits, Origin};
    use tidegate_serve::service::fixture::rules;

    fn descriptor(entries: usize) -> RateLimitDescriptor {
        let entry = ProtoEntry { key: "user".to_owned(), value: "alice".to_owned() };
        RateLimitDescriptor { entries: vec![entry; entries], ..RateLimitDescriptor::default() }
    }

    fn asked(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
        RateLimitRequest { domain: "shop".to_owned(), descriptors, hits_addend: 3 }
    }

    fn with_limit(unit: i32, unit_multiplier: Option<u32>) -> RateLimitRequest {
        let limit = RateLimitOverride { requests_per_unit: 9, unit, unit_multiplier };
        asked(vec![descriptor(1), RateLimitDescriptor { limit: Some(limit), ..descriptor(1) }])
    }

    fn refusal(message: &RateLimitRequest) -> String {
        parse(message, &Bounds::default()).expect_err("must be refused").message
    }

    #[test]
    fn everything_that_was_asked_is_parsed() {
        let mut message = with_limit(7, Some(2));
        message.descriptors[1].hits_addend = Some(0);
        message.descriptors[1].is_negative_hits = true;
        let request = parse(&message, &Bounds::default()).expect("within bounds");
        assert_eq!((request.domain(), request.hits_addend()), ("shop", 3));
        let descriptors: Vec<_> = request.descriptors().collect();
        assert_eq!(descriptors[0].options, DescriptorOptions::default());
        assert_eq!(descriptors[1].entries, [Entry { key: "user", value: "alice" }]);
        let limit = Override { requests_per_unit: 9, window: Window { unit: Unit::Week, multiplier: 2 } };
        let (limit, hits_addend) = (Some(limit), Some(0));
        let options =
            DescriptorOptions { limit, hits_addend, is_negative_hits: true, ..DescriptorOptions::default() };
        assert_eq!(descriptors[1].options, options);
    }

    #[test]
    fn bounds_let_in_exactly_as_much_as_they_say() {
        assert!(parse(&asked(vec![descriptor(32); 64]), &Bounds::default()).is_ok());
        assert_eq!(refusal(&asked(vec![descriptor(1); 65])), "65 descriptors are too many (at most 64)");
        let message = asked(vec![descriptor(32), descriptor(33)]);
        assert_eq!(refusal(&message), "descriptor 1: 33 entries are too many (at most 32)");
    }

    #[test]
    fn bad_limits_are_refused_by_the_index_of_their_descriptor() {
        for unit in [0, 8, -1, i32::MAX] {
            let expected = format!("descriptor 1: limit: unit {unit} is none of 1 to 7");
            assert_eq!(refusal(&with_limit(unit, None)), expected);
        }
        let zero = with_limit(1, Some(0));
        assert_eq!(refusal(&zero), "descriptor 1: limit: unit_multiplier 0 is not at least 1");
        assert!(parse(&with_limit(6, Some(u32::MAX)), &Bounds::default()).is_ok());
    }

    #[test]
    fn bounds_are_checked_before_limits() {
        let mut message = with_limit(0, None);
        message.descriptors.push(descriptor(33));
        assert_eq!(refusal(&message), "descriptor 2: 33 entries are too many (at most 32)");
    }

    fn limited(over: bool, unit_multiplier: u32) -> Status<'static> {
        let remaining = if over { 0 } else { 9 };
        Status::Limited(Limited {
            origin: Origin::Override { window: Window { unit: Unit::Hour, multiplier: unit_multiplier } },
            limit: Limit::new(Algorithm::SlidingWindow, 10, Unit::Hour.nanos()),
            hits: Hits::Take(1),
            verdict: Verdict {
                over,
                before: 0,
                after: 1,
                remaining,
                reset_nanos: 1_634_000_000_001,
                is_counted: true,
            },
            shadow: false,
            quota: false,
        })
    }

    #[test]
    fn every_status_is_encoded_as_the_protocol_has_it() {
        let rules = rules("domain: d\ndescriptors: [{key: a, rate_limit: {unlimited: true}}]");
        let unlimited = Status::Unlimited(&rules.rules()[0]);
        let statuses = smallvec![Status::NoLimit, unlimited, limited(false, 1), limited(true, 2)];
        let decision = Decision { code: Code::OverLimit, domain_known: true, statuses, ..Decision::empty() };
        let mut message = Vec::new();
        encode(&AnswerOptions::default(), &Request::new("shop", 0), &decision, &mut message);
        let decoded = RateLimitResponse::decode(&*message).expect("it was just encoded");
        assert_eq!(decoded.encode_to_vec(), message, "what prost would write");
        let (ok, over) = (1, 2);
        let bare = DescriptorStatus { code: ok, ..DescriptorStatus::default() };
        let hour = 3;
        let limit = |unit_multiplier| {
            Some(RateLimit { name: String::new(), requests_per_unit: 10, unit: hour, unit_multiplier })
        };
        let duration_until_reset = Some(Duration { seconds: 1_635, nanos: 0 });
        let expected = RateLimitResponse {
            overall_code: over,
            statuses: vec![
                bare.clone(),
                DescriptorStatus { limit_remaining: u32::MAX, ..bare },
                DescriptorStatus {
                    code: ok,
                    current_limit: limit(None),
                    limit_remaining: 9,
                    duration_until_reset,
                },
                DescriptorStatus {
                    code: over,
                    current_limit: limit(Some(2)),
                    limit_remaining: 0,
                    duration_until_reset,
                },
            ],
            ..RateLimitResponse::default()
        };
        assert_eq!(decoded, expected);
    }
}
