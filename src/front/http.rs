//! The HTTP ports: decisions (`/check`, `/json`) and probes on one, pages for operators on the others.
//!
//! HTTP/1.1 and HTTP/2. A route is a line of a `match` on (method, path). Bodies are bounded in bytes and time.

mod admin;
mod admin_api;
mod check;
mod gate;
mod guesses;
mod hosts;
mod json;
mod page;
mod probes;
mod rlconfig;
mod status;
mod token;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;

pub use self::admin::{AdminFront, MetricsFront};
pub use self::admin_api::AdminApi;
pub use self::check::{CheckOptions, Proxy};
pub use self::gate::Gate;
pub use self::hosts::Hosts;
pub use self::page::Page;
pub use self::token::{AdminToken, TokenError};

use self::page::{not_allowed, text};
use crate::front::connections::Peer;
use crate::front::{Bounds, Handler, Refusal, RefusalCode, trace};
use tidegate_serve::health::Health;
use tidegate_serve::metrics::Front;

/// What the port speaks, for people who look.
const SPOKEN: &str = "This is Tidegate, a rate limiter. This port decides over HTTP:
  GET  /check/DOMAIN?KEY=VALUE   200, or 429 with Retry-After
  POST /json                     a question and its answer in JSON
  GET  /healthcheck, /readyz, /livez
Envoy asks over gRPC, on GRPC_PORT (8081). The status page is on DEBUG_PORT (6070).
";

/// How long a client may take to send one body.
const BODY_READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Answers requests on an HTTP port.
pub trait Respond: Clone + Send + Sync + 'static {
    /// Answers one request of this client.
    fn respond(&self, request: Request<Incoming>, peer: &Peer) -> impl Future<Output = Page> + Send;
}

/// The port of decisions and probes. Clones share everything.
#[derive(Clone)]
pub struct HttpFront {
    handler: Arc<Handler>,
    health: Arc<Health>,
    check: CheckOptions,
}

impl HttpFront {
    /// `handler` answers calls (`/check` with the options `check`), and `health` answers probes.
    #[must_use]
    pub fn new(handler: Arc<Handler>, health: Arc<Health>, check: CheckOptions) -> Self {
        Self { handler, health, check }
    }
}

impl Respond for HttpFront {
    async fn respond(&self, request: Request<Incoming>, peer: &Peer) -> Page {
        if request.uri().path().starts_with(check::PATH) {
            let (head, _ignored) = request.into_parts();
            return check::respond(
                &self.handler,
                self.check,
                &head,
                peer.address.map(|address| address.ip()),
            )
            .await;
        }
        let method = request.method();
        match (request.uri().path(), method == Method::GET || method == Method::HEAD) {
            // `envoyproxy/ratelimit` never looks at the method, and its documentation shows a GET with a body.
            ("/json", _) if method == Method::POST || method == Method::GET => {
                let span = self.handler.begin_span(Front::Json, trace::headers_in(request.headers()));
                match read_body(request.into_body(), self.handler.bounds()).await {
                    Ok(body) => json::respond(&self.handler, &body, span).await,
                    Err(refusal) => refused(&self.handler.refuse(Front::Json, refusal)),
                }
            }
            ("/json", _) => not_allowed("GET, POST"),
            ("/healthcheck" | "/readyz", true) => {
                let cold_nanos_left = |window| self.handler.cold_nanos_left(window);
                probes::ready(&self.health, request.uri().query(), cold_nanos_left)
            }
            ("/livez", true) => probes::live(),
            ("/healthcheck" | "/readyz" | "/livez", false) => not_allowed("GET, HEAD"),
            // Not 200: whoever asks here by mistake for a decision must not take this for an answer.
            ("/", true) => text(StatusCode::NOT_FOUND, SPOKEN),
            _ => text(StatusCode::NOT_FOUND, "not found; / says what this port speaks\n"),
        }
    }
}

/// Reads a body that is within `bounds`, for at most [`BODY_READ_TIMEOUT`].
async fn read_body(body: Incoming, bounds: &Bounds) -> Result<Bytes, Refusal> {
    let read = Limited::new(body, bounds.request_bytes_max).collect();
    match tokio::time::timeout(BODY_READ_TIMEOUT, read).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Refusal::too_large(bounds)),
        Ok(Err(error)) => Err(Refusal::invalid(error.to_string())),
        Err(_) => Err(Refusal::late("the body did not arrive in time")),
    }
}

/// The form of a refusal over HTTP.
fn refused(refusal: &Refusal) -> Page {
    text(status_of(refusal), format!("{refusal}\n"))
}

fn status_of(refusal: &Refusal) -> StatusCode {
    match refusal.code {
        RefusalCode::InvalidArgument | RefusalCode::Unimplemented => StatusCode::BAD_REQUEST,
        RefusalCode::DeadlineExceeded => StatusCode::REQUEST_TIMEOUT,
        RefusalCode::ResourceExhausted => StatusCode::PAYLOAD_TOO_LARGE,
        RefusalCode::Unavailable | RefusalCode::StoreFailure => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
