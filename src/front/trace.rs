//! What a span records of a call: the decision, while it can be read, or the refusal.

use std::sync::Arc;

use http::HeaderMap;
use prost::Message;

use super::{Handler, grpc_status};
use crate::front::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use crate::spans::{CallSpan, Tracer};
use tidegate_engine::decision::{Code, Decision, Limited, Status};
use tidegate_engine::plan::Origin;
use tidegate_engine::request::Request;
use tidegate_engine::rules::Rule;
use tidegate_serve::metrics::Front;
use tidegate_serve::refusal::Refusal;

impl Handler {
    /// Traces calls from now on, if there is a tracer.
    #[must_use]
    pub fn traced(self, tracer: Option<Tracer>) -> Self {
        Self { tracer: tracer.map(Arc::new), ..self }
    }

    /// Whether some calls are traced.
    pub fn is_traced(&self) -> bool {
        self.tracer.is_some()
    }

    /// Begins the span of a call, whose headers `header` finds by their names. `None`, and almost no work, if the
    /// call is not traced.
    pub fn begin_span<'h>(&self, front: Front, header: impl Fn(&str) -> Option<&'h str>) -> Option<CallSpan> {
        let name = match front {
            Front::Grpc => "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
            Front::Kuadrant => "kuadrant.service.ratelimit.v1.RateLimitService",
            Front::Json => "/json",
            Front::Check => "/check",
            Front::Inside => "inside",
        };
        self.tracer.as_ref()?.begin(name, header)
    }
}

/// Finds headers in a map.
pub(super) fn headers_in<'h>(headers: &'h HeaderMap) -> impl Fn(&str) -> Option<&'h str> {
    |name| headers.get(name)?.to_str().ok()
}

/// Writes the domain of a call into its span, if it has one.
#[inline(never)]
pub(super) fn asked(span: &mut Option<CallSpan>, domain: &str) {
    if let Some(span) = span {
        span.text("ratelimit.domain", domain);
    }
}

/// Ends the span of a call with its request and its decision, if it has a span.
#[cold] // Most calls are not traced: the way of all others stays short.
#[inline(never)]
pub(super) fn answered(
    front: Front,
    span: &mut Option<CallSpan>,
    request: &Request<'_>,
    decision: &Decision<'_>,
) {
    asked(span, request.domain());
    decided(front, span.take(), decision);
}

/// Ends the span of a call with this decision, if it has a span.
#[inline(never)]
pub(super) fn decided(front: Front, span: Option<CallSpan>, decision: &Decision<'_>) {
    let Some(mut span) = span else { return };
    protocol(&mut span, front, 0);
    span.text("ratelimit.code", decision.code.name());
    let over = decision.statuses.iter().filter(|status| status.code() == Code::OverLimit);
    span.texts("ratelimit.rules", decision.statuses.iter().filter_map(path));
    span.texts("ratelimit.rules_over_limit", over.filter_map(path));
}

/// Ends the span of a refused call, if it has one.
pub(super) fn refused(front: Front, span: Option<CallSpan>, refusal: &Refusal) {
    let Some(mut span) = span else { return };
    protocol(&mut span, front, grpc_status(refusal.code));
    span.failed(&refusal.message);
}

/// Ends the span of a refused call that sent `message`, with as much of it as can be read.
#[inline(never)]
pub(super) fn refused_message(front: Front, mut span: Option<CallSpan>, message: &[u8], refusal: &Refusal) {
    if span.is_some() {
        asked(&mut span, &RateLimitRequest::decode(message).unwrap_or_default().domain);
    }
    refused(front, span, refusal);
}

fn protocol(span: &mut CallSpan, front: Front, grpc_status: u8) {
    if front == Front::Grpc {
        span.text("rpc.system", "grpc");
        span.text("rpc.service", "envoy.service.ratelimit.v3.RateLimitService");
        span.text("rpc.method", "ShouldRateLimit");
        span.number("rpc.grpc.status_code", i64::from(grpc_status));
    }
}

/// The path of the limit that this descriptor met, as metrics name it, without values of the request.
fn path(status: &Status<'_>) -> Option<String> {
    let of_rule = |rule: &Rule| rule.metric_name.rolled_up().join(".");
    match status {
        Status::Limited(Limited { origin: Origin::Rule { rule, .. }, .. }) | Status::Unlimited(rule) => {
            Some(of_rule(rule))
        }
        Status::Limited(Limited { origin: Origin::Override { .. }, .. }) => Some("override".to_owned()),
        Status::NoLimit | Status::Replaced(_) => None,
    }
}
