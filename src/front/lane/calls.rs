//! What is called on the lane: decisions by the seam, and `grpc.health.v1`. Whole requests in, answers out, now or
//! later; no frame and no socket.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tonic_health::pb::HealthCheckRequest;

use super::LaneFront;
use super::connection::{Call, Outcome, STREAMS_MAX, Serve, Status};
use super::hpack::Route;
use crate::clock;
use crate::front::grpc::{QUESTION_BYTES_MAX, framing, health};
use crate::front::{Bounds, Refusal, Reply};
use crate::health::Status as HealthStatus;
use crate::metrics::{Front, GrpcMethod};

/// What gRPC calls these numbers.
const INVALID_ARGUMENT: u8 = 3;
const NOT_FOUND: u8 = 5;
const UNIMPLEMENTED: u8 = 12;

const TOO_LATE: &str = "the request did not arrive in time";
const UNANSWERED: &str = "the request was not answered in time";

/// The calls of one connection. Those that wait are dropped with it.
pub struct Calls {
    front: LaneFront,
    /// What is under way, each with the number of its stream.
    pub waiting: JoinSet<(u32, Event)>,
}

/// Something that came later.
pub enum Event {
    /// The answer to a call.
    Answer(Result<Bytes, Status>),
    /// A health status, and whoever knows the next one.
    Health(HealthStatus, watch::Receiver<HealthStatus>),
}

/// Ends what waits for an answer when nobody waits for that any more.
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

    fn bounds(&self, route: Route) -> Bounds {
        let bounds = *self.front.seam.bounds();
        match route {
            Route::ShouldRateLimit => bounds,
            Route::HealthCheck | Route::HealthWatch | Route::Unknown => {
                Bounds { request_bytes_max: QUESTION_BYTES_MAX, ..bounds }
            }
        }
    }

    /// Counts a refusal of what never became a request, where such are counted.
    fn refuse(&self, route: Route, refusal: Refusal) -> Status {
        match route {
            Route::ShouldRateLimit => self.front.seam.refuse(Front::Grpc, refusal).into(),
            Route::HealthCheck | Route::HealthWatch | Route::Unknown => refusal.into(),
        }
    }

    fn decide(&mut self, stream: u32, message: &[u8], timeout: Option<Duration>) -> Outcome<Waiting> {
        match self.front.seam.answer(Front::Grpc, message, timeout) {
            Reply::Now(answer) => Outcome::Now(answer.map(|answer| answer.message).map_err(Status::from)),
            Reply::Later(answer) => Outcome::Later(self.wait(stream, async {
                Event::Answer(answer.await.map(|answer| answer.message).map_err(Status::from))
            })),
        }
    }

    fn check_health(&self, message: &[u8]) -> Result<Bytes, Status> {
        let began = clock::monotonic();
        let checked = check_name(message).map(|()| report(&self.front.health.status()));
        self.front.seam.metrics.grpc_call(GrpcMethod::Check, clock::nanos_since(began));
        checked
    }

    fn watch_health(&mut self, stream: u32, message: &[u8]) -> Outcome<Waiting> {
        if let Err(status) = check_name(message) {
            return Outcome::Now(Err(status));
        }
        let mut watcher = self.front.health.watch();
        let status = watcher.borrow_and_update().clone();
        Outcome::Stream(report(&status), self.follow(stream, status, watcher))
    }

    /// Waits for a status that is told differently from this one. Draining is the last.
    pub fn follow(
        &mut self,
        stream: u32,
        told: HealthStatus,
        mut watcher: watch::Receiver<HealthStatus>,
    ) -> Waiting {
        self.wait(stream, async move {
            let differs = |status: &HealthStatus| {
                *status == HealthStatus::Draining || health::report(status) != health::report(&told)
            };
            let status =
                watcher.wait_for(differs).await.map_or(HealthStatus::Draining, |status| status.clone());
            Event::Health(status, watcher)
        })
    }

    fn wait(&mut self, stream: u32, event: impl Future<Output = Event> + Send + 'static) -> Waiting {
        Waiting(self.waiting.spawn(async move { (stream, event.await) }))
    }
}

impl Serve for Calls {
    type Waiting = Waiting;

    fn partial(&mut self, route: Route, body: &[u8]) -> Result<(), Status> {
        framing::check(body, &self.bounds(route)).map_err(|refusal| self.refuse(route, refusal))
    }

    fn whole(&mut self, call: Call<'_>) -> Outcome<Waiting> {
        // Those whose streams were reset count until they are gone.
        if self.waiting.len() >= STREAMS_MAX {
            return Outcome::Refused;
        }
        if call.route == Route::Unknown {
            return Outcome::Now(Err(Status {
                code: UNIMPLEMENTED,
                message: "there is no such method".into(),
            }));
        }
        let bounds = self.bounds(call.route);
        let message = match framing::check(call.body, &bounds).and_then(|()| framing::message(call.body)) {
            Ok(message) => message,
            Err(refusal) => return Outcome::Now(Err(self.refuse(call.route, refusal))),
        };
        match call.route {
            Route::HealthCheck => Outcome::Now(self.check_health(message)),
            Route::HealthWatch => self.watch_health(call.stream, message),
            Route::ShouldRateLimit | Route::Unknown => self.decide(call.stream, message, call.timeout),
        }
    }

    fn late(&mut self, route: Route, arrived: bool) -> Status {
        self.refuse(route, Refusal::late(if arrived { UNANSWERED } else { TOO_LATE }))
    }
}

/// The message of a status.
pub fn report(status: &HealthStatus) -> Bytes {
    health::report(status).encode_to_vec().into()
}

fn check_name(message: &[u8]) -> Result<(), Status> {
    let request = HealthCheckRequest::decode(message)
        .map_err(|error| Status { code: INVALID_ARGUMENT, message: error.to_string().into() })?;
    match health::is_known(&request.service) {
        true => Ok(()),
        false => Err(Status { code: NOT_FOUND, message: health::UNKNOWN.into() }),
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        Self { code: refusal.code.grpc_status(), message: refusal.message.into() }
    }
}
