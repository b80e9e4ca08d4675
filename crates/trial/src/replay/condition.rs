//! `--fail-if`: a condition on the numbers of a report, for CI.
//!
//! In: `newly_denied > 0`, `denied_keys > 0.1 %`. Out: whether it is true. A percentage is of all lines, requests or
//! keys.

use std::fmt;

use super::Report;

/// What a condition may be about, and the total of a percentage.
const QUANTITIES: &[(&str, Quantity, Quantity)] = &[
    ("requests", |report| report.totals.requests, |report| report.totals.lines),
    ("denied", |report| report.totals.denied, |report| report.totals.requests),
    ("newly_denied", |report| report.totals.newly_denied, |report| report.totals.requests),
    ("newly_admitted", |report| report.totals.newly_admitted, |report| report.totals.requests),
    ("denied_keys", Report::denied_keys, Report::keys_total),
    ("unmatched", |report| report.totals.unmatched, |report| report.totals.requests),
    ("keys", Report::keys_total, Report::keys_total),
    ("unreadable", |report| report.totals.unreadable, |report| report.totals.lines),
    ("late", |report| report.totals.late, |report| report.totals.requests),
];

/// A number of a report.
type Quantity = fn(&Report) -> u64;

/// Whether two numbers compare like this.
type Compare = fn(&f64, &f64) -> bool;

/// The comparisons. One that begins like another comes first.
const COMPARISONS: &[(&str, Compare)] =
    &[(">=", f64::ge), ("<=", f64::le), ("==", f64::eq), ("!=", f64::ne), (">", f64::gt), ("<", f64::lt)];

/// A condition.
#[derive(Clone)]
pub struct Condition {
    text: String,
    quantity: Quantity,
    /// The total, for a percentage.
    whole: Option<Quantity>,
    compare: Compare,
    number: f64,
}

/// Why a text is no condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConditionError {
    /// Its syntax is wrong.
    #[error(
        "{text:?} is no condition (expected {expected}; for example `newly_denied > 0` or `denied_keys > 0.1 %`)"
    )]
    Syntax {
        /// The condition.
        text: String,
        /// What was expected.
        expected: String,
    },
    /// It could never be true, because there are no rules to compare with.
    #[error("{0:?} needs rules to compare with (expected --against PATH)")]
    NothingToCompare(String),
}

impl Condition {
    /// Reads a condition. `is_compared`: there are rules to compare with. The error names the part that is wrong.
    pub fn parse(text: &str, is_compared: bool) -> Result<Self, ConditionError> {
        let error = |expected: String| ConditionError::Syntax { text: text.to_owned(), expected };
        let rest = text.trim();
        let end = rest.find(|char: char| !char.is_ascii_lowercase() && char != '_').unwrap_or(rest.len());
        let (name, rest) = rest.split_at(end);
        let (_, quantity, whole) = QUANTITIES.iter().find(|(known, ..)| *known == name).ok_or_else(|| {
            error(format!("first one of {}", QUANTITIES.iter().map(|it| it.0).collect::<Vec<_>>().join(", ")))
        })?;
        if name.starts_with("newly_") && !is_compared {
            return Err(ConditionError::NothingToCompare(text.to_owned()));
        }
        let rest = rest.trim_start();
        let compared =
            COMPARISONS.iter().find_map(|(sign, compare)| Some((compare, rest.strip_prefix(sign)?)));
        let (compare, number) =
            compared.ok_or_else(|| error(format!("one of > >= < <= == != after `{name}`")))?;
        let (number, whole) = match number.trim().strip_suffix('%') {
            Some(number) => (number.trim(), Some(*whole)),
            None => (number.trim(), None),
        };
        let number = number.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
        let number = number.ok_or_else(|| error("a number at the end, or a percentage".to_owned()))?;
        Ok(Self { text: text.trim().to_owned(), quantity: *quantity, whole, compare: *compare, number })
    }

    /// Whether it is true; if so, the numbers that make it true.
    pub fn holds(&self, report: &Report) -> Option<String> {
        let amount = (self.quantity)(report);
        let whole = self.whole.map(|whole| whole(report));
        let number = match whole {
            Some(0) => 0.0,
            Some(whole) => amount as f64 * 100.0 / whole as f64,
            None => amount as f64,
        };
        let of = whole.map(|whole| format!(" of {whole}, {number:.3} %")).unwrap_or_default();
        (self.compare)(&number, &self.number).then(|| format!("{}: {amount}{of}", self.text))
    }
}

impl fmt::Debug for Condition {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Condition({})", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_condition_is_refused() {
        for (text, expected) in [
            ("", "first one of requests, denied, "),
            ("denials > 0", "first one of requests, denied, "),
            ("denied", "one of > >= < <= == != after `denied`"),
            ("denied = 0", "one of > >= < <= == != after `denied`"),
            ("denied > ", "a number at the end"),
            ("denied > many", "a number at the end"),
            ("denied > -1", "a number at the end"),
            ("denied > inf %", "a number at the end"),
            ("denied > 1 % of keys", "a number at the end"),
        ] {
            let error = Condition::parse(text, true).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        for text in ["denied>0", " denied_keys  >=  0.1 % ", "keys!=7", "newly_denied <= 1e3"] {
            assert!(Condition::parse(text, true).is_ok(), "{text}");
            assert_eq!(Condition::parse(text, false).is_ok(), !text.starts_with("newly"), "{text}");
        }
    }
}
