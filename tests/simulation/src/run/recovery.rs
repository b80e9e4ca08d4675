//! What has to be there at the end of a run: nothing fails any more, and all of N is there again.
//!
//! In: the limits, and what clients and operators did with them. Out: a request for all of each limit, as soon as everything that
//! counted is over.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use tidegate_engine::limit::Algorithm;
use tidegate_engine::overlay::Effect;
use tidegate_engine::rules::StoreFailure;
use tidegate_redis::Contact;

use super::batch::Asked;
use super::{Kind, RECOVERED, Run};
use crate::scenario::{DAY_ENDS, DAY_SECS, DEBT_WINDOWS, FULL, Fault, Item, LimitSpec, Terms, What};
use crate::world::{SECOND, Time, lock};

/// What an operator has a limit count by.
struct Other {
    requests: u32,
    window_secs: Option<u64>,
    algorithm: Algorithm,
    granularity: Option<Time>,
    room: u64,
}

/// What a record or an exception says of a limit, if this is one.
fn other(limit: &LimitSpec, fault: &Fault) -> Option<Other> {
    match fault.what {
        What::Record {
            terms: Some(Terms { requests, window_secs, algorithm, burst, granularity, .. }),
            ..
        } => {
            let (algorithm, room) = limit.under(requests, algorithm, burst);
            Some(Other { requests, window_secs, algorithm, granularity, room })
        }
        What::Except { effect: Effect::Limit { requests: Some(requests), .. }, .. } => {
            let (algorithm, room) = limit.under(requests as u32, None, None);
            Some(Other { requests: requests as u32, window_secs: None, algorithm, granularity: None, room })
        }
        _ => None,
    }
}

impl Run {
    /// When nothing has failed for a window, all of N is there again.
    pub(super) fn check_recovered(self: &Arc<Self>) {
        self.end_exceptions();
        let calm = self.world.now();
        let mut limits: Vec<(Time, usize)> =
            self.first_limits().map(|number| (self.recovers_with_further(number), number)).collect();
        // A period that has begun while clients asked lasts for days.
        limits.retain(|&(_, number)| self.scenario.limits[number].shape.ending.is_none());
        limits.sort_unstable();
        for (after, number) in limits {
            self.wait_until(self.world.now().max(calm + after));
            self.check_recovered_limit(number);
        }
        self.check_contacts();
    }

    /// Waits for so long that there is room again. Nobody asks meanwhile, after the last clients have given back what they have.
    fn wait_until(&self, end: Time) {
        let given_back = self.scenario.asks.iter().map(|ask| ask.at + ask.lasts()).max().unwrap_or(0);
        self.world.run_until((given_back + RECOVERED).clamp(self.world.now(), end));
        self.world.be_quiet_until(end.saturating_sub(RECOVERED));
        self.world.run_until(end);
    }

    /// Every node has found all of its servers again.
    fn check_contacts(&self) {
        for (node, state) in lock(&self.nodes).iter().enumerate() {
            let Some(store) = state.service.as_ref().and_then(|service| service.counters().shared()) else {
                continue;
            };
            let contacts: Vec<_> =
                store.stores().map(|(_, store)| store.contact().borrow().clone()).collect();
            if contacts.iter().any(|contact| *contact != Contact::Up) {
                self.wrong(Kind::NotRecovered, format!("node {node} reaches its servers: {contacts:?}"));
            }
        }
    }

    /// The limits that are asked by themselves.
    fn first_limits(&self) -> impl Iterator<Item = usize> {
        let limits = self.scenario.limits.iter().enumerate();
        limits.filter(|(_, limit)| limit.further.is_none()).map(|(number, _)| number)
    }

    /// How long it takes until all of N is there again, of all limits of a rule.
    fn recovers_with_further(&self, number: usize) -> Time {
        let is_further = |other: &usize| self.scenario.limits[*other].is_further_of(number);
        let all = (0..self.scenario.limits.len()).filter(is_further).chain([number]);
        all.map(|number| self.recovers_after(number)).max().unwrap_or(0)
    }

