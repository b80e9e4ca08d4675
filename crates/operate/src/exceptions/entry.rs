//! What is known of an id: an exception, or that it was ended. Nodes that share a Redis tell each other both.
//!
//! The newest entry of an id wins, by its number. One that was ended is remembered until the exception would have ended by
//! itself: a node that was away, or a Redis that went back to an older state, would else bring it to life again.

use std::sync::Arc;

use serde_json::{Value, json};

use super::record::{BadRecord, Record, bad, time};
use tidegate_engine::stamp;
use tidegate_engine::text::json_line;
use tidegate_engine::time::Timestamp;

/// How long it is remembered that an exception was ended which would not have ended by itself: 90 days.
const REMEMBERED_NANOS: u64 = 90 * 24 * 3_600 * 1_000_000_000;
/// Clocks of nodes differ by less. Until then nobody forgets what is over, and what is further ahead is none of ours.
const SKEW_NANOS: u64 = 3_600 * 1_000_000_000;

/// What is known of an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// There is an exception.
    Made(Arc<Record>),
    /// It was ended.
    Ended(Ended),
}

/// An exception that was ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) id: String,
    /// Greater than that of the exception.
    pub(super) number: u64,
    /// Until when it is remembered.
    pub(super) until: Timestamp,
}

impl Entry {
    /// That this exception was ended now.
    pub(super) fn ended(record: &Record, number: u64, now: Timestamp) -> Self {
        let until = record.until.unwrap_or_else(|| later(now, REMEMBERED_NANOS));
        Self::Ended(Ended { id: record.id.clone(), number, until })
    }

    pub(super) fn id(&self) -> &str {
        match self {
            Self::Made(record) => &record.id,
            Self::Ended(ended) => &ended.id,
        }
    }

    /// The greatest one of an id counts.
    pub(super) fn number(&self) -> u64 {
        match self {
            Self::Made(record) => record.number,
            Self::Ended(ended) => ended.number,
        }
    }

    /// Whether it may be forgotten: it changes nothing any more, whatever other nodes know.
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        let until = match self {
            Self::Made(record) => record.until,
            Self::Ended(ended) => Some(ended.until),
        };
        until.is_some_and(|until| later(until, SKEW_NANOS) <= now)
    }

    /// As Redis has it: a line of JSON.
    pub(super) fn value(&self) -> Vec<u8> {
        let value = match self {
            Self::Made(record) => record.file_json(),
            Self::Ended(Ended { id, number, until }) => {
                json!({"id": id, "ended": true, "number": number, "until": stamp::show(*until)})
            }
        };
        json_line(&value.to_string()).into_owned().into_bytes()
    }

    /// Reads what Redis has under an id.
    ///
    /// # Errors
    /// When it is no entry of this id: another program wrote it, or a later version of this one. One of the far future would
    /// be the last one of its id.
    pub(super) fn of_value(id: &str, value: &[u8], now: Timestamp) -> Result<Self, BadRecord> {
        let value: Value = serde_json::from_slice(value).or_else(|error| bad("value", error.to_string()))?;
        let Some(number) = value["number"].as_u64() else { return bad("number", "is missing") };
        if number > later(now, SKEW_NANOS).as_nanos() {
            return bad("number", format!("{number} is more than an hour ahead of this node's clock"));
        }
        if value["id"] != id {
            return bad("id", format!("is {} (expected {id:?})", value["id"]));
        }
        if value["ended"] != true {
            return Record::of_file(&value).map(|record| Self::Made(Arc::new(record)));
        }
        let fields = value.as_object().into_iter().flatten();
        if let Some((unknown, _)) =
            fields.into_iter().find(|(name, _)| !["id", "ended", "number", "until"].contains(&name.as_str()))
        {
            return bad(unknown, "is unknown (expected of id, ended, number, until)");
        }
        let until = value.as_object().map_or(Ok(None), |fields| time(fields, "until"))?;
        match until {
            Some(until) => Ok(Self::Ended(Ended { id: id.to_owned(), number, until })),
            None => bad("until", "is missing"),
        }
    }
}

fn later(at: Timestamp, nanos: u64) -> Timestamp {
    Timestamp::from_nanos(at.as_nanos().saturating_add(nanos))
}
