//! Counters: what one holds, its reset, and the fullest ones of a rule.

use std::time::Instant;

use http::StatusCode;
use serde_json::{Value, json};

use super::audited::DONE;
use super::resets::{Done, number};
use super::{AdminApi, Answer, Problem, fields, invalid, lines, refused, shown, word};
use crate::exceptions::{Author, Caller};
use crate::resets::{ResetError, counter, path};
use tidegate_engine::Timestamp;
use tidegate_engine::key::Key;
use tidegate_engine::request::{DescriptorOptions, Entry, Request};
use tidegate_engine::rules::{ResetPath, Rule};
use tidegate_engine::stamp;
use tidegate_engine::text::json_line;
use tidegate_serve::clock::{monotonic, wall};
use tidegate_serve::refusal::Refusal;
use tidegate_serve::service::Snapshot;
use tidegate_serve::watches::{COUNTERS_MAX, RULES_MAX, Watched};

/// Rules that a question about all of them watches. It leaves room for those that are asked about by name.
const ALL_MAX: usize = RULES_MAX / 2;

impl AdminApi {
    /// What one counter holds.
    pub(super) async fn peek(&self, asked: &Value) -> Answer {
        let counter = Counter::of(asked, &["domain", "entries"])?;
        Ok(shown(StatusCode::OK, &self.look(&counter).await?))
    }

    /// Begins one counter anew.
    pub(super) async fn reset(&self, asked: &Value, caller: Caller) -> Answer {
        let counter = Counter::of(asked, &["domain", "entries", "id", "who", "why"])?;
        let (author, why) = (Author { who: word(asked, "who")?, caller }, word(asked, "why")?);
        let path = counter_path(asked)?;
        let before = self.look_or_say_why(&counter).await;
        let wanted = self.resets.plan(path, number(asked)?, wall());
        let Done { id, done, .. } = match wanted {
            Err(ResetError::Full) => self.give_back(&counter, author, &why, &before).await?,
            wanted => {
                let what = json!({"why": why, "before": before});
                self.begin(wanted?, author, "counter_reset", what).await?
            }
        };
        // It is done, whether the counter can be looked at or not.
        let after = self.look_or_say_why(&counter).await;
        Ok(shown(StatusCode::OK, &json!({"id": id, "done": done, "before": before, "after": after})))
    }

    /// Gives all hits of a counter back, where no more counters may have an epoch of their own. What is on its way comes
    /// on top.
    async fn give_back(
        &self,
        counter: &Counter,
        author: Author,
        why: &str,
        before: &Value,
    ) -> Result<Done, Problem> {
        let entry = |(key, value): &(String, String)| json!({"key": key, "value": value});
        let entries: Vec<_> = counter.entries.iter().map(entry).collect();
        let what = json!({"domain": counter.domain, "entries": entries, "why": why, "before": before});
        let (api, counter) = (self.clone(), counter.clone());
        let give = async move {
            let live = api.service.snapshot().map_err(Refusal::from).map_err(|refusal| refused(&refusal))?;
            let given = api.service.reset(live.in_force(), &counter.request()).await;
            given.map_err(Refusal::from).map_err(|refusal| unknown_whether_done(&refusal))?;
            api.resets.publish_counter(wall()).await?;
            Ok::<_, Problem>(((), DONE.to_owned()))
        };
        self.audited(author, "counter_reset", what, give).await?;
        Ok(Done { id: None, done: "reset", rules: 1 })
    }

    /// The counters of a rule that are fullest, and those that deny most.
    pub(super) async fn top(&self, asked: &Value) -> Answer {
        let named = fields(asked, &["domain", "entries", "most"])?;
        let most = match asked.get("most") {
            None => COUNTERS_MAX,
            Some(most) => most
                .as_u64()
                .and_then(|most| usize::try_from(most).ok())
                .ok_or_else(|| invalid("most: expected a whole number"))?,
        };
        let live = self.service.snapshot().map_err(Refusal::from).map_err(|refusal| refused(&refusal))?;
        if !named.contains_key("domain") && !named.contains_key("entries") {
            return self.top_of_all(&live, most);
        }
        let path = path(asked).map_err(|error| invalid(&error))?;
        let Some(rule) = live.rules().rule_at(&path.path) else {
            return Err(Problem(StatusCode::NOT_FOUND, "no rule has this path".to_owned()));
        };
        let told = self.service.watched(live.in_force(), rule.id, most);
        let told = told.map_err(|error| Problem(StatusCode::CONFLICT, error.to_string()))?;
        Ok(shown(StatusCode::OK, &top_json(rule, &told)))
    }

    /// The same of the first rules, a line each. Those that somebody has asked about are watched already.
    fn top_of_all(&self, live: &Snapshot, most: usize) -> Answer {
        let limited = live.rules().rules().iter().filter(|rule| rule.limit.is_some());
        let (first, left) = (limited.clone().take(ALL_MAX), limited.count().saturating_sub(ALL_MAX));
        let top = |rule: &Rule| {
            let told = self.service.watched(live.in_force(), rule.id, most);
            told.map(|told| top_json(rule, &told).to_string())
        };
        let told = first.map(top).collect::<Result<Vec<_>, _>>();
        let mut told = told.map_err(|error| Problem(StatusCode::CONFLICT, error.to_string()))?;
        told.extend((left > 0).then(|| json!({"rules_left_out": left}).to_string()));
        Ok(lines(told.into_iter().map(|line| json_line(&line).into_owned()).collect::<Vec<_>>()))
    }

    /// What a counter holds, or why that is not known.
    async fn look_or_say_why(&self, counter: &Counter) -> Value {
        self.look(counter).await.unwrap_or_else(|Problem(_, why)| json!({"error": why}))
    }

    async fn look(&self, counter: &Counter) -> Result<Value, Problem> {
        let live = self.service.snapshot().map_err(Refusal::from).map_err(|refusal| refused(&refusal))?;
        let explained = self.service.explain(live.in_force(), &counter.request(), |shown| shown.json()).await;
        explained.map_err(Refusal::from).map_err(|refusal| refused(&refusal))
    }
}

fn unknown_whether_done(refusal: &Refusal) -> Problem {
    let told = format!("it is not known whether the counter is reset (expected to be sent again): {refusal}");
    Problem(StatusCode::SERVICE_UNAVAILABLE, told)
}

/// What is known of the counters of a rule.
fn top_json(rule: &Rule, told: &Watched) -> Value {
    let (now, asked) = (wall(), monotonic());
    let ago = |at: Instant| asked.saturating_duration_since(at);
    let shown_at = |at: Instant| {
        let ago = u64::try_from(ago(at).as_nanos()).unwrap_or(u64::MAX);
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
    let (since, watched) = (shown_at(told.since), ago(told.since).as_secs());
    json!({
        "rule": rule.path(), "since": since, "watched_seconds": watched, "fullest": fullest, "denied": denied,
    })
}

/// A key, which tells counters apart where their names are not kept.
fn hex(Key(key): Key) -> String {
    format!("{key:032x}")
}

fn counter_path(asked: &Value) -> Result<ResetPath, Problem> {
    counter(asked).map_err(|error| invalid(&error))
}

/// The entries that lead to a counter.
#[derive(Clone)]
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
