//! Pages for operators: metrics on their own port, and the debug port.
//!
//! Pages that only read are open to everybody who reaches the port; a browser has to use one of our host names
//! ([`Hosts`]). A page that changes state (the log level) asks [`Gate`] first. There are no profiles: an in-process
//! profiler unwinds stacks inside a signal handler, and `perf` does the same from outside without that risk.

mod rlconfig;
mod status;

use std::pin::Pin;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode};
use hyper::body::Incoming;

use self::rlconfig::{Format, Listing};
use crate::api::{self, AdminApi};
use crate::gate::{Gate, Hosts, NoBearer};
use crate::page::{
    JSON, Page, Respond, TEXT, not_allowed, page, parameter, pieces, read_body, refused, text,
};
use crate::peer::Peer;
use crate::status::Status;
use tidegate_serve::metrics::Metrics;
use tidegate_serve::refusal::{Bounds, Refusal};
use tidegate_serve::service::Service;

/// Explains the answer that a request would get; fronts implement it, because they read requests.
pub trait Explain: Send + Sync + 'static {
    /// The bounds of a request.
    fn bounds(&self) -> &Bounds;

    /// Explains the answer to a request in the form of `/json`.
    fn explain<'q>(&'q self, question: &'q [u8], form: Form) -> Explained<'q>;
}

/// The form of an explanation.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// As a line of JSON, not as text.
    pub is_json: bool,
    /// It contains what only bearers of the admin token may see.
    pub is_for_bearer: bool,
}

/// An explanation, or why there is none.
pub type Explained<'q> = Pin<Box<dyn Future<Output = Result<String, Refusal>> + Send + 'q>>;

/// How the level of the log is read and changed.
#[derive(Clone, Copy)]
pub struct LogSwitch {
    /// The word of the level.
    pub level: fn() -> String,
    /// Sets the level to this word. The error lists the words.
    pub set_level: fn(&str) -> Result<(), &'static str>,
}

/// A page of the debug port.
struct Endpoint {
    path: &'static str,
    page: DebugPage,
    /// The methods that it takes, as in the header `Allow`.
    allow: &'static str,
    help: &'static str,
}

/// What a page of the debug port shows.
#[derive(Clone, Copy)]
enum DebugPage {
    Index,
    Ask,
    Logging,
    Metrics,
    Rules,
    Stats,
    Status,
}

/// The header of `/rlconfig` with the hash of the rules in force.
const RULES_HASH: HeaderName = HeaderName::from_static("x-tidegate-rules");

const READS: &str = "GET, HEAD";

/// All pages of the debug port, in the order of the index.
#[rustfmt::skip]
const ENDPOINTS: [Endpoint; 7] = [
    Endpoint { path: "/", page: DebugPage::Index, allow: READS, help: "this list; in a browser: the status page" },
    Endpoint { path: "/ask", page: DebugPage::Ask, allow: "POST",
        help: "POST what /json takes: which rules it meets, and why; counts nothing (?format=json)" },
    Endpoint { path: "/logging", page: DebugPage::Logging, allow: "GET, HEAD, POST",
        help: "the log level; POST /logging?level=debug changes it" },
    Endpoint { path: "/metrics", page: DebugPage::Metrics, allow: READS, help: "metrics, for Prometheus" },
    Endpoint { path: "/rlconfig", page: DebugPage::Rules, allow: READS,
        help: "the limits in force, a line each (?format=yaml, ?format=json)" },
    Endpoint { path: "/stats", page: DebugPage::Stats, allow: READS,
        help: "counters, a line each, by the names of StatsD" },
    Endpoint { path: "/status", page: DebugPage::Status, allow: READS,
        help: "what the status page shows, as JSON" },
];

/// The metrics port. Clones share everything.
#[derive(Clone)]
pub struct MetricsFront {
    path: Arc<str>,
    hosts: Hosts,
    metrics: Arc<Metrics>,
}

impl MetricsFront {
    /// Serves `metrics` at `path`, to browsers by these names.
    #[must_use]
    pub fn new(path: impl Into<Arc<str>>, hosts: Hosts, metrics: Arc<Metrics>) -> Self {
        Self { path: path.into(), hosts, metrics }
    }

