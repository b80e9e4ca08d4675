//! Records in the admin API: one is put, got or deleted, many are listed or loaded.
//!
//! In: JSON, and for a load a stream of lines. Out: JSON. Every change is audited before it is done; a load has one such line,
//! and its outcome says how far it came.

mod load;

use std::sync::Arc;

use http::{Method, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};

use self::load::Load;
use super::audited::{DONE, Made};
use super::unmet::of_record;
use super::{AdminApi, Answer, Problem, TEXT_BYTES_MAX, fields, invalid, shown};
use crate::exceptions::{Author, Caller};
use crate::page::not_allowed;
use crate::records::{Records, StoreError};
use tidegate_records::{BadRecord, FolderError, KeyPrefix, Record, RecordKey, key_of, read, show};

/// What paths of records are below.
pub(super) const RECORDS: &str = "/admin/records";

/// The most records of a page, and how many it has if nobody says.
const PAGE_MAX: u64 = 10_000;
const PAGE: u64 = 1_000;

/// How often a change of one record is tried while others change it too. One of those that meet is always done.
const TRIES_MAX: usize = 50;
/// The outcome of a change that others were faster than.
const OVERTAKEN: &str = "not done: it has changed meanwhile, and is tried again";

/// Who asks for a change, and why.
#[derive(Clone)]
struct Asked {
    author: Author,
    why: String,
}

/// A change of one record, as the audit has it.
struct Change {
    key: RecordKey,
    before: Option<Record>,
    after: Option<Record>,
}

impl AdminApi {
    /// Answers a request for records. `path` is what follows [`RECORDS`].
    pub(super) async fn records(
        &self,
        path: &str,
        (method, query): (&Method, &str),
        body: Incoming,
        caller: Caller,
    ) -> Answer {
        let allowed = match path {
            "" => "PUT, DELETE",
            "/get" | "/list" | "/load" => "POST",
            _ => return Err(Problem(StatusCode::NOT_FOUND, "not found; see /admin/openapi.json".to_owned())),
        };
        if !allowed.split(", ").any(|name| name == method.as_str()) {
            return Ok(not_allowed(allowed));
        }
        let Some(records) = self.records.clone() else {
            let what = "there is no store of records (expected LIMITS_DIR to be set)";
            return Err(Problem(StatusCode::CONFLICT, what.to_owned()));
        };
        if path == "/load" {
            return Load::of(query, caller)?.run(self, records, body).await;
        }
        let asked = self.read(body).await?;
        match path {
            "/get" => get(&records, &asked).await,
            "/list" => list(&records, &asked).await,
            _ if method == Method::PUT => self.put_record(&records, &asked, caller).await,
            _ => self.delete_record(&records, &asked, caller).await,
        }
    }

    async fn put_record(&self, records: &Arc<Records>, asked: &Value, caller: Caller) -> Answer {
        let (who, mut record) = (Asked::of(asked, true, caller)?, asked.clone());
        if let Some(fields) = record.as_object_mut() {
            fields.retain(|name, _| name != "who" && name != "why");
        }
        let (key, record) = read(&record)?;
        let warning = self.service.with_rules(|rules| of_record(&key, rules?));
        let before = self.exchange(records, who, "record_put", &key, |_| Ok(Some(record))).await?;
        let (status, done) = match before {
            Some(same) if same == record => (StatusCode::OK, "unchanged"),
            Some(_) => (StatusCode::OK, "replaced"),
            None => (StatusCode::CREATED, "made"),
        };
        let mut answer = json!({"done": done});
        if let Some(warning) = warning {
            answer["warning"] = warning.into();
        }
        Ok(shown(status, &answer))
    }

    async fn delete_record(&self, records: &Arc<Records>, asked: &Value, caller: Caller) -> Answer {
        fields(asked, &["domain", "entries", "who", "why"])?;
        let (who, key) = (Asked::of(asked, false, caller)?, key_of(asked)?);
        let none = |before: Option<Record>| before.map_or_else(|| Err(unknown(&key)), |_| Ok(None));
        self.exchange(records, who, "record_delete", &key, none).await?;
        Ok(shown(StatusCode::OK, &json!({"done": "deleted"})))
    }

    /// Replaces a record by what `after` makes of it, and returns the one before. If somebody else changes it between the
    /// first line of the audit and the change, nothing is done, and it begins again: each `before` in the audit is what was
    /// there.
    async fn exchange(
        &self,
        records: &Arc<Records>,
        who: Asked,
        does: &'static str,
        key: &RecordKey,
        after: impl Fn(Option<Record>) -> Result<Option<Record>, Problem>,
    ) -> Result<Option<Record>, Problem> {
        for _ in 0..TRIES_MAX {
            let before = records.get(key.clone()).await?;
            let after = after(before)?;
            if before == after {
                return Ok(before);
            }
            let change = Change { key: key.clone(), before, after };
            let (records, key) = (Arc::clone(records), key.clone());
            let exchange = async move {
                let is_done = records.exchange(key, before, after).await?;
                Ok::<_, StoreError>((is_done, if is_done { DONE } else { OVERTAKEN }.to_owned()))
            };
            if self.change_records(who.clone(), does, change.json(), exchange).await? {
                return Ok(before);
            }
        }
        let what = format!("others changed it {TRIES_MAX} times meanwhile (expected it to be left alone)");
        Err(Problem(StatusCode::CONFLICT, what))
    }

