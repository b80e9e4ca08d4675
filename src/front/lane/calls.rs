//! The calls of the lane: decisions by the handler, `grpc.health.v1`, and reflection. Complete requests in, answers out,
//! now or later; no frames and no sockets.

use arrayvec::ArrayVec;
use bytes::Bytes;
use prost::Message;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tonic_health::pb::HealthCheckRequest;

use super::{LaneFront, reflection};
use crate::clock;
use crate::front::grpc::{QUESTION_BYTES_MAX, SHOULD_RATE_LIMIT, framing, health};
use crate::front::kuadrant::{CHECK_RATE_LIMIT, COMMIT, Method, REPORT, RESERVE};
use crate::front::{Handler, Reply, grpc_status};
use crate::spans::{self, CallSpan};
use tidegate_grpc::connection::{self, Call, Outcome, STREAMS_MAX, Serve, TimedOut};
use tidegate_grpc::status::Status;
use tidegate_grpc::status::code::{INVALID_ARGUMENT, NOT_FOUND, UNIMPLEMENTED};
use tidegate_grpc::{KeptHeaders, Route, Served};
use tidegate_serve::health::Status as HealthStatus;
use tidegate_serve::metrics::{Front, GrpcMethod};
use tidegate_serve::refusal::{Bounds, Refusal};
use tidegate_serve::service::BATCH_MAX;

/// What is served. A call's route is an index into its paths.
static SERVED: Served = serving(&[]);
/// The same when calls are traced: then the headers that name the caller's trace are kept.
static SERVED_TRACED: Served = serving(spans::HEADERS);
const DECISION: Route = Route::Known(0);
const HEALTH_CHECK: Route = Route::Known(1);
const HEALTH_WATCH: Route = Route::Known(2);
/// The first of Kuadrant's calls; the others follow.
const KUADRANT: u8 = 3;
const OF_KUADRANT: [(&str, Method); 4] = [
    (CHECK_RATE_LIMIT, Method::CheckRateLimit),
    (REPORT, Method::Report),
    (RESERVE, Method::Reserve),
    (COMMIT, Method::Commit),
];

const TOO_LATE: &str = "the request did not arrive in time";
const UNANSWERED: &str = "the request was not answered in time";

const _: () = assert!(connection::BATCH_MAX == BATCH_MAX, "what is handed out together is decided together");

const fn serving(kept: &'static [&'static str]) -> Served {
    let calls = &[
        SHOULD_RATE_LIMIT,
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
        OF_KUADRANT[0].0,
        OF_KUADRANT[1].0,
        OF_KUADRANT[2].0,
        OF_KUADRANT[3].0,
    ];
    Served { calls, dialogs: reflection::PATHS, kept }
}

/// The method of Kuadrant's that a route is.
fn kuadrant_method(route: Route) -> Option<Method> {
    let Route::Known(route) = route else { return None };
    let (_, method) = OF_KUADRANT.get(usize::from(route.checked_sub(KUADRANT)?))?;
    Some(*method)
}

/// The calls of one connection. Pending answers are cancelled when it is dropped.
pub struct Calls {
    front: LaneFront,
    /// Pending answers, each with the identifier of its stream.
    pub waiting: JoinSet<(u32, Completion)>,
}

/// The result of a pending answer.
pub enum Completion {
    /// The answer to a call.
    Answer(Result<Bytes, Status>),
    /// A health status, its message unless that was already sent, and the receiver of the next status.
    Health(HealthStatus, Option<Bytes>, watch::Receiver<HealthStatus>),
}

/// A pending answer. Dropping it cancels the answer.
#[derive(Debug)]
pub struct Waiting(AbortHandle);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Calls {
    pub fn new(front: LaneFront) -> Self {
        Self { front, waiting: JoinSet::new() }
    }