    /// How long it takes until all of N is there again.
    fn recovers_after(&self, number: usize) -> Time {
        let limit = &self.scenario.limits[number];
        // What was reported, or admitted alone, fills a bucket beyond its size: with what drains in 16 windows at most.
        let is_reported = limit.is_reported || limit.shape.reserve.is_some();
        let overflows = is_reported || limit.failure == StoreFailure::Local;
        let others: Vec<_> = self.scenario.faults.iter().filter_map(|fault| other(limit, fault)).collect();
        let is_bucket = limit.algorithm.is_bucket() || others.iter().any(|other| other.algorithm.is_bucket());
        let mut windows = match is_bucket && overflows {
            true => 18,
            false if limit.shape.carries_debt => 2 + DEBT_WINDOWS,
            false => 2,
        };
        let others_secs = others.iter().filter_map(|other| other.window_secs);
        let window = limit.window_secs.into_iter().chain(others_secs).max().unwrap_or(0);
        if is_bucket {
            // While nodes have different N, a bucket drains by the least of them.
            let own = limit.requests.map(|requests| (requests, limit.room(requests)));
            let all = || own.into_iter().chain(others.iter().map(|other| (other.requests, other.room)));
            let least =
                all().map(|(requests, _)| requests).filter(|&requests| requests > 0).min().unwrap_or(1);
            windows += all().map(|(_, room)| room).max().unwrap_or(0).div_ceil(least.into());
        }
        // A call may be renewed after the last question.
        let renewals =
            self.scenario.asks.iter().filter_map(|ask| ask.renewed).filter(|_| self.has_slots(number));
        let renewed = renewals.map(|renewal| renewal.times * renewal.every).max().unwrap_or(0);
        let by_operators =
            |fault: &Fault| if let What::Ban { lasts, .. } = fault.what { lasts } else { None };
        let by_operators = self.scenario.faults.iter().filter_map(by_operators).max().unwrap_or(0);
        let banned = limit.shape.ban.map_or(0, |ban| ban.longest.max(by_operators));
        let ttl = limit.shape.reserve.map(|reserve| reserve.ttl);
        let empties = match limit.algorithm {
            Algorithm::Calendar => self.day_ends().saturating_sub(self.world.now()) + SECOND,
            _ => {
                let window = window * SECOND;
                let widths = others.iter().filter_map(|other| other.granularity);
                let counts_for = window + widths.fold(window / limit.buckets, Time::max);
                windows * counts_for + ttl.map_or(0, |ttl| ttl + limit.empties_in(window))
            }
        };
        renewed + banned + empties + self.scenario.lease_time() + self.lag.load(Relaxed)
    }

    /// When the day is over in which clients asked: the one after it, if the wall clock of a node was stepped into it.
    fn day_ends(&self) -> Time {
        let step = |fault: &Fault| if let What::StepWall { ahead, .. } = fault.what { ahead } else { 0 };
        let ahead: Time = self.scenario.faults.iter().map(step).sum();
        if self.scenario.asked_until() + ahead < DAY_ENDS { DAY_ENDS } else { DAY_ENDS + DAY_SECS * SECOND }
    }

    fn check_recovered_limit(self: &Arc<Self>, number: usize) {
        let node = (self.scenario.seed % self.scenario.clocks.len() as u64) as usize;
        let version = lock(&self.nodes)[node].version;
        let own = self.scenario.limits[number].requests[version];
        let record = self.recorded_now((number, 0)).filter(|record| !record.unlimited);
        let requests = record.map_or(own, |record| record.requests as u32);
        let limit = &self.scenario.limits[number];
        let burst = record.and_then(|record| record.burst).map(|burst| burst as u32);
        let (_, room) = limit.under(requests, record.and_then(|record| record.algorithm), burst);
        // The first class has the largest share.
        let last = limit.shape.classes.map(|_| 0);
        let hits = room * limit.share(last) / FULL;
        if requests == 0 || hits == 0 {
            return;
        }
        // A call takes one slot.
        let (many, hits) = if self.has_slots(number) { (hits, 1) } else { (1, hits) };
        let items = vec![Item { last, ..Item::new(number, 0, hits) }; many as usize];
        let request = self.scenario.asks.len() + number;
        let Some(task) = self.call(node, Asked::new(request, items)) else {
            return self.wrong(Kind::NotRecovered, format!("node {node} did not come back"));
        };
        let answer = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&answer);
        self.world.spawn(node, async move { *lock(&slot) = Some(task.await) });
        self.world.run_until(self.world.now() + SECOND);
        let answer = *lock(&answer);
        // A call may have been renewed meanwhile.
        let records = lock(&self.records);
        let is_full = records.iter().rfind(|it| it.request == request).is_some_and(|it| it.is_full);
        drop(records);
        if answer != Some(Some(true)) && !is_full {
            self.wrong(
                Kind::NotRecovered,
                format!("limit {number}: {hits} hits were not there again: {answer:?}"),
            );
        }
    }
}
