//! The text of the lines.

use std::fmt::{self, Display, Formatter};
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::LazyLock;

use foldhash::quality::RandomState;

use tidegate_engine::decision::{Banned, Code, Limited, Status};
use tidegate_engine::overlay::{Finding, Met as Exception, Overlay};
use tidegate_engine::request::{Entry, Request};
use tidegate_engine::rules::{End, Met, RuleSet};
use tidegate_engine::text::{cut, one_line};
use tidegate_engine::time::ceil_secs;

/// The most characters that are shown of a text from a request.
const TEXT_CHARS_MAX: usize = 64;

/// Writes a decision: the domain, and each descriptor with its entries and its result.
#[derive(Clone, Copy)]
pub(super) struct DecisionText<'a, 'r> {
    pub(super) rules: &'a RuleSet,
    pub(super) request: &'a Request<'r>,
    /// The overall code, and whether SHADOW_MODE changed it.
    pub(super) code: (Code, bool),
    pub(super) statuses: &'a [Status<'a>],
    /// The exceptions that its descriptors met.
    pub(super) exceptions: &'a [Exception],
    /// The bans that deny it.
    pub(super) bans: &'a [Banned<'a>],
    /// The overlay that it was decided under.
    pub(super) overlay: Overlay<'a>,
    pub(super) shows_values: bool,
}

/// Writes one descriptor of a decision.
pub(super) struct DescriptorText<'a, 'r> {
    decision: DecisionText<'a, 'r>,
    place: usize,
    /// Leaves out the result.
    is_kind: bool,
}

impl<'a, 'r> DecisionText<'a, 'r> {
    /// The denial of the descriptor at this place.
    pub(super) fn denial(self, place: usize) -> DescriptorText<'a, 'r> {
        DescriptorText { decision: self, place, is_kind: false }
    }

    /// The descriptor at this place, which matched no rule, without its values.
    pub(super) fn unmatched(self, place: usize) -> DescriptorText<'a, 'r> {
        DescriptorText { decision: Self { shows_values: false, ..self }, place, is_kind: true }
    }

    /// A hash of the domain and the keys of the descriptor at this place.
    pub(super) fn kind(&self, place: usize) -> Option<u64> {
        static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::default);
        let descriptor = self.request.descriptors().nth(place)?;
        let mut hasher = SEED.build_hasher();
        self.request.domain().hash(&mut hasher);
        descriptor.entries.iter().for_each(|entry| entry.key.hash(&mut hasher));
        Some(hasher.finish())
    }

    fn entries(&self, place: usize) -> &'a [Entry<'r>] {
        self.request.descriptors().nth(place).map_or(&[], |descriptor| descriptor.entries)
    }

    fn write_descriptor(&self, out: &mut Formatter<'_>, place: usize) -> fmt::Result {
        self.write_entries(out, self.entries(place))?;
        out.write_str(": ")?;
        match self.statuses.get(place) {
            Some(Status::Limited(limited)) => {
                write_limited(out, limited)?;
                if let Some(ban) = self.bans.iter().find(|ban| ban.descriptor == place) {
                    write!(out, ", banned for {} s", ceil_secs(ban.nanos_left))?;
                }
                if let Some((class, _)) =
                    limited.origin.rule().and_then(|rule| rule.class_of(self.entries(place)))
                {
                    let (capacity, burst) = (limited.limit.capacity(), limited.limit.burst());
                    write!(out, ", class {}: {capacity} of {burst}", one_line(class))?;
                }
                self.write_overlay(out, limited, place)
            }
            Some(Status::Unlimited(rule)) => write!(out, "OK, {} is unlimited", one_line(&rule.path())),
            Some(Status::Replaced(rule)) => write!(out, "OK, {} is replaced", one_line(&rule.path())),
            Some(Status::NoLimit) => self.write_end(out, place),
            None => Ok(()),
        }
    }

    /// `user=alice, plan=free`, or without values `user, plan`.
    fn write_entries(&self, out: &mut Formatter<'_>, entries: &[Entry<'_>]) -> fmt::Result {
        for (place, entry) in entries.iter().enumerate() {
            let comma = if place > 0 { ", " } else { "" };
            match self.shows_values {
                true => write!(out, "{comma}{}={}", text(entry.key), text(entry.value))?,
                false => write!(out, "{comma}{}", text(entry.key))?,
            }
        }
        if entries.is_empty() { out.write_str("no entries") } else { Ok(()) }
    }

    /// Writes the exception and the record that changed the limit of a rule.
    fn write_overlay(&self, out: &mut Formatter<'_>, limited: &Limited<'_>, place: usize) -> fmt::Result {
        let own = limited.origin.rule().and_then(|rule| rule.limit);
        if let Some(met) = self.exceptions.iter().find(|met| met.descriptor == place) {
            let shown = if self.shows_values { met.clone() } else { met.unlabelled() };
            write!(out, ", exception {}", one_line(&shown.text(own.as_ref())))?;
        }
        match self.overlay.records.map(|found| found.of(place)) {
            None | Some(Finding { record: None, unconfirmed: None }) => Ok(()),
            Some(finding) => write!(out, ", record {}", finding.text(own.as_ref())),
        }
    }

    /// Writes the node at which the walk through the rules ended.
    fn write_end(&self, out: &mut Formatter<'_>, place: usize) -> fmt::Result {
        let entries = self.entries(place);
        let walk = self.rules.walk(self.request.domain(), entries);
        match walk.end {
            End::NoDomain(_) => return out.write_str("OK, the domain has no rules"),
            End::NoNode(_) => out.write_str("OK, no rule below ")?,
            End::NoLimit(_) | End::Rule(_) => out.write_str("OK, no limit at ")?,
        }
        if walk.met().next().is_none() {
            return out.write_str("the domain");
        }
        for (place, (met, entry)) in walk.met().zip(entries).enumerate() {
            let dot = if place > 0 { "." } else { "" };
            match met {
                Met::Exact if self.shows_values => {
                    write!(out, "{dot}{}_{}", text(entry.key), text(entry.value))?;
                }
                Met::Pattern(pattern) => write!(out, "{dot}{}_{}", text(entry.key), text(pattern))?,
                Met::Exact | Met::Any => write!(out, "{dot}{}", text(entry.key))?,
            }
        }
        Ok(())
    }
}

