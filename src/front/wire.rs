//! The protocol's messages to the engine's types and back: [`parse`] and [`render`].
//!
//! Checks everything that the engine takes for granted, in the order in which the refusals are documented. Knows no
//! transport, reads no rules.

use bytes::Bytes;
use prost::Message;
use prost_types::Duration;

use crate::engine::decision::{Code, Decision, Limited, Status};
use crate::engine::plan::Origin;
use crate::engine::request::{DescriptorOptions, Entry, Override, Request};
use crate::engine::rules::Unit;
use crate::front::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::front::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use crate::front::proto::envoy::service::ratelimit::v3::rate_limit_response::{
    self as response, DescriptorStatus, RateLimit,
};
use crate::front::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::front::{Answer, Bounds, Refusal};

/// Checks that anything is asked at all.
pub(super) fn check_asked(message: &RateLimitRequest) -> Result<(), Refusal> {
    if message.domain.is_empty() {
        return Err(Refusal::invalid("rate limit domain must not be empty"));
    }
    if message.descriptors.is_empty() {
        return Err(Refusal::invalid("rate limit descriptor list must not be empty"));
    }
    Ok(())
}

/// The message as a request that is within `bounds`. Its text stays where it is.
pub(super) fn parse<'a>(message: &'a RateLimitRequest, bounds: &Bounds) -> Result<Request<'a>, Refusal> {
    check_bounds(&message.descriptors, bounds)?;
    let mut request = Request::new(&message.domain, message.hits_addend);
    for (index, descriptor) in message.descriptors.iter().enumerate() {
        let limit = descriptor.limit.as_ref().map(|limit| parse_override(limit, index)).transpose()?;
        let options = DescriptorOptions {
            limit,
            hits_addend: descriptor.hits_addend,
            is_negative_hits: descriptor.is_negative_hits,
        };
        let entries = descriptor.entries.iter().map(|entry| Entry { key: &entry.key, value: &entry.value });
        request.push(entries, options);
    }
    Ok(request)
}

fn check_bounds(descriptors: &[RateLimitDescriptor], bounds: &Bounds) -> Result<(), Refusal> {
    let (count, max) = (descriptors.len(), bounds.descriptors_max);
    if count > max {
        return Err(Refusal::invalid(format!("{count} descriptors are too many (at most {max})")));
    }
    let max = bounds.entries_max;
    match descriptors.iter().map(|descriptor| descriptor.entries.len()).enumerate().find(|&(_, n)| n > max) {
        Some((index, count)) => {
            Err(Refusal::invalid(format!("descriptor {index}: {count} entries are too many (at most {max})")))
        }
        None => Ok(()),
    }
}

/// The limit that the descriptor at `index` brings.
fn parse_override(limit: &RateLimitOverride, index: usize) -> Result<Override, Refusal> {
    let invalid = |what: String| Refusal::invalid(format!("descriptor {index}: limit: {what}"));
    let unit = unit(limit.unit).ok_or_else(|| invalid(format!("unit {} is none of 1 to 7", limit.unit)))?;
    let unit_multiplier = limit.unit_multiplier.unwrap_or(1);
    if unit_multiplier == 0 {
        return Err(invalid("unit_multiplier must be at least 1".to_owned()));
    }
    // Longer than 584 years; the engine's nanoseconds end there.
    if unit.nanos().checked_mul(u64::from(unit_multiplier)).is_none() {
        return Err(invalid(format!("unit_multiplier {unit_multiplier} is too large for its unit")));
    }
    Ok(Override { requests_per_unit: limit.requests_per_unit, unit, unit_multiplier })
}

/// The unit with this number. The request's enumeration ends at 6; 7 is WEEK as in the answer's.
fn unit(number: i32) -> Option<Unit> {
    Some(match number {
        1 => Unit::Second,
        2 => Unit::Minute,
        3 => Unit::Hour,
        4 => Unit::Day,
        5 => Unit::Month,
        6 => Unit::Year,
        7 => Unit::Week,
        _ => return None,
    })
}

/// The decision as the bytes of a `RateLimitResponse`.
pub(super) fn render(decision: &Decision<'_>) -> Answer {
    let message = RateLimitResponse {
        overall_code: code(decision.code),
        statuses: decision.statuses.iter().map(render_status).collect(),
        ..RateLimitResponse::default()
    };
    Answer { code: decision.code, message: Bytes::from(message.encode_to_vec()) }
}

fn render_status(status: &Status<'_>) -> DescriptorStatus {
    let bare = DescriptorStatus { code: code(status.code()), ..DescriptorStatus::default() };
    match status {
        Status::NoLimit => bare,
        Status::Unlimited => DescriptorStatus { limit_remaining: u32::MAX, ..bare },
        Status::Limited(limited) => DescriptorStatus {
            current_limit: Some(render_limit(limited)),
            limit_remaining: limited.remaining(),
            duration_until_reset: Some(whole_seconds(limited.reset_secs())),
            ..bare
        },
    }
}

fn render_limit(limited: &Limited<'_>) -> RateLimit {
    let (unit, unit_multiplier, name) = match limited.origin {
        Origin::Rule(rule) => (rule.unit, rule.unit_multiplier, &*rule.name),
        Origin::Override { unit, unit_multiplier } => (unit, unit_multiplier, ""),
    };
    RateLimit {
        name: name.to_owned(),
        requests_per_unit: limited.limit.requests(),
        unit: unit as i32,
        unit_multiplier: (unit_multiplier != 1).then_some(unit_multiplier),
    }
}

fn code(code: Code) -> i32 {
    match code {
        Code::Ok => response::Code::Ok,
        Code::OverLimit => response::Code::OverLimit,
    }
    .into()
}

fn whole_seconds(seconds: u64) -> Duration {
    Duration { seconds: i64::try_from(seconds).unwrap_or(i64::MAX), nanos: 0 }
}
