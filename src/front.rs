//! What all fronts share: the handler, the bounds on requests, and refusals.
//!
//! A front hands the handler the bytes of a `RateLimitRequest` and how long its caller waits. It gets the bytes of the
//! answer, now or later ([`Reply`]). Types of tonic, hyper and HTTP stay in the fronts. The handler decodes, asks the
//! [`Service`], renders and counts; nothing else does. It knows no transport: a front decides how a refusal is sent.

pub mod bare;
mod client_answer;
pub mod connections;
pub mod grpc;
pub mod http;
mod kuadrant;
pub mod lane;
pub mod proto;
mod drain;
mod life;
mod trace;
mod wire;

#[cfg(test)]
mod tests;

pub use client_answer::{ClientAnswer, ClientOptions, HeadersFormat, PROBLEM_JSON};
pub use drain::{Drain, DrainSwitch};
pub use life::{Life, MaxAge};
pub use wire::{AnswerOptions, LimitHeaders};

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message;

use crate::clock;
use crate::front::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use crate::spans::{CallSpan, Tracer};
use tidegate_engine::decision::{Code, Decision};
use tidegate_engine::explain::Explanation;
use tidegate_engine::request::{Request, RequestBuf};
use tidegate_engine::rules::{Actions, ClientRequest, Costs, RuleSet};
use tidegate_grpc::status::code;
use tidegate_serve::metrics::{Front, GrpcMethod, Metrics, Outcome};
use tidegate_serve::refusal::{Bounds, Refusal, RefusalCode};
use tidegate_serve::service::{BATCH_MAX, Batch, Service, ServiceError};

/// The answer to a call.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The overall code.
    pub code: Code,
    /// An encoded `RateLimitResponse`.
    pub message: Bytes,
}

/// The answer to a check, for fronts that send no message.
pub type CheckAnswer = tidegate_engine::Outcome;

/// An answer, now or later. Dropping a pending one cancels it.
pub enum Reply<T> {
    /// Decided at once.
    Now(Result<T, Refusal>),
    /// Decided when the shared store has answered.
    Later(Pin<Box<dyn Future<Output = Result<T, Refusal>> + Send>>),
}

impl<T> Reply<T> {
    /// Waits for the answer.
    pub async fn ready(self) -> Result<T, Refusal> {
        match self {
            Self::Now(answer) => answer,
            Self::Later(answer) => answer.await,
        }
    }
}

/// The status code of a refusal in gRPC.
const fn grpc_status(refused: RefusalCode) -> u8 {
    match refused {
        RefusalCode::InvalidArgument => code::INVALID_ARGUMENT,
        RefusalCode::DeadlineExceeded => code::DEADLINE_EXCEEDED,
        RefusalCode::ResourceExhausted => code::RESOURCE_EXHAUSTED,
        RefusalCode::Unimplemented => code::UNIMPLEMENTED,
        RefusalCode::Unavailable | RefusalCode::StoreFailure => code::UNAVAILABLE,
    }
}

/// The handler behind every front.
#[derive(Clone)]
pub struct Handler {
    service: Arc<Service>,
    metrics: Arc<Metrics>,
    bounds: Bounds,
    // These two are shared, because a waiting call holds a clone of the handler and should be small.
    answer_options: Arc<AnswerOptions>,
    tracer: Option<Arc<Tracer>>,
}

impl Handler {
    /// A handler before `service`. It accepts what is within `bounds`, and counts into `metrics`.
    #[must_use]
    pub fn new(service: Arc<Service>, metrics: Arc<Metrics>, bounds: Bounds) -> Self {
        Self { service, metrics, bounds, answer_options: Arc::default(), tracer: None }
    }

    /// The same handler with these options of answers.
    #[must_use]
    pub fn with_answer_options(self, answer_options: AnswerOptions) -> Self {
        Self { answer_options: Arc::new(answer_options), ..self }
    }

    /// The bounds on requests. A front uses them to stop reading early.
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// What its answers say of limits.
    fn client_options(&self) -> ClientOptions {
        self.answer_options.client
    }

