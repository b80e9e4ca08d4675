//! What is answered: the bodies of answers, a type each. A comment on a field is its description in `openapi.json`.

use serde::Serialize;
use serde_json::Value;

use super::asked::{DomainEntries, Entry, Exception, RuleNode};
use super::values::{List, ResetId, Text, Time};

/// Why the request failed.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Error {
    /// What is wrong.
    pub error: String,
}

/// An exception, as it was made.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Listed {
    /// The exception.
    #[serde(flatten)]
    pub exception: Exception,
    /// Whether it has begun and not ended.
    pub in_force: bool,
}

/// The outcome of a change of an exception.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Changed {
    /// Its name.
    pub id: String,
    /// The outcome, in one word.
    pub done: ExceptionDone,
    /// Whether nodes share a Redis, or EXCEPTIONS_FILE is set.
    pub survives_restart: bool,
    /// All nodes, where they share a Redis. Else other processes do not know the exception: send it to each.
    pub holds_for: HoldsFor,
    /// Why it changes nothing under the rules in force, if that is so: a name in it may be misspelt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// What became of a change of an exception, in one word.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum ExceptionDone {
    Made,
    Replaced,
    Unchanged,
    Ended,
}

/// For whom a change holds.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(inline))]
#[allow(missing_docs)]
pub enum HoldsFor {
    #[serde(rename = "this process")]
    ThisProcess,
    #[serde(rename = "all nodes with this Redis")]
    AllNodes,
}

/// What became of a reset, in one word.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum ResetOutcome {
    Reset,
    Unchanged,
}

/// A counter that was reset.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Reset {
    /// The number of the reset.
    pub id: ResetId,
    /// The outcome, in one word.
    pub done: ResetOutcome,
    /// What the counter held before.
    #[cfg_attr(test, schemars(with = "super::tests::Explanation"))]
    pub before: Value,
    /// What it holds now.
    #[cfg_attr(test, schemars(with = "super::tests::Explanation"))]
    pub after: Value,
}

/// Counters that were reset.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ResetDone {
    /// The number of the reset.
    pub id: ResetId,
    /// The outcome, in one word.
    pub done: ResetOutcome,
    /// How many rules have counters there.
    pub rules: usize,
}

/// A ban that this node has seen.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KnownBan {
    /// The domain.
    pub domain: String,
    /// The path of the rule.
    pub rule: String,
    /// The entries of the descriptor that this node denied first. Long texts are cut.
    pub entries: List<Entry, 0>,
    /// When this node saw it first.
    pub since: Time,
    /// When it ends.
    pub until: Time,
}

/// The outcome of a change of a ban.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BanChanged {
    /// The outcome, in one word.
    pub done: BanOutcome,
}

/// What became of a change of a ban, in one word.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum BanOutcome {
    Banned,
    Lifted,
    Unchanged,
}

/// The last reset of a path.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LastReset {
    /// The domain.
    pub domain: Text,
    /// The first entries of the rules, as the rules have them. None: all rules of the domain.
    pub entries: List<RuleNode, 0>,
    /// True: one counter was reset, that of a descriptor with these entries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counter: Option<bool>,
    /// The number of the reset.
    pub id: ResetId,
    /// When it was.
    pub at: Time,
}

/// What is known of the counters of a rule.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Top {
    /// The rule.
    pub rule: String,
    /// Since when the rule is watched.
    pub since: Time,
    /// How long that is.
    pub watched_seconds: u64,
    /// The fullest counters.
    pub fullest: Vec<Fullest>,
    /// The counters that deny most.
    pub denied: Vec<Denied>,
}

/// A counter that is nearly full.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Fullest {
    /// Distinguishes counters.
    pub key: CounterKey,
    /// The descriptor.
    pub entries: String,
    /// Hits that were used.
    pub used: u64,
    /// Hits that the limit allows.
    pub limit: u64,
    /// When it was last asked.
    pub at: Time,
}

/// A counter that denies much.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Denied {
    /// Distinguishes counters.
    pub key: CounterKey,
    /// The descriptor.
    pub entries: String,
    /// Denials, at most.
    pub count: u64,
    /// By how much the count may be too high.
    pub error: u64,
}

/// A key in hex, which distinguishes counters.
#[derive(Debug, Serialize)]
pub struct CounterKey(pub String);

/// How many rules a question about the first ones leaves out.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LeftOut {
    /// Their number.
    pub rules_left_out: usize,
}

/// A page of records.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Records {
    /// The records.
    #[cfg_attr(test, schemars(with = "Vec<super::tests::Record>"))]
    pub records: Vec<Value>,
    /// What to pass as `after` for the next page. Null: this is the last.
    pub next: Option<DomainEntries>,
}

/// The outcome of a change of a record.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Done {
    /// The outcome, in one word.
    pub done: RecordDone,
    /// Why a record changes nothing under the rules in force, if that is so: a name in it may be misspelt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// What became of a change of a record, in one word.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum RecordDone {
    Made,
    Replaced,
    Unchanged,
    Deleted,
}

/// The outcome of a load.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Loaded {
    /// Records that were loaded.
    pub loaded: u64,
    /// Good records in batches with a bad line, which were not loaded.
    pub not_loaded: u64,
    /// Good records that no rule reads, if there are any.
    #[serde(skip_serializing_if = "is_none")]
    pub unread: u64,
    /// Why no rule reads the first of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(test, schemars(length(max = 10)))]
    pub warnings: Vec<LineWarning>,
    /// Bad lines.
    pub bad: u64,
    /// The first bad lines.
    #[cfg_attr(test, schemars(length(max = 100)))]
    pub problems: Vec<LineProblem>,
    /// Why the load ended early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A record that no rule reads.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LineWarning {
    /// From 1.
    pub line: u64,
    /// Why.
    pub warning: Option<String>,
}

/// A line that is no record.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LineProblem {
    /// From 1.
    pub line: u64,
    /// Why.
    pub problem: String,
}

fn is_none(count: &u64) -> bool {
    *count == 0
}
