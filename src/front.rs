//! What all fronts share: the seam, the bounds on what comes in, and what a refusal is.
//!
//! Past a front, a call is (the bytes of a `RateLimitRequest`, how long its caller waits) → the bytes of its answer,
//! now or later ([`Reply`]). No type of tonic, hyper or HTTP goes further. The seam decodes, asks the [`Service`],
//! renders and counts, and this is the one place where each of these happens. It knows no transport; what a refusal
//! looks like there is the front's business.

pub mod bare;
pub mod connections;
pub mod grpc;
pub mod http;
pub mod lane;
pub mod proto;
mod together;
mod trace;
mod wire;

#[cfg(test)]
mod tests;

pub use trace::Met;
pub use wire::{LimitHeaders, Telling};

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message;

use crate::clock;
use crate::front::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use crate::metrics::{Front, GrpcMethod, Metrics, Outcome};
use crate::service::{Service, ServiceError, Snapshot};
use crate::spans::Tracer;
use tidegate_engine::decision::{Code, Decision, Limited};
use tidegate_engine::explain::Explanation;
use tidegate_engine::request::{Request, RequestBuf};
use tidegate_engine::rules::RuleSet;
use tidegate_engine::text::one_line;
use tidegate_grpc::status::code;
use tidegate_redis::SharedStore;

/// Bounds of one request.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Descriptors of a request.
    pub descriptors_max: usize,
    /// Entries of one descriptor.
    pub entries_max: usize,
    /// Bytes of a request, before decoding.
    pub request_bytes_max: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { descriptors_max: 64, entries_max: 32, request_bytes_max: 65_536 }
    }
}

impl Bounds {
    /// Whether a request may have descriptors of so many entries each.
    fn check(&self, entries: impl ExactSizeIterator<Item = usize>) -> Result<(), Refusal> {
        let (count, max) = (entries.len(), self.descriptors_max);
        if count > max {
            return Err(Refusal::invalid(format!("{count} descriptors are too many (at most {max})")));
        }
        let max = self.entries_max;
        match entries.enumerate().find(|&(_, count)| count > max) {
            Some((index, count)) => Err(Refusal::invalid(format!(
                "descriptor {index}: {count} entries are too many (at most {max})"
            ))),
            None => Ok(()),
        }
    }
}

/// The answer to a call.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The overall code that is told.
    pub code: Code,
    /// An encoded `RateLimitResponse`.
    pub message: Bytes,
    /// Where the call is traced: what it met.
    pub met: Option<Box<Met>>,
}

/// The answer to a question that does not come as a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckAnswer {
    /// The overall code that is told.
    pub code: Code,
    /// The numbers of the limit that is tightest, if a limit was asked.
    pub tightest: Option<Tightest>,
    /// After how many seconds to ask again, when it is over the limit.
    pub retry_after_secs: Option<u64>,
}

/// The numbers of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tightest {
    /// N.
    pub limit: u32,
    /// Hits that would still pass.
    pub remaining: u32,
    /// When capacity comes back.
    pub reset_secs: u64,
}

/// An answer, or what will become one. Whoever drops it before tells that nobody waits any more.
pub enum Reply<T> {
    /// Decided where the question was asked.
    Now(Result<T, Refusal>),
    /// Somebody else has to be asked first.
    Later(Pin<Box<dyn Future<Output = Result<T, Refusal>> + Send>>),
}

impl<T> Reply<T> {
    /// The answer, once it is there.
    pub async fn ready(self) -> Result<T, Refusal> {
        match self {
            Self::Now(answer) => answer,
            Self::Later(answer) => answer.await,
        }
    }
}

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// Who is at fault.
    pub code: RefusalCode,
    /// What is wrong, for the one who asked.
    pub message: String,
}

/// The kinds of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCode {
    /// The request can never be answered.
    InvalidArgument,
    /// The request took too long to arrive.
    DeadlineExceeded,
    /// The request is too large.
    ResourceExhausted,
    /// The request is of a form that there is, but not here.
    Unimplemented,
    /// It might be answered later.
    Unavailable,
    /// It might be answered later: the shared store does not answer.
    StoreFailure,
}

