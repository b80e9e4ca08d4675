//! Pages for operators: metrics on their own port, and the debug port.
//!
//! What only reads answers anybody that reaches the port. What changes state answers loopback, or a bearer of the
//! admin token; there is nothing that changes state yet, so that guard is all there is of it.

use std::net::SocketAddr;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{HeaderMap, Method, Request, StatusCode};
use hyper::body::Incoming;

use super::page::{Page, not_allowed, pieces, text};
use super::{Respond, rlconfig};
use crate::metrics::Metrics;
use crate::service::Service;

const INDEX: &str = "/          this list\n\
                     /metrics   metrics, for Prometheus\n\
                     /rlconfig  the limits in force, a line each\n";

/// The metrics port. Clones share everything.
#[derive(Clone)]
pub struct MetricsFront {
    path: Arc<str>,
    metrics: Arc<Metrics>,
}

impl MetricsFront {
    /// Answers `metrics` at `path`.
    #[must_use]
    pub fn new(path: impl Into<Arc<str>>, metrics: Arc<Metrics>) -> Self {
        Self { path: path.into(), metrics }
    }
}

impl Respond for MetricsFront {
    async fn respond(&self, request: Request<Incoming>, _peer: Option<SocketAddr>) -> Page {
        match (reads(request.method()), request.uri().path() == &*self.path) {
            (true, true) => scrape(&self.metrics),
            (false, true) => not_allowed("GET, HEAD"),
            (_, false) => text(StatusCode::NOT_FOUND, format!("metrics are at {}\n", self.path)),
        }
    }
}

/// The debug port. Clones share everything.
#[derive(Clone)]
pub struct AdminFront {
    service: Arc<Service>,
    metrics: Arc<Metrics>,
    token: Option<Arc<str>>,
}

impl AdminFront {
    /// Shows the rules of `service`, and `metrics`. Whoever bears `token` may change state.
    #[must_use]
    pub fn new(service: Arc<Service>, metrics: Arc<Metrics>, token: Option<Arc<str>>) -> Self {
        Self { service, metrics, token }
    }
}

impl Respond for AdminFront {
    async fn respond(&self, request: Request<Incoming>, peer: Option<SocketAddr>) -> Page {
        if !reads(request.method()) {
            return match may_change_state(peer, request.headers(), self.token.as_deref()) {
                true => not_allowed("GET, HEAD"),
                false => text(StatusCode::FORBIDDEN, "only from loopback, or with the admin token\n"),
            };
        }
        match request.uri().path() {
            "/" => text(StatusCode::OK, INDEX),
            "/metrics" => scrape(&self.metrics),
            "/rlconfig" => text(StatusCode::OK, self.service.with_rules(rlconfig::lines)),
            _ => text(StatusCode::NOT_FOUND, INDEX),
        }
    }
}

fn scrape(metrics: &Arc<Metrics>) -> Page {
    pieces(Metrics::CONTENT_TYPE, metrics.scrape())
}

fn reads(method: &Method) -> bool {
    method == Method::GET || method == Method::HEAD
}

fn may_change_state(peer: Option<SocketAddr>, headers: &HeaderMap, token: Option<&str>) -> bool {
    peer.is_some_and(|peer| peer.ip().to_canonical().is_loopback())
        || token.is_some_and(|token| bears(headers, token))
}

/// Compares all bytes whatever they are, so that the time it takes tells nothing of the token.
fn bears(headers: &HeaderMap, token: &str) -> bool {
    let borne = headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    borne.is_some_and(|borne| {
        let differing = borne.iter().zip(token.as_bytes()).fold(0, |all, (a, b)| all | (a ^ b));
        !token.is_empty() && borne.len() == token.len() && differing == 0
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn may(peer: &str, authorization: Option<&'static str>, token: Option<&str>) -> bool {
        let mut headers = HeaderMap::new();
        if let Some(value) = authorization {
            headers.insert(AUTHORIZATION, HeaderValue::from_static(value));
        }
        may_change_state(Some(peer.parse().expect("an address")), &headers, token)
    }

    #[test]
    fn loopback_may_change_state() {
        for peer in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(may(peer, None, None), "{peer}");
        }
    }

    #[test]
    fn others_need_the_token_and_there_may_be_none() {
        for peer in ["10.0.0.1:1", "[2001:db8::1]:1", "[::ffff:10.0.0.1]:1"] {
            assert!(may(peer, Some("Bearer open"), Some("open")), "{peer}");
            for wrong in [None, Some("open"), Some("Bearer ope"), Some("Bearer opened"), Some("Bearer Open")]
            {
                assert!(!may(peer, wrong, Some("open")), "{peer} {wrong:?}");
            }
            assert!(!may(peer, Some("Bearer "), Some("")), "{peer}");
            assert!(!may(peer, Some("Bearer open"), None), "{peer}");
        }
    }
}
