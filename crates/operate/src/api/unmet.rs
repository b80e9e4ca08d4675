//! Warns of an exception or a record that changes nothing under the rules in force: a name in it may be misspelt. And
//! refuses an exception whose numbers its rule does not have.
//!
//! In: the exception or record, and the rules. Out: a sentence, or nothing. Of an exception with a pattern only the
//! domain is compared.

use crate::bodies::Mistake;
use tidegate_engine::limit::Algorithm;
use tidegate_engine::overlay::{Effect, Exception};
use tidegate_engine::path::PathEntry;
use tidegate_engine::plan::{Modes, Step};
use tidegate_engine::request::{DescriptorOptions, Entry, Request};
use tidegate_engine::rules::RuleSet;
use tidegate_records::{Record, RecordKey};

/// Why an exception changes nothing now, if so.
pub(super) fn of_exception(exception: &Exception, rules: &RuleSet) -> Option<String> {
    let path = &exception.path;
    let is_compared = exception.is_exact() || rules.actions(&path.domain).is_none();
    let entries: Vec<_> = path.entries.iter().map(entry_of).collect();
    let why = rules.why_unmet(&path.domain, &entries).filter(|_| is_compared)?;
    Some(format!("{why}, so nothing changes"))
}

/// Refuses an N that the counters of the rule cannot hold, and another `burst` of a bound on calls in flight, which has none.
/// With a rate limit in the same rule it is that of the rate limit, which comes first.
pub(super) fn check_numbers(exception: &Exception, rules: &RuleSet) -> Result<(), Mistake> {
    let Effect::Limit { requests, burst } = exception.effect else { return Ok(()) };
    let mut request = Request::new(&exception.path.domain, 1);
    request.push(exception.path.entries.iter().map(entry_of), DescriptorOptions::default());
    let plan = rules.plan(&request, Modes::default());
    let Some(Step::Check(check)) = plan.steps.first() else { return Ok(()) };
    let algorithm = check.limit.algorithm();
    if burst.is_some() && algorithm == Algorithm::Concurrency {
        return Err(Mistake::of(
            "burst",
            "expected requests_per_unit alone: this rule counts calls in flight",
        ));
    }
    let most = algorithm.requests_max();
    if requests.is_some_and(|requests| requests > most) {
        return Err(Mistake::of(
            "requests_per_unit",
            format!("expected at most {most} by this rule's algorithm"),
        ));
    }
    Ok(())
}

/// Why a record, its anchor, its algorithm or a part of its N changes nothing now, if so.
pub(super) fn of_record(key: &RecordKey, record: &Record, rules: &RuleSet) -> Option<String> {
    let unread = key.with_entries(|domain, entries| rules.why_unread(domain, entries));
    let unread = unread.map(|why| format!("{why}, so nothing changes"));
    unread.or_else(|| {
        key.with_entries(|domain, entries| {
            let anchor = record.anchor.and_then(|anchor| rules.why_not_anchored(domain, entries, anchor));
            let anchor = anchor.map(|why| format!("{why}, so the anchor changes nothing"));
            let algorithm = || rules.why_not_by(domain, entries, record.algorithm?);
            let algorithm = || algorithm().map(|why| format!("{why}, so the algorithm changes nothing"));
            anchor
                .or_else(algorithm)
                .or_else(|| rules.why_cut(domain, entries, record.requests, record.algorithm))
        })
    })
}

/// Whether a record changes anything now. It is cheap, so it can be called for millions.
pub(super) fn is_read(key: &RecordKey, rules: &RuleSet) -> bool {
    key.with_entries(|domain, entries| rules.reads_record(domain, entries))
}

/// The entry that a level matches, if the level has a value.
fn entry_of(PathEntry { key, value }: &PathEntry) -> Entry<'_> {
    Entry { key, value: value.as_deref().unwrap_or_default() }
}