    /// Whether the metrics are at this path.
    pub fn is_at(&self, path: &str) -> bool {
        path == &*self.path
    }
}

impl Respond for MetricsFront {
    async fn respond(&self, request: Request<Incoming>, _peer: &Peer) -> Page {
        if let Err(why) = self.hosts.admit_browser(request.uri(), request.headers()) {
            return text(StatusCode::FORBIDDEN, why);
        }
        match (reads(request.method()), self.is_at(request.uri().path())) {
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
    explain: Arc<dyn Explain>,
    log: LogSwitch,
    status: Arc<Status>,
    gate: Gate,
    api: Option<AdminApi>,
}

impl AdminFront {
    /// Shows the rules of `service`, the output of `explain`, `log`, and `status` with its metrics. `gate` decides
    /// who may change state, and whose pages may show it.
    #[must_use]
    pub fn new(
        service: Arc<Service>,
        explain: Arc<dyn Explain>,
        log: LogSwitch,
        status: Arc<Status>,
        gate: Gate,
    ) -> Self {
        Self { service, explain, log, status, gate, api: None }
    }

    /// With the admin API below `/admin/`.
    #[must_use]
    pub fn with_api(self, api: AdminApi) -> Self {
        Self { api: Some(api), ..self }
    }

    async fn rlconfig(&self, query: &str) -> Page {
        let format = match parameter(query, "format") {
            None => Format::Lines,
            Some("yaml") => Format::Yaml,
            Some("json") => Format::Json,
            Some(_) => return text(StatusCode::BAD_REQUEST, "format is none of yaml, json\n"),
        };
        let content_type = if format == Format::Json { JSON } else { TEXT };
        let rules = self.service.snapshot().ok();
        let hash = rules.as_ref().map(|rules| {
            HeaderValue::from_str(rules.rules().hash()).expect("hexadecimal digits are a good header")
        });
        let mut page = pieces(content_type, Listing::of(rules, format).await);
        page.headers_mut().extend(hash.map(|hash| (RULES_HASH, hash)));
        page
    }

    /// The list of all pages.
    fn list(&self) -> String {
        let line = |path, help| format!("{path:<11}{help}\n");
        let pages = ENDPOINTS.iter().map(|endpoint| line(endpoint.path, endpoint.help));
        let api = self.api.as_ref().map(|_| {
            line(
                api::PREFIX,
                "the admin API, with ADMIN_TOKEN or ADMIN_TLS_SAN: /admin/openapi.json describes it",
            )
        });
        pages.chain(api).collect()
    }

    /// The list of pages, or the status page for clients that accept HTML.
    fn index(&self, head: &Parts) -> Page {
        match status::takes_html(&head.headers) {
            false => text(StatusCode::OK, self.list()),
            true => match self.gate.hosts().admit(&head.uri, &head.headers) {
                Ok(()) => status::page(),
                Err(why) => text(StatusCode::FORBIDDEN, why),
            },
        }
    }

    async fn status(&self, query: &str, peer: &Peer, head: &Parts) -> Page {
        match self.gate.admit_reader(peer, &head.uri, &head.headers) {
            Ok(reader) => status::data(&self.status, self.service.snapshot().ok(), query, reader).await,
            Err(why) => text(StatusCode::FORBIDDEN, why),
        }
    }

    /// Explains the answer to a request in the form of `/json`. Who made an exception and why, and how often a key was
    /// denied, is for bearers of the admin token.
    async fn ask(&self, query: &str, body: Incoming, peer: &Peer, head: &Parts) -> Page {
        let as_json = parameter(query, "format") == Some("json");
        let bearer = self.gate.admit_bearer(peer, &head.uri, &head.headers).map(|_| ());
        if let (Err(why @ (NoBearer::WrongToken | NoBearer::Guesses)), Some(api)) = (&bearer, &self.api) {
            // A guess of the token costs a second here too.
            return api.refuse(*why).await;
        }
        let form = Form { is_json: as_json, is_for_bearer: bearer.is_ok() };
        let explained = match read_body(body, self.explain.bounds()).await {
            Ok(question) => self.explain.explain(&question, form).await,
            Err(refusal) => Err(refusal),
        };
        match explained {
            Ok(text) if as_json => page(StatusCode::OK, JSON, text),
            Ok(explained) => text(StatusCode::OK, explained),
            Err(refusal) => refused(&refusal),
        }
    }

    fn set_log_level(&self, query: &str, peer: &Peer, head: &Parts) -> Page {
        if let Err(why) = self.gate.admit(peer, &head.uri, &head.headers) {
            return text(StatusCode::FORBIDDEN, why);
        }
        match (self.log.set_level)(parameter(query, "level").unwrap_or_default()) {
            Ok(()) => text(StatusCode::OK, format!("{}\n", (self.log.level)())),
            Err(expected) => text(StatusCode::BAD_REQUEST, format!("level is not {expected}\n")),
        }
    }
}

impl Respond for AdminFront {
    async fn respond(&self, request: Request<Incoming>, peer: &Peer) -> Page {
        let (head, body) = request.into_parts();
        let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
        if let Some(api) = self.api.as_ref().filter(|_| path.starts_with(api::PREFIX)) {
            return api.respond(&head, body, peer).await;
        }
        if let Err(why) = self.gate.hosts().admit_browser(&head.uri, &head.headers) {
            return text(StatusCode::FORBIDDEN, why);
        }
        let endpoint = ENDPOINTS.iter().find(|endpoint| endpoint.path == path);
        let allow = endpoint.map_or(READS, |endpoint| endpoint.allow);
        if !allow.split(", ").any(|method| head.method == method) {
            return not_allowed(allow);
        }
        let Some(endpoint) = endpoint else { return text(StatusCode::NOT_FOUND, self.list()) };
        match endpoint.page {
            DebugPage::Index => self.index(&head),
            DebugPage::Ask => self.ask(query, body, peer, &head).await,
            DebugPage::Logging if head.method == Method::POST => self.set_log_level(query, peer, &head),
            DebugPage::Logging => text(StatusCode::OK, format!("{}\n", (self.log.level)())),
            DebugPage::Metrics => scrape(self.status.metrics()),
            DebugPage::Rules => self.rlconfig(query).await,
            DebugPage::Stats => pieces(TEXT, self.status.metrics().stats()),
            DebugPage::Status => self.status(query, peer, &head).await,
        }
    }
}

fn scrape(metrics: &Arc<Metrics>) -> Page {
    pieces(Metrics::CONTENT_TYPE, metrics.scrape())
}

fn reads(method: &Method) -> bool {
    method == Method::GET || method == Method::HEAD
}

#[cfg(test)]
mod tests {
    use http::header::AUTHORIZATION;

    use super::*;
    use crate::gate::AdminToken;

    /// Explains nothing.
    struct NoFront;

    impl Explain for NoFront {
        fn bounds(&self) -> &Bounds {
            unreachable!("nobody asks")
        }

        fn explain<'q>(&'q self, _: &'q [u8], _: Form) -> Explained<'q> {
            unreachable!("nobody asks")
        }
    }

    #[test]
    fn the_log_level_is_state() {
        let metrics = tidegate_serve::service::fixture::metrics();
        let service = Arc::new(tidegate_serve::service::fixture::service(None, &metrics));
        let log = LogSwitch { level: String::new, set_level: |_| Err("a level") };
        let status = crate::status::fixture::status(&metrics);
        let front = AdminFront::new(
            service,
            Arc::new(NoFront),
            log,
            status,
            Gate::new(Hosts::new("::", &[]), AdminToken::parse("open").ok()),
        );
        let stranger = Peer::at("10.0.0.1:1".parse().expect("an address"));
        let set = |request: Request<()>| {
            front.set_log_level("level=loud", &stranger, &request.into_parts().0).status()
        };
        assert_eq!(set(Request::new(())), StatusCode::FORBIDDEN);
        let borne = Request::builder().header(AUTHORIZATION, "Bearer open").body(()).expect("a request");
        assert_eq!(set(borne), StatusCode::BAD_REQUEST);
    }
}