impl Display for DescriptorText<'_, '_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Self { decision, place, is_kind } = self;
        write!(out, "domain {}: ", text(decision.request.domain()))?;
        match is_kind {
            true => decision.write_entries(out, decision.entries(*place)),
            false => decision.write_descriptor(out, *place),
        }
    }
}

impl Display for DecisionText<'_, '_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let (code, is_shadowed) = self.code;
        write!(out, "{}, domain {}", code.name(), text(self.request.domain()))?;
        if is_shadowed {
            out.write_str(" (OVER_LIMIT, but for SHADOW_MODE)")?;
        }
        (0..self.statuses.len()).try_for_each(|place| {
            out.write_str("; ")?;
            self.write_descriptor(out, place)
        })
    }
}

fn write_limited(out: &mut Formatter<'_>, limited: &Limited<'_>) -> fmt::Result {
    let code = if limited.is_denied() { "OVER_LIMIT" } else { "OK" };
    let but = if limited.verdict.over && limited.shadow { " in shadow mode" } else { "" };
    match limited.origin.rule() {
        Some(rule) => write!(out, "{code}{but} by {}", one_line(&rule.path()))?,
        None => write!(out, "{code} by the request's own limit")?,
    }
    write!(out, " ({})", limited.limit.counts(limited.origin.window()))
}

/// A text from a request on one line: cut when it is long, quoted when it could look like more than one text.
fn text(text: &str) -> String {
    let text = cut(text, TEXT_CHARS_MAX);
    let is_plain = |char: char| char.is_alphanumeric() || "-_./@%+*~…".contains(char);
    match text.chars().all(is_plain) {
        true => text.into_owned(),
        false => format!("\"{}\"", one_line(&text.replace('\\', "\\\\").replace('"', "\\\""))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_escaped_and_quoted_where_it_could_be_more_than_one() {
        assert_eq!(text("al.ice@10%"), "al.ice@10%");
        assert_eq!(text("a, b=\"\\\n\u{1b}"), r#""a, b=\"\\\n\u{1b}""#);
        assert_eq!(text(&"é".repeat(100)), "é".repeat(TEXT_CHARS_MAX) + "…");
    }
}