    /// Answers encoded `RateLimitRequest`s that came in together through `front`, one after the other. `write` gets the
    /// place of each with its encoded answer or its refusal, or with `None` and its span if the shared store has to be
    /// asked ([`finish`](Self::finish)). A place without a message is skipped. `spans` has the span of each, which is
    /// ended with the answer, or is empty.
    ///
    /// # Panics
    /// When there are more messages than [`BATCH_MAX`](tidegate_serve::service::BATCH_MAX).
    pub fn answer_batch(
        &self,
        front: Front,
        messages: &[Option<&[u8]>],
        spans: &mut [Option<CallSpan>],
        mut write: impl FnMut(usize, Option<Result<&[u8], Refusal>>, Option<&mut Option<CallSpan>>),
    ) {
        let mut answer = Vec::with_capacity(wire::ANSWER_BYTES);
        self.decide(front, messages, |place, decided| {
            let span = spans.get_mut(place);
            match decided {
                Some(Ok((request, decision))) => {
                    if let Some(span) = span {
                        trace::answered(front, span, request, decision);
                    }
                    answer.clear();
                    wire::encode(&self.answer_options, request, decision, &mut answer);
                    write(place, Some(Ok(&answer)), None);
                }
                Some(Err(refusal)) => {
                    let message = messages[place].unwrap_or_default();
                    trace::refused_message(front, span.and_then(Option::take), message, &refusal);
                    write(place, Some(Err(refusal)), None);
                }
                None => write(place, None, span),
            }
        });
    }

    /// Answers an encoded `RateLimitRequest` that came in through `front`, and ends its span. The caller waits for
    /// `timeout` from now on (`None`: without an end). A refusal says what is wrong with the request, or why nothing
    /// can be decided now.
    pub fn answer(
        &self,
        front: Front,
        message: &[u8],
        timeout: Option<Duration>,
        mut span: Option<CallSpan>,
    ) -> Reply<Answer> {
        let mut answer = None;
        self.decide(front, &[Some(message)], |_, decided| {
            answer = decided.map(|decided| {
                let (request, decision) = decided?;
                Ok(self.rendered(front, span.take(), request, decision))
            });
        });
        match answer {
            Some(answer) => Reply::Now(
                answer.inspect_err(|refusal| trace::refused_message(front, span, message, refusal)),
            ),
            None => Reply::Later(Box::pin(self.finish(front, message, timeout, span))),
        }
    }

    /// Decides and counts encoded requests. `render` gets the place of each with its decision or its refusal, or with
    /// `None` if the shared store has to be asked: such a request is not counted here.
    fn decide(
        &self,
        front: Front,
        messages: &[Option<&[u8]>],
        mut render: impl FnMut(usize, Option<Result<(&Request<'_>, &Decision<'_>), Refusal>>),
    ) {
        assert!(messages.len() <= BATCH_MAX, "a batch has {BATCH_MAX} places");
        let began = clock::monotonic();
        let mut unusual = [const { None }; BATCH_MAX];
        let mut batch = Batch::default();
        for (place, (message, unusual)) in messages.iter().zip(&mut unusual).enumerate() {
            let Some(message) = message else {
                batch.pass();
                continue;
            };
            if let Err(refusal) = batch.read(|request| self.read(message, unusual, request)) {
                render(place, Some(Err(self.refuse_since(began, front, refusal))));
            }
        }
        let (mut ok, mut over) = (0, 0);
        let decided = self.service.under_rules(|live| {
            self.service.decide(live, &batch, |place, request, decision| {
                match decision.map(|decision| decision.code) {
                    Some(Code::Ok) => ok += 1,
                    Some(Code::OverLimit) => over += 1,
                    None => {}
                }
                render(place, decision.map(|decision| Ok((request, decision))));
            });
            Ok::<_, ServiceError>(())
        });
        self.count(front, Outcome::Ok, ok, began);
        self.count(front, Outcome::OverLimit, over, began);
        if let Err(error) = decided {
            for (place, _) in batch.requests() {
                render(place, Some(Err(self.refuse_since(began, front, error.clone().into()))));
            }
        }
    }

