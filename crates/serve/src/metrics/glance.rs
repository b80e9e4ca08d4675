//! A few counts that are read often: for a page that is drawn every second. A scrape renders everything; this reads
//! only what it is asked for.
//!
//! In: the counters. Out: numbers, the same that a scrape has. A series of limits is known by its number: the first
//! that was entered is 0, and numbers never change, because series are never removed.

use super::calls::Outcome;
use super::counts::Stat;
use super::handles::RuleHandles;
use super::series::SeriesTable;
use super::series_name::parts;
use super::striped::Slot;
use super::{Front, Metrics};

/// Requests for a decision since the start, by all fronts, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// They may pass.
    pub ok: u64,
    /// They may not.
    pub over_limit: u64,
    /// They got an error.
    pub failed: u64,
}

/// Descriptors since the start that met no rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WithoutRule {
    /// Their domain has rules.
    pub in_domain: u64,
    /// Their domain has none.
    pub without_domain: u64,
}

/// Hits of one series of limits since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitCounts {
    /// Hits that were asked for.
    pub hits: u64,
    /// Hits beyond the limit.
    pub over: u64,
    /// Hits within the limit, but near it.
    pub near: u64,
    /// Hits beyond the limit that shadow mode admitted.
    pub shadow: u64,
}

/// Which rules of a set count in which series.
#[derive(Debug)]
pub struct RulesBySeries(
    /// The first slot of a series and the number of a rule, sorted.
    Box<[(usize, usize)]>,
);

impl RuleHandles {
    /// Which rules count in which series.
    pub fn by_series(&self) -> RulesBySeries {
        let mut pairs: Box<[_]> = self.slots().map(Slot::index).zip(0..).collect();
        pairs.sort_unstable();
        RulesBySeries(pairs)
    }
}

impl Metrics {
    /// Requests for a decision.
    pub fn answered(&self) -> Answered {
        let count = |outcome| -> u64 {
            Front::ALL.iter().map(|&front| self.striped.sum(self.calls.outcome(front, outcome))).sum()
        };
        let mut answered = Answered::default();
        for outcome in Outcome::ALL {
            *match outcome {
                Outcome::Ok => &mut answered.ok,
                Outcome::OverLimit => &mut answered.over_limit,
                _ => &mut answered.failed,
            } += count(outcome);
        }
        answered
    }

    /// Descriptors that met no rule.
    pub fn without_rule(&self) -> WithoutRule {
        let sum = |table: &SeriesTable| table.iter().map(|series| self.striped.sum(series.first)).sum();
        WithoutRule { in_domain: sum(&self.unmatched), without_domain: sum(&self.unknown_domains) }
    }

    /// The number of decisions, and the nanoseconds that the engine took for all of them.
    pub fn decision_time(&self) -> (u64, u64) {
        (self.decision_time.count(&self.striped), self.decision_time.sum_nanos(&self.striped))
    }

    /// The number of series of limits.
    pub fn limit_series(&self) -> usize {
        self.limits.len()
    }

    /// The name of a series of limits: its domain, and its path with dots. `None`: there is none with this number.
    pub fn limit_name(&self, series: usize) -> Option<(String, String)> {
        let (domain, path) = parts(&self.limits.get(series)?.name);
        Some((domain.to_owned(), path.collect::<Vec<_>>().join(".")))
    }

    /// Whether the name of a series of limits holds this text. Domain and path are searched as they are shown, with a
    /// dot between any two parts.
    pub fn limit_name_holds(&self, series: usize, text: &str) -> bool {
        let Some(series) = self.limits.get(series) else { return false };
        let (name, text) = (series.name.as_bytes(), text.as_bytes());
        let is_same = |(name, text): (&u8, &u8)| name == text || (*name == 0 && *text == b'.');
        text.is_empty() || name.windows(text.len()).any(|part| part.iter().zip(text).all(is_same))
    }

    /// The counts of a series of limits. `None`: there is none with this number.
    pub fn limit_counts(&self, series: usize) -> Option<LimitCounts> {
        let first = self.limits.get(series)?.first;
        let count = |stat: Stat| self.striped.sum(first.plus(stat as usize));
        let hits = count(Stat::TotalHits);
        if hits == 0 {
            return Some(LimitCounts::default());
        }
        Some(LimitCounts {
            hits,
            over: count(Stat::OverLimit),
            near: count(Stat::NearLimit),
            shadow: count(Stat::ShadowMode),
        })
    }

    /// The rules that count in a series, by their numbers in the set, in file order.
    pub fn rules_of<'a>(&self, rules: &'a RulesBySeries, series: usize) -> impl Iterator<Item = usize> + 'a {
        let slot = self.limits.get(series).map_or(usize::MAX, |series| series.first.index());
        let begin = rules.0.partition_point(|(first, _)| *first < slot);
        rules.0[begin..].iter().take_while(move |(first, _)| *first == slot).map(|(_, rule)| *rule)
    }
}

#[cfg(test)]
mod tests {
    use crate::metrics::{Front, Outcome};
    use crate::service::fixture::{metrics, rules};

    const RULES: &str = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: hour, requests_per_unit: 10 } }
  - key: path
    value: /api*
    rate_limit: { unit: second, requests_per_unit: 10 }
";

    #[test]
    fn requests_of_all_fronts_are_one_number() {
        let metrics = metrics();
        metrics.requests(Front::Grpc, Outcome::Ok, 3);
        metrics.requests(Front::Check, Outcome::Ok, 2);
        metrics.requests(Front::Json, Outcome::OverLimit, 1);
        metrics.requests(Front::Json, Outcome::InvalidArgument, 1);
        metrics.requests(Front::Grpc, Outcome::StoreFailure, 1);
        let answered = metrics.answered();
        assert_eq!((answered.ok, answered.over_limit, answered.failed), (5, 1, 2));
    }

    #[test]
    fn a_series_is_known_by_its_number_its_name_and_its_rules() {
        let metrics = metrics();
        let by_series = metrics.handles(&rules(RULES)).by_series();
        let number = |name: &str| {
            (0..metrics.limit_series()).find(|&series| {
                metrics.limit_name(series).is_some_and(|(domain, path)| domain == "shop" && path == name)
            })
        };
        let (user, path) = (number("user").expect("a series"), number("path_/api*").expect("a series"));
        assert_eq!(metrics.rules_of(&by_series, user).collect::<Vec<_>>(), [0]);
        assert_eq!(metrics.rules_of(&by_series, path).collect::<Vec<_>>(), [1]);
        assert_eq!(metrics.rules_of(&by_series, usize::MAX).count(), 0);
        assert_eq!(metrics.limit_counts(user), Some(super::LimitCounts::default()));
        assert_eq!(metrics.limit_counts(usize::MAX), None);
        for (text, holds) in [("", true), ("shop.us", true), ("user", true), ("shop.path", false)] {
            assert_eq!(metrics.limit_name_holds(user, text), holds, "{text}");
        }
        assert!(!metrics.limit_name_holds(usize::MAX, ""));
    }
}