impl RefusalCode {
    /// Its number in gRPC.
    pub const fn grpc_status(self) -> u8 {
        match self {
            Self::InvalidArgument => code::INVALID_ARGUMENT,
            Self::DeadlineExceeded => code::DEADLINE_EXCEEDED,
            Self::ResourceExhausted => code::RESOURCE_EXHAUSTED,
            Self::Unimplemented => code::UNIMPLEMENTED,
            Self::Unavailable | Self::StoreFailure => code::UNAVAILABLE,
        }
    }
}

/// The seam behind every front.
#[derive(Clone)]
pub struct Seam {
    service: Arc<Service>,
    metrics: Arc<Metrics>,
    bounds: Bounds,
    telling: Telling,
    tracer: Option<Tracer>,
    /// Answers name what was met: under the rules that decided, which may be gone when somebody asks later.
    names_met: bool,
}

impl Seam {
    /// The seam before `service`: lets in what is within `bounds`, counts into `metrics`.
    #[must_use]
    pub fn new(service: Arc<Service>, metrics: Arc<Metrics>, bounds: Bounds) -> Self {
        Self { service, metrics, bounds, telling: Telling::default(), tracer: None, names_met: false }
    }

    /// The same seam, whose answers tell this beside codes and limits.
    #[must_use]
    pub fn telling(self, telling: Telling) -> Self {
        Self { telling, ..self }
    }

    /// A worker begins to serve: what has to be connected is connected from its runtime.
    pub fn begin(&self) {
        if let Some(shared) = self.service.shared() {
            shared.attach();
        }
    }

    /// What a worker does beside serving: without requests it would hold the rules that it saw last, though they were
    /// replaced.
    pub async fn follow_rules(&self) -> Infallible {
        let mut installs = self.service.installs();
        loop {
            installs.changed().await.expect("the service is here");
            self.service.load_rules();
        }
    }

    /// A worker has served everything: what it holds of the shared store goes back, within a bound.
    pub async fn end(&self) {
        if let Some(shared) = self.service.shared() {
            shared.detach().await;
        }
    }

    /// The bounds that the seam keeps. A front uses them to stop reading early.
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// Answers the encoded `RateLimitRequest` that came in through `front`, whose caller waits for `timeout` from now
    /// on (`None`: without an end). A refusal says what is wrong with the request, or why nothing can be decided now.
    pub fn answer(&self, front: Front, request: &[u8], timeout: Option<Duration>) -> Reply<Answer> {
        let began = clock::monotonic();
        if let Some(shared) = self.service.shared() {
            if let Some(answer) = self.decide_known(shared, request) {
                self.count(front, Ok(answer.code), began);
                return Reply::Now(Ok(answer));
            }
            return Reply::Later(Box::pin(self.answer_later(front, request, timeout)));
        }
        let answer = self.decide(request, |request, decision| self.told(request, decision));
        self.count(front, answer.as_ref().map(|answer| answer.code), began);
        Reply::Now(answer)
    }

    /// The same where counters are shared and the store has to be asked.
    pub fn answer_later(
        &self,
        front: Front,
        request: &[u8],
        timeout: Option<Duration>,
    ) -> impl Future<Output = Result<Answer, Refusal>> + Send + use<> {
        let began = clock::monotonic();
        let (seam, request) = (self.clone(), Box::<[u8]>::from(request));
        async move {
            let answer = match seam.decide_one_later(&request, timeout).await {
                Some(answer) => answer,
                None => Box::pin(seam.decide_later(&request, timeout)).await,
            };
            seam.count(front, answer.as_ref().map(|answer| answer.code), began);
            answer
        }
    }

