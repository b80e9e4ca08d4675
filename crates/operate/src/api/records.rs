//! Records in the admin API: one is put, got or deleted, many are listed or loaded.
//!
//! In: JSON, and for a load a stream of lines. Out: JSON. Every change is audited before it is done; a load has one such line,
//! and its outcome says how far it came.

mod load;

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use self::load::Load;
use super::audited::Made;
use super::unmet::of_record;
use super::{AdminApi, Answer, Call, Problem, invalid, shown};
use crate::audit::{Author, Caller, DONE, Does};
use crate::bodies::Mistake;
use crate::bodies::answered::{self, RecordDone};
use crate::bodies::asked::{DeleteRecord, DomainEntries, Entry, ListRecords, PutRecord};
use crate::bodies::values::{List, Text};
use crate::records::{RecordStore, StoreError};
use tidegate_records::{BadRecord, FolderError, KeyError, KeyPrefix, Record, RecordKey, read, show};

/// How often a change of one record is tried while others change it too. Of changes at the same time, one always
/// succeeds.
const TRIES_MAX: usize = 50;
/// The outcome of a change that lost to another one.
const OVERTAKEN: &str = "not done: another change came first; trying again";

/// Who makes a change, and why.
#[derive(Clone)]
struct Reason {
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
    /// The store of records.
    /// Fails when there is none.
    pub(super) fn store(&self) -> Result<&Arc<RecordStore>, Problem> {
        let what = "there is no store of records (expected LIMITS_DIR to be set)";
        self.records.as_ref().ok_or_else(|| Problem(StatusCode::CONFLICT, what.to_owned()))
    }

    pub(super) async fn load_records(&self, records: &Arc<RecordStore>, call: Call<'_>) -> Answer {
        Load::of(call.query, call.caller)?.run(self, Arc::clone(records), call.body).await
    }

    pub(super) async fn put_record(
        &self,
        records: &Arc<RecordStore>,
        asked: PutRecord,
        caller: Caller,
    ) -> Answer {
        let (key, record) = read(&asked.record())?;
        let author = Author { who: asked.who.into_string(), caller };
        let who = Reason { author, why: asked.why.into_string() };
        let warning = self.service.with_rules(|rules| of_record(&key, &record, rules?));
        let before = self.exchange(records, who, Does::RecordPut, &key, Some(record)).await?;
        let (status, done) = match before {
            Some(same) if same == record => (StatusCode::OK, RecordDone::Unchanged),
            Some(_) => (StatusCode::OK, RecordDone::Replaced),
            None => (StatusCode::CREATED, RecordDone::Made),
        };
        Ok(shown(status, &answered::Done { done, warning }))
    }

    pub(super) async fn delete_record(
        &self,
        records: &Arc<RecordStore>,
        asked: DeleteRecord,
        caller: Caller,
    ) -> Answer {
        let key = key_of(&asked.domain, &asked.entries)?;
        let author = Author { who: asked.who.into_string(), caller };
        let who = Reason { author, why: asked.why.map(Text::into_string).unwrap_or_default() };
        let before = self.exchange(records, who, Does::RecordDelete, &key, None).await?;
        before.ok_or_else(|| unknown(&key))?;
        Ok(shown(StatusCode::OK, &answered::Done { done: RecordDone::Deleted, warning: None }))
    }

