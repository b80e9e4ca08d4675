//! The admin API, on the debug port: exceptions, counters, resets, bans, records, and the audit of what was done with them.
//!
//! In: JSON over HTTP, always with the admin token or a client certificate, on loopback too. Out: JSON. Operations
//! that write files run on a thread of their own, because this one serves scrapes. [`bodies`](crate::bodies) defines
//! the bodies. `routes` is the list of all operations, `api/openapi.json` describes them, and a test compares the
//! two.

mod audited;
mod bans;
mod counters;
mod records;
mod resets;
mod routes;
mod unmet;
mod wanted;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::header::{CACHE_CONTROL, IF_MATCH, IF_NONE_MATCH, IF_UNMODIFIED_SINCE, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderValue, StatusCode};
use hyper::body::Incoming;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Semaphore;

use self::routes::{NoRoute, asked_for};
use self::wanted::Wanted;
use crate::audit::{Author, Caller};
use crate::bodies::answered::{self, Changed, ExceptionDone, HoldsFor};
use crate::bodies::asked::Who;
use crate::bodies::values::Words;
use crate::bodies::{Mistake, json, read};
use crate::exceptions::{Authored, Book, Change, ChangeError, WantedChange};
use crate::gate::{Gate, NoBearer};
use crate::page::{JSON, Page, not_allowed, page, pieces, read_body, status_of};
use crate::peer::Peer;
use crate::records::RecordStore;
use crate::resets::Resets;
use tidegate_engine::text::json_line;
use tidegate_records::UniqueKeys;
use tidegate_serve::clock::wall;
use tidegate_serve::refusal::{Bounds, Refusal};
use tidegate_serve::service::Service;

/// What the paths of the admin API begin with.
pub(crate) const PREFIX: &str = "/admin/";

/// How long a caller without the token waits for its answer. So guessing is slow, and few can guess at a time.
const STRANGER_DELAY: Duration = Duration::from_secs(1);

const OPENAPI: &str = include_str!("api/openapi.json");

/// The admin API. Clones share everything.
#[derive(Clone)]
pub struct AdminApi {
    book: Arc<Book>,
    resets: Arc<Resets>,
    records: Option<Arc<RecordStore>>,
    /// Held by the bulk load that runs.
    loading: Arc<Semaphore>,
    service: Arc<Service>,
    bounds: Bounds,
    gate: Gate,
    refused: Arc<AtomicU64>,
}

/// An answer that is not a success.
#[derive(Debug, thiserror::Error)]
#[error("{1}")]
struct Problem(StatusCode, String);

type Answer = Result<Page, Problem>;

/// A request that has a route.
struct Call<'a> {
    head: &'a Parts,
    /// The id in its path; empty without one.
    id: &'a str,
    query: &'a str,
    body: Incoming,
    caller: Caller,
}

impl AdminApi {
    /// Changes `book`, `resets` and the counters of `service` for bearers that `gate` admits. Bodies are within
    /// `bounds`.
    #[must_use]
    pub fn new(
        (book, resets): (Arc<Book>, Arc<Resets>),
        service: Arc<Service>,
        bounds: Bounds,
        gate: Gate,
    ) -> Self {
        let loading = Arc::new(Semaphore::new(1));
        Self { book, resets, records: None, loading, service, bounds, gate, refused: Arc::default() }
    }

    /// With these records.
    #[must_use]
    pub fn with_records(self, records: Option<Arc<RecordStore>>) -> Self {
        Self { records, ..self }
    }

