//! What a span says of a call: read out of its question and its answer, so that nothing on the way knows of spans.

use http::HeaderMap;
use prost::Message;

use super::{Answer, CheckAnswer, Refusal, Seam, wire};
use crate::engine::decision;
use crate::engine::plan::{Check, Modes, Origin, Step};
use crate::engine::rules::{MetricName, Rule};
use crate::front::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use crate::front::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::metrics::Front;
use crate::spans::{CallSpan, Tracer};

const DOMAIN: &str = "ratelimit.domain";
const CODE: &str = "ratelimit.code";

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
        let question = RateLimitRequest::decode(request).unwrap_or_default();
        span.text(DOMAIN, &question.domain);
        match answer {
            Ok(answer) => self.describe(&mut span, &question, answer),
            Err(refusal) => span.failed(&refusal.message),
        }
    }

    /// Ends the span of a call of `/check`, as far as it came.
    pub fn end_check_span(&self, mut span: CallSpan, domain: &str, answer: Result<&CheckAnswer, &Refusal>) {
        span.text(DOMAIN, domain);
        match answer.map(|answer| answer.code) {
            Ok(decision::Code::Ok) => span.text(CODE, Code::Ok.as_str_name()),
            Ok(decision::Code::OverLimit) => span.text(CODE, Code::OverLimit.as_str_name()),
            Err(refusal) => span.failed(&refusal.message),
        }
    }

    /// The codes, and the rules that were met: a path each, as metrics name it without values of the request.
    fn describe(&self, span: &mut CallSpan, question: &RateLimitRequest, answer: &Answer) {
        let told = RateLimitResponse::decode(&*answer.message).unwrap_or_default();
        span.text(CODE, told.overall_code().as_str_name());
        let over: Vec<bool> = told.statuses.iter().map(|status| status.code() == Code::OverLimit).collect();
        let Ok(request) = wire::parse(question, &self.bounds) else { return };
        self.service.with_rules(|rules| {
            let Some(rules) = rules else { return };
            let plan = rules.plan(&request, Modes::default());
            let met = || plan.steps.iter().map(path);
            span.texts("ratelimit.rules", met().flatten());
            span.texts(
                "ratelimit.rules_over_limit",
                met().zip(over).filter_map(|(path, over)| path.filter(|_| over)),
            );
        });
    }
}

/// The path of the limit that this step meets.
fn path(step: &Step<'_>) -> Option<String> {
    let of_rule = |rule: &Rule| MetricName::rolled_up(&rule.metric_name).join(".");
    match step {
        Step::Check(Check { origin: Origin::Rule(rule), .. }) | Step::Unlimited(rule) => Some(of_rule(rule)),
        Step::Check(Check { origin: Origin::Override { .. }, .. }) => Some("override".to_owned()),
        Step::Unmatched | Step::Replaced(_) => None,
    }
}
