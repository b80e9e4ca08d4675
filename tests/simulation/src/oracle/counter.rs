//! The counters that are judged, each by itself.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::{Outcome, Record, Rules};
use crate::scenario::LimitSpec;

/// What was asked of one counter.
#[derive(Clone, Debug, Default)]
pub struct Counter {
    /// Of this limit.
    pub limit: usize,
    /// Which one.
    pub key: u64,
    /// By the time at which it was asked, with what had no answer and may have been asked of it.
    pub own: Vec<Record>,
    /// What surely counts of it.
    pub counting: Vec<Record>,
    /// A record may have given its key another counter too, with another window or algorithm.
    pub has_sibling: bool,
}

impl Counter {
    /// The counters of these records. Slots have a judge of their own, and so have reservations.
    pub fn all(limits: &[LimitSpec], records: &[Record]) -> Vec<Self> {
        let mut counters: BTreeMap<_, Vec<&Record>> = BTreeMap::new();
        let is_slot = |it: &Record| limits[it.limit].is_slots();
        for it in records.iter().filter(|it| !is_slot(it) && it.reserving.is_none()) {
            counters.entry(it.counter()).or_default().push(it);
        }
        let counters = counters.into_iter().map(|((limit, key, ..), mut own)| {
            own.sort_by_key(|it| it.asked);
            let mut counting = Vec::with_capacity(own.len());
            counting.extend(own.iter().copied().filter(|it| it.counts()));
            let own = own.into_iter().copied().collect();
            Self { limit, key, own, counting, has_sibling: false }
        });
        let mut counters: Vec<Self> = counters.collect();
        let is_of_one_key = |it: &Self, other: &Self| it.own[0].is_of_key(&other.own[0]);
        counters.chunk_by_mut(is_of_one_key).filter(|them| them.len() > 1).for_each(Self::share_unknown);
        counters
    }

    /// The one that this record is about. Nobody may have asked it, or only calls without an answer.
    pub(super) fn of<'c>(counters: &'c [Self], it: &Record) -> Cow<'c, Self> {
        let siblings = || counters.iter().filter(|other| other.own[0].is_of_key(it));
        let asked = siblings().find(|other| other.own[0].is_of_counter(it));
        asked.map(Cow::Borrowed).unwrap_or_else(|| {
            let nobody = Self { limit: it.limit, key: it.key, ..Self::default() };
            Cow::Owned(nobody.with_unknown(&unknown_of(siblings()), it))
        })
    }

    /// A call without an answer may have been counted by any record of its key.
    fn share_unknown(siblings: &mut [Self]) {
        let unknown = unknown_of(siblings.iter());
        for it in siblings {
            let first = it.own[0];
            *it = std::mem::take(it).with_unknown(&unknown, &first);
        }
    }

    /// The same with what had no answer, of its siblings too. `it`: a record of the counter.
    fn with_unknown(self, unknown: &[Record], it: &Record) -> Self {
        let others = unknown.iter().filter(|other| !other.is_of_counter(it)).map(|other| other.as_if_of(it));
        let mut own = self.own;
        own.extend(others);
        own.sort_by_key(|it| it.asked);
        Self { own, has_sibling: true, ..self }
    }

    /// What surely counts of it, with what a fixed window counts that is denied.
    pub(super) fn there(&self, rules: &Rules<'_>, limit: &LimitSpec) -> Cow<'_, [Record]> {
        match rules.may_count_denied(limit) {
            true => self.own.iter().copied().filter(|it| rules.counts(limit, it)).collect(),
            false => Cow::Borrowed(&self.counting),
        }
    }

    /// What a judge found, with the name of the counter.
    pub(super) fn named(&self, found: String) -> String {
        format!("limit {}, key {}: {found}", self.limit, self.key)
    }
}

/// What had no answer of all that was asked of these.
fn unknown_of<'c>(counters: impl Iterator<Item = &'c Counter>) -> Vec<Record> {
    let own = counters.flat_map(|it| it.own.iter().copied());
    own.filter(|it| it.outcome == Outcome::Unknown).collect()
}
