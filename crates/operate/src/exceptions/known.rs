//! The entry of an id: an exception, or that it was ended. Nodes that share a Redis exchange both.
//!
//! The newest entry of an id wins, by its number: the nanoseconds since 1970 at which it was made. An ended exception
//! is remembered for 90 days too. Otherwise a node that was away for less, or a Redis that was set back to an older
//! state, would bring an older one back.

use std::sync::Arc;

use serde_json::{Value, json};

use super::authored::Authored;
use crate::bodies::Mistake;
use crate::numbers::latest;
use tidegate_engine::text::json_line;
use tidegate_engine::time::{SECOND_NANOS, Timestamp};

/// How long an entry is remembered at least.
const REMEMBERED_NANOS: u64 = 90 * 24 * 3_600 * SECOND_NANOS;

/// The entry of an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KnownException {
    /// There is an exception.
    Made(Arc<Authored>),
    /// It was ended.
    Ended {
        /// Its id.
        id: String,
        /// Greater than that of the exception.
        number: u64,
    },
}

impl KnownException {
    pub(super) fn id(&self) -> &str {
        match self {
            Self::Made(record) => &record.id,
            Self::Ended { id, .. } => id,
        }
    }

    /// The greatest number of an id wins.
    pub(super) fn number(&self) -> u64 {
        match self {
            Self::Made(record) => record.number,
            Self::Ended { number, .. } => *number,
        }
    }

    /// Whether its time is far in the future. Nodes ignore such an entry.
    pub(super) fn is_ahead(&self, now: Timestamp) -> bool {
        self.number() > latest(now)
    }

    /// Whether it may be forgotten: it has no effect any more, and was made long ago.
    pub(super) fn is_forgotten(&self, now: Timestamp) -> bool {
        let is_over = match self {
            Self::Made(record) => record.is_over(now),
            Self::Ended { .. } => true,
        };
        is_over && self.number().saturating_add(REMEMBERED_NANOS) <= now.as_nanos()
    }

    /// Whether a node whose clock is ahead may have forgotten it.
    pub(super) fn may_be_forgotten(&self, now: Timestamp) -> bool {
        self.is_forgotten(Timestamp::from_nanos(latest(now)))
    }

    /// Its form in Redis: a line of JSON.
    pub(super) fn value(&self) -> Vec<u8> {
        let value = match self {
            Self::Made(record) => record.file_json(),
            Self::Ended { id, number } => json!({"id": id, "ended": true, "number": number}),
        };
        json_line(&value.to_string()).into_owned().into_bytes()
    }

    /// Reads the value of an id in Redis.
    /// Fails when it is no entry of this id: another program wrote it, or a later version of this one. Also when its
    /// time is far in the future, because no later entry of its id could replace it.
    pub(super) fn of_value(id: &str, value: &[u8], now: Timestamp) -> Result<Self, Mistake> {
        let value: Value =
            serde_json::from_slice(value).map_err(|error| Mistake::of("value", error.to_string()))?;
        let Some(number) = value["number"].as_u64() else { return mistake("number", "is missing") };
        if number > latest(now) {
            return mistake("number", format!("{number} is more than an hour ahead of this node's clock"));
        }
        if value["id"] != id {
            return mistake("id", format!("is {} (expected {id:?})", value["id"]));
        }
        if value["ended"] != true {
            return Authored::of_file(&value).map(|record| Self::Made(Arc::new(record)));
        }
        let known = ["id", "ended", "number"];
        let unknown =
            value.as_object().and_then(|fields| fields.keys().find(|name| !known.contains(&name.as_str())));
        match unknown {
            Some(unknown) => mistake(unknown, format!("is unknown (expected one of {})", known.join(", "))),
            None => Ok(Self::Ended { id: id.to_owned(), number }),
        }
    }
}

fn mistake<T>(field: &str, what: impl Into<String>) -> Result<T, Mistake> {
    Err(Mistake::of(field, what))
}
