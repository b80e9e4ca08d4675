//! The admin API, on the debug port: exceptions, counters, and the audit of what was done with them.
//!
//! In: JSON over HTTP, always with the admin token or a client certificate, on loopback too. Out: JSON. Whatever writes files runs on a thread
//! of its own, because this one serves scrapes. `openapi.json` beside this file describes all of it; a test compares.

mod wanted;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::header::{CACHE_CONTROL, IF_NONE_MATCH, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};

use self::wanted::Wanted;
use super::gate::{Gate, NoBearer};
use super::page::{JSON, Page, not_allowed, page, pieces};
use super::{json as json_front, read_body};
use crate::clock::Clock;
use crate::exceptions::{Author, Book, Caller, Change, ChangeError, Record};
use crate::front::connections::Peer;
use crate::front::{Handler, Refusal};
use crate::service::Service;
use tidegate_engine::Timestamp;
use tidegate_engine::request::{DescriptorOptions, Entry, Request};
use tidegate_engine::text::json_line;

/// What the paths of the admin API begin with.
pub(super) const PREFIX: &str = "/admin/";

/// How long a caller without the token waits for its answer. Guessing is slow, and few can guess at a time.
const STRANGER_DELAY: Duration = Duration::from_secs(1);

const OPENAPI: &str = include_str!("openapi.json");
const EXCEPTIONS: &str = "/admin/exceptions";

/// The admin API. Clones share everything.
#[derive(Clone)]
pub struct AdminApi {
    book: Arc<Book>,
    service: Arc<Service>,
    handler: Arc<Handler>,
    gate: Gate,
    refused: Arc<AtomicU64>,
}

/// An answer that is no success.
#[derive(Debug)]
struct Problem(StatusCode, String);

type Answer = Result<Page, Problem>;

impl AdminApi {
    /// Changes `book` and the counters of `service` for those whom `gate` admits as bearers.
    #[must_use]
    pub fn new(book: Arc<Book>, service: Arc<Service>, handler: Arc<Handler>, gate: Gate) -> Self {
        Self { book, service, handler, gate, refused: Arc::default() }
    }

