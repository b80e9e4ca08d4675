//! What commands send: the bodies of the admin API, made from the command line. The API checks whether they make
//! sense.

use clap::ArgMatches;

use super::given;
use tidegate_engine::time::Timestamp;
use tidegate_operate::bodies::asked::{
    CounterEntry, DeleteRecord, DomainEntries, Entry, Exception, KeyLevel, Level, ListRecords, PutRecord,
    RecordAnchor, ResetBelow, ResetCounter, RuleNode, TopCounters, Who,
};
use tidegate_operate::bodies::values::{List, Number, ResetId, Text, Time, Words};

/// The text of an argument that only some commands have.
pub(super) fn text(own: &ArgMatches, name: &str) -> Option<String> {
    given(own, name).cloned()
}

/// An exception, with when it begins and ends.
pub(super) fn exception(own: &ArgMatches, [from, until]: [Option<Timestamp>; 2]) -> Exception {
    let level = |key: String, value: Option<String>| Level { key: key.into(), value: value.map(Text::from) };
    Exception {
        id: None,
        domain: words(own, "domain"),
        entries: List(entries(own, level)),
        requests_per_unit: number(own, "requests-per-unit"),
        burst: number(own, "burst"),
        unlimited: flag(own, "unlimited"),
        deny: flag(own, "deny"),
        who: words(own, "who"),
        why: words(own, "why"),
        from: from.map(Time),
        until: until.map(Time),
        made: None,
    }
}

/// The end of an exception.
pub(super) fn end(own: &ArgMatches) -> Who {
    Who { who: words(own, "who"), why: text(own, "why").map(Words::from) }
}

/// A counter, or the key of a record.
pub(super) fn counter(own: &ArgMatches) -> DomainEntries {
    DomainEntries { domain: domain(own), entries: List(entries(own, entry)) }
}

/// The reset of a counter.
pub(super) fn reset(own: &ArgMatches, id: ResetId) -> ResetCounter {
    let entry = |key: String, value: Option<String>| CounterEntry {
        key: key.into(),
        value: value.unwrap_or_default().into(),
    };
    ResetCounter {
        domain: domain(own).into(),
        entries: List(entries(own, entry)),
        who: words(own, "who"),
        why: words(own, "why"),
        id: Some(id),
    }
}

/// The reset of all counters below a path.
pub(super) fn reset_below(own: &ArgMatches, id: ResetId) -> ResetBelow {
    ResetBelow {
        domain: domain(own).into(),
        entries: List(entries(own, node)),
        who: words(own, "who"),
        why: words(own, "why"),
        id: Some(id),
    }
}

/// A rule whose counters are asked for.
pub(super) fn rule(own: &ArgMatches) -> TopCounters {
    TopCounters {
        domain: text(own, "domain").map(Text::from),
        entries: given::<String>(own, "entries").is_some().then(|| List(entries(own, node))),
        most: number(own, "most"),
    }
}

pub(super) fn record(own: &ArgMatches) -> PutRecord {
    PutRecord {
        domain: domain(own),
        entries: List(entries(own, entry)),
        requests_per_unit: number(own, "requests-per-unit"),
        burst: number(own, "burst"),
        unit: text(own, "unit").map(Text::from),
        unit_multiplier: number(own, "unit-multiplier"),
        window: text(own, "window").map(Text::from),
        algorithm: text(own, "algorithm").map(Text::from),
        granularity: text(own, "granularity").map(Text::from),
        anchor: text(own, "anchor").map(|text| RecordAnchor::Text(text.into())),
        shadow_mode: given(own, "shadow-mode").copied(),
        unlimited: flag(own, "unlimited").then_some(true),
        who: words(own, "who"),
        why: words(own, "why"),
    }
}

/// The end of a record.
pub(super) fn delete(own: &ArgMatches) -> DeleteRecord {
    let DomainEntries { domain, entries } = counter(own);
    DeleteRecord { domain, entries, who: words(own, "who"), why: text(own, "why").map(Text::from) }
}

/// The first page of records.
pub(super) fn page(own: &ArgMatches, most: u64) -> ListRecords {
    let level = |key: String, value: Option<String>| KeyLevel { key, value };
    let (domain, entries) = (text(own, "domain"), List(entries(own, level)));
    ListRecords { domain, entries, after: None, most: most.into() }
}

fn domain(own: &ArgMatches) -> String {
    text(own, "domain").unwrap_or_default()
}

fn words(own: &ArgMatches, name: &str) -> Words {
    text(own, name).unwrap_or_default().into()
}

fn flag(own: &ArgMatches, name: &str) -> bool {
    given(own, name) == Some(&true)
}

fn number<const MIN: u64, const MAX: u64>(own: &ArgMatches, name: &str) -> Option<Number<MIN, MAX>> {
    given::<u64>(own, name).map(|number| Number::from(*number))
}

/// The entries, each a key and maybe a value.
fn entries<E>(own: &ArgMatches, entry: impl Fn(String, Option<String>) -> E) -> Vec<E> {
    if given::<String>(own, "entries").is_none() {
        return Vec::new();
    }
    let words = own.get_many::<String>("entries").into_iter().flatten();
    let entry = |word: &String| match word.split_once('=') {
        Some((key, value)) => entry(key.to_owned(), Some(value.to_owned())),
        None => entry(word.clone(), None),
    };
    words.map(entry).collect()
}

fn entry(key: String, value: Option<String>) -> Entry {
    Entry { key, value: value.unwrap_or_default() }
}

fn node(key: String, value: Option<String>) -> RuleNode {
    RuleNode { key: key.into(), value: value.map(Text::from) }
}
