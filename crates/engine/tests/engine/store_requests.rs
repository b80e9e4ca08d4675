//! Random requests of several descriptors (mixed algorithms, the same counter more than once, every mode) are compared
//! with the naive oracle, which tries the request on copies of its counters first, then charges what was settled.

use std::collections::HashMap;

use tidegate_engine::decision::{Code, conclude};
use tidegate_engine::limit::{Algorithm, Limit};
use tidegate_engine::memory::MemoryStore;
use tidegate_engine::plan::{Check, Hits, Modes, Step};
use tidegate_engine::time::{SECOND_NANOS, Timestamp};

use crate::asking::{at, check, key, plan, small_store};
use crate::limits_oracle::{Naive, Terms};
use crate::limits_sequences::{next_hits, next_time, terms};
use crate::random::Random;

pub(crate) const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::SlidingLog,
    Algorithm::SlidingWindow,
    Algorithm::SlidingWindowWeighted,
    Algorithm::FixedWindow,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
];

/// One descriptor of a request: its counter and its hits.
#[derive(Clone)]
pub(crate) struct Ask {
    pub(crate) counter: u64,
    pub(crate) terms: Terms,
    pub(crate) check: Check<'static>,
}

/// What the oracle says of one descriptor: over, before, remaining, and the reset where it is certain.
pub(crate) type Expected = (bool, u64, u64, Option<u64>);

/// A few counters, by definition.
#[derive(Clone, Default)]
pub(crate) struct World(HashMap<u64, Naive>);

impl World {
    fn naive(&mut self, ask: &Ask) -> &mut Naive {
        self.0.entry(ask.counter).or_default()
    }

    /// Takes over what another world knows of one counter.
    pub(crate) fn take_counter(&mut self, from: &World, counter: u64) {
        self.0.insert(counter, from.0.get(&counter).cloned().unwrap_or_default());
    }

    /// Whether the request passes, and what its counters say. It charges those that `changes`, and knows the others.
    pub(crate) fn request_on(
        &mut self,
        asks: &[Ask],
        changes: impl Fn(&Ask) -> bool,
        modes: Modes,
        now: u64,
    ) -> (bool, Vec<Expected>) {
        asks.iter().for_each(|ask| self.naive(ask).ask(now));
        let mut trial = World(self.0.clone());
        let looked: Vec<(bool, u64)> = asks.iter().map(|ask| trial.try_out(ask, now)).collect();
        let over: Vec<bool> = looked.iter().map(|&(over, _)| over).collect();
        let passes = passes(asks, modes, &over);
        let stop = modes.stop_increment_when_over && over.contains(&true);
        let expected =
            asks.iter().zip(looked).filter(|(ask, _)| changes(ask)).map(|(ask, (over, before))| {
                let alone = asks.iter().filter(|other| other.counter == ask.counter).count() == 1;
                let (remaining, reset) = self.finish(ask, now, over, passes, stop);
                (over, before, remaining, (alone || !over).then_some(reset))
            });
        (passes, expected.collect())
    }

    pub(crate) fn request(&mut self, asks: &[Ask], modes: Modes, now: u64) -> (bool, Vec<Expected>) {
        self.request_on(asks, |_| true, modes, now)
    }

    /// Over and before, as if the request passed.
    fn try_out(&mut self, ask: &Ask, now: u64) -> (bool, u64) {
        let (naive, terms) = (self.naive(ask), &ask.terms);
        let at = naive.time(now);
        match ask.check.hits {
            Hits::GiveBack(hits) => {
                naive.refund(terms, at, hits);
                let (over, _, before) = naive.look(terms, at, 0);
                (over, before)
            }
            Hits::Take(hits) => {
                let (over, _, before) = naive.look(terms, at, hits);
                if !over || terms.algorithm == Algorithm::FixedWindow {
                    naive.charge(terms, at, hits);
                } else if ask.check.reported {
                    naive.charge(terms, at, hits.min(naive.report_max(terms, at)));
                }
                (over, before)
            }
        }
    }

    fn finish(&mut self, ask: &Ask, now: u64, over: bool, passes: bool, stop: bool) -> (u64, u64) {
        let (naive, terms) = (self.naive(ask), &ask.terms);
        let at = naive.time(now);
        let hits = match ask.check.hits {
            Hits::GiveBack(hits) => {
                naive.refund(terms, at, hits);
                0
            }
            Hits::Take(hits) => hits,
        };
        let charged = match (terms.algorithm, passes && !over, ask.check.reported) {
            (Algorithm::FixedWindow, _, false) => {
                if stop && !over {
                    0
                } else {
                    hits
                }
            }
            (_, _, true) => hits.min(naive.report_max(terms, at)),
            (_, true, false) => hits,
            (_, false, false) => 0,
        };
        naive.charge(terms, at, charged);
        naive.status(terms, at, if ask.check.reported { 1 } else { hits }, over)
    }
}

