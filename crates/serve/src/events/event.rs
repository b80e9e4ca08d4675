//! An event, and its JSON.

use std::fmt;

use ring::hmac;
use serde_json::{Map, Value, json};

use super::Decided;
use super::keys::Notice;
use super::kind::EventKind;
use crate::bans::SeenBan;
use tidegate_engine::Timestamp;
use tidegate_engine::decision::{Code, Limited};
use tidegate_engine::key::Key;
use tidegate_engine::request::Entry;
use tidegate_engine::rule::Rule;
use tidegate_engine::text::{cut, one_line};
use tidegate_engine::time::ceil_secs;
use tidegate_engine::unit::Window;

/// The most characters of a text from a request.
const TEXT_CHARS_MAX: usize = 64;
/// Problems of refused rules that an event shows, and the most characters of each.
const PROBLEMS_MAX: usize = 10;
const PROBLEM_CHARS_MAX: usize = 300;
/// Bytes of a hash that an event shows.
const HASH_BYTES: usize = 16;

/// How events name the keys of counters: by a hash under a secret, so that nobody without the secret can guess names;
/// and by the entries of their descriptors if these may be shown.
#[derive(Clone)]
pub struct KeyNames {
    secret: hmac::Key,
    pub(super) shows_entries: bool,
}

/// What happened, and when by the wall clock.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) at: Timestamp,
    pub(super) what: What,
}

/// What happened.
#[derive(Clone, Debug)]
pub(super) enum What {
    /// To a key.
    Key(Notice, KeyEvent),
    /// To a banned key.
    BanBegan {
        ban: SeenBan,
        /// Events of its rule that were not emitted since the last one.
        left_out: u32,
    },
    BanEnded(SeenBan),
    /// To a set of rules.
    ReloadRefused {
        /// The first of them.
        problems: Vec<String>,
        count: usize,
    },
    StoreLost {
        store: String,
        why: String,
    },
    StoreBack {
        store: String,
    },
}

/// What an event says of a key.
#[derive(Clone, Debug)]
pub(super) struct KeyEvent {
    domain: String,
    /// The path of the rule. `None`: the request brought its limit.
    rule: Option<String>,
    limit: u64,
    window: Window,
    used: u64,
    /// False: shadow mode or quota mode admits the request.
    is_enforced: bool,
    key: Key,
    /// The entries of the descriptor, where events may show them.
    entries: Vec<(String, String)>,
    counts: Counts,
    /// The exception that changed its limit.
    exception: Option<Value>,
    /// Its record, if there may be one.
    record: Option<Value>,
}

/// Numbers of an event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    /// Hits that were asked for.
    pub(super) hits: u64,
    /// Events of this rule that were not emitted since the last one.
    pub(super) left_out: u32,
}

impl KeyNames {
    /// Hashes are under a secret that is derived from these bytes.
    pub fn new(secret: &[u8], shows_entries: bool) -> Self {
        Self { secret: hmac::Key::new(hmac::HMAC_SHA256, secret), shows_entries }
    }

    fn hash(&self, key: Key) -> String {
        hex(&hmac::sign(&self.secret, &key.0.to_le_bytes()).as_ref()[..HASH_BYTES])
    }
}

impl fmt::Debug for KeyNames {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("KeyNames").field("shows_entries", &self.shows_entries).finish_non_exhaustive()
    }
}

impl KeyEvent {
    /// Of the descriptor at this place, which has this key.
    pub(super) fn new(
        Decided { request, plan, overlay, decision }: Decided<'_, '_, '_>,
        index: usize,
        limited: &Limited<'_>,
        key: Key,
        counts: Counts,
        shows_entries: bool,
    ) -> Self {
        let entries = request.descriptors().nth(index).map_or(&[][..], |descriptor| descriptor.entries);
        // In quota mode a request may pass although this descriptor is over.
        let passes_or_is_denied = !limited.verdict.over || decision.code == Code::OverLimit;
        let rule = limited.origin.rule();
        let exception = decision.exceptions().iter().find(|met| met.descriptor == index);
        let exception = exception.map(|met| if shows_entries { met.clone() } else { met.unlabelled() });
        let has_records = rule.is_some_and(|rule| rule.records.is_some());
        let record = || overlay.records.map_or(Value::Null, |found| found.of(index).json(rule));
        let named = |entry: &Entry<'_>| (cut_text(entry.key), cut_text(entry.value));
        Self {
            domain: cut_text(request.domain()),
            rule: rule.map(Rule::path),
            limit: limited.limit.capacity(),
            window: limited.origin.window(),
            used: limited.verdict.after,
            is_enforced: !plan.modes.shadow && !limited.shadow && passes_or_is_denied,
            key,
            entries: if shows_entries { entries.iter().map(named).collect() } else { Vec::new() },
            counts,
            exception: exception.map(|met| met.json(rule)),
            record: has_records.then(record),
        }
    }