    /// How many requests were refused because of their token or origin.
    pub fn refused(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.refused)
    }

    /// Answers a request below [`PREFIX`].
    pub(super) async fn respond(&self, head: &Parts, body: Incoming, peer: &Peer) -> Page {
        let certificate = match self.gate.admit_bearer(peer, &head.uri, &head.headers) {
            Ok(name) => name.map(str::to_owned),
            Err(why) => return self.refuse(why).await,
        };
        let address = peer.address.map(|address| address.ip().to_string()).unwrap_or_default();
        let caller = Caller { peer: address, certificate };
        let mut page = self.answer(head, body, caller).await.unwrap_or_else(Problem::page);
        page.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        page
    }

    async fn refuse(&self, why: NoBearer) -> Page {
        self.refused.fetch_add(1, Relaxed);
        if why == NoBearer::Guesses {
            return Problem(StatusCode::TOO_MANY_REQUESTS, why.to_string()).page();
        }
        let mut page = Problem(StatusCode::FORBIDDEN, why.to_string()).page();
        if why == NoBearer::Stranger {
            tokio::time::sleep(STRANGER_DELAY).await;
            page.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        page
    }

    async fn answer(&self, head: &Parts, body: Incoming, caller: Caller) -> Answer {
        let (path, method) = (head.uri.path(), &head.method);
        match path {
            "/admin/openapi.json" => reading(method, || page(StatusCode::OK, JSON, OPENAPI)),
            "/admin/audit" => reading(method, || lines(self.book.audit().recent())),
            EXCEPTIONS => {
                let wanted = Wanted::of(head.uri.query().unwrap_or_default())?;
                let (all, now) = (self.all().await?, Clock::start().now());
                let found = blocking(move || wanted.among(all)).await?;
                let line =
                    move |record: Arc<Record>| json_line(&listed(&record, now).to_string()).into_owned();
                reading(method, || lines(found.into_iter().map(line)))
            }
            "/admin/counters/peek" => self.posting(method, body, Self::peek).await,
            "/admin/counters/reset" => {
                let reset = async |api: &Self, asked: &Value| api.reset(asked, caller.clone()).await;
                self.posting(method, body, reset).await
            }
            _ => match path.strip_prefix(EXCEPTIONS).and_then(|rest| rest.strip_prefix('/')) {
                Some(id) => self.exception(id.to_owned(), head, body, caller).await,
                None => Err(Problem(StatusCode::NOT_FOUND, "not found; see /admin/openapi.json".to_owned())),
            },
        }
    }

    /// All exceptions. A change that is under way holds them until the disk has it.
    async fn all(&self) -> Result<Vec<Arc<Record>>, Problem> {
        let book = Arc::clone(&self.book);
        blocking(move || book.all()).await
    }

    async fn exception(&self, id: String, head: &Parts, body: Incoming, caller: Caller) -> Answer {
        match head.method {
            Method::GET | Method::HEAD => {
                match self.all().await?.into_iter().find(|record| record.id == id) {
                    Some(record) => Ok(shown(StatusCode::OK, &listed(&record, Clock::start().now()))),
                    None => Err(ChangeError::Unknown(id).into()),
                }
            }
            Method::PUT => {
                let asked = self.read(body).await?;
                let record = Record::of_client(&id, &asked).map_err(|bad| invalid(&bad))?;
                let author = Author { who: record.who.clone(), caller };
                let may_replace = head.headers.get(IF_NONE_MATCH).is_none_or(|known| known != "*");
                self.change(id, move |book, now| book.put(record, may_replace, &author, now)).await
            }
            Method::DELETE => {
                let who = Some(self.read(body).await?)
                    .and_then(|asked| Some(asked.get("who")?.as_str()?.to_owned()));
                let who = who.ok_or_else(|| {
                    invalid("who: is missing (expected a body such as {\"who\": \"jane\"})")
                })?;
                let (author, of) = (Author { who, caller }, id.clone());
                self.change(id, move |book, now| book.end(&of, &author, now)).await
            }
            _ => Ok(not_allowed("GET, HEAD, PUT, DELETE")),
        }
    }

    /// Runs a change where it may wait for a disk.
    async fn change(
        &self,
        id: String,
        change: impl FnOnce(&Book, Timestamp) -> Result<Change, ChangeError> + Send + 'static,
    ) -> Answer {
        let book = Arc::clone(&self.book);
        let change = blocking(move || change(&book, Clock::start().now())).await??;
        let (status, done) = match change {
            Change::Made => (StatusCode::CREATED, "made"),
            Change::Replaced => (StatusCode::OK, "replaced"),
            Change::Unchanged => (StatusCode::OK, "unchanged"),
            Change::Ended => (StatusCode::OK, "ended"),
        };
        Ok(shown(status, &json!({"id": id, "done": done, "survives_restart": self.book.is_kept()})))
    }

    /// Calls `answer` with the JSON of a POST.
    async fn posting(
        &self,
        method: &Method,
        body: Incoming,
        answer: impl AsyncFnOnce(&Self, &Value) -> Answer,
    ) -> Answer {
        if method != Method::POST {
            return Ok(not_allowed("POST"));
        }
        answer(self, &self.read(body).await?).await
    }

    async fn read(&self, body: Incoming) -> Result<Value, Problem> {
        let body = read_body(body, self.handler.bounds()).await.map_err(|refusal| refused(&refusal))?;
        json_front::value(&body).map_err(|refusal| refused(&refusal))
    }

    /// What one counter holds.
    async fn peek(&self, asked: &Value) -> Answer {
        let counter = Counter::of(asked, &["domain", "entries"])?;
        Ok(shown(StatusCode::OK, &self.look(&counter).await?))
    }

    /// Takes all hits of one counter back.
    async fn reset(&self, asked: &Value, caller: Caller) -> Answer {
        let counter = Counter::of(asked, &["domain", "entries", "who", "why"])?;
        let word = |name: &str| {
            let word = asked.get(name).and_then(Value::as_str).filter(|word| !word.is_empty());
            word.ok_or_else(|| invalid(&format!("{name}: is missing")))
        };
        let (author, why) = (Author { who: word("who")?.to_owned(), caller }, word("why")?.to_owned());
        let before = self.look(&counter).await?;
        let live = self.service.snapshot().map_err(Refusal::from).map_err(|refusal| refused(&refusal))?;
        if !self.service.has_counter(live.in_force(), &counter.request()) {
            return Err(Problem(StatusCode::NOT_FOUND, "no limit applies to these entries".to_owned()));
        }
        let what =
            json!({"domain": counter.domain, "entries": asked["entries"], "why": why, "before": before});
        let book = Arc::clone(&self.book);
        let intend = move || book.audit().intend(&author, Clock::start().now(), "counter_reset", what);
        let intended = blocking(intend).await?.map_err(ChangeError::from)?;
        let done = self.service.reset(live.in_force(), &counter.request()).await.map_err(Refusal::from);
        let outcome = done.as_ref().map(|()| "done").map_err(ToString::to_string);
        let book = Arc::clone(&self.book);
        blocking(move || book.audit().ended(intended, Clock::start().now(), outcome)).await?;
        done.map_err(|refusal| refused(&refusal))?;
        Ok(shown(
            StatusCode::OK,
            &json!({"done": "reset", "before": before, "after": self.look(&counter).await?}),
        ))
    }

    async fn look(&self, counter: &Counter) -> Result<Value, Problem> {
        let live = self.service.snapshot().map_err(Refusal::from).map_err(|refusal| refused(&refusal))?;
        let explained = self.service.explain(live.in_force(), &counter.request(), |shown| shown.json()).await;
        explained.map_err(Refusal::from).map_err(|refusal| refused(&refusal))
    }
}