    pub fn served(&self) -> &'static Served {
        if self.front.handler.is_traced() { &SERVED_TRACED } else { &SERVED }
    }

    fn bounds(&self, route: Route) -> Bounds {
        let bounds = *self.front.handler.bounds();
        match route {
            DECISION => bounds,
            _ if kuadrant_method(route).is_some() => bounds,
            _ => Bounds { request_bytes_max: QUESTION_BYTES_MAX, ..bounds },
        }
    }

    /// The status of a refusal. It is counted if the call asks for a decision, and ends its span.
    fn refuse(&self, route: Route, refusal: Refusal, span: Option<CallSpan>) -> Status {
        match route {
            DECISION => refused(self.front.handler.refuse_call(Front::Grpc, refusal, span)),
            _ if kuadrant_method(route).is_some() => {
                refused(self.front.handler.refuse(Front::Kuadrant, refusal))
            }
            _ => refused(refusal),
        }
    }

    /// The message of a call for a decision. Any other call is answered at once.
    fn for_decision<'c>(
        &mut self,
        call: &mut Call<'c, CallSpan>,
        answer: impl FnOnce(Outcome<'_, Waiting>),
    ) -> Option<&'c [u8]> {
        match (self.message(call), call.route) {
            (Ok(message), DECISION) => return Some(message),
            (Ok(message), HEALTH_CHECK) => {
                answer(Outcome::Now(self.check_health(message).as_deref().map_err(Clone::clone)));
            }
            (Ok(message), HEALTH_WATCH) => answer(self.watch_health(call.stream, message)),
            (Ok(message), route) => match kuadrant_method(route) {
                Some(method) => self.kuadrant(method, call.stream, message, answer),
                None => answer(Outcome::Now(Err(no_such_method()))),
            },
            (Err(status), _) => answer(Outcome::Now(Err(status))),
        }
        None
    }

    /// The one message of a call.
    fn message<'c>(&self, call: &mut Call<'c, CallSpan>) -> Result<&'c [u8], Status> {
        if call.route == Route::Unknown {
            return Ok(&[]);
        }
        let bounds = self.bounds(call.route);
        let message = framing::check(call.body, &bounds).and_then(|()| framing::message(call.body));
        message.map_err(|refusal| self.refuse(call.route, refusal, call.note.take()))
    }

    fn kuadrant(
        &mut self,
        method: Method,
        stream: u32,
        message: &[u8],
        answer: impl FnOnce(Outcome<'_, Waiting>),
    ) {
        if self.waiting.len() >= STREAMS_MAX {
            return answer(Outcome::Refused);
        }
        match self.front.handler.kuadrant(method, message) {
            Reply::Now(answered) => {
                answer(Outcome::Now(answered.as_deref().map_err(|it| refused(it.clone()))))
            }
            Reply::Later(later) => answer(Outcome::Later(wait(&mut self.waiting, stream, async {
                Completion::Answer(later.await.map_err(refused))
            }))),
        }
    }

    fn check_health(&self, message: &[u8]) -> Result<Bytes, Status> {
        let began = clock::monotonic();
        let checked = check_name(message).map(|()| report(&self.front.health.status()));
        self.front.handler.metrics.grpc_calls(GrpcMethod::Check, clock::nanos_since(began), 1);
        checked
    }

    fn watch_health(&mut self, stream: u32, message: &[u8]) -> Outcome<'static, Waiting> {
        if self.waiting.len() >= STREAMS_MAX {
            return Outcome::Refused;
        }
        if let Err(status) = check_name(message) {
            return Outcome::Now(Err(status));
        }
        let mut watcher = self.front.health.watch();
        let status = watcher.borrow_and_update().clone();
        Outcome::Stream(report(&status), self.follow(stream, status, watcher))
    }

    /// Waits for a status with another message than the last one that was reported. Draining is the last status.
    pub fn follow(
        &mut self,
        stream: u32,
        reported: HealthStatus,
        mut watcher: watch::Receiver<HealthStatus>,
    ) -> Waiting {
        wait(&mut self.waiting, stream, async move {
            let differs = |status: &HealthStatus| {
                *status == HealthStatus::Draining || health::report(status) != health::report(&reported)
            };
            let status =
                watcher.wait_for(differs).await.map_or(HealthStatus::Draining, |status| status.clone());
            let has_changed = health::report(&status) != health::report(&reported);
            Completion::Health(status.clone(), has_changed.then(|| report(&status)), watcher)
        })
    }
}