    /// Replaces a record by `after`, and returns the previous one. If somebody else changes it between
    /// the first line of the audit and the change, nothing is done, and it starts again: so each `before` in the
    /// audit is the record that was replaced.
    async fn exchange(
        &self,
        records: &Arc<RecordStore>,
        who: Reason,
        does: Does,
        key: &RecordKey,
        after: Option<Record>,
    ) -> Result<Option<Record>, Problem> {
        for _ in 0..TRIES_MAX {
            let before = records.get(key.clone()).await?;
            if before == after {
                match confirmed(records, key, after).await? {
                    true => return Ok(before),
                    false => continue,
                }
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
        let what = format!("others changed it {TRIES_MAX} times meanwhile (send it again)");
        Err(Problem(StatusCode::CONFLICT, what))
    }

    /// Makes a change of records, with the reason in its audit.
    async fn change_records<T: Send + 'static>(
        &self,
        Reason { author, why }: Reason,
        does: Does,
        mut what: Value,
        change: impl Future<Output = Made<T, StoreError>> + Send + 'static,
    ) -> Result<T, Problem> {
        if !why.is_empty() {
            what["why"] = why.into();
        }
        self.audited(author, does, what, change).await
    }
}

/// Confirms a record. When the client goes away, this is still finished: the store may be reopened for it, and who listens
/// has to hear of that.
async fn confirmed(
    records: &Arc<RecordStore>,
    key: &RecordKey,
    record: Option<Record>,
) -> Result<bool, Problem> {
    let (records, key) = (Arc::clone(records), key.clone());
    let confirmed = tokio::spawn(async move { records.confirm(&key, record).await }).await;
    Ok(confirmed.map_err(|error| Problem(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))??)
}

/// The record of a key.
pub(super) async fn get(records: &RecordStore, asked: DomainEntries) -> Answer {
    let key = key_of(&asked.domain, &asked.entries)?;
    match records.get(key.clone()).await? {
        Some(record) => Ok(shown(StatusCode::OK, &show(&key, &record))),
        None => Err(unknown(&key)),
    }
}

/// A page of records, and the position of the next page.
pub(super) async fn list(records: &RecordStore, asked: ListRecords) -> Answer {
    let after = asked.after.as_ref().map(|after| key_of(&after.domain, &after.entries));
    let after = after.transpose().map_err(|mistake| mistake.within("after"))?;
    let most = asked.most.as_usize();
    let page = records.page(prefix(&asked)?, after, most).await?;
    let next = page.last().filter(|_| page.len() == most).map(|(key, _)| {
        let (domain, entries) = key.decode();
        let entries = entries.into_iter().map(|(key, value)| Entry { key, value }).collect();
        DomainEntries { domain, entries: List(entries) }
    });
    let records = page.iter().map(|(key, record)| show(key, record)).collect();
    Ok(shown(StatusCode::OK, &answered::Records { records, next }))
}

/// The prefix of the keys in a list.
fn prefix(asked: &ListRecords) -> Result<KeyPrefix, Mistake> {
    match &asked.domain {
        None if asked.entries.0.is_empty() => Ok(KeyPrefix::everything()),
        None => Err(Mistake::of("domain", "is missing")),
        Some(domain) => {
            let entries = asked.entries.0.iter().map(|level| (&*level.key, level.value.as_deref()));
            KeyPrefix::of(domain, entries).map_err(mistake_of)
        }
    }
}

fn key_of(domain: &str, entries: &List<Entry, 1>) -> Result<RecordKey, Mistake> {
    let entries = entries.0.iter().map(|entry| (&*entry.key, &*entry.value));
    RecordKey::of(domain, entries).map_err(mistake_of)
}

/// The error text of an invalid key begins with its position.
fn mistake_of(error: KeyError) -> Mistake {
    let text = error.to_string();
    let (place, what) = text.split_once(": ").unwrap_or(("", &text));
    Mistake::of(place, what)
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt as _;
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;
    use crate::api::tests::{api, rules};

    #[tokio::test]
    async fn the_audit_has_the_reason_of_a_change_if_there_is_one() {
        let api = api(&rules(1));
        for why in ["", "a launch"] {
            let caller = Caller { peer: String::new(), certificate: None };
            let author = Author { who: "jane".to_owned(), caller };
            let reason = Reason { author, why: why.to_owned() };
            let change = async { Ok(((), DONE.to_owned())) };
            api.change_records(reason, Does::RecordPut, json!({}), change).await.expect("done");
            let lines = api.book.audit().recent();
            let began: Value = serde_json::from_str(&lines[lines.len() - 2]).expect("JSON");
            let shown = began["what"].get("why").and_then(Value::as_str);
            assert_eq!(shown, Some(why).filter(|why| !why.is_empty()), "{began}");
        }
    }

    /// The folder is closed, so it is opened for the call.
    #[tokio::test]
    async fn who_listens_hears_of_a_reopened_store_though_the_client_went_away() {
        let temporary = tempfile::tempdir().expect("a folder for the test");
        let records = Arc::new(RecordStore::in_folder(temporary.path(), || {}).expect("threads"));
        let (hears, mut heard) = unbounded_channel();
        records.listen(Box::new(move |key| _ = hears.send(key.cloned())));
        let key = RecordKey::of("d", [("tenant", "a")]).expect("a key");
        assert!(confirmed(&records, &key, None).now_or_never().is_none(), "it waits for the disk");
        let heard = tokio::time::timeout(Duration::from_secs(10), heard.recv()).await;
        assert_eq!(heard, Ok(Some(None)), "any record may be another one");
    }
}
