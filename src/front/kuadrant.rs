//! `kuadrant.service.ratelimit.v1`: a question that charges nothing, a report that is charged in full, and reservations.
//!
//! In: the bytes of a request. Out: the bytes of the answer. All calls become requests that the engine has anyway: one with 0
//! hits, one with a reported cost, and those that reserve and commit. The id of a reservation is made here.

use std::hash::{BuildHasher as _, RandomState};

use bytes::Bytes;
use prost::Message;
use smallvec::SmallVec;

use crate::front::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::front::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use crate::front::proto::envoy::service::ratelimit::v3::rate_limit_response::Code as WireCode;
use crate::front::proto::kuadrant::service::ratelimit::v1::{
    CommitRequest, CommitResponse, ReserveRequest, ReserveResponse,
};
use crate::front::{AnswerOptions, ClientOptions, Handler, Reply, wire};
use tidegate_engine::cost::Cost;
use tidegate_engine::decision::{Code, Decision, EndedAs, Limited, Status};
use tidegate_engine::limit::Algorithm;
use tidegate_engine::plan::Modes;
use tidegate_engine::request::{DescriptorOptions, ID_BYTES_MAX, Request, RequestBuf, Reservation};
use tidegate_engine::time::SECOND_NANOS;
use tidegate_serve::metrics::Front;
use tidegate_serve::refusal::Refusal;

/// A method of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    CheckRateLimit,
    Report,
    Reserve,
    Commit,
}

pub const CHECK_RATE_LIMIT: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/CheckRateLimit";
pub const REPORT: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/Report";
pub const RESERVE: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/Reserve";
pub const COMMIT: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/Commit";

impl Method {
    /// The method that has this path.
    pub fn of_path(path: &str) -> Option<Self> {
        match path {
            CHECK_RATE_LIMIT => Some(Self::CheckRateLimit),
            REPORT => Some(Self::Report),
            RESERVE => Some(Self::Reserve),
            COMMIT => Some(Self::Commit),
            _ => None,
        }
    }
}

impl Handler {
    /// Answers an encoded request to this method.
    pub fn kuadrant(&self, method: Method, message: &[u8]) -> Reply<Bytes> {
        let question = match method {
            Method::CheckRateLimit | Method::Report => self.question(method, message).map(Some),
            Method::Reserve => self.reservation(message),
            Method::Commit => self.commit(message),
        };
        let mut question = match question {
            Ok(Some(question)) => question,
            Ok(None) => return Reply::Now(Ok(without_domain(method))),
            Err(refusal) => return Reply::Now(Err(self.refuse(Front::Kuadrant, refusal))),
        };
        let modes = self.service.modes();
        let render = move |_: ClientOptions, request: &Request<'_>, decision: &Decision<'_>| match method {
            Method::CheckRateLimit => checked(modes, request, decision),
            Method::Report => reported(request, decision),
            Method::Reserve => reserved(request, decision),
            Method::Commit => committed(decision),
        };
        self.check(Front::Kuadrant, &mut question, |_, _| Ok(()), None, render)
    }

    /// The request that a reservation is. `None`: it names no domain.
    fn reservation(&self, message: &[u8]) -> Result<Option<RequestBuf>, Refusal> {
        let ReserveRequest { domain, descriptors, amount, ttl } = self.decode_as(message)?;
        let nanos = |ttl: prost_types::Duration| {
            let secs = u64::try_from(ttl.seconds).ok()?;
            Some(secs.saturating_mul(SECOND_NANOS).saturating_add(u64::try_from(ttl.nanos).ok()?))
        };
        let ttl_nanos = match ttl.map(nanos) {
            Some(None | Some(0)) => return Err(Refusal::invalid("ttl is not a time above 0")),
            ttl => ttl.flatten(),
        };
        let (id, hits) = (new_id(), amount.max(1));
        let reservation = Reservation { id: &id, hits, ttl_nanos, is_commit: false };
        self.asking(domain, descriptors, reservation)
    }

    /// The request that commits one. An id that was never made is that of no reservation: the cost is charged.
    fn commit(&self, message: &[u8]) -> Result<Option<RequestBuf>, Refusal> {
        let CommitRequest { domain, descriptors, reservation_id, actual_amount } = self.decode_as(message)?;
        if reservation_id.len() > ID_BYTES_MAX {
            return Err(Refusal::invalid(format!("reservation_id is longer than {ID_BYTES_MAX} bytes")));
        }
        let unknown = new_id();
        let id = if reservation_id.is_empty() { &unknown } else { &reservation_id };
        let reservation = Reservation { id, hits: actual_amount, ttl_nanos: None, is_commit: true };
        self.asking(domain, descriptors, reservation)
    }

    fn asking(
        &self,
        domain: String,
        descriptors: Vec<RateLimitDescriptor>,
        reservation: Reservation<'_>,
    ) -> Result<Option<RequestBuf>, Refusal> {
        if domain.is_empty() {
            return Ok(None);
        }
        let message = RateLimitRequest { domain, descriptors, hits_addend: 0 };
        wire::check_asked(&message)?;
        let request = self.parse(&message)?;
        let mut question = RequestBuf::new(request.domain());
        // Limits without `reserve` are asked whether anything is left, and get the cost as a report.
        let (hits, cost) = match reservation.is_commit {
            true => (reservation.hits, Cost::Reported),
            false => (0, Cost::Auto),
        };
        for descriptor in request.descriptors() {
            descriptor.entries.iter().for_each(|entry| question.push(entry.key, entry.value));
            let hits_addend = Some(hits);
            question.close_with(DescriptorOptions { hits_addend, cost, ..DescriptorOptions::default() });
        }
        question.reserve(reservation);
        Ok(Some(question))
    }

