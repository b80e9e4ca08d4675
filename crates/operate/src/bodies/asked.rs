//! What is asked for: the bodies of requests, a type each. A comment on a field is its description in `openapi.json`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::reader::{Mistake, unless_null};
use super::values::{Burst, Item, List, Number, Positive, Requests, ResetId, Text, Time, Words};
use tidegate_engine::path::{Path, PathEntry};
use tidegate_engine::rules::{Reach, ResetPath};

/// The most records of a page.
const PAGE_MAX: u64 = 10_000;

/// How many it has if nobody says.
fn page() -> Number<1, PAGE_MAX> {
    Number::from(1_000)
}

/// A key, and maybe a value.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, expecting = "an object with `key` and, maybe, `value`")]
pub struct Level {
    /// The key.
    pub key: Words,
    /// The value, in which each `*` stands for zero or more characters. Absent: every value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Text>,
}

/// A key, and maybe a value, as a rule has them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, expecting = "an object with `key` and, maybe, `value`")]
pub struct RuleNode {
    /// The key.
    pub key: Text,
    /// The value or pattern of the rule. Without it: the rule that names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Text>,
}

/// An entry of a descriptor. Requests may have longer texts than paths.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, expecting = "an object with `key` and `value`")]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The value.
    pub value: String,
}

/// An entry that leads to a counter which is reset.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, expecting = "an object with `key` and `value`")]
pub struct CounterEntry {
    /// The key.
    pub key: Text,
    /// The value.
    pub value: Text,
}