    /// Answers the question that `ask` forms of what came in through `front`, under the rules that decide it.
    pub fn check(
        &self,
        front: Front,
        ask: impl FnOnce(&RuleSet) -> Result<RequestBuf, Refusal>,
    ) -> Reply<CheckAnswer> {
        let bounded = |rules: &RuleSet| ask(rules).and_then(|question| self.within_bounds(question));
        if let Some(shared) = self.service.shared() {
            let asked = self.service.snapshot().map_err(Refusal::from);
            let asked = asked.and_then(|live| Ok((bounded(live.rules())?, live)));
            if let Some(answer) = asked.as_ref().ok().and_then(|asked| self.check_known(shared, asked)) {
                self.metrics.requests(front, outcome(Ok(answer.code)), 1);
                return Reply::Now(Ok(answer));
            }
            let seam = self.clone();
            return Reply::Later(Box::pin(async move {
                let answer = seam.check_later(asked).await;
                seam.metrics.requests(front, outcome(answer.as_ref().map(|answer| answer.code)), 1);
                answer
            }));
        }
        let answer = self.service.decide_asked(bounded, CheckAnswer::of);
        self.metrics.requests(front, outcome(answer.as_ref().map(|answer| answer.code)), 1);
        Reply::Now(answer)
    }

    /// The answer to a question about counters that this node knows.
    fn check_known(
        &self,
        shared: &SharedStore,
        (question, live): &(RequestBuf, Snapshot),
    ) -> Option<CheckAnswer> {
        self.service.decide_known_in(live, shared, &question.as_request(), CheckAnswer::of)
    }

    async fn check_later(
        &self,
        asked: Result<(RequestBuf, Snapshot), Refusal>,
    ) -> Result<CheckAnswer, Refusal> {
        let (question, live) = asked?;
        let request = question.as_request();
        Ok(self.service.decide_later(&live, &request, None, CheckAnswer::of).await?)
    }

    fn within_bounds(&self, question: RequestBuf) -> Result<RequestBuf, Refusal> {
        if question.text_bytes() > self.bounds.request_bytes_max {
            return Err(Refusal::too_large(&self.bounds));
        }
        self.bounds.check(question.entries_of_each())?;
        Ok(question)
    }

    /// Counts the refusal of a call that never became a `RateLimitRequest`, made by a front while it was reading.
    pub fn refuse(&self, front: Front, refusal: Refusal) -> Refusal {
        self.count(front, Err(&refusal), clock::monotonic());
        refusal
    }

    async fn decide_later(&self, request: &[u8], timeout: Option<Duration>) -> Result<Answer, Refusal> {
        let message = self.decode(request)?;
        let request = self.parse(&message)?;
        let live = self.service.snapshot()?;
        let render = |decision: &Decision<'_>| self.told(&request, decision);
        Ok(self.service.decide_later(&live, &request, timeout, render).await?)
    }

    /// The same for a request of the usual form about one counter; `None`: it is none of those.
    async fn decide_one_later(
        &self,
        request: &[u8],
        timeout: Option<Duration>,
    ) -> Option<Result<Answer, Refusal>> {
        let live = self.service.snapshot().ok()?;
        let read = |asked: &mut _| wire::in_place::parse(request, &self.bounds, asked);
        let render = |request: &Request<'_>, decision: &Decision<'_>| self.told(request, decision);
        let decided = self.service.decide_one_later(&live, read, timeout, render).await?;
        Some(decided.map_err(Refusal::from))
    }

