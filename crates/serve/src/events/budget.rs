//! How many events a rule may still emit in a second, and how many were not emitted since the last one.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use tidegate_engine::decision::Limited;
use tidegate_engine::plan::Origin;

/// A budget for each rule of a set, and one for all limits that requests bring.
#[derive(Debug, Default)]
pub(super) struct Budgets(Box<[Budget]>);

#[derive(Debug, Default)]
struct Budget {
    /// The second, and how many events were emitted in it.
    emitted: AtomicU64,
    left_out: AtomicU32,
}

impl Budgets {
    /// For this many rules.
    pub(super) fn of(rules: usize) -> Self {
        Self((0..=rules).map(|_| Budget::default()).collect())
    }

    /// Takes one event of this second for the rule of this limit. Returns how many were not emitted since the last
    /// one that was; `None`: this one must not be emitted either.
    pub(super) fn take(&self, limited: &Limited<'_>, second: u32, per_second_max: u32) -> Option<u32> {
        let rule = match limited.origin {
            Origin::Rule { rule, .. } => rule.id,
            Origin::Override { .. } => self.0.len().checked_sub(1)?,
        };
        self.0.get(rule)?.take(second, per_second_max)
    }
}

impl Budget {
    fn take(&self, second: u32, per_second_max: u32) -> Option<u32> {
        // Seconds are kept one later, because 0 means that nothing was emitted.
        let second = u64::from(second) + 1;
        let taken = |emitted: u64| match (emitted >> 32, emitted & u64::from(u32::MAX)) {
            (of, count) if of == second => (count < u64::from(per_second_max)).then_some(emitted + 1),
            // The time can be in the past: the decision may have waited for its store.
            (of, _) => (of < second).then_some(second << 32 | 1),
        };
        match self.emitted.fetch_update(Relaxed, Relaxed, taken) {
            Ok(_) => Some(self.left_out.swap(0, Relaxed)),
            Err(_) => {
                self.left_out.fetch_add(1, Relaxed);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_are_emitted_in_a_second_and_the_next_one_has_the_number_of_the_others() {
        let budget = Budget::default();
        let emitted = |second, times| [(); 4].map(|()| budget.take(second, times));
        assert_eq!(emitted(0, 2), [Some(0), Some(0), None, None]);
        assert_eq!(emitted(1, 2), [Some(2), Some(0), None, None]);
        assert_eq!(budget.take(0, 2), None, "a second that is over");
        assert_eq!(budget.take(5, 2), Some(3));
    }

    #[test]
    fn threads_tell_no_more_together() {
        let budget = Budget::default();
        let emitted: usize = std::thread::scope(|scope| {
            let ask = || (0..1_000).filter(|_| budget.take(1, 10).is_some()).count();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().map(|thread| thread.join().expect("it does not panic")).sum()
        });
        assert_eq!((emitted, budget.take(2, 10)), (10, Some(3_990)));
    }
}