    /// Reads a message: in place if it has the usual form, else by prost, which also finds the reason to refuse it. A
    /// call takes 33 % longer by prost (`cargo bench --bench lane`).
    fn read<'m>(
        &self,
        message: &'m [u8],
        unusual: &'m mut Option<RateLimitRequest>,
        request: &mut Request<'m>,
    ) -> Result<(), Refusal> {
        if wire::in_place::parse(message, &self.bounds, request).is_none() {
            *request = self.parse(unusual.insert(self.decode(message)?))?;
        }
        Ok(())
    }

    /// Answers a message for which the shared store has to be asked, and ends its span.
    pub fn finish(
        &self,
        front: Front,
        message: &[u8],
        timeout: Option<Duration>,
        mut span: Option<CallSpan>,
    ) -> impl Future<Output = Result<Answer, Refusal>> + Send + use<> {
        let began = clock::monotonic();
        let (handler, message) = (self.clone(), Box::<[u8]>::from(message));
        async move {
            let answer = handler.finish_decision(front, &mut span, &message, timeout).await;
            handler.count(front, outcome(answer.as_ref().map(|answer| answer.code)), 1, began);
            answer.inspect_err(|refusal| trace::refused_message(front, span, &message, refusal))
        }
    }

    async fn finish_decision(
        &self,
        front: Front,
        span: &mut Option<CallSpan>,
        message: &[u8],
        timeout: Option<Duration>,
    ) -> Result<Answer, Refusal> {
        let live = self.service.snapshot()?;
        let mut render = |request: &Request<'_>, decision: &Decision<'_>| {
            self.rendered(front, span.take(), request, decision)
        };
        let usual =
            |request: &mut _| wire::in_place::parse(message, &self.bounds, request).ok_or(NoAnswer::Unusual);
        match self.service.finish(live.in_force(), usual, timeout, &mut render).await {
            Ok(answer) => Ok(answer),
            Err(NoAnswer::Failed(error)) => Err(error.into()),
            Err(NoAnswer::Unusual) => {
                let unusual = self.decode(message)?;
                let read = |request: &mut _| {
                    *request = self.parse(&unusual)?;
                    Ok(())
                };
                Box::pin(self.service.finish(live.in_force(), read, timeout, render)).await
            }
        }
    }

    /// Renders the answer of a decision into a message of its own, and ends its span.
    fn rendered(
        &self,
        front: Front,
        mut span: Option<CallSpan>,
        request: &Request<'_>,
        decision: &Decision<'_>,
    ) -> Answer {
        trace::answered(front, &mut span, request, decision);
        let mut message = Vec::with_capacity(wire::ANSWER_BYTES);
        wire::encode(&self.answer_options, request, decision, &mut message);
        Answer { code: decision.code, message: message.into() }
    }

    /// Answers a request that `ask` makes from what came in through `front`, under the rules that decide it, with the
    /// result of `render` for the decision. Ends its span. `question` is the memory for the request, and can be
    /// reused afterwards.
    pub fn check<T: Send + 'static>(
        &self,
        front: Front,
        question: &mut RequestBuf,
        ask: impl FnOnce(&RuleSet, &mut RequestBuf) -> Result<(), Refusal>,
        mut span: Option<CallSpan>,
        render: impl Fn(ClientOptions, &Request<'_>, &Decision<'_>) -> T + Copy + Send + Sync + 'static,
    ) -> Reply<T> {
        let began = clock::monotonic();
        let asked = self.service.under_rules(|live| {
            ask(live.rules(), question)?;
            self.within_bounds(question)?;
            let mut batch = Batch::default();
            batch.put(question.as_request());
            let mut answer = None;
            self.service.decide(live, &batch, |_, request, decision| {
                answer = decision.map(|decision| {
                    let decision = self.checked(front, span.take(), began, decision);
                    render(self.client_options(), request, decision)
                });
            });
            drop(batch);
            Ok(answer.ok_or_else(|| live.hold()))
        });
        match asked {
            Ok(Err(live)) => {
                let (handler, question) = (self.clone(), std::mem::take(question));
                Reply::Later(Box::pin(async move {
                    let read = |request: &mut _| {
                        *request = question.as_request();
                        Ok::<_, Refusal>(())
                    };
                    let render = |request: &Request<'_>, decision: &Decision<'_>| {
                        let decision = handler.checked(front, span.take(), began, decision);
                        render(handler.client_options(), request, decision)
                    };
                    let answer = handler.service.finish(live.in_force(), read, None, render).await;
                    answer.map_err(|refusal| handler.unchecked(front, span, began, refusal))
                }))
            }
            Ok(Ok(answer)) => Reply::Now(Ok(answer)),
            Err(refusal) => Reply::Now(Err(self.unchecked(front, span, began, refusal))),
        }
    }

    /// Counts a decision, and ends its span.
    fn checked<'d, 'l>(
        &self,
        front: Front,
        span: Option<CallSpan>,
        began: Instant,
        decision: &'d Decision<'l>,
    ) -> &'d Decision<'l> {
        trace::decided(front, span, decision);
        self.count(front, outcome(Ok(decision.code)), 1, began);
        decision
    }

    /// Counts a refusal, and ends its span.
    fn unchecked(&self, front: Front, span: Option<CallSpan>, began: Instant, refusal: Refusal) -> Refusal {
        trace::refused(front, span, &refusal);
        self.refuse_since(began, front, refusal)
    }

    /// The costs that a request of this domain is charged when its stream has ended. `None`: none.
    /// Fails when they cannot be known.
    pub fn costs(
        &self,
        domain: &str,
        own: Option<&Actions>,
        request: &impl ClientRequest<Error = Refusal>,
    ) -> Result<Option<Costs>, Refusal> {
        self.service.under_rules(|live| {
            let actions = own.or_else(|| live.rules().actions(domain));
            let Some(actions) = actions.filter(|actions| actions.has_costs()) else {
                return Ok(None);
            };
            let costs = actions.costs(domain, request, self.bounds.request_bytes_max)?;
            self.within_bounds(costs.descriptors())?;
            Ok(Some(costs).filter(|costs| !costs.is_empty()))
        })
    }

    /// All metrics, as text.
    pub fn scrape(&self) -> impl Iterator<Item = String> + use<> {
        self.metrics.scrape()
    }

    /// Whether this domain has `rate_limits`. `None`: no rules have the domain.
    pub fn describes(&self, domain: &str) -> Option<bool> {
        self.service.with_rules(|rules| Some(!rules?.actions(domain)?.is_empty()))
    }

    fn within_bounds(&self, question: &RequestBuf) -> Result<(), Refusal> {
        if question.text_bytes() > self.bounds.request_bytes_max {
            return Err(Refusal::too_large(&self.bounds));
        }
        self.bounds.check(question.entries_of_each())
    }

    /// Counts the refusal of a call that never became a request, or that cannot be decided.
    pub fn refuse(&self, front: Front, refusal: Refusal) -> Refusal {
        self.refuse_since(clock::monotonic(), front, refusal)
    }

    fn refuse_since(&self, began: Instant, front: Front, refusal: Refusal) -> Refusal {
        self.count(front, outcome(Err(&refusal)), 1, began);
        refusal
    }

    /// Like `refuse`, and ends the span of the call, if it has one.
    pub fn refuse_call(&self, front: Front, refusal: Refusal, span: Option<CallSpan>) -> Refusal {
        self.unchecked(front, span, clock::monotonic(), refusal)
    }

    /// For how many more nanoseconds lost counters of windows of this length count as full.
    pub fn cold_nanos_left(&self, window_nanos: u64) -> u64 {
        self.service.cold_nanos_left(window_nanos)
    }

    /// Explains how the encoded `RateLimitRequest` would be answered now. Nothing is counted.
    pub async fn explain<T>(
        &self,
        message: &[u8],
        render: impl FnOnce(&Explanation<'_>) -> T,
    ) -> Result<T, Refusal> {
        let message = self.decode(message)?;
        let request = self.parse(&message)?;
        let live = self.service.snapshot()?;
        Ok(self.service.explain(live.in_force(), &request, render).await?)
    }

    fn decode(&self, message: &[u8]) -> Result<RateLimitRequest, Refusal> {
        let message = self.decode_as(message)?;
        wire::check_asked(&message)?;
        Ok(message)
    }

    fn decode_as<M: Message + Default>(&self, message: &[u8]) -> Result<M, Refusal> {
        if message.len() > self.bounds.request_bytes_max {
            return Err(Refusal::too_large(&self.bounds));
        }
        M::decode(message).map_err(|error| Refusal::invalid(error.to_string()))
    }

    fn parse<'m>(&self, message: &'m RateLimitRequest) -> Result<Request<'m>, Refusal> {
        wire::parse(message, &self.bounds).map_err(|refusal| self.unless_no_rules(refusal))
    }

    /// Refuses for missing rules first, before any error in the descriptors.
    fn unless_no_rules(&self, refusal: Refusal) -> Refusal {
        if self.service.with_rules(|rules| rules.is_some()) { refusal } else { ServiceError::NoRules.into() }
    }

    /// Counts calls that began then, by their outcome.
    fn count(&self, front: Front, outcome: Outcome, calls: usize, began: Instant) {
        if calls == 0 {
            return;
        }
        self.metrics.requests(front, outcome, calls);
        if front == Front::Grpc {
            self.metrics.grpc_calls(GrpcMethod::ShouldRateLimit, clock::nanos_since(began), calls);
        }
    }
}

/// Why a message that was read in place has no answer.
enum NoAnswer {
    /// It does not have the usual form.
    Unusual,
    Failed(ServiceError),
}

impl From<ServiceError> for NoAnswer {
    fn from(error: ServiceError) -> Self {
        Self::Failed(error)
    }
}

fn outcome(answer: Result<Code, &Refusal>) -> Outcome {
    match answer {
        Ok(Code::Ok) => Outcome::Ok,
        Ok(Code::OverLimit) => Outcome::OverLimit,
        Err(refusal) => match refusal.code {
            RefusalCode::InvalidArgument | RefusalCode::Unimplemented => Outcome::InvalidArgument,
            RefusalCode::DeadlineExceeded => Outcome::DeadlineExceeded,
            RefusalCode::ResourceExhausted => Outcome::ResourceExhausted,
            RefusalCode::Unavailable => Outcome::Unavailable,
            RefusalCode::StoreFailure => Outcome::StoreFailure,
        },
    }
}
