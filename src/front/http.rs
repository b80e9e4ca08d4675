//! The HTTP port of clients: decisions (`/check`, `/json`), reservations and probes.
//!
//! HTTP/1.1 and HTTP/2. A route is a line of a `match` on (method, path). Bodies are bounded in bytes and time.

mod check;
mod json;
mod probes;
mod reserve;

use std::sync::Arc;

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;

pub(crate) use self::check::describe;
pub use self::check::{CheckOptions, Proxy};

use crate::front::{Handler, trace};
use tidegate_operate::debug::MetricsFront;
use tidegate_operate::page::{Page, Respond, not_allowed, read_body, refused, text};
use tidegate_operate::peer::Peer;
use tidegate_serve::health::Health;
use tidegate_serve::metrics::Front;

/// A description of the port, for people who open it.
const SPOKEN: &str = "This is Tidegate, a rate limiter. This port decides over HTTP:
  GET  /check/DOMAIN?KEY=VALUE   200, or 429 with Retry-After
  POST /renew/DOMAIN?KEY=VALUE   a call still runs, and keeps its slot
  POST /release/DOMAIN?KEY=VALUE a call is done, and its slot is free
  POST /json                     a question and its answer in JSON
  POST /reserve, /commit, /release   hits are held for a call whose cost is known later
  GET  /healthcheck, /readyz, /livez
Envoy asks over gRPC, on GRPC_PORT (8081 unless set). The status page is on DEBUG_PORT (6070 unless set).
";

/// The port of decisions and probes. Clones share everything.
#[derive(Clone)]
pub struct HttpFront {
    handler: Arc<Handler>,
    health: Arc<Health>,
    check: CheckOptions,
    metrics: Option<MetricsFront>,
}

impl HttpFront {
    /// `handler` answers calls (`/check` with the options `check`), and `health` answers probes.
    #[must_use]
    pub fn new(handler: Arc<Handler>, health: Arc<Health>, check: CheckOptions) -> Self {
        Self { handler, health, check, metrics: None }
    }

    /// The same port, with this page of metrics.
    #[must_use]
    pub fn with_metrics(self, metrics: Option<MetricsFront>) -> Self {
        Self { metrics, ..self }
    }
}

impl Respond for HttpFront {
    async fn respond(&self, request: Request<Incoming>, peer: &Peer) -> Page {
        if let Some((verb, domain)) = check::Verb::of(request.uri().path()) {
            let (domain, peer) = (domain.to_owned(), peer.address.map(|address| address.ip()));
            let (head, _ignored) = request.into_parts();
            return check::respond(&self.handler, self.check, verb, &domain, &head, peer).await;
        }
        if let Some(verb) = reserve::Verb::of(request.uri().path()) {
            if request.method() != Method::POST {
                return not_allowed("POST");
            }
            return match read_body(request.into_body(), self.handler.bounds()).await {
                Ok(body) => reserve::respond(&self.handler, verb, &body).await,
                Err(refusal) => refused(&self.handler.refuse(Front::Json, refusal)),
            };
        }
        if let Some(metrics) = self.metrics.as_ref().filter(|page| page.is_at(request.uri().path())) {
            return metrics.respond(request, peer).await;
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
            // Limitador's operator asks for `/status`.
            ("/healthcheck" | "/readyz" | "/status", true) => {
                let cold_nanos_left = |window| self.handler.cold_nanos_left(window);
                probes::ready(&self.health, request.uri().query(), cold_nanos_left)
            }
            ("/livez", true) => probes::live(),
            ("/healthcheck" | "/readyz" | "/status" | "/livez", false) => not_allowed("GET, HEAD"),
            // Not 200: a client that asks here for a decision by mistake must not take this for an answer.
            ("/", true) => text(StatusCode::NOT_FOUND, SPOKEN),
            _ => text(StatusCode::NOT_FOUND, "not found; / says what this port speaks\n"),
        }
    }
}