    /// How many requests were refused because of their token or origin.
    pub fn refused(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.refused)
    }

    /// Answers a request below [`PREFIX`].
    pub(crate) async fn respond(&self, head: &Parts, body: Incoming, peer: &Peer) -> Page {
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

    /// The refusal of a caller that is no bearer. A wrong token is answered late.
    pub(crate) async fn refuse(&self, why: NoBearer) -> Page {
        self.refused.fetch_add(1, Relaxed);
        if why == NoBearer::Guesses {
            return Problem(StatusCode::TOO_MANY_REQUESTS, why.to_string()).page();
        }
        let mut page = Problem(StatusCode::FORBIDDEN, why.to_string()).page();
        if matches!(why, NoBearer::Stranger | NoBearer::WrongToken) {
            tokio::time::sleep(STRANGER_DELAY).await;
            page.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        page
    }

    async fn answer(&self, head: &Parts, body: Incoming, caller: Caller) -> Answer {
        let (path, method) = (head.uri.path(), &head.method);
        if let Some(name) =
            [IF_MATCH, IF_UNMODIFIED_SINCE].iter().find(|name| head.headers.contains_key(*name))
        {
            // Nothing here has versions that a client could name, and no change needs one.
            let what = format!("{name}: nothing here has an ETag or a date (expected a request without it)");
            return Err(Problem(StatusCode::PRECONDITION_FAILED, what));
        }
        let (route, id) = match asked_for(method, path) {
            Ok(found) => found,
            Err(NoRoute::Method(methods)) => return Ok(not_allowed(&methods)),
            Err(NoRoute::Path) => {
                let what = "not found; see /admin/openapi.json".to_owned();
                return Err(Problem(StatusCode::NOT_FOUND, what));
            }
        };
        let query = head.uri.query().unwrap_or_default();
        (route.answer)(self, Call { head, id, query, body, caller }).await
    }

    /// All exceptions. A change in progress keeps them locked until it is on the disk.
    async fn all(&self) -> Result<Vec<Arc<Authored>>, Problem> {
        let book = Arc::clone(&self.book);
        blocking(move || book.all()).await
    }

    async fn list_exceptions(&self, query: &str) -> Answer {
        let wanted = Wanted::of(query)?;
        let (all, now) = (self.all().await?, wall());
        let found = blocking(move || wanted.among(all)).await?;
        Ok(lines(found.into_iter().map(move |record| line(&record.listed(now)))))
    }

    async fn get_exception(&self, id: String) -> Answer {
        match self.all().await?.into_iter().find(|record| record.id == id) {
            Some(record) => Ok(shown(StatusCode::OK, &record.listed(wall()))),
            None => Err(ChangeError::Unknown(id).into()),
        }
    }

    async fn put_exception(&self, Call { head, id, body, caller, .. }: Call<'_>) -> Answer {
        let may_replace = head.headers.get(IF_NONE_MATCH).is_none_or(|known| known != "*");
        let record = Authored::of_client(id, &self.json(body).await?)?;
        let author = Author { who: record.who.clone(), caller };
        let warning = self.service.with_rules(|rules| match rules {
            Some(rules) => {
                unmet::check_numbers(&record.exception, rules)?;
                Ok::<_, Mistake>(unmet::of_exception(&record.exception, rules))
            }
            None => Ok(None),
        })?;
        self.change(id.to_owned(), warning, WantedChange::Put { record, may_replace }, author).await
    }

    async fn end_exception(&self, id: String, Who { who, why }: Who, caller: Caller) -> Answer {
        let why = why.map(Words::into_string).unwrap_or_default();
        let author = Author { who: who.into_string(), caller };
        self.change(id.clone(), None, WantedChange::End { id, why }, author).await
    }

    /// Makes a change, and returns for how long and on which nodes it holds.
    async fn change(
        &self,
        id: String,
        warning: Option<String>,
        wanted: WantedChange,
        author: Author,
    ) -> Answer {
        let change = self.book.change(wanted, author, wall()).await?;
        let (status, done) = match change {
            Change::Made => (StatusCode::CREATED, ExceptionDone::Made),
            Change::Replaced => (StatusCode::OK, ExceptionDone::Replaced),
            Change::Unchanged => (StatusCode::OK, ExceptionDone::Unchanged),
            Change::Ended => (StatusCode::OK, ExceptionDone::Ended),
        };
        let holds_for = if self.book.is_shared() { HoldsFor::AllNodes } else { HoldsFor::ThisProcess };
        let survives_restart = self.book.is_kept();
        Ok(shown(status, &Changed { id, done, survives_restart, holds_for, warning }))
    }

    /// A body of this type.
    async fn asked<T: DeserializeOwned>(&self, body: Incoming) -> Result<T, Problem> {
        Ok(read(&self.json(body).await?)?)
    }

    async fn json(&self, body: Incoming) -> Result<Value, Problem> {
        let body = read_body(body, &self.bounds).await.map_err(|refusal| refused(&refusal))?;
        value(&body).map_err(|refusal| refused(&refusal))
    }
}

impl Problem {
    fn page(self) -> Page {
        shown(self.0, &answered::Error { error: self.1 })
    }
}

impl From<Mistake> for Problem {
    fn from(mistake: Mistake) -> Self {
        invalid(&mistake)
    }
}

impl From<ChangeError> for Problem {
    fn from(error: ChangeError) -> Self {
        let status = match error {
            ChangeError::Unknown(_) => StatusCode::NOT_FOUND,
            ChangeError::Exists(_) => StatusCode::PRECONDITION_FAILED,
            ChangeError::Past => StatusCode::BAD_REQUEST,
            ChangeError::Full | ChangeError::FullOfPatterns | ChangeError::Busy => StatusCode::CONFLICT,
            ChangeError::Audit(_) | ChangeError::File(_) => StatusCode::SERVICE_UNAVAILABLE,
            ChangeError::Redis(_) | ChangeError::NotKnown(_) => StatusCode::SERVICE_UNAVAILABLE,
            ChangeError::Died => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(status, error.to_string())
    }
}

/// Runs a call that may wait for a disk on a thread of its own.
async fn blocking<T: Send + 'static>(wait: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
    let waited = tokio::task::spawn_blocking(wait).await;
    waited.map_err(|error| Problem(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

/// A value in which no object has a field twice.
fn value(json: &[u8]) -> Result<Value, Refusal> {
    let value = serde_json::from_slice(json);
    let value = value.and_then(|value| serde_json::from_slice(json).map(|UniqueKeys| value));
    value.map_err(|error| Refusal::invalid(error.to_string()))
}

fn invalid(what: &(impl ToString + ?Sized)) -> Problem {
    Problem(StatusCode::BAD_REQUEST, what.to_string())
}

fn refused(refusal: &Refusal) -> Problem {
    Problem(status_of(refusal), refusal.to_string())
}

fn shown(status: StatusCode, answer: &impl Serialize) -> Page {
    page(status, JSON, line(answer) + "\n")
}

/// A line of JSON, with the fields of each object in the order of their names.
fn line(answer: &impl Serialize) -> String {
    json_line(&json(answer).to_string()).into_owned()
}

/// A page of lines, each a value of JSON.
fn lines(lines: impl IntoIterator<Item = String, IntoIter: Send + 'static>) -> Page {
    pieces("application/x-ndjson", lines.into_iter().map(|line| line + "\n"))
}

#[cfg(test)]
mod tests;
