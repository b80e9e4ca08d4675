//! A report as text, for people in terminals.

use std::fmt::{self, Display, Formatter};

use tidegate_engine::stamp;
use tidegate_engine::text::one_line;

use super::{KEYS_MAX, KeyReport, Report, RuleReport, SideReport};
use crate::replay::trials::TrialNumbers;

/// Keys that are shown in each list.
const KEYS_SHOWN: usize = 10;

/// How wide the name of a rule or key may be before its line is longer than the others.
const NAME_WIDTH: usize = 44;

impl Display for Report {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        self.head(out)?;
        self.side.rules(out)?;
        if let Some(against) = &self.against {
            writeln!(out, "\nthe rules that they are compared with")?;
            against.rules(out)?;
            keys(out, "newly denied", &self.side.changed, |key| key.numbers.changed)?;
            keys(out, "newly admitted", &against.changed, |key| key.numbers.changed)?;
        }
        let denied: Vec<_> = self.side.keys.iter().filter(|key| key.numbers.denied > 0).cloned().collect();
        keys(out, "denied most", &denied, |key| key.numbers.denied)?;
        for line in &self.unreadable {
            writeln!(out, "unreadable: {line}")?;
        }
        self.notes.iter().try_for_each(|note| writeln!(out, "note: {note}"))
    }
}

impl Report {
    fn head(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let totals = &self.totals;
        write!(out, "lines {}", totals.lines)?;
        let others = [
            ("unreadable", totals.unreadable),
            ("left out", totals.left_out),
            ("not asked", totals.not_asked),
        ];
        for (name, count) in others.iter().filter(|(_, count)| *count > 0) {
            write!(out, ", {name} {count}")?;
        }
        if let Some((first, last)) = self.span {
            write!(out, "; requests from {} to {}", stamp::show(first), stamp::show(last))?;
        }
        let admitted = totals.requests - totals.denied;
        let denied = Part(totals.denied, totals.requests);
        writeln!(out, "\nrequests {}, admitted {admitted}, denied {denied}", totals.requests)?;
        if self.against.is_some() {
            let (denied, admitted) = (totals.newly_denied, totals.newly_admitted);
            writeln!(out, "newly denied {denied}, newly admitted {admitted}")?;
        }
        let about = if self.side.is_estimated { "about " } else { "" };
        let denied = Part(self.side.denied_keys, self.side.keys_total);
        writeln!(out, "keys {about}{}, denied at least once {about}{denied}", self.side.keys_total)
    }
}

impl SideReport {
    fn rules(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let met = self.rules.iter().filter(|rule| rule.numbers.requests > 0);
        met.clone().try_for_each(|rule| write!(out, "\n{rule}"))?;
        let unmet = self.rules.len() - met.count();
        if unmet > 0 { writeln!(out, "\nrules that no request met: {unmet}") } else { Ok(()) }
    }
}

impl Display for RuleReport {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Self { path, place, limit, numbers, candidate, keys, denied_keys } = self;
        writeln!(out, "{} ({limit}; {place})", one_line(path))?;
        let denied = Part(numbers.denied, numbers.requests);
        write!(
            out,
            "  requests {}, admitted {}, near the limit {}",
            numbers.requests, numbers.admitted, numbers.near
        )?;
        writeln!(out, ", denied {denied}; keys {keys}, denied {}", Part(*denied_keys, *keys))?;
        if numbers.shadowed > 0 {
            writeln!(
                out,
                "  without shadow_mode it would have denied {}",
                Part(numbers.shadowed, numbers.requests)
            )?;
        }
        if let Some((limit, trial)) = candidate {
            let TrialNumbers { admitted, denied, newly_denied, newly_admitted } = trial;
            let denied = Part(*denied, numbers.requests);
            writeln!(
                out,
                "  candidate {limit}: admitted {admitted}, denied {denied}; newly denied {newly_denied}, newly admitted {newly_admitted}"
            )?;
        }
        if let (Some(first), Some((worst, wait))) = (numbers.first_denied, numbers.worst) {
            let (first, worst, wait) = (stamp::show(first), stamp::show(worst), wait as f64 / 1e9);
            let streak = numbers.longest_streak;
            writeln!(
                out,
                "  first denial {first}, longest wait {wait:.1} s at {worst}, most in a row {streak}"
            )?;
        }
        Ok(())
    }
}

fn keys(
    out: &mut Formatter<'_>,
    title: &str,
    keys: &[KeyReport],
    count: impl Fn(&KeyReport) -> u64,
) -> fmt::Result {
    if keys.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{title}")?;
    for key in keys.iter().take(KEYS_SHOWN) {
        let name = one_line(&key.name);
        match key.error {
            None => writeln!(
                out,
                "  {:>9} of {:<9} {name:<NAME_WIDTH$} {}",
                count(key),
                key.numbers.requests,
                key.rule
            )?,
            Some(error) => {
                writeln!(out, "  {:>9} (at most {error} fewer) {name:<NAME_WIDTH$} {}", count(key), key.rule)?
            }
        }
    }
    if keys.len() > KEYS_SHOWN {
        writeln!(out, "  and more: --report json has up to {KEYS_MAX}")?;
    }
    Ok(())
}

/// A count, and its part of a whole.
struct Part(u64, u64);

impl Display for Part {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Self(count, whole) = *self;
        match whole {
            0 => write!(out, "{count}"),
            whole => write!(out, "{count} ({:.3} %)", count as f64 * 100.0 / whole as f64),
        }
    }
}
