//! The accounts of leases: every leased hit is spent, left, or given back.
//!
//! In: what a node counts of its leases. Out: the first sum that does not add up, while nodes serve and when they end.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tidegate_redis::LeaseTotals;
use tidegate_serve::service::Service;

use super::{Kind, Run, State};
use crate::node::Node;
use crate::oracle::{Outcome, Record};
use crate::world::{SECOND, Time, lock};

/// How often leases are accounted for.
const ACCOUNTED: Time = SECOND;

impl Run {
    /// Every leased hit is accounted for when all nodes have ended.
    pub(super) fn check_leases(self: &Arc<Self>) {
        for node in 0..self.scenario.clocks.len() {
            self.stop_node(node);
        }
        self.world.run_until(self.world.now() + 5 * SECOND);
    }

    /// Leased hits are accounted for all the time.
    pub(super) fn check_accounts_until(self: &Arc<Self>, end: Time) {
        let (run, next) = (Arc::clone(self), self.world.now() + ACCOUNTED);
        if next > end {
            return;
        }
        self.world.at(next, move |_| {
            for node in 0..run.scenario.clocks.len() {
                let (service, asking, started) = {
                    let State { service, asking, started, .. } = &lock(&run.nodes)[node];
                    (service.clone(), asking.load(Relaxed), *started)
                };
                // A request that waits may hold some.
                if let (Some(service), 0) = (service, asking) {
                    run.check_accounts((node, started), &service);
                }
            }
            run.check_accounts_until(end);
        });
    }

    /// Leased hits of a node that has served since it was started then.
    pub(super) fn check_accounts(&self, (node, started): (usize, Time), service: &Service<Node>) {
        let Some(store) = service.counters().shared() else { return };
        let LeaseTotals { hits_taken, hits_spent, hits_given_back, .. } = store.leases();
        let hits_left = store.leased_hits_left();
        if hits_taken != hits_spent + hits_left + hits_given_back {
            let what = format!(
                "node {node} took leases of {hits_taken} hits, of which {hits_spent} were spent, {hits_left} are left, \
                 and {hits_given_back} went back"
            );
            self.wrong(Kind::Unaccounted, what);
        }
        if hits_spent == 0 {
            return;
        }
        // What a lease is spent for is admitted at once, or when other counters or records are known.
        let may_be_leased = |it: &Record| {
            let Some(limit) = self.scenario.limits.get(it.limit) else { return false };
            let is_at_once = it.answered == it.asked || !it.is_single || limit.recorded.is_some();
            let is_spent = it.outcome == Outcome::Unknown || it.outcome == Outcome::Admitted && is_at_once;
            it.node == node && limit.is_leased && is_spent
        };
        let records = lock(&self.records);
        let own = records[records.partition_point(|it| it.asked < started)..].iter();
        let hits: u64 = own.filter(|it| may_be_leased(it)).map(|it| it.hits).sum();
        if hits_spent > hits {
            let what = format!(
                "node {node} spent {hits_spent} leased hits, though at most {hits} were asked of them"
            );
            self.wrong(Kind::Unaccounted, what);
        }
    }
}
