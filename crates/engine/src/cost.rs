//! What a descriptor's own cost (its `hits_addend`, above 0) means to a rule: already spent, or asked for.
//!
//! A rule may say which. With `auto` it is learnt from requests. A client that reports costs also asks before, with 0
//! hits or without a cost of its own. A client that asks with a cost does nothing else. So costs are taken as
//! reported until 100 descriptors had one and none came without. From then on they are taken as asked, until a
//! descriptor without a cost comes: then they are reported for good, because a stream that has asked may report much
//! later. This errs on the strict side: a reported cost is charged in full.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

crate::named! {
    /// What a descriptor's own cost means. Names are those of rule files.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Cost {
        /// Learnt from requests.
        #[default]
        Auto = "auto",
        /// It is already spent: charged in full, whatever the answer.
        Reported = "reported",
        /// It is asked for: charged if it fits and the request passes.
        Asked = "asked",
    }
}

/// After this many descriptors that all had a cost, costs are taken as asked.
const ASKED_AFTER: u32 = 100;
/// A descriptor came without a cost of its own.
const REPORTED_FOR_GOOD: u32 = u32::MAX;

/// What own costs mean to one rule, as far as it is known. Clones learn together.
#[derive(Debug)]
pub struct CostUse {
    said: Cost,
    /// Nothing more can be learnt. Read for every request; `learnt` is in memory of its own.
    settled: AtomicBool,
    /// How many descriptors had a cost of their own, or [`REPORTED_FOR_GOOD`].
    learnt: Arc<AtomicU32>,
}

impl CostUse {
    /// With what a rule says.
    pub fn new(said: Cost) -> Self {
        Self { said, settled: AtomicBool::new(said != Cost::Auto), learnt: Arc::default() }
    }

    /// What the rule says.
    #[inline]
    pub fn said(&self) -> Cost {
        self.said
    }

    /// Whether an own cost is taken as reported now.
    #[inline]
    pub fn is_reported(&self) -> bool {
        match self.said {
            Cost::Reported => true,
            Cost::Asked => false,
            Cost::Auto => {
                let learnt = self.learnt.load(Ordering::Relaxed);
                learnt < ASKED_AFTER || learnt == REPORTED_FOR_GOOD
            }
        }
    }

    /// Whether further requests change nothing.
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Relaxed)
    }

    /// Learns from a descriptor that takes hits, or asks: whether it had a cost of its own.
    pub fn observe(&self, own_cost: bool) {
        if self.is_settled() {
            return;
        }
        if own_cost {
            let count = |learnt| (learnt < ASKED_AFTER).then(|| learnt + 1);
            // A number that is not below the bound stays.
            let _ = self.learnt.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count);
        } else {
            self.learnt.store(REPORTED_FOR_GOOD, Ordering::Relaxed);
        }
        let is_settled = self.learnt.load(Ordering::Relaxed) == REPORTED_FOR_GOOD;
        self.settled.store(is_settled, Ordering::Relaxed);
    }

    /// Continues with what the same rule learnt before a reload.
    pub(crate) fn go_on_from(&mut self, before: &Self) {
        if self.said == Cost::Auto && before.said == Cost::Auto {
            *self = before.clone();
        }
    }
}

impl Clone for CostUse {
    fn clone(&self) -> Self {
        Self {
            said: self.said,
            settled: AtomicBool::new(self.is_settled()),
            learnt: Arc::clone(&self.learnt),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether costs are reported after so many descriptors with one.
    fn after(costs: usize) -> (CostUse, bool) {
        let cost = CostUse::new(Cost::Auto);
        (0..costs).for_each(|_| cost.observe(true));
        let is_reported = cost.is_reported();
        (cost, is_reported)
    }

    #[test]
    fn a_hundred_costs_without_a_question_are_asked() {
        assert_eq!([0, 1, 99, 100, 10_000].map(|costs| after(costs).1), [true, true, true, false, false]);
    }

    #[test]
    fn one_question_makes_costs_reported_for_good() {
        for costs in [0, 99, 100, 500] {
            let (cost, _) = after(costs);
            let clone = cost.clone();
            cost.observe(false);
            (0..1_000).for_each(|_| clone.observe(true));
            assert!(cost.is_reported() && clone.is_reported(), "after {costs}");
            assert!(cost.is_settled() && clone.is_settled(), "after {costs}");
        }
    }

    #[test]
    fn what_a_rule_says_is_not_learnt_otherwise() {
        for (said, is_reported) in [(Cost::Reported, true), (Cost::Asked, false)] {
            let mut cost = CostUse::new(said);
            assert!(cost.is_settled());
            (0..1_000).for_each(|_| cost.observe(is_reported));
            cost.go_on_from(&after(if is_reported { 200 } else { 0 }).0);
            assert_eq!(cost.is_reported(), is_reported);
        }
    }

    #[test]
    fn a_reload_forgets_nothing() {
        let (before, mut now) = (after(99).0, CostUse::new(Cost::Auto));
        now.go_on_from(&before);
        now.observe(true);
        assert!(!now.is_reported() && !before.is_reported());
        before.observe(false);
        assert!(now.is_reported());
    }
}
