//! Pages for operators: metrics on their own port, and the debug port.
//!
//! What only reads answers anybody that reaches the port. What changes state answers loopback, or a bearer of the
//! admin token; there is nothing that changes state yet, so that guard is all there is of it.

use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use hyper::body::Incoming;

use super::{Page, Respond, not_allowed, page, text};
use crate::service::Service;

const PROMETHEUS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

const INDEX: &str = "/          this list\n\
                     /metrics   metrics, for Prometheus\n\
                     /rlconfig  the limits in force, a line each\n";

/// Writes all metrics down, in the text format of Prometheus.
pub type Scrape = Arc<dyn Fn() -> Bytes + Send + Sync>;

/// The metrics port. Clones share everything.
#[derive(Clone)]
pub struct MetricsFront {
    path: Arc<str>,
    scrape: Scrape,
}

impl MetricsFront {
    /// Answers `scrape` at `path`.
    #[must_use]
    pub fn new(path: impl Into<Arc<str>>, scrape: Scrape) -> Self {
        Self { path: path.into(), scrape }
    }
}

impl Respond for MetricsFront {
    async fn respond(&self, request: Request<Incoming>, _peer: SocketAddr) -> Page {
        match (reads(request.method()), request.uri().path() == &*self.path) {
            (true, true) => page(StatusCode::OK, PROMETHEUS, (self.scrape)()),
            (false, true) => not_allowed("GET, HEAD"),
            (_, false) => text(StatusCode::NOT_FOUND, format!("metrics are at {}\n", self.path)),
        }
    }
}

/// The debug port. Clones share everything.
#[derive(Clone)]
pub struct AdminFront {
    service: Arc<Service>,
    scrape: Scrape,
    token: Option<Arc<str>>,
}

impl AdminFront {
    /// Shows the rules of `service`, and `scrape`. Whoever bears `token` may change state.
    #[must_use]
    pub fn new(service: Arc<Service>, scrape: Scrape, token: Option<Arc<str>>) -> Self {
        Self { service, scrape, token }
    }
}

impl Respond for AdminFront {
    async fn respond(&self, request: Request<Incoming>, peer: SocketAddr) -> Page {
        if !reads(request.method()) {
            return match may_change_state(peer, request.headers(), self.token.as_deref()) {
                true => not_allowed("GET, HEAD"),
                false => text(StatusCode::FORBIDDEN, "only from loopback, or with the admin token\n"),
            };
        }
        match request.uri().path() {
            "/" => text(StatusCode::OK, INDEX),
            "/metrics" => page(StatusCode::OK, PROMETHEUS, (self.scrape)()),
            "/rlconfig" => text(StatusCode::OK, String::new()),
            _ => text(StatusCode::NOT_FOUND, INDEX),
        }
    }
}

fn reads(method: &Method) -> bool {
    method == Method::GET || method == Method::HEAD
}

fn may_change_state(peer: SocketAddr, headers: &HeaderMap, token: Option<&str>) -> bool {
    peer.ip().to_canonical().is_loopback() || token.is_some_and(|token| bears(headers, token))
}

/// Compares all bytes whatever they are, so that the time it takes tells nothing of the token.
fn bears(headers: &HeaderMap, token: &str) -> bool {
    let borne = headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    borne.is_some_and(|borne| {
        let differing = borne.iter().zip(token.as_bytes()).fold(0, |all, (a, b)| all | (a ^ b));
        !token.is_empty() && borne.len() == token.len() && differing == 0
    })
}