    /// Tells why the encoded `RateLimitRequest` would be answered as it would be now. Every descriptor is asked for the
    /// hits of the request, whatever it brings itself; nothing is counted.
    pub async fn explain<T>(
        &self,
        request: &[u8],
        tell: impl FnOnce(&Explanation<'_>) -> T,
    ) -> Result<T, Refusal> {
        let mut message = self.decode(request)?;
        for descriptor in &mut message.descriptors {
            (descriptor.hits_addend, descriptor.is_negative_hits) = (Some(0), false);
        }
        let hits = u64::from(message.hits_addend.max(1));
        let request = self.parse(&message)?;
        let live = self.service.snapshot()?;
        Ok(self.service.explain(&live, &request, hits, tell).await?)
    }

    fn decode(&self, request: &[u8]) -> Result<RateLimitRequest, Refusal> {
        if request.len() > self.bounds.request_bytes_max {
            return Err(Refusal::too_large(&self.bounds));
        }
        let message =
            RateLimitRequest::decode(request).map_err(|error| Refusal::invalid(error.to_string()))?;
        wire::check_asked(&message)?;
        Ok(message)
    }

    /// The answer to a request about counters that this node knows, whatever other nodes do.
    fn decide_known(&self, shared: &SharedStore, request: &[u8]) -> Option<Answer> {
        let mut asked = Request::default();
        wire::in_place::parse(request, &self.bounds, &mut asked)?;
        self.service.decide_known(shared, &asked, |decision| self.told(&asked, decision))
    }

    /// The answer of a decision, in a message of its own.
    fn told(&self, request: &Request<'_>, decision: &Decision<'_>) -> Answer {
        let mut message = Vec::with_capacity(wire::ANSWER_BYTES);
        wire::encode(&self.telling, request, decision, &mut message);
        let met = self.names_met.then(|| Box::new(Met::of(decision)));
        Answer { code: decision.code, message: message.into(), met }
    }

    /// Decides a request where nobody else has to be asked.
    fn decide<T>(
        &self,
        request: &[u8],
        render: impl FnOnce(&Request<'_>, &Decision<'_>) -> T,
    ) -> Result<T, Refusal> {
        let mut asked = Request::default();
        if wire::in_place::parse(request, &self.bounds, &mut asked).is_some() {
            return Ok(self.service.decide(&asked, |decision| render(&asked, decision))?);
        }
        let message = self.decode(request)?;
        let asked = self.parse(&message)?;
        Ok(self.service.decide(&asked, |decision| render(&asked, decision))?)
    }

    fn parse<'m>(&self, message: &'m RateLimitRequest) -> Result<Request<'m>, Refusal> {
        wire::parse(message, &self.bounds).map_err(|refusal| self.unless_no_rules(refusal))
    }

    /// That there are no rules yet comes before what is wrong with the descriptors.
    fn unless_no_rules(&self, refusal: Refusal) -> Refusal {
        if self.service.with_rules(|rules| rules.is_some()) { refusal } else { ServiceError::NoRules.into() }
    }

    /// Counts one call, whatever became of it.
    fn count(&self, front: Front, answer: Result<Code, &Refusal>, began: Instant) {
        self.metrics.requests(front, outcome(answer), 1);
        if front == Front::Grpc {
            self.metrics.grpc_calls(GrpcMethod::ShouldRateLimit, clock::nanos_since(began), 1);
        }
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

impl CheckAnswer {
    fn of(decision: &Decision<'_>) -> Self {
        let numbers = |limited: &Limited<'_>| Tightest {
            limit: limited.limit.requests(),
            remaining: limited.remaining(),
            reset_secs: limited.reset_secs(),
        };
        Self {
            code: decision.code,
            tightest: decision.tightest().map(numbers),
            retry_after_secs: decision.retry_after_secs(),
        }
    }
}

impl Refusal {
    /// The request can never be answered, because of `message`.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::of(RefusalCode::InvalidArgument, &message.into())
    }

    /// The request did not arrive in time, as `message` says.
    pub fn late(message: impl Into<String>) -> Self {
        Self::of(RefusalCode::DeadlineExceeded, &message.into())
    }

    /// The request is of a form that is not supported, as `message` says.
    pub fn unimplemented(message: impl Into<String>) -> Self {
        Self::of(RefusalCode::Unimplemented, &message.into())
    }

    /// Messages hold parts of requests, and are told to people and logs: each is one line.
    fn of(code: RefusalCode, message: &str) -> Self {
        Self { code, message: one_line(message).into_owned() }
    }

    /// The request has more bytes than `bounds` let in.
    #[must_use]
    pub fn too_large(bounds: &Bounds) -> Self {
        let message = format!("request is larger than {} bytes", bounds.request_bytes_max);
        Self { code: RefusalCode::ResourceExhausted, message }
    }
}

impl From<ServiceError> for Refusal {
    fn from(error: ServiceError) -> Self {
        match error {
            ServiceError::NoRules => Self::of(RefusalCode::Unavailable, &error.to_string()),
            ServiceError::Store(_) => Self::of(RefusalCode::StoreFailure, &error.to_string()),
        }
    }
}
