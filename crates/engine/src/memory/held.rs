//! A request that meets one limit with `reserve`: both of its counters are locked, read, settled and charged together.

use crate::limit::{Algorithm, Counter, Found, Pending, Verdict, with_algorithms};
use crate::memory::MemoryStore;
use crate::memory::kind::KindShards;
use crate::plan::{Check, Hits, Plan, ReservationStep, Step};
use crate::settle::settle;
use crate::time::Timestamp;

impl MemoryStore {
    /// Decides a plan of a limit and of its holds in the usual case: both counters exist, are warm, and need no memory. Same as
    /// what [`Locked`](super::locked::Locked) does for any plan, with one access to each counter: without it a reservation
    /// and its commit take one and a half times as long (`cargo bench --bench decision -- budgets`). `None`: nothing was charged.
    #[inline(never)] // The way of a request with one check stays short.
    pub(super) fn decide_held(&self, plan: &Plan<'_>, now: Timestamp) -> Option<[Verdict; 2]> {
        let ([Step::Check(limited), Step::Check(holds)], true) =
            (&plan.steps[..], plan.candidates.is_empty())
        else {
            return None;
        };
        if !holds.is_of_holds() || limited.is_of_holds() {
            return None;
        }
        macro_rules! decide {
            ($( $(#[$attribute:meta])* $variant:ident: $module:ident, )+) => {
                match limited.limit.algorithm() {
                    $( Algorithm::$variant => self.decide_held_in(&self.kinds.$module, plan, [limited, holds], now), )+
                }
            };
        }
        with_algorithms!(decide)
    }

    fn decide_held_in<S: Counter>(
        &self,
        kind: &KindShards<S>,
        plan: &Plan<'_>,
        [limited, holds]: [&Check<'_>; 2],
        now: Timestamp,
    ) -> Option<[Verdict; 2]> {
        // Holds are the last kind in the order in which shards are locked.
        let ((mut limited_shard, _), (mut holds_shard, _)) =
            (kind.lock(limited.key), self.kinds.holds.lock(holds.key));
        if [limited, holds].iter().any(|check| self.cold.nanos_left_of(&check.limit, now) > 0) {
            return None;
        }
        let held = holds_shard.see_usual(holds, now)?;
        let found = Found::numbered(held.preview.left);
        let owed;
        let limited = match (limited.reservation, limited.hits) {
            (ReservationStep::Commit, Hits::Take(cost)) => {
                owed = Check { hits: Hits::Take(found.owes(cost)), ..*limited };
                &owed
            }
            _ => limited,
        };
        let others = held.preview.before;
        let mut seen = limited_shard.see_after(limited, now, Pending::held(others))?;
        // A reservation that is made again is answered as the first time, also if costs have gone beyond the limit since.
        let reserves = limited.reservation == ReservationStep::Hold;
        if reserves && found == Found::Open {
            seen.preview.over = false;
        }
        let over = [seen.preview.over, held.preview.over];
        let settlement = settle(plan, |place| over[place]);
        let charged = settlement.charged(limited, seen.preview.over);
        let verdict = limited_shard.charge_while_held(&seen, limited, charged, others);
        let own = if reserves && settlement.passes && !verdict.over { seen.hits } else { 0 };
        let verdict = Verdict { remaining: verdict.remaining.saturating_sub(own), ..verdict };
        let charged = settlement.charged(holds, held.preview.over);
        Some([verdict, holds_shard.charge_usual(&held, holds, charged)])
    }
}
