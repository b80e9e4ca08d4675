//! The counters that are judged, each by itself.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::{Record, Rules};
use crate::scenario::LimitSpec;

/// What was asked of one counter.
#[derive(Debug)]
pub struct Counter {
    /// Of this limit.
    pub limit: usize,
    /// Which one.
    pub key: u64,
    /// By the time at which it was asked.
    pub own: Vec<Record>,
    /// What surely counts of it.
    pub counting: Vec<Record>,
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
            Self { limit, key, own: own.into_iter().copied().collect(), counting }
        });
        counters.collect()
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
