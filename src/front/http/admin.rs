//! Pages for operators: metrics on their own port, and the debug port.
//!
//! What only reads answers anybody that reaches the port. What changes state (the log level) answers loopback, or a
//! bearer of the admin token. There are no profiles: an in-process profiler unwinds stacks inside a signal handler, and
//! `perf` does the same from outside without that risk.

use std::net::SocketAddr;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{HeaderMap, Method, Request, StatusCode};
use hyper::body::Incoming;

use super::page::{JSON, Page, TEXT, not_allowed, page, pieces, text};
use super::rlconfig::{self, Format};
use super::{Respond, json, read_body, refused};
use crate::engine::explain::Explanation;
use crate::front::Seam;
use crate::logging;
use crate::metrics::Metrics;
use crate::service::Service;

const INDEX: &str = "/          this list\n\
                     /ask       POST what /json takes: which rules it meets, and why; counts nothing (?format=json)\n\
                     /logging   the log level; POST /logging?level=debug changes it\n\
                     /metrics   metrics, for Prometheus\n\
                     /rlconfig  the limits in force, a line each (?format=yaml, ?format=json)\n\
                     /stats     counters, a line each, by the names of StatsD\n";

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
    seam: Arc<Seam>,
    metrics: Arc<Metrics>,
    token: Option<Arc<str>>,
}

impl AdminFront {
    /// Shows the rules of `service`, what `seam` would answer, and `metrics`. Whoever bears `token` may change state.
    #[must_use]
    pub fn new(
        service: Arc<Service>,
        seam: Arc<Seam>,
        metrics: Arc<Metrics>,
        token: Option<Arc<str>>,
    ) -> Self {
        Self { service, seam, metrics, token }
    }

    /// What only reads.
    fn shown(&self, path: &str, query: &str) -> Page {
        match path {
            "/" => text(StatusCode::OK, INDEX),
            "/logging" => text(StatusCode::OK, format!("{}\n", logging::level())),
            "/metrics" => scrape(&self.metrics),
            "/rlconfig" => self.rlconfig(query),
            "/stats" => pieces(TEXT, self.metrics.stats()),
            _ => text(StatusCode::NOT_FOUND, INDEX),
        }
    }

    fn rlconfig(&self, query: &str) -> Page {
        let format = match parameter(query, "format") {
            None => Format::Lines,
            Some("yaml") => Format::Yaml,
            Some("json") => Format::Json,
            Some(_) => return text(StatusCode::BAD_REQUEST, "format is none of yaml, json\n"),
        };
        let content_type = if format == Format::Json { JSON } else { TEXT };
        page(StatusCode::OK, content_type, self.service.with_rules(|rules| rlconfig::render(rules, format)))
    }

    /// Explains the answer to a request, given as to `/json`.
    async fn ask(&self, query: &str, body: Incoming) -> Page {
        let as_json = parameter(query, "format") == Some("json");
        let asked = read_body(body, self.seam.bounds()).await.and_then(|body| json::to_request(&body));
        let tell = |told: &Explanation<'_>| match as_json {
            true => page(StatusCode::OK, JSON, format!("{}\n", told.json())),
            false => text(StatusCode::OK, told.to_string()),
        };
        let explained = match asked {
            Ok(request) => self.seam.explain(&request, tell).await,
            Err(refusal) => Err(refusal),
        };
        explained.unwrap_or_else(|refusal| refused(&refusal))
    }

    fn set_log_level(&self, query: &str, peer: Option<SocketAddr>, headers: &HeaderMap) -> Page {
        if !may_change_state(peer, headers, self.token.as_deref()) {
            return text(StatusCode::FORBIDDEN, "only from loopback, or with the admin token\n");
        }
        match logging::set_level(parameter(query, "level").unwrap_or_default()) {
            Ok(()) => text(StatusCode::OK, format!("{}\n", logging::level())),
            Err(expected) => text(StatusCode::BAD_REQUEST, format!("level is not {expected}\n")),
        }
    }
}

impl Respond for AdminFront {
    async fn respond(&self, request: Request<Incoming>, peer: Option<SocketAddr>) -> Page {
        let (head, body) = request.into_parts();
        let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
        let posts = head.method == Method::POST;
        match path {
            "/ask" if posts => self.ask(query, body).await,
            "/ask" => not_allowed("POST"),
            "/logging" if posts => self.set_log_level(query, peer, &head.headers),
            "/logging" if !reads(&head.method) => not_allowed("GET, HEAD, POST"),
            _ if reads(&head.method) => self.shown(path, query),
            _ => not_allowed("GET, HEAD"),
        }
    }
}

/// A parameter of a query, as it is written: what is asked for here needs no encoding.
fn parameter<'q>(query: &'q str, name: &str) -> Option<&'q str> {
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
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
    fn the_log_level_is_state() {
        let metrics = crate::service::fixture::metrics();
        let service = Arc::new(crate::service::fixture::service(None, &metrics));
        let seam = Seam::new(Arc::clone(&service), Arc::clone(&metrics), crate::front::Bounds::default());
        let front = AdminFront::new(service, Arc::new(seam), metrics, Some("open".into()));
        let stranger = Some("10.0.0.1:1".parse().expect("an address"));
        let mut headers = HeaderMap::new();
        // A bad level: none of the process's own is changed by a test.
        let set = |headers: &HeaderMap| front.set_log_level("level=loud", stranger, headers).status();
        assert_eq!(set(&headers), StatusCode::FORBIDDEN);
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer open"));
        assert_eq!(set(&headers), StatusCode::BAD_REQUEST);
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
