//! Counters: the contents of one, its reset, and the fullest ones of a rule.

use std::time::Instant;

use http::StatusCode;
use serde_json::{Value, json};

use super::{AdminApi, Answer, Problem, line, lines, refused, shown};
use crate::audit::{Author, Caller, Does};
use crate::bodies::answered::{CounterKey, Denied, Fullest, LeftOut, Reset, ResetDone, Top};
use crate::bodies::asked::{DomainEntries, ResetCounter, TopCounters};
use crate::bodies::values::{ResetId, Time};
use tidegate_engine::Timestamp;
use tidegate_engine::key::Key;
use tidegate_engine::request::{DescriptorOptions, Entry, Request};
use tidegate_engine::rules;
use tidegate_serve::clock::{monotonic, wall};
use tidegate_serve::refusal::Refusal;
use tidegate_serve::service::Snapshot;
use tidegate_serve::watches::{COUNTERS_MAX, RULES_MAX, Watched};

/// Rules that a question without a rule watches. It leaves room for rules that are asked about by name.
const ALL_MAX: usize = RULES_MAX / 2;

impl AdminApi {
    pub(super) async fn peek(&self, counter: DomainEntries) -> Answer {
        Ok(shown(StatusCode::OK, &self.look(&counter).await?))
    }

    /// Sets one counter to zero.
    pub(super) async fn reset(&self, asked: ResetCounter, caller: Caller) -> Answer {
        let (counter, path) = (DomainEntries::from(&asked), asked.path());
        let (author, why) = (Author { who: asked.who.into_string(), caller }, asked.why);
        let before = self.look_or_say_why(&counter).await;
        let wanted = self.resets.plan(path, asked.id.map(|ResetId(number)| number), wall())?;
        let what = json!({"why": why, "before": before});
        let ResetDone { id, done, .. } = self.begin(wanted, author, Does::CounterReset, what).await?;
        // The reset is done, even if the counter cannot be read.
        let after = self.look_or_say_why(&counter).await;
        Ok(shown(StatusCode::OK, &Reset { id, done, before, after }))
    }

    /// The fullest counters of the rule, and those that deny most.
    pub(super) async fn top(&self, asked: TopCounters) -> Answer {
        let (path, most) = (asked.path()?, asked.most.map_or(COUNTERS_MAX, |most| most.as_usize()));
        let live = self.service.snapshot().map_err(Refusal::from).map_err(|refusal| refused(&refusal))?;
        let Some(path) = path else { return self.top_of_all(&live, most) };
        let Some(rule) = live.rules().rule_at(&path) else {
            return Err(Problem(StatusCode::NOT_FOUND, "no rule has this path".to_owned()));
        };
        let watched = self.service.watched(live.in_force(), rule.id, most);
        let watched = watched.map_err(|error| Problem(StatusCode::CONFLICT, error.to_string()))?;
        Ok(shown(StatusCode::OK, &top_of(rule, &watched)))
    }

    /// The same for the first rules, a line each. Rules that somebody has asked about are watched already.
    fn top_of_all(&self, live: &Snapshot, most: usize) -> Answer {
        let limited = live.rules().limits().filter(|rule| rule.limit.is_some());
        let (first, left) = (limited.clone().take(ALL_MAX), limited.count().saturating_sub(ALL_MAX));
        let top = |rule: &rules::Rule| {
            let watched = self.service.watched(live.in_force(), rule.id, most);
            watched.map(|watched| line(&top_of(rule, &watched)))
        };
        let watched = first.map(top).collect::<Result<Vec<_>, _>>();
        let mut watched = watched.map_err(|error| Problem(StatusCode::CONFLICT, error.to_string()))?;
        watched.extend((left > 0).then(|| line(&LeftOut { rules_left_out: left })));
        Ok(lines(watched))
    }

    /// The contents of a counter, or why they are not known.
    async fn look_or_say_why(&self, counter: &DomainEntries) -> Value {
        self.look(counter).await.unwrap_or_else(|Problem(_, why)| json!({"error": why}))
    }

    async fn look(&self, counter: &DomainEntries) -> Result<Value, Problem> {
        let live = self.service.snapshot().map_err(Refusal::from).map_err(|refusal| refused(&refusal))?;
        let explained = self.service.explain(live.in_force(), &request(counter), |shown| shown.json()).await;
        explained.map_err(Refusal::from).map_err(|refusal| refused(&refusal))
    }
}

/// What is known of the counters of a rule.
fn top_of(rule: &rules::Rule, watched: &Watched) -> Top {
    let (now, asked) = (wall(), monotonic());
    let ago = |at: Instant| asked.saturating_duration_since(at);
    let shown_at = |at: Instant| {
        let ago = u64::try_from(ago(at).as_nanos()).unwrap_or(u64::MAX);
        Time(Timestamp::from_nanos(now.as_nanos().saturating_sub(ago)))
    };
    let fullest = watched.fullest.iter().map(|(key, full)| {
        let (entries, at) = (full.name.to_string(), shown_at(full.at));
        Fullest { key: hex(*key), entries, used: full.used, limit: full.limit, at }
    });
    let denied = watched.denied.iter().map(|(key, denied)| Denied {
        key: hex(*key),
        entries: denied.name.to_string(),
        count: denied.count,
        error: denied.error,
    });
    Top {
        rule: rule.path().to_string(),
        since: shown_at(watched.since),
        watched_seconds: ago(watched.since).as_secs(),
        fullest: fullest.collect(),
        denied: denied.collect(),
    }
}

fn hex(Key(key): Key) -> CounterKey {
    CounterKey(format!("{key:032x}"))
}

/// A request of one hit that leads to a counter.
pub(super) fn request(counter: &DomainEntries) -> Request<'_> {
    let mut request = Request::new(&counter.domain, 1);
    let entries = counter.entries.0.iter().map(|entry| Entry { key: &entry.key, value: &entry.value });
    request.push(entries, DescriptorOptions::default());
    request
}
