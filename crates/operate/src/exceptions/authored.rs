//! One exception, as operators write it and as the engine uses it.

use std::sync::Arc;

use serde_json::Value;

use crate::bodies::answered::Listed;
use crate::bodies::asked;
use crate::bodies::values::{Burst, List, Requests, Text, Time, Words};
use crate::bodies::{Mistake, json, read};
use tidegate_engine::overlay::{Effect, Exception, Label, Made};
use tidegate_engine::path::{Path, PathEntry};
use tidegate_engine::text::json_line;
use tidegate_engine::time::Timestamp;

/// The field in files that says which exception is newer.
const NUMBER: &str = "number";

/// An exception, with who made it and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authored {
    /// Its name, chosen by its author.
    pub id: String,
    /// What it does, for whom.
    pub exception: Exception,
    /// Who made it, as they say.
    pub who: String,
    /// Why.
    pub why: String,
    /// When it begins; `None`: at once.
    pub from: Option<Timestamp>,
    /// When it ends; `None`: when somebody ends it.
    pub until: Option<Timestamp>,
    /// When it was made.
    pub made: Timestamp,
    /// A later exception has a greater number.
    pub number: u64,
}

impl Authored {
    /// Reads an exception that a client sends. `id` is that of the path, which a field may repeat.
    /// Fails with the first field that is wrong, with what was expected.
    pub fn of_client(id: &str, body: &Value) -> Result<Self, Mistake> {
        let asked: asked::Exception = read(body)?;
        match &asked.id {
            Some(own) if own.as_str() != id => {
                let what = format!("is {:?} (expected {id:?} as in the path, or none)", own.as_str());
                Err(Mistake::of("id", what))
            }
            _ => Self::of(id, asked),
        }
    }

    /// Reads an exception from a file.
    /// Fails with the first field that is wrong, with what was expected.
    pub(super) fn of_file(line: &Value) -> Result<Self, Mistake> {
        let Some(fields) = line.as_object() else {
            return Err(Mistake::of("an exception", "is no object"));
        };
        // Without it, no message could say which exception has another mistake.
        if !fields.contains_key("id") {
            return Err(Mistake::of("id", "is missing"));
        }
        let mut fields = fields.clone();
        let number = fields.remove(NUMBER);
        let mut asked: asked::Exception = read(&fields.into())?;
        let (id, made) = (asked.id.take().unwrap_or_default(), asked.made);
        let mut record = Self::of(id.as_str(), asked)?;
        record.number = number.and_then(|number| number.as_u64()).unwrap_or_default();
        record.made = made.map_or(record.made, |Time(made)| made);
        Ok(record)
    }

    fn of(id: &str, asked: asked::Exception) -> Result<Self, Mistake> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if id.is_empty() || id.len() > 128 || !id.bytes().all(is_name) {
            let what = format!("{id:?} (expected 1 to 128 letters, digits, `-`, `_` and `.`)");
            return Err(Mistake::of("id", what));
        }
        let effect = effect(&asked)?;
        let [from, until] = [asked.from, asked.until].map(|at| at.map(|Time(at)| at));
        if let (Some(from), Some(until)) = (from, until)
            && until <= from
        {
            return Err(Mistake::of("until", "is not after `from`"));
        }
        let entries = asked.entries.0.into_iter().map(PathEntry::from).collect();
        Ok(Self {
            id: id.to_owned(),
            exception: Exception { path: Path { domain: asked.domain.as_str().into(), entries }, effect },
            who: asked.who.into_string(),
            why: asked.why.into_string(),
            from,
            until,
            made: Timestamp::from_nanos(0),
            number: 0,
        })
    }

    /// As clients see it.
    pub fn listed(&self, now: Timestamp) -> Listed {
        Listed { exception: self.written(), in_force: self.is_in_force(now) }
    }

    /// Its JSON, for the audit.
    pub fn json(&self) -> Value {
        json(&self.written())
    }

    fn written(&self) -> asked::Exception {
        let Path { domain, entries } = &self.exception.path;
        let level = |PathEntry { key, value }: &PathEntry| asked::Level {
            key: Words::from(key.clone()),
            value: value.clone().map(Text::from),
        };
        let (requests, burst) = match self.exception.effect {
            Effect::Limit { requests, burst } => (requests, burst),
            Effect::Unlimited | Effect::Deny => (None, None),
        };
        asked::Exception {
            id: Some(Text::from(self.id.clone())),
            domain: Words::from(domain.to_string()),
            entries: List(entries.iter().map(level).collect()),
            requests_per_unit: requests.map(Requests::from),
            burst: burst.map(Burst::from),
            unlimited: self.exception.effect == Effect::Unlimited,
            deny: self.exception.effect == Effect::Deny,
            who: Words::from(self.who.clone()),
            why: Words::from(self.why.clone()),
            from: self.from.map(Time),
            until: self.until.map(Time),
            made: Some(Time(self.made)),
        }
    }

    /// The part of it that explanations and answers show.
    pub(super) fn label(&self) -> Label {
        let made = Made { who: self.who.clone(), why: self.why.clone() };
        Label { id: self.id.clone(), made: Some(made), until: self.until }
    }

    /// Its line in the file, without the line feed.
    pub(super) fn line(&self) -> Arc<str> {
        json_line(&self.file_json().to_string()).into()
    }

    /// Its JSON, for the file.
    pub(super) fn file_json(&self) -> Value {
        let mut shown = self.json();
        shown[NUMBER] = self.number.into();
        shown
    }

    /// Whether it has the same content as another one. When and in which order they were made does not matter.
    pub(super) fn says_the_same(&self, other: &Self) -> bool {
        let parts = |record: &Self| {
            (
                record.id.clone(),
                record.exception.clone(),
                record.who.clone(),
                record.why.clone(),
                record.from,
                record.until,
            )
        };
        parts(self) == parts(other)
    }

    /// Whether it is in force at `now`.
    pub fn is_in_force(&self, now: Timestamp) -> bool {
        self.from.is_none_or(|from| from <= now) && !self.is_over(now)
    }

    /// Whether it has ended by itself.
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// When it begins or ends next, after `now`.
    pub(super) fn changes_after(&self, now: Timestamp) -> Option<Timestamp> {
        [self.from, self.until].into_iter().flatten().filter(|&at| at > now).min()
    }
}

/// The one effect of an exception.
fn effect(asked: &asked::Exception) -> Result<Effect, Mistake> {
    let (requests, burst) = (asked.requests_per_unit.map(Requests::get), asked.burst.map(Burst::get));
    match (requests.is_some() || burst.is_some(), asked.unlimited, asked.deny) {
        (true, false, false) => Ok(Effect::Limit { requests, burst }),
        (false, true, false) => Ok(Effect::Unlimited),
        (false, false, true) => Ok(Effect::Deny),
        _ => {
            let what = "expected exactly one of: requests_per_unit and/or burst; unlimited; deny";
            Err(Mistake::of("effect", what))
        }
    }
}