fn passes(asks: &[Ask], modes: Modes, over: &[bool]) -> bool {
    // The step without a limit is one of the quota-mode descriptors when all are.
    let mut quota_over = if modes.quota { vec![false] } else { Vec::new() };
    for (ask, &over) in asks.iter().zip(over) {
        if ask.check.quota || modes.quota {
            quota_over.push(over && !ask.check.shadow);
        } else if over && !ask.check.shadow {
            return false;
        }
    }
    quota_over.is_empty() || quota_over.contains(&false)
}

pub(crate) fn random_ask(random: &mut Random, world: u64, limits: &[Terms]) -> Ask {
    let counter = random.below(limits.len() as u64);
    let terms = limits[counter as usize];
    // Counts that saturate are another test's: how far depends on the order.
    let hits = next_hits(random, &terms).min(1 << 40);
    let give_back = random.one_in(8);
    let hits_asked = if give_back { Hits::GiveBack(hits) } else { Hits::Take(hits) };
    let mut check = check(terms.limit(), key(world * 1_000 + counter), hits_asked);
    check.reported = !give_back && hits > 0 && random.one_in(4);
    check.shadow = random.one_in(6);
    check.quota = random.one_in(6);
    Ask { counter, terms, check }
}

fn run(store: &MemoryStore, seed: u64) {
    let mut random = Random(seed);
    let window = 1 + random.below(400);
    let limits: Vec<Terms> = (0..1 + random.below(4))
        .map(|_| {
            let algorithm = random.pick(&ALGORITHMS);
            Terms { window, granularity: None, ..terms(&mut random, algorithm) }
        })
        .collect();
    let (mut world, mut now) = (World::default(), random.below(3 * window));
    for _ in 0..1 + random.below(12) {
        now = next_time(&mut random, now, window);
        let asks: Vec<Ask> =
            (0..1 + random.below(5)).map(|_| random_ask(&mut random, seed, &limits)).collect();
        let mut plan = plan(asks.iter().map(|ask| ask.check));
        plan.modes.quota = random.one_in(10);
        plan.modes.stop_increment_when_over = random.one_in(4);
        plan.steps.insert(random.below(plan.steps.len() as u64 + 1) as usize, Step::Unmatched);
        let verdicts = store.apply(&plan, Timestamp::from_nanos(now));
        let (passes, expected) = world.request(&asks, plan.modes, now);
        let what = format!("seed {seed} at {now}: {plan:#?}\n{verdicts:#?}\n{expected:#?}");
        assert_eq!(conclude(&plan, &verdicts).code == Code::Ok, passes, "{what}");
        for (verdict, (over, before, remaining, reset)) in verdicts.iter().flatten().zip(expected) {
            assert_eq!(
                (verdict.over, verdict.before, verdict.remaining),
                (over, before, remaining),
                "{what}"
            );
            assert_eq!(reset.unwrap_or(verdict.reset_nanos), verdict.reset_nanos, "{what}");
        }
    }
}

#[test]
fn requests_charge_as_a_whole() {
    let store = small_store();
    for seed in 0..20_000 {
        run(&store, seed);
    }
}

/// One descriptor takes hits, the next gives them back. If the request is denied, there is nothing to give back.
#[test]
fn a_refund_of_what_is_not_charged_makes_room() {
    for algorithm in [Algorithm::SlidingLog, Algorithm::SlidingWindow] {
        let (store, limit) = (small_store(), tidegate_engine::limit::Limit::new(algorithm, 7, 1_000));
        store.take(&limit, key(1), 5, Timestamp::from_nanos(10));
        let asks = [Hits::Take(2), Hits::GiveBack(2), Hits::Take(3)].map(|hits| check(limit, key(1), hits));
        let verdicts = store.apply(&plan(asks), Timestamp::from_nanos(10));
        let last = verdicts[2].expect("a check has a verdict");
        assert_eq!((last.over, last.remaining, last.reset_nanos), (true, 4, 0), "{algorithm:?}");
    }
}

/// In shadow mode the second one is over, and the first one is charged nevertheless.
#[test]
fn a_wait_counts_no_hits_twice_that_an_earlier_descriptor_has_taken() {
    let store = small_store();
    let limit = Limit::new(Algorithm::SlidingLog, 5, 60 * SECOND_NANOS);
    store.take(&limit, key(1), 3, at(0.0));
    let two = Check { shadow: true, ..check(limit, key(1), Hits::Take(2)) };
    let verdicts = store.apply(&plan([two, two]), at(10.0));
    let said = verdicts.iter().flatten().map(|verdict| (verdict.over, verdict.reset_nanos / SECOND_NANOS));
    assert_eq!(said.collect::<Vec<_>>(), [(false, 50), (true, 50)], "the first three leave after a minute");
}
