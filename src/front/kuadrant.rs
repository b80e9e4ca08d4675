//! `kuadrant.service.ratelimit.v1`: a question that charges nothing, and a report that is charged in full.
//!
//! In: the bytes of a `RateLimitRequest`. Out: the bytes of a `RateLimitResponse`. Both calls become requests that the
//! engine has anyway: one with 0 hits, and one with a reported cost. Reserve and Commit are not served.

use bytes::Bytes;

use crate::front::{AnswerOptions, ClientOptions, Handler, Reply, wire};
use tidegate_engine::cost::Cost;
use tidegate_engine::decision::{Code, Decision, Status};
use tidegate_engine::request::{DescriptorOptions, Request, RequestBuf};
use tidegate_serve::metrics::Front;
use tidegate_serve::refusal::Refusal;

/// A method of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    CheckRateLimit,
    Report,
}

pub const CHECK_RATE_LIMIT: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/CheckRateLimit";
pub const REPORT: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/Report";

impl Method {
    /// The method that has this path.
    pub fn of_path(path: &str) -> Option<Self> {
        match path {
            CHECK_RATE_LIMIT => Some(Self::CheckRateLimit),
            REPORT => Some(Self::Report),
            _ => None,
        }
    }
}

impl Handler {
    /// Answers an encoded `RateLimitRequest` to this method.
    pub fn kuadrant(&self, method: Method, message: &[u8]) -> Reply<Bytes> {
        let mut question = match self.question(method, message) {
            Ok(question) => question,
            Err(refusal) => return Reply::Now(Err(self.refuse(Front::Kuadrant, refusal))),
        };
        let render: fn(ClientOptions, &Request<'_>, &Decision<'_>) -> Bytes = match method {
            Method::CheckRateLimit if self.service.modes().shadow => checked::<true>,
            Method::CheckRateLimit => checked::<false>,
            Method::Report => reported,
        };
        self.check(Front::Kuadrant, &mut question, |_, _| Ok(()), None, render)
    }

    fn question(&self, method: Method, message: &[u8]) -> Result<RequestBuf, Refusal> {
        let message = self.decode(message)?;
        let request = self.parse(&message)?;
        let mut question = RequestBuf::new(request.domain());
        let mut asked = 1;
        for (index, descriptor) in request.descriptors().enumerate() {
            let options = descriptor.options;
            if options.is_negative_hits {
                let why = "is_negative_hits is only for ShouldRateLimit";
                return Err(Refusal::invalid(format!("descriptor {index}: {why}")));
            }
            // 0 hits count as 1, as they do for Limitador.
            let hits = request.hits_of(&options).max(1);
            asked = hits.max(asked);
            descriptor.entries.iter().for_each(|entry| question.push(entry.key, entry.value));
            let (hits_addend, cost) = match method {
                Method::CheckRateLimit => (Some(0), Cost::Auto),
                Method::Report => (Some(hits), Cost::Reported),
            };
            question.close_with(DescriptorOptions { hits_addend, cost, ..options });
        }
        question.set_hits(u32::try_from(asked).unwrap_or(u32::MAX));
        Ok(question)
    }
}

/// The answer to a question. A descriptor is over when the hits are more than what remains: with fixed windows, 0 hits
/// are only over beyond N. In shadow mode the overall code is OK.
fn checked<const IS_SHADOW: bool>(_: ClientOptions, request: &Request<'_>, decision: &Decision<'_>) -> Bytes {
    let mut decision = decision.clone();
    for status in &mut decision.statuses {
        if let Status::Limited(limited) = status {
            limited.verdict.over |= limited.remaining() < request.hits_addend();
            if limited.is_denied() && !limited.quota && !IS_SHADOW {
                decision.code = Code::OverLimit;
            }
        }
    }
    encoded(request, &decision)
}

/// The answer to a report. What is spent is spent, so the overall code is OK; the statuses say which limits are over.
fn reported(_: ClientOptions, request: &Request<'_>, decision: &Decision<'_>) -> Bytes {
    encoded(request, &Decision { code: Code::Ok, ..decision.clone() })
}

fn encoded(request: &Request<'_>, decision: &Decision<'_>) -> Bytes {
    let mut message = Vec::with_capacity(wire::ANSWER_BYTES);
    wire::encode(&AnswerOptions::default(), request, decision, &mut message);
    message.into()
}