/// What an entry of a record's key begins with.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, expecting = "an object with `key` and, maybe, `value`")]
pub struct KeyLevel {
    /// The key.
    pub key: String,
    /// The value. Absent: every value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// Exactly one of: requests_per_unit and/or burst; unlimited; deny.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, expecting = "an object")]
pub struct Exception {
    /// Its name, as in the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<Text>,
    /// The domain.
    pub domain: Words,
    /// The entries of the descriptors that it fits, all of them and in order.
    pub entries: List<Level, 1>,
    /// Another N. The window and the counted hits stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_unit: Option<Requests>,
    /// Another burst, for token_bucket and leaky_bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<Burst>,
    /// Counted, and never denied.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unlimited: bool,
    /// Nothing passes.
    #[serde(default, skip_serializing_if = "is_false")]
    pub deny: bool,
    /// Who makes it.
    pub who: Words,
    /// Why.
    pub why: Words,
    /// When it begins. Absent: at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Time>,
    /// When it ends. Absent: when somebody ends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// When it was made. Ignored in requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub made: Option<Time>,
}

/// Who ends an exception.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, expecting = "an object")]
pub struct Who {
    /// Who ends it.
    pub who: Words,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<Words>,
}

/// The entries that lead to a counter, or those of a record.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, expecting = "an object with `domain` and `entries`")]
pub struct DomainEntries {
    /// The domain.
    pub domain: String,
    /// The entries of a descriptor, all of them and in order.
    pub entries: List<Entry, 1>,
}

/// The reset of one counter.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, expecting = "an object")]
pub struct ResetCounter {
    /// The domain.
    pub domain: Text,
    /// The entries of a descriptor, all of them and in order.
    pub entries: List<CounterEntry, 1>,
    /// Who resets it.
    pub who: Words,
    /// Why.
    pub why: Words,
    /// Its number. Absent: the time when it is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<ResetId>,
}

/// The reset of all counters below a path.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, expecting = "an object")]
pub struct ResetBelow {
    /// The domain.
    pub domain: Text,
    /// The first entries of the rules, as the rules have them. None: all rules of the domain.
    #[serde(default)]
    pub entries: List<RuleNode, 0>,
    /// Who resets them.
    pub who: Words,
    /// Why.
    pub why: Words,
    /// Its number. Absent: the time when it is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<ResetId>,
}

/// The ban of a descriptor's key.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, expecting = "an object")]
pub struct Ban {
    /// The domain.
    pub domain: String,
    /// The entries of a descriptor, all of them and in order. The ban is about those that its rule names.
    pub entries: List<Entry, 1>,
    /// How long it lasts from now, in whole seconds, such as `90s` or `1h30m`: 1 second to 366 days.
    #[serde(rename = "for")]
    pub lasts: Text,
    /// Who bans it.
    pub who: Words,
    /// Why.
    pub why: Words,
}

/// Whose ban is lifted.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, expecting = "an object")]
pub struct LiftBan {
    /// The domain.
    pub domain: String,
    /// The entries of a descriptor, all of them and in order.
    pub entries: List<Entry, 1>,
    /// Who lifts it.
    pub who: Words,
    /// Why.
    pub why: Words,
}

/// A rule whose counters are asked for, or the first rules.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, expecting = "an object")]
pub struct TopCounters {
    /// Without it and without entries: the first eight rules that have a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<Text>,
    /// The entries of the rule, as the rules have them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entries: Option<List<RuleNode, 0>>,
    /// The most counters of each kind; at most 64 are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most: Option<Number<0, { u64::MAX }>>,
}

/// Where the periods of a calendar budget begin.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(inline))]
#[serde(untagged, expecting = "a day of the month, a weekday or a date")]
pub enum RecordAnchor {
    /// A day of the month.
    Day(u32),
    /// A day of the month, a weekday or a date.
    Text(Text),
}

/// A Record, with who makes it and why.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, expecting = "an object")]
pub struct PutRecord {
    /// The domain.
    pub domain: String,
    /// The entries of a descriptor, all of them and in order.
    pub entries: List<Entry, 1>,
    /// N. Required unless `unlimited`.
    #[serde(default, deserialize_with = "unless_null", skip_serializing_if = "Option::is_none")]
    pub requests_per_unit: Option<Requests>,
    /// The capacity, if the limit is a bucket.
    #[serde(default, deserialize_with = "unless_null", skip_serializing_if = "Option::is_none")]
    pub burst: Option<Positive>,
    /// Another window: second, minute, hour, day, week, month or year.
    #[serde(default, deserialize_with = "unless_null", skip_serializing_if = "Option::is_none")]
    pub unit: Option<Text>,
    /// The window is so many units.
    #[serde(default, deserialize_with = "unless_null", skip_serializing_if = "Option::is_none")]
    pub unit_multiplier: Option<Positive>,
    /// Another window as a duration, such as 90s, instead of `unit`.
    #[serde(default, deserialize_with = "unless_null", skip_serializing_if = "Option::is_none")]
    pub window: Option<Text>,
    /// Another algorithm.
    #[serde(default, deserialize_with = "unless_null", skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<Text>,
    /// Another width of the buckets of sliding_window, such as 1s.
    #[serde(default, deserialize_with = "unless_null", skip_serializing_if = "Option::is_none")]
    pub granularity: Option<Text>,
    /// Where the periods of a calendar budget begin: a day of the month such as 15, a weekday such as sunday, or a date such
    /// as 04-06.
    #[serde(default, deserialize_with = "unless_null", skip_serializing_if = "Option::is_none")]
    pub anchor: Option<RecordAnchor>,
    /// Whether it only counts and reports.
    #[serde(default, deserialize_with = "unless_null", skip_serializing_if = "Option::is_none")]
    pub shadow_mode: Option<bool>,
    /// Counted, and never denied.
    #[serde(default, deserialize_with = "unless_null", skip_serializing_if = "Option::is_none")]
    pub unlimited: Option<bool>,
    /// Who asks for it.
    pub who: Words,
    /// Why.
    pub why: Words,
}

/// Which record is deleted, and who does it.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, expecting = "an object")]
pub struct DeleteRecord {
    /// The domain.
    pub domain: String,
    /// The entries of a descriptor, all of them and in order.
    pub entries: List<Entry, 1>,
    /// Who asks for it.
    pub who: Words,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<Text>,
}

/// Which records are listed.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, expecting = "an object")]
pub struct ListRecords {
    /// Only those of this domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Only those that begin with these entries. The last one may have no value.
    #[serde(default)]
    pub entries: List<KeyLevel, 0>,
    /// Where the page begins: `next` of the page before.
    #[serde(default, deserialize_with = "unless_null", skip_serializing_if = "Option::is_none")]
    pub after: Option<DomainEntries>,
    /// The most records of the page.
    #[serde(default = "page")]
    pub most: Number<1, PAGE_MAX>,
}

fn is_false(is: &bool) -> bool {
    !is
}

impl Item for Level {
    const SOME: &str = "objects with `key` and, maybe, `value`";
}

impl Item for RuleNode {
    const SOME: &str = Level::SOME;
}

impl Item for KeyLevel {
    const SOME: &str = Level::SOME;
}

impl Item for Entry {
    const SOME: &str = "objects with `key` and `value`";
}

impl Item for CounterEntry {
    const SOME: &str = Entry::SOME;
}

impl From<Level> for PathEntry {
    fn from(Level { key, value }: Level) -> Self {
        Self { key: key.into_string(), value: value.map(Text::into_string) }
    }
}

impl From<RuleNode> for PathEntry {
    fn from(RuleNode { key, value }: RuleNode) -> Self {
        Self { key: key.into_string(), value: value.map(Text::into_string) }
    }
}

impl From<CounterEntry> for PathEntry {
    fn from(CounterEntry { key, value }: CounterEntry) -> Self {
        Self { key: key.into_string(), value: Some(value.into_string()) }
    }
}

/// The path to what is reset or shown.
fn reset_path<E: Clone + Into<PathEntry>, const MIN: usize>(
    domain: &Text,
    entries: &List<E, MIN>,
    reach: Reach,
) -> ResetPath {
    let entries = entries.0.iter().cloned().map(Into::into).collect();
    ResetPath { path: Path { domain: domain.as_str().into(), entries }, reach }
}

impl ResetCounter {
    /// The path to the counter.
    pub fn path(&self) -> ResetPath {
        reset_path(&self.domain, &self.entries, Reach::Counter)
    }
}

impl From<&ResetCounter> for DomainEntries {
    fn from(reset: &ResetCounter) -> Self {
        let text = |text: &Text| text.as_str().to_owned();
        let entry = |entry: &CounterEntry| Entry { key: text(&entry.key), value: text(&entry.value) };
        Self { domain: text(&reset.domain), entries: List(reset.entries.0.iter().map(entry).collect()) }
    }
}

impl ResetBelow {
    /// The path to the rules.
    pub fn path(&self) -> ResetPath {
        reset_path(&self.domain, &self.entries, Reach::Below)
    }
}

impl TopCounters {
    /// The path to the rule. `None`: the first rules are asked for.
    /// Fails for entries without a domain.
    pub fn path(&self) -> Result<Option<Path>, Mistake> {
        match (&self.domain, &self.entries) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(Mistake::of("domain", "is missing")),
            (Some(domain), None) => Ok(Some(Path { domain: domain.as_str().into(), entries: Vec::new() })),
            (Some(domain), Some(entries)) => Ok(Some(reset_path(domain, entries, Reach::Below).path)),
        }
    }
}

impl PutRecord {
    /// The record alone, as files have it too.
    pub fn record(&self) -> Value {
        let mut record = serde_json::to_value(self).expect("texts and numbers are JSON");
        if let Some(fields) = record.as_object_mut() {
            fields.retain(|name, _| name != "who" && name != "why");
        }
        record
    }
}