    fn question(&self, method: Method, message: &[u8]) -> Result<RequestBuf, Refusal> {
        let message = self.decode(message)?;
        let request = self.parse(&message)?;
        let mut question = RequestBuf::new(request.domain());
        for (index, descriptor) in request.descriptors().enumerate() {
            let options = descriptor.options;
            if options.is_negative_hits {
                let why = "is_negative_hits is only for ShouldRateLimit";
                return Err(Refusal::invalid(format!("descriptor {index}: {why}")));
            }
            // 0 hits count as 1, as they do for Limitador.
            let hits = request.hits_of(&options).max(1);
            descriptor.entries.iter().for_each(|entry| question.push(entry.key, entry.value));
            let (only_asks, cost) = match method {
                Method::Report => (false, Cost::Reported),
                _ => (true, Cost::Auto),
            };
            question.close_with(DescriptorOptions { hits_addend: Some(hits), only_asks, cost, ..options });
        }
        Ok(question)
    }
}

/// The answer to a question. A limit is over when the hits of its descriptor are more than what remains: with fixed windows,
/// 0 hits are only over beyond N. In shadow mode the overall code is OK.
fn checked(modes: Modes, request: &Request<'_>, decision: &Decision<'_>) -> Bytes {
    let mut decision = decision.clone();
    let asked: SmallVec<[u64; 8]> =
        request.descriptors().map(|it| it.options.hits_addend.unwrap_or_default()).collect();
    let ask = |limited: &mut Limited<'_>, descriptor: usize| {
        // A call takes one slot, whatever its hits.
        let is_slots = limited.limit.algorithm() == Algorithm::Concurrency;
        let wanted = if is_slots { 1 } else { asked.get(descriptor).copied().unwrap_or_default() };
        limited.verdict.over |= limited.remaining() < wanted;
    };
    for (descriptor, status) in decision.statuses.iter_mut().enumerate() {
        if let Status::Limited(limited) = status {
            ask(limited, descriptor);
        }
    }
    let not_shown = decision.rare.iter_mut().flat_map(|rare| &mut rare.not_shown);
    not_shown.for_each(|(descriptor, limited)| ask(limited, *descriptor));
    if !modes.shadow && denies(modes, &decision) {
        decision.code = Code::OverLimit;
    }
    encoded(request, &decision)
}

/// Whether a limit denies by itself, or all that are in quota mode do.
fn denies(modes: Modes, decision: &Decision<'_>) -> bool {
    let mut quotas = decision.limits().filter(|(_, limited)| limited.quota).peekable();
    let has_passed = |status: &Status<'_>| matches!(status, Status::NoLimit | Status::Replaced(_));
    let passes_one = modes.quota && decision.statuses.iter().any(has_passed);
    let denies_all = quotas.peek().is_some() && quotas.all(|(_, limited)| limited.is_denied()) && !passes_one;
    denies_all || decision.limits().any(|(_, limited)| limited.is_denied() && !limited.quota)
}

/// The answer to a report. What is spent is spent, so the overall code is OK; the statuses say which limits are over.
fn reported(request: &Request<'_>, decision: &Decision<'_>) -> Bytes {
    encoded(request, &Decision { code: Code::Ok, ..decision.clone() })
}

fn reserved(request: &Request<'_>, decision: &Decision<'_>) -> Bytes {
    let id = request.reservation().map_or("", |reservation| reservation.id);
    let (code, id) = match decision.code {
        Code::Ok => (WireCode::Ok, id),
        Code::OverLimit => (WireCode::OverLimit, ""),
    };
    ReserveResponse { code: code.into(), reservation_id: id.to_owned() }.encode_to_vec().into()
}

fn committed(decision: &Decision<'_>) -> Bytes {
    let reservation_released = decision.ended_as() == EndedAs::Open;
    CommitResponse { reservation_released }.encode_to_vec().into()
}

/// The answer to a call that names no domain, as Limitador gives it.
fn without_domain(method: Method) -> Bytes {
    match method {
        Method::Commit => CommitResponse { reservation_released: false }.encode_to_vec(),
        _ => {
            ReserveResponse { code: WireCode::Unknown.into(), reservation_id: String::new() }.encode_to_vec()
        }
    }
    .into()
}

/// The id of a reservation, which nobody can guess: a UUID of version 4.
fn new_id() -> String {
    let random = || RandomState::new().hash_one(());
    let (high, low) = (random() & !0xF000 | 0x4000, random() >> 2 | 1 << 63);
    let [a, b, c] = [high >> 32, high >> 16 & 0xFFFF, high & 0xFFFF];
    format!("{a:08x}-{b:04x}-{c:04x}-{:04x}-{:012x}", low >> 48, low & 0xFFFF_FFFF_FFFF)
}

fn encoded(request: &Request<'_>, decision: &Decision<'_>) -> Bytes {
    let mut message = Vec::with_capacity(wire::ANSWER_BYTES);
    wire::encode(&AnswerOptions::default(), request, decision, &mut message);
    message.into()
}
