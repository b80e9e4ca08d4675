//! Warns of an exception that changes nothing under the rules in force: a name in it may be misspelt.
//!
//! In: an exception and the rules. Out: a sentence, or nothing. One with a pattern is only compared by its domain.

use tidegate_engine::exceptions::{Exception, Level};
use tidegate_engine::plan::{Modes, Step};
use tidegate_engine::request::{DescriptorOptions, Entry, Request};
use tidegate_engine::rules::RuleSet;

/// Why an exception changes nothing now, if that is so.
pub(super) fn warning(exception: &Exception, rules: &RuleSet) -> Option<&'static str> {
    if rules.actions(&exception.domain).is_none() {
        return Some("no rules of this domain are in force, so nothing changes");
    }
    let mut request = Request::new(&exception.domain, 1);
    request.push(exception.entries.iter().map(entry_of), DescriptorOptions::default());
    let plan = rules.plan(&request, Modes::default());
    let is_unmet = exception.is_exact() && matches!(plan.steps[..], [Step::Unmatched]);
    is_unmet.then_some("no rule applies to these entries, so nothing changes")
}

/// The entry that a level fits, if it names its value.
fn entry_of(Level { key, value }: &Level) -> Entry<'_> {
    Entry { key, value: value.as_deref().unwrap_or_default() }
}
