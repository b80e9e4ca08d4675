//! Counters: what one holds, its reset, which gives all of its hits back, and the fullest ones of a rule.

use std::sync::Arc;
use std::time::Instant;

use http::StatusCode;
use serde_json::{Value, json};

use super::{AdminApi, Answer, Problem, blocking, fields, invalid, refused, shown, word};
use crate::clock::{Clock, monotonic};
use crate::exceptions::{Author, Caller, ChangeError};
use crate::front::Refusal;
use crate::resets::path;
use crate::stamp;
use crate::watches::COUNTERS_MAX;
use tidegate_engine::Timestamp;
use tidegate_engine::key::Key;
use tidegate_engine::request::{DescriptorOptions, Entry, Request};

impl AdminApi {
    /// What one counter holds.
    pub(super) async fn peek(&self, asked: &Value) -> Answer {
        let counter = Counter::of(asked, &["domain", "entries"])?;
        Ok(shown(StatusCode::OK, &self.look(&counter).await?))
    }

    /// Takes all hits of one counter back.
    pub(super) async fn reset(&self, asked: &Value, caller: Caller) -> Answer {
        let counter = Counter::of(asked, &["domain", "entries", "who", "why"])?;
        let (author, why) = (Author { who: word(asked, "who")?, caller }, word(asked, "why")?);
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
        let done = match done {
            Ok(()) => self.resets.tell_of_counter(Clock::start().now()).await.map_err(Problem::from),
            Err(refusal) => Err(refused(&refusal)),
        };
        let outcome = done.as_ref().map(|()| "done").map_err(|Problem(_, why)| why.clone());
        let book = Arc::clone(&self.book);
        blocking(move || book.audit().ended(intended, Clock::start().now(), outcome)).await?;
        done?;
        Ok(shown(
            StatusCode::OK,
            &json!({"done": "reset", "before": before, "after": self.look(&counter).await?}),
        ))
    }

    /// The counters of a rule that are fullest, and those that deny most.
    pub(super) async fn top(&self, asked: &Value) -> Answer {
        fields(asked, &["domain", "entries", "most"])?;
        let path = path(asked).map_err(|error| invalid(&error))?;
        let most = match asked.get("most") {
            None => COUNTERS_MAX,
            Some(most) => most
                .as_u64()
                .and_then(|most| usize::try_from(most).ok())
                .ok_or_else(|| invalid("most: expected a whole number"))?,
        };
        let live = self.service.snapshot().map_err(Refusal::from).map_err(|refusal| refused(&refusal))?;
        let Some(rule) = live.rules().rule_at(&path) else {
            return Err(Problem(StatusCode::NOT_FOUND, "no rule has this path".to_owned()));
        };
        let told = self.service.watched(live.in_force(), rule.id, most);
        let told = told.map_err(|error| Problem(StatusCode::CONFLICT, error.to_string()))?;
        let (now, began) = (Clock::start().now(), monotonic());
        let shown_at = |at: Instant| {
            let ago = u64::try_from(began.saturating_duration_since(at).as_nanos()).unwrap_or(u64::MAX);
            stamp::show(Timestamp::from_nanos(now.as_nanos().saturating_sub(ago)))
        };
        let fullest = told.fullest.iter().map(|(key, full)| {
            let at = shown_at(full.at);
            json!({"key": hex(*key), "entries": full.name, "used": full.used, "limit": full.limit, "at": at})
        });
        let denied = told.denied.iter().map(|(key, denied)| {
            json!({"key": hex(*key), "entries": denied.name, "count": denied.count, "error": denied.error})
        });
        let (fullest, denied): (Vec<_>, Vec<_>) = (fullest.collect(), denied.collect());
        let since = shown_at(told.since);
        let told = json!({"rule": rule.path(), "since": since, "fullest": fullest, "denied": denied});
        Ok(shown(StatusCode::OK, &told))
    }

    async fn look(&self, counter: &Counter) -> Result<Value, Problem> {
        let live = self.service.snapshot().map_err(Refusal::from).map_err(|refusal| refused(&refusal))?;
        let explained = self.service.explain(live.in_force(), &counter.request(), |shown| shown.json()).await;
        explained.map_err(Refusal::from).map_err(|refusal| refused(&refusal))
    }
}

/// A key, which tells counters apart where their names are not kept.
fn hex(Key(key): Key) -> String {
    format!("{key:032x}")
}

/// The entries that lead to a counter.
struct Counter {
    domain: String,
    entries: Vec<(String, String)>,
}

impl Counter {
    fn of(asked: &Value, known: &[&str]) -> Result<Self, Problem> {
        let fields = fields(asked, known)?;
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