/// The entries that lead to a counter.
struct Counter {
    domain: String,
    entries: Vec<(String, String)>,
}

impl Counter {
    fn of(asked: &Value, known: &[&str]) -> Result<Self, Problem> {
        let fields = asked.as_object().ok_or_else(|| invalid("the body is no object"))?;
        if let Some(unknown) = fields.keys().find(|name| !known.contains(&name.as_str())) {
            return Err(invalid(&format!("{unknown}: is unknown (expected of {})", known.join(", "))));
        }
        let text = |value: Option<&Value>| Some(value?.as_str()?.to_owned());
        let domain = text(fields.get("domain")).ok_or_else(|| invalid("domain: is missing"))?;
        let entry = |entry: &Value| Some((text(entry.get("key"))?, text(entry.get("value"))?));
        let entries = fields.get("entries").and_then(Value::as_array);
        let entries = entries.and_then(|entries| entries.iter().map(entry).collect::<Option<Vec<_>>>());
        match entries.filter(|entries| !entries.is_empty()) {
            Some(entries) => Ok(Self { domain, entries }),
            None => Err(invalid("entries: expected a list of objects with `key` and `value`")),
        }
    }

    /// A request of one hit that leads to it.
    fn request(&self) -> Request<'_> {
        let mut request = Request::new(&self.domain, 1);
        let entries = self.entries.iter().map(|(key, value)| Entry { key, value });
        request.push(entries, DescriptorOptions::default());
        request
    }
}

impl Problem {
    fn page(self) -> Page {
        shown(self.0, &json!({"error": self.1}))
    }
}

impl From<ChangeError> for Problem {
    fn from(error: ChangeError) -> Self {
        let status = match error {
            ChangeError::Unknown(_) => StatusCode::NOT_FOUND,
            ChangeError::Exists(_) => StatusCode::PRECONDITION_FAILED,
            ChangeError::Full | ChangeError::FullOfPatterns => StatusCode::CONFLICT,
            ChangeError::Audit(_) | ChangeError::File(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self(status, error.to_string())
    }
}

/// Runs what may wait for a disk on a thread of its own.
async fn blocking<T: Send + 'static>(wait: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
    let waited = tokio::task::spawn_blocking(wait).await;
    waited.map_err(|error| Problem(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

fn invalid(what: &(impl ToString + ?Sized)) -> Problem {
    Problem(StatusCode::BAD_REQUEST, what.to_string())
}

fn refused(refusal: &Refusal) -> Problem {
    Problem(super::status_of(refusal), refusal.to_string())
}

/// An exception as clients see it.
fn listed(record: &Record, now: Timestamp) -> Value {
    let mut shown = record.json();
    shown["in_force"] = record.is_in_force(now).into();
    shown
}

fn reading(method: &Method, read: impl FnOnce() -> Page) -> Answer {
    Ok(if method == Method::GET || method == Method::HEAD { read() } else { not_allowed("GET, HEAD") })
}

fn shown(status: StatusCode, value: &Value) -> Page {
    page(status, JSON, format!("{}\n", json_line(&value.to_string())))
}

/// A page of lines, each a value of JSON.
fn lines(lines: impl IntoIterator<Item = String, IntoIter: Send + 'static>) -> Page {
    pieces("application/x-ndjson", lines.into_iter().map(|line| line + "\n"))
}