fn decide_later(
    handler: &Handler,
    waiting: &mut JoinSet<(u32, Completion)>,
    call: &Call<'_, CallSpan>,
    message: &[u8],
    span: Option<CallSpan>,
) -> Outcome<'static, Waiting> {
    // Cancelled answers count until their tasks have ended.
    if waiting.len() >= STREAMS_MAX {
        return Outcome::Refused;
    }
    let now = clock::timer();
    let timeout = call.deadline.map(|deadline| deadline.saturating_duration_since(now));
    // Boxed, because it is moved several times before it runs.
    let answer = Box::pin(handler.finish(Front::Grpc, message, timeout, span));
    Outcome::Later(wait(waiting, call.stream, async {
        Completion::Answer(answer.await.map(|answer| answer.message).map_err(refused))
    }))
}

fn wait(
    waiting: &mut JoinSet<(u32, Completion)>,
    stream: u32,
    completion: impl Future<Output = Completion> + Send + 'static,
) -> Waiting {
    Waiting(waiting.spawn(async move { (stream, completion.await) }))
}

impl Serve for Calls {
    type Waiting = Waiting;
    /// The span of a call that is traced.
    type Note = CallSpan;

    fn note(&mut self, route: Route, headers: &KeptHeaders) -> Option<CallSpan> {
        if route != DECISION {
            return None;
        }
        let header = |name: &str| std::str::from_utf8(headers.get(name)?).ok();
        self.front.handler.begin_span(Front::Grpc, header)
    }

    fn check_partial(
        &mut self,
        route: Route,
        body: &[u8],
        note: &mut Option<CallSpan>,
    ) -> Result<(), Status> {
        if route == Route::Unknown {
            return Err(no_such_method());
        }
        framing::check(body, &self.bounds(route)).map_err(|refusal| self.refuse(route, refusal, note.take()))
    }

    fn answer_batch(
        &mut self,
        calls: &mut [Call<'_, CallSpan>],
        mut answer: impl FnMut(usize, Outcome<'_, Waiting>),
    ) {
        // Each call keeps its index, from here to its answer.
        let mut messages: ArrayVec<Option<&[u8]>, BATCH_MAX> = ArrayVec::new();
        let mut spans: ArrayVec<Option<CallSpan>, BATCH_MAX> = ArrayVec::new();
        for (place, call) in calls.iter_mut().enumerate() {
            messages.push(self.for_decision(call, |outcome| answer(place, outcome)));
        }
        // Not a clone: all connections of all workers share its reference count.
        let Self { front: LaneFront { handler, .. }, waiting } = self;
        if handler.is_traced() {
            spans.extend(calls.iter_mut().map(|call| call.note.take()));
        }
        handler.answer_batch(Front::Grpc, &messages, &mut spans, |place, decided, span| {
            let outcome = match decided {
                Some(decided) => Outcome::Now(decided.map_err(refused)),
                None => {
                    let message = messages[place].expect("only places with a message are answered");
                    decide_later(handler, waiting, &calls[place], message, span.and_then(Option::take))
                }
            };
            answer(place, outcome);
        });
    }

    fn converse(&mut self, _: Route, question: &[u8]) -> Result<Vec<u8>, Status> {
        reflection::answer(question)
    }

    fn timed_out(&mut self, route: Route, when: TimedOut, note: Option<CallSpan>) -> Status {
        let why = match when {
            TimedOut::Incomplete => TOO_LATE,
            TimedOut::Unanswered => UNANSWERED,
        };
        self.refuse(route, Refusal::late(why), note)
    }
}

/// The message of a status.
fn report(status: &HealthStatus) -> Bytes {
    health::report(status).encode_to_vec().into()
}

fn no_such_method() -> Status {
    Status { code: UNIMPLEMENTED, message: "there is no such method".into() }
}

fn check_name(message: &[u8]) -> Result<(), Status> {
    let request = HealthCheckRequest::decode(message)
        .map_err(|error| Status { code: INVALID_ARGUMENT, message: error.to_string().into() })?;
    match health::is_known(&request.service) {
        true => Ok(()),
        false => Err(Status { code: NOT_FOUND, message: health::UNKNOWN.into() }),
    }
}

/// The status of a refusal.
fn refused(refusal: Refusal) -> Status {
    Status { code: grpc_status(refusal.code), message: refusal.message.into() }
}