    /// Makes a change of records, with why in its audit.
    async fn change_records<T: Send + 'static>(
        &self,
        Asked { author, why }: Asked,
        does: &'static str,
        mut what: Value,
        change: impl Future<Output = Made<T, StoreError>> + Send + 'static,
    ) -> Result<T, Problem> {
        if !why.is_empty() {
            what["why"] = why.into();
        }
        self.audited(author, does, what, change).await
    }
}

async fn get(records: &Records, asked: &Value) -> Answer {
    fields(asked, &["domain", "entries"])?;
    let key = key_of(asked)?;
    match records.get(key.clone()).await? {
        Some(record) => Ok(shown(StatusCode::OK, &show(&key, &record))),
        None => Err(unknown(&key)),
    }
}

/// A page of records, and where the next one begins.
async fn list(records: &Records, asked: &Value) -> Answer {
    fields(asked, &["domain", "entries", "after", "most"])?;
    let after = match asked.get("after") {
        None | Some(Value::Null) => None,
        Some(after) => Some(key_of(after).map_err(|error| invalid(&format!("after: {error}")))?),
    };
    let most = asked.get("most").map_or(Some(PAGE), Value::as_u64);
    let most = most.filter(|most| (1..=PAGE_MAX).contains(most));
    let most =
        most.ok_or_else(|| invalid(&format!("most: expected a whole number, 1 to {PAGE_MAX}")))? as usize;
    let page = records.page(prefix(asked)?, after, most).await?;
    let next = page.last().filter(|_| page.len() == most).map(|(key, _)| {
        let (domain, entries) = key.decode();
        json!({"domain": domain, "entries": entries_json(&entries)})
    });
    let page: Vec<_> = page.iter().map(|(key, record)| show(key, record)).collect();
    Ok(shown(StatusCode::OK, &json!({"records": page, "next": next})))
}

/// What the keys of a list begin with.
fn prefix(asked: &Value) -> Result<KeyPrefix, Problem> {
    let entries = match asked.get("entries") {
        None => &Vec::new(),
        Some(Value::Array(entries)) => entries,
        Some(_) => return Err(invalid(ENTRIES)),
    };
    let Some(domain) = asked.get("domain") else {
        return if entries.is_empty() {
            Ok(KeyPrefix::everything())
        } else {
            Err(invalid("domain: is missing"))
        };
    };
    let domain = domain.as_str().ok_or_else(|| invalid("domain: expected a text"))?;
    let entry = |entry: &'_ Value| {
        let text = |name: &str| entry.get(name).map(|text| text.as_str().map(str::to_owned));
        match (text("key"), text("value")) {
            (Some(Some(key)), None) => Some((key, None)),
            (Some(Some(key)), Some(Some(value))) => Some((key, Some(value))),
            _ => None,
        }
    };
    let entries = entries.iter().map(entry).collect::<Option<Vec<_>>>().ok_or_else(|| invalid(ENTRIES))?;
    let entries = entries.iter().map(|(key, value)| (&**key, value.as_deref()));
    KeyPrefix::of(domain, entries).map_err(|error| invalid(&error))
}

const ENTRIES: &str = "entries: expected a list of objects with `key` and `value`, the last maybe without";

fn entries_json(entries: &[(String, String)]) -> Value {
    entries.iter().map(|(key, value)| json!({"key": key, "value": value})).collect()
}

impl Asked {
    /// Who, and why unless that may be left out.
    fn of(asked: &Value, needs_why: bool, caller: Caller) -> Result<Self, Problem> {
        let text = |name: &str| match asked.get(name) {
            None => Ok(""),
            Some(Value::String(text)) if text.len() <= TEXT_BYTES_MAX => Ok(text.as_str()),
            Some(_) => Err(invalid(&format!("{name}: is no text of at most {TEXT_BYTES_MAX} bytes"))),
        };
        Self::new(text("who")?, text("why")?, needs_why, caller)
    }

    fn new(who: &str, why: &str, needs_why: bool, caller: Caller) -> Result<Self, Problem> {
        match (who.is_empty(), why.is_empty() && needs_why) {
            (true, _) => Err(invalid("who: is missing")),
            (_, true) => Err(invalid("why: is missing")),
            _ => Ok(Self { author: Author { who: who.to_owned(), caller }, why: why.to_owned() }),
        }
    }
}

impl Change {
    fn json(&self) -> Value {
        let record = |record: Option<&Record>| record.map(|record| show(&self.key, record));
        json!({"before": record(self.before.as_ref()), "after": record(self.after.as_ref())})
    }
}

fn unknown(key: &RecordKey) -> Problem {
    Problem(StatusCode::NOT_FOUND, format!("there is no record for {key:?}"))
}

impl From<BadRecord> for Problem {
    fn from(error: BadRecord) -> Self {
        invalid(&error)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let status = match error {
            StoreError::Folder(FolderError::Io { .. }) => StatusCode::INSUFFICIENT_STORAGE,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self(status, error.to_string())
    }
}