    fn write(&self, names: &KeyNames, fields: &mut Map<String, Value>) {
        fields.insert("domain".to_owned(), json!(self.domain));
        fields.insert("rule".to_owned(), json!(self.rule));
        fields.insert("key_hash".to_owned(), json!(names.hash(self.key)));
        if names.shows_entries {
            let entry = |(key, value): &(String, String)| json!({"key": key, "value": value});
            fields.insert("entries".to_owned(), self.entries.iter().map(entry).collect());
        }
        fields.insert("limit".to_owned(), json!(self.limit));
        fields.insert("unit".to_owned(), json!(self.window.unit.name()));
        fields.insert("unit_multiplier".to_owned(), json!(self.window.multiplier));
        fields.insert("used".to_owned(), json!(self.used));
        fields.insert("hits".to_owned(), json!(self.counts.hits));
        fields.insert("enforced".to_owned(), json!(self.is_enforced));
        fields.insert("left_out".to_owned(), json!(self.counts.left_out));
        let changed = [("exception", &self.exception), ("record", &self.record)];
        for (name, json) in changed.into_iter().filter_map(|(name, json)| Some((name, json.as_ref()?))) {
            fields.insert(name.to_owned(), json.clone());
        }
    }
}

impl What {
    pub(super) fn reload_refused(problems: &[String]) -> Self {
        Self::ReloadRefused {
            problems: problems.iter().take(PROBLEMS_MAX).map(|problem| problem_text(problem)).collect(),
            count: problems.len(),
        }
    }

    pub(super) fn store_lost(store: &str, why: &str) -> Self {
        Self::StoreLost { store: store.to_owned(), why: problem_text(why) }
    }

    pub(super) fn kind(&self) -> EventKind {
        match self {
            Self::Key(notice, _) => notice.kind(),
            Self::BanBegan { .. } => EventKind::BanBegan,
            Self::BanEnded(_) => EventKind::BanEnded,
            Self::ReloadRefused { .. } => EventKind::ReloadRefused,
            Self::StoreLost { .. } => EventKind::StoreLost,
            Self::StoreBack { .. } => EventKind::StoreBack,
        }
    }
}

impl Event {
    /// One object, on one line.
    pub(super) fn to_json(&self, names: &KeyNames) -> String {
        let mut fields = Map::new();
        fields.insert("event".to_owned(), json!(self.what.kind().name()));
        fields.insert("time".to_owned(), json!(rfc_3339(self.at)));
        match &self.what {
            What::Key(notice, key) => {
                key.write(names, &mut fields);
                if let Notice::DeniedWholeWindow(nanos) = notice {
                    fields.insert("denied_seconds".to_owned(), json!(nanos / 1_000_000_000));
                }
            }
            What::BanBegan { ban, left_out } => {
                write_ban(ban, names, &mut fields);
                fields.insert("left_out".to_owned(), json!(left_out));
            }
            What::BanEnded(ban) => write_ban(ban, names, &mut fields),
            What::ReloadRefused { problems, count } => {
                fields.insert("problems".to_owned(), json!(problems));
                fields.insert("problem_count".to_owned(), json!(count));
            }
            What::StoreLost { store, why } => {
                fields.insert("store".to_owned(), json!(store));
                fields.insert("reason".to_owned(), json!(why));
            }
            What::StoreBack { store } => {
                fields.insert("store".to_owned(), json!(store));
            }
        }
        Value::Object(fields).to_string()
    }
}

/// A ban: whose it is, and how long it was to last when this node saw it first.
fn write_ban(ban: &SeenBan, names: &KeyNames, fields: &mut Map<String, Value>) {
    fields.insert("domain".to_owned(), json!(cut_text(&ban.domain)));
    fields.insert("rule".to_owned(), json!(ban.rule));
    fields.insert("key_hash".to_owned(), json!(names.hash(ban.key)));
    if names.shows_entries {
        let entry =
            |(key, value): &(Box<str>, Box<str>)| json!({"key": cut_text(key), "value": cut_text(value)});
        fields.insert("entries".to_owned(), ban.entries.iter().map(entry).collect());
    }
    fields.insert("ban_seconds".to_owned(), json!(ceil_secs(ban.until.nanos_since(ban.since))));
}

/// A text from outside, cut.
fn cut_text(text: &str) -> String {
    cut(text, TEXT_CHARS_MAX).into_owned()
}

/// What is wrong, on one line, cut.
fn problem_text(problem: &str) -> String {
    one_line(&cut(problem, PROBLEM_CHARS_MAX)).into_owned()
}

/// Bytes in hex digits, in lower case.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// In UTC, to the millisecond: `2026-11-22T18:30:00.250Z`.
fn rfc_3339(at: Timestamp) -> String {
    let millis = at.as_nanos() / 1_000_000;
    let (secs, millis) = (millis / 1_000, millis % 1_000);
    let (days, secs) = (secs / 86_400, secs % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (secs / 3_600, secs / 60 % 60, secs % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// The date of a day since 1970-01-01. (Howard Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`.)
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (secs, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_795_372_199, "2026-11-22T18:29:59.000Z"),
            (4_107_542_399, "2100-02-28T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc_3339(Timestamp::from_nanos(secs * 1_000_000_000)), text);
        }
        assert_eq!(rfc_3339(Timestamp::from_nanos(1_999_999_999)), "1970-01-01T00:00:01.999Z");
    }
}
