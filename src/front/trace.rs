//! What a span says of a call: read out of its question and its answer, and out of what the decision met.

use http::HeaderMap;
use prost::Message;

use super::{Answer, CheckAnswer, Refusal, Seam};
use crate::front::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use crate::metrics::Front;
use crate::spans::{CallSpan, Tracer};
use tidegate_engine::decision::{Code, Decision, Limited, Status};
use tidegate_engine::plan::Origin;
use tidegate_engine::rules::Rule;

const DOMAIN: &str = "ratelimit.domain";
const CODE: &str = "ratelimit.code";

/// What a traced call met: the paths of limits, in the order of its descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Met {
    rules: Vec<String>,
    /// Those of them that denied their hits.
    over: Vec<String>,
}

impl Seam {
    /// Traces calls from now on, if there is something to trace to.
    #[must_use]
    pub fn traced(self, tracer: Option<Tracer>) -> Self {
        Self { tracer, ..self }
    }

    /// Begins the span of a call with these headers. `None`, and next to no work, when it is not traced.
    pub fn begin_span(&self, front: Front, headers: &HeaderMap) -> Option<CallSpan> {
        let name = match front {
            Front::Grpc => "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
            Front::Json => "/json",
            Front::Check => "/check",
        };
        self.tracer.as_ref()?.begin(name, headers)
    }

    /// The same seam for a call with a span, whose answer has to name what it met.
    pub fn sampled(&self) -> Self {
        Self { names_met: true, ..self.clone() }
    }

    /// Ends the span of a call that asked `request`, an encoded `RateLimitRequest`, as far as it came.
    pub fn end_span(
        &self,
        mut span: CallSpan,
        front: Front,
        request: &[u8],
        answer: Result<&Answer, &Refusal>,
    ) {
        if front == Front::Grpc {
            span.text("rpc.system", "grpc");
            span.text("rpc.service", "envoy.service.ratelimit.v3.RateLimitService");
            span.text("rpc.method", "ShouldRateLimit");
            span.number(
                "rpc.grpc.status_code",
                answer.err().map_or(0, |refusal| i64::from(refusal.code.grpc_status())),
            );
        }
        span.text(DOMAIN, &RateLimitRequest::decode(request).unwrap_or_default().domain);
        match answer {
            Ok(answer) => describe(&mut span, answer),
            Err(refusal) => span.failed(&refusal.message),
        }
    }

    /// Ends the span of a call of `/check`, as far as it came.
    pub fn end_check_span(&self, mut span: CallSpan, domain: &str, answer: Result<&CheckAnswer, &Refusal>) {
        span.text(DOMAIN, domain);
        match answer.map(|answer| answer.code) {
            Ok(code) => span.text(CODE, code.name()),
            Err(refusal) => span.failed(&refusal.message),
        }
    }
}

/// The code, and the rules that were met.
fn describe(span: &mut CallSpan, answer: &Answer) {
    span.text(CODE, answer.code.name());
    let Some(met) = &answer.met else { return };
    span.texts("ratelimit.rules", met.rules.iter().cloned());
    span.texts("ratelimit.rules_over_limit", met.over.iter().cloned());
}

impl Met {
    /// What this decision met.
    pub(super) fn of(decision: &Decision<'_>) -> Self {
        let rules = decision.statuses.iter().filter_map(path);
        let over =
            decision.statuses.iter().filter(|status| status.code() == Code::OverLimit).filter_map(path);
        Self { rules: rules.collect(), over: over.collect() }
    }
}

/// The path of the limit that this descriptor met, as metrics name it without values of the request.
fn path(status: &Status<'_>) -> Option<String> {
    let of_rule = |rule: &Rule| rule.metric_name.rolled_up().join(".");
    match status {
        Status::Limited(Limited { origin: Origin::Rule(rule), .. }) | Status::Unlimited(rule) => {
            Some(of_rule(rule))
        }
        Status::Limited(Limited { origin: Origin::Override { .. }, .. }) => Some("override".to_owned()),
        Status::NoLimit | Status::Replaced(_) => None,
    }
}
