//! Leases under a clock that the test moves: the arithmetic, its edges, and a simulation of nodes around one Redis.

use super::*;
use tidegate_engine::limit::{Algorithm, Limit};
use tidegate_engine::plan::Origin;
use tidegate_engine::rules::Unit;
use tidegate_engine::unit::Window;

const T: Duration = Duration::from_millis(100);
const WINDOW: Duration = Duration::from_secs(10);

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn check(requests: u32, hits: u64) -> Check<'static> {
    Check::new(
        Origin::Override { window: Window { unit: Unit::Second, multiplier: 10 } },
        Limit::new(Algorithm::SlidingLog, requests.into(), WINDOW.as_nanos() as u64),
        Key(7),
        Hits::Take(hits),
    )
}

fn source(limit: Limit, stamp: u64) -> Source {
    Source { unit: Unit::Second, slot: 0, key: b"k".to_vec(), counter: Key(7), limit, stamp, data: None }
}

/// The verdict of a counter with room for so many.
fn room(remaining: u64) -> Verdict {
    Verdict {
        over: false,
        before: 0,
        after: 1,
        remaining,
        reset_nanos: WINDOW.as_nanos() as u64,
        is_counted: true,
    }
}

/// A table in which the counter was seen twice, and a lease of so many hits was taken at 1 s.
fn leased(hits: u64) -> Leases {
    let leases = Leases::new(T);
    take(&leases, hits, millis(1_000));
    leases
}

/// Takes a lease of a counter that was not asked for long.
fn take(leases: &Leases, hits: u64, now: Duration) {
    let asked = check(1_000, 1);
    assert!(leases.hold(&asked, now).is_none());
    assert!(leases.demand(&asked).is_none(), "seen once");
    assert!(leases.hold(&asked, now).is_none());
    let demand = leases.demand(&asked).expect("seen twice");
    assert_eq!(demand.hits, 2);
    assert!(leases.demand(&asked).is_none(), "a demand is on its way");
    let granted = Granted { hits, stamp: 5 };
    assert!(demand.granted(source(asked.limit, 5), granted, &room(900), now).is_empty());
}

fn swept(leases: &Leases, now: u64) -> Vec<(u64, u64)> {
    let mut all = Vec::new();
    leases.sweep(millis(now), |unspent| all.push((unspent.source.stamp, unspent.hits)));
    all
}

#[test]
fn hits_are_spent_until_the_lease_ends_and_the_rest_goes_back_once() {
    let leases = leased(3);
    let verdict = leases.hold(&check(1_000, 2), millis(1_050)).expect("held").verdict;
    assert_eq!((verdict.before, verdict.after, verdict.remaining, verdict.over), (100, 102, 898, false));
    assert_eq!(verdict.reset_nanos, millis(9_950).as_nanos() as u64);
    assert!(leases.hold(&check(1_000, 2), millis(1_050)).is_none(), "one is left");
    assert!(leases.hold(&check(1_000, 0), millis(1_099)).is_some(), "0 hits take none");
    assert!(leases.hold(&check(1_000, 1), millis(1_100)).is_none(), "it has ended");
    assert_eq!(swept(&leases, 1_099), []);
    assert_eq!(swept(&leases, 1_100), [(5, 1)]);
    assert_eq!(swept(&leases, 1_100), []);
}

#[test]
fn a_lease_of_another_limit_is_not_spent() {
    let leases = leased(50);
    assert!(leases.hold(&check(999, 1), millis(1_001)).is_none(), "the rule was changed");
    assert!(leases.hold(&check(1_000, 1), millis(1_001)).is_some(), "a request that began before that");
    let demand = leases.demand(&check(999, 1)).expect("the new limit is leased too");
    let granted = Granted { hits: 2, stamp: 6 };
    let old = demand.granted(source(check(999, 1).limit, 6), granted, &room(9), millis(1_010));
    assert_eq!(old.iter().map(|old| (old.source.stamp, old.hits)).collect::<Vec<_>>(), [(5, 49)]);
    assert!(leases.hold(&check(1_000, 1), millis(1_011)).is_none());
    assert!(leases.hold(&check(999, 1), millis(1_011)).is_some());
}

#[test]
fn a_class_of_importance_spends_its_own_leases_alone() {
    let leases = leased(50);
    let mut batch = check(1_000, 1);
    batch.limit = batch.limit.with_share(Share::parse("0.6").expect("a share"));
    assert!(leases.spend(&batch, millis(1_001)).is_none() && leases.hold(&batch, millis(1_001)).is_none());
    assert!(leases.hold(&batch, millis(1_001)).is_none());
    let demand = leases.demand(&batch).expect("it is leased too");
    let granted = Granted { hits: 2, stamp: 6 };
    assert!(demand.granted(source(batch.limit, 6), granted, &room(500), millis(1_002)).is_empty());
    drop(demand);
    let held = leases.hold(&batch, millis(1_003)).expect("its own lease");
    assert_eq!((held.verdict.before, held.verdict.remaining), (100, 499), "of 600");
    assert!(leases.spend(&check(1_000, 1), millis(1_003)).is_some(), "the other lease is still there");
    let mut unspent = swept(&leases, 1_200);
    unspent.sort_unstable();
    assert_eq!(unspent, [(5, 49), (6, 1)]);
}

/// Limits per second may be counted elsewhere.
#[test]
fn a_lease_of_another_unit_is_not_spent() {
    let (leases, mut asked) = (leased(50), check(1_000, 1));
    asked.origin = Origin::Override { window: Window::of(Unit::Minute) };
    assert!(leases.hold(&asked, millis(1_001)).is_none() && leases.spend(&asked, millis(1_001)).is_none());
    let demand = leases.demand(&asked).expect("the new one is leased too");
    let minute = Source { unit: Unit::Minute, ..source(asked.limit, 6) };
    let old = demand.granted(minute, Granted { hits: 2, stamp: 6 }, &room(9), millis(1_010));
    assert_eq!(old.iter().map(|old| (old.source.unit, old.hits)).collect::<Vec<_>>(), [(Unit::Second, 50)]);
    assert!(leases.spend(&check(1_000, 1), millis(1_011)).is_none());
    assert!(leases.spend(&asked, millis(1_011)).is_some());
}

#[test]
fn a_request_that_is_denied_returns_what_it_held() {
    let leases = leased(3);
    let held = leases.hold(&check(1_000, 3), millis(1_010)).expect("held");
    assert!(leases.hold(&check(1_000, 1), millis(1_010)).is_none());
    assert_eq!(leases.release(&held, 3), None, "the lease has it again");
    let held = leases.hold(&check(1_000, 3), millis(1_020)).expect("held again");
    assert_eq!(held.verdict.remaining, 897);
    assert_eq!(swept(&leases, 1_100), [], "held hits are not given back");
    let late = leases.release(&held, 3).expect("the lease has ended meanwhile");
    assert_eq!((late.source.stamp, late.hits), (5, 3));
    assert_eq!((leases.hits_taken.load(Relaxed), leases.hits_given_back.load(Relaxed)), (3, 3));
}

#[test]
fn what_was_held_of_a_lease_that_has_ended_goes_to_no_other_lease() {
    let leases = leased(3);
    let held = leases.hold(&check(1_000, 3), millis(1_010)).expect("held");
    assert_eq!(swept(&leases, 1_500), [], "its counter is forgotten");
    take(&leases, 2, millis(1_500));
    assert_eq!(leases.release(&held, 3).expect("it goes back to Redis").hits, 3);
    assert!(leases.hold(&check(1_000, 3), millis(1_510)).is_none(), "the new lease has two");
}

#[test]
fn the_next_lease_is_due_when_little_is_left_and_the_one_before_is_spent_first() {
    // 34 hits were seen, less 8 that are left. Or 3 were seen, and it has enough.
    for (hits, at, due, wanted) in [(40, 1_000, 32, 26), (40, 1_080, 1, 1), (7, 1_000, u64::MAX, 0)] {
        let leases = leased(hits);
        let spend = || leases.spend(&check(1_000, 1), millis(at)).expect("there are some");
        for spent in 1..=hits.min(due) {
            spend();
            assert_eq!(leases.due.lock().len(), usize::from(spent == due), "{hits} at {at}, {spent} spent");
        }
        let Some((demand, from)) = leases.take_due().next() else { continue };
        assert_eq!((demand.hits, from.stamp), (wanted, 5));
        assert!(leases.demand(&check(1_000, 1)).is_none(), "a demand is on its way");
        let granted = Granted { hits: 40, stamp: 6 };
        assert!(demand.granted(source(from.limit, 6), granted, &room(500), millis(at)).is_empty());
        drop(demand);
        let left: Vec<u64> = (due..hits + 1).map(|_| spend().remaining).collect();
        assert_eq!(left.last(), Some(&499), "the new one is spent when nothing is left of the old one");
        assert_eq!(left.iter().filter(|&&left| left < 500).count(), 1);
        assert_eq!(swept(&leases, at + 100), [(6, 39)]);
    }
}

#[test]
fn the_demand_follows_the_rate_and_ends_with_it() {
    let leases = Leases::new(T);
    let ask = |now, times: u64| {
        (0..times).for_each(|_| drop(leases.hold(&check(1_000, 2), millis(now))));
        leases.demand(&check(1_000, 2)).map(|demand| demand.hits)
    };
    assert_eq!(ask(1_000, 20), Some(40));
    assert_eq!(ask(1_100, 1), Some(40), "as many as in the period before");
    assert_eq!(ask(1_200, 1), None, "once in each of two periods");
    assert_eq!(ask(3_000, 20), Some(40));
    assert_eq!(ask(3_200, 1), None, "there was a period without any");
    assert_eq!(ask(5_000, 1), None);
    assert_eq!(swept(&leases, 5_200), []);
    assert!(leases.shards.iter().all(|shard| shard.lock().counters.is_empty()), "nothing is kept");
}

#[test]
fn nothing_is_leased_for_windows_that_are_short_or_without_time() {
    let seen = |time, nanos| {
        let leases = Leases::new(time);
        let asked = Check { limit: Limit::new(Algorithm::SlidingLog, 1_000, nanos), ..check(1_000, 1) };
        (0..9).for_each(|_| drop(leases.hold(&asked, millis(1_000))));
        leases.demand(&asked).is_some()
    };
    let window = |times| WINDOW_TIMES_MIN * T.as_nanos() as u64 - times;
    assert_eq!(
        [seen(T, window(0)), seen(T, window(1)), seen(Duration::ZERO, window(0))],
        [true, false, false]
    );
}

#[test]
fn the_table_is_bounded() {
    let leases = Leases::new(T);
    let ask = |key, now| drop(leases.hold(&Check { key: Key(key), ..check(9, 1) }, now));
    (0..200_000).for_each(|key| ask(key, millis(1_000)));
    let len = || leases.shards.iter().map(|shard| shard.lock().counters.len()).sum::<usize>();
    assert_eq!(len(), SHARDS * SHARD_COUNTERS_MAX);
    assert_eq!(swept(&leases, 1_200), []);
    assert_eq!(len(), 0);
}

#[test]
fn a_part_that_was_emptied_is_swept_again_when_it_is_used_again() {
    let leases = leased(3);
    assert_eq!((leases.hits_spent(), leases.hits_left()), (0, 3));
    assert_eq!(swept(&leases, 1_500), [(5, 3)]);
    assert_eq!((leases.in_use.load(Relaxed), leases.hits_spent(), leases.hits_left()), (0, 0, 0));
    take(&leases, 4, millis(2_000));
    assert!(leases.spend(&check(1_000, 1), millis(2_001)).is_some());
    assert_eq!((leases.hits_spent(), leases.hits_left()), (1, 3));
    assert_eq!(swept(&leases, 2_500), [(5, 3)]);
}

#[test]
fn a_demand_that_comes_to_nothing_lets_others_ask() {
    let leases = leased(2);
    assert!(leases.demand(&check(1_000, 1)).is_some());
    assert!(leases.demand(&check(1_000, 1)).is_some());
}

/// A second lease would be asked for meanwhile.
#[test]
fn a_counter_is_not_forgotten_while_a_demand_is_in_flight() {
    let (leases, asked) = (Leases::new(T), check(1_000, 1));
    let see_twice = |at| (0..2).for_each(|_| assert!(leases.hold(&asked, millis(at)).is_none()));
    see_twice(1_000);
    let demand = leases.demand(&asked).expect("seen twice");
    assert_eq!(swept(&leases, 1_500), []);
    see_twice(1_500);
    assert!(leases.demand(&asked).is_none(), "one is in flight");
    drop(demand);
    assert!(leases.demand(&asked).is_some());
}

#[test]
fn the_rest_of_a_lease_goes_over_to_the_next_of_its_stamp() {
    for (stamp, gone_over, back) in [(5, 37, vec![(5, 76)]), (6, 0, vec![(5, 37), (6, 39)])] {
        let leases = leased(40);
        let spend = |at: u64| leases.spend(&check(1_000, 1), millis(at)).map(|verdict| verdict.remaining);
        assert_eq!([spend(1_000), spend(1_080), spend(1_080)], [Some(899), Some(898), Some(897)]);
        let (demand, from) = leases.take_due().next().expect("due");
        let granted = Granted { hits: 40, stamp };
        assert!(demand.granted(source(from.limit, stamp), granted, &room(860), millis(1_080)).is_empty());
        drop(demand);
        let mut given_back = swept(&leases, 1_100);
        assert_eq!(spend(1_100), Some(859 + gone_over));
        given_back.extend(swept(&leases, 1_180));
        assert_eq!(given_back, back);
    }
}

/// One Redis: hits by place. A place is the time in milliseconds over the length of a bucket.
struct Redis {
    bucket: u64,
    places: Vec<(u64, u64)>,
}

const N: u64 = 400;
const SHORT_WINDOW: u64 = 1_000;

impl Redis {
    fn count(&mut self, now: u64) -> u64 {
        let counts = |place: u64| (place + 1) * self.bucket + SHORT_WINDOW > now;
        self.places.retain(|&(place, _)| counts(place));
        self.places.iter().map(|(_, hits)| hits).sum()
    }

    fn put(&mut self, time: u64, hits: u64) -> u64 {
        let place = time / self.bucket;
        match self.places.iter_mut().find(|(known, _)| *known == place) {
            Some((_, count)) => *count += hits,
            None => self.places.push((place, hits)),
        }
        place
    }

    /// Takes so many hits, one or none, if there is room for one; then a lease of a part of the rest.
    fn ask(&mut self, now: u64, own: u64, wanted: Option<u64>) -> (Verdict, Granted) {
        let left = N.saturating_sub(self.count(now));
        let none = Granted { hits: 0, stamp: 0 };
        if left == 0 {
            return (
                Verdict {
                    over: true,
                    before: N,
                    after: N + 1,
                    remaining: 0,
                    reset_nanos: 0,
                    is_counted: true,
                },
                none,
            );
        }
        self.put(now, own);
        let hits = wanted.unwrap_or(0).min((left - own) / 8);
        if hits < 2 {
            return (room(left - own), none);
        }
        let stamp = self.put(now + T.as_millis() as u64, hits);
        (room(left - own), Granted { hits, stamp })
    }

    /// Takes back one hit that counts, from the first place or the last.
    fn refund(&mut self, now: u64, order: Order) {
        self.count(now);
        self.places.sort_unstable();
        let held = self.places.iter_mut().filter(|(_, hits)| *hits > 0);
        let place = match order {
            Order::OldestFirst => held.into_iter().next(),
            Order::NewestFirst => held.into_iter().next_back(),
        };
        if let Some((_, hits)) = place {
            *hits -= 1;
        }
    }

    fn give_back(&mut self, unspent: &Unspent) {
        let place = self.places.iter_mut().find(|(place, _)| *place == unspent.source.stamp);
        place.into_iter().for_each(|(_, hits)| *hits = hits.saturating_sub(unspent.hits));
    }
}

/// Which hits a refund takes.
#[derive(Clone, Copy)]
enum Order {
    OldestFirst,
    NewestFirst,
}

/// The kind of a simulation.
#[derive(Clone, Copy)]
struct Course {
    /// The length of a bucket in milliseconds.
    bucket: u64,
    /// Wrongly starts leases when the answer comes.
    from_reply: bool,
    /// Gives back forty hits of a hundred while they count, from any node.
    refunds: Option<Order>,
}

impl Course {
    const fn of_buckets(bucket: u64) -> Self {
        Self { bucket, from_reply: false, refunds: None }
    }
}

/// A question in flight.
struct Asking<'l> {
    own: u64,
    sent: u64,
    arrives: u64,
    answered: u64,
    demand: Option<Demand<'l>>,
    answer: Option<(Verdict, Granted)>,
}

/// Some seconds of three nodes. Returns the times of all admissions that were not given back, in order.
fn simulate(seed: u64, Course { bucket, from_reply, refunds }: Course) -> Vec<u64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut below = move |bound: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % bound
    };
    let asked =
        Check { limit: Limit::new(Algorithm::SlidingLog, N, SHORT_WINDOW * 1_000_000), ..check(1, 1) };
    let tables: Vec<(Leases, u64)> = (0..3).map(|_| (Leases::new(T), below(1_000_000))).collect();
    let mut asking: Vec<Vec<Asking<'_>>> = tables.iter().map(|_| Vec::new()).collect();
    let (mut redis, mut admitted) = (Redis { bucket, places: Vec::new() }, Vec::new());
    let (mut percent, mut to_refund, mut seen) = (0, Vec::new(), 0);
    for now in 1..4_000 {
        if now % 150 == 1 {
            percent = [1, 5, 10, 20, 60][below(5) as usize];
        }
        for ((leases, offset), asking) in tables.iter().zip(&mut asking) {
            // Every node has its own clock.
            let own = |now: u64| millis(now + offset);
            if below(100) < percent {
                if leases.hold(&asked, own(now)).is_some() {
                    admitted.push(now);
                } else {
                    let (arrives, demand) = (now + below(40), leases.demand(&asked));
                    let answered = arrives + below(40);
                    asking.push(Asking { own: 1, sent: now, arrives, answered, demand, answer: None });
                }
            }
            for (demand, _) in leases.take_due() {
                let arrives = now + below(40);
                let answered = arrives + below(40);
                asking.push(Asking {
                    own: 0,
                    sent: now,
                    arrives,
                    answered,
                    demand: Some(demand),
                    answer: None,
                });
            }
            for question in asking.iter_mut().filter(|it| it.arrives <= now && it.answer.is_none()) {
                let wanted = question.demand.as_ref().map(|demand| demand.hits);
                let answer = redis.ask(now, question.own, wanted);
                admitted.extend((!answer.0.over && question.own > 0).then_some(now));
                question.answer = Some(answer);
            }
            for question in asking.extract_if(.., |it| it.answered <= now) {
                let (Some((verdict, granted)), Some(demand)) = (question.answer, question.demand) else {
                    continue;
                };
                let taken = own(if from_reply { now } else { question.sent });
                let old = demand.granted(source(asked.limit, granted.stamp), granted, &verdict, taken);
                old.iter().for_each(|old| redis.give_back(old));
            }
            if below(20) == 0 {
                // Some never arrive.
                leases.sweep(own(now), |unspent| {
                    if unspent.hits % 5 > 0 {
                        redis.give_back(&unspent);
                    }
                });
            }
        }
        if let Some(order) = refunds {
            for &at in &admitted[seen..] {
                if below(100) < 40 {
                    to_refund.push((at, now + below(SHORT_WINDOW / 2)));
                }
            }
            for (at, _) in to_refund.extract_if(.., |&mut (_, due)| due <= now) {
                admitted.remove(admitted.partition_point(|&other| other < at));
                redis.refund(now, order);
            }
            seen = admitted.len();
        }
    }
    admitted
}

fn most_in_a_window(admitted: &[u64]) -> usize {
    let since = |now: u64| admitted.partition_point(|&at| at + SHORT_WINDOW <= now);
    (0..admitted.len()).map(|index| index + 1 - since(admitted[index])).max().unwrap_or(0)
}

#[test]
fn no_window_of_any_simulation_holds_more_than_the_limit() {
    let (mut full, mut wrong) = ([0; 2], 0);
    for seed in 1..30 {
        for (kind, bucket) in [1, 250].into_iter().enumerate() {
            let most = most_in_a_window(&simulate(seed, Course::of_buckets(bucket)));
            assert!(most <= N as usize, "{most} in a window; seed {seed}, buckets of {bucket} ms");
            full[kind] += usize::from(most == N as usize);
        }
        let from_reply = Course { from_reply: true, ..Course::of_buckets(1) };
        wrong += usize::from(most_in_a_window(&simulate(seed, from_reply)) > N as usize);
    }
    assert!(full.iter().all(|&full| full > 10), "limits must be reached: {full:?}");
    assert!(wrong > 0, "a lease that is measured from its answer must be noticed");
}

#[test]
fn refunds_of_hits_that_count_make_no_room_for_more_than_the_limit() {
    let (mut full, mut wrong) = (0, 0);
    for seed in 1..30 {
        for bucket in [1, 250] {
            let course = |order| Course { refunds: Some(order), ..Course::of_buckets(bucket) };
            let most = most_in_a_window(&simulate(seed, course(Order::OldestFirst)));
            assert!(most <= N as usize, "{most} in a window; seed {seed}, buckets of {bucket} ms");
            full += usize::from(most > N as usize * 9 / 10);
            let newest_first = most_in_a_window(&simulate(seed, course(Order::NewestFirst)));
            wrong += usize::from(newest_first > N as usize);
        }
    }
    assert!(full > 10, "limits must be nearly reached: {full}");
    assert!(wrong > 0, "a refund that takes what another node has leased must be noticed");
}

/// A counter is reset while a lease of it has hits left. Those that a later lease gets were capacity already.
#[test]
fn no_more_hits_are_left_than_the_limit_has() {
    let (leases, asked) = (leased(8), check(1_000, 9));
    assert!(leases.hold(&asked, millis(1_050)).is_none(), "eight are left");
    let demand = leases.demand(&asked).expect("more is asked for");
    let granted = Granted { hits: 20, stamp: 5 };
    assert!(demand.granted(source(asked.limit, 5), granted, &room(999), millis(1_050)).is_empty());
    assert_eq!(swept(&leases, 1_100), [], "the rest of the first goes over to the second");
    let verdict = leases.hold(&check(1_000, 1), millis(1_110)).expect("held").verdict;
    assert_eq!((verdict.before, verdict.after, verdict.remaining), (0, 1, 999));
    assert!(leases.hold(&check(1_000, 27), millis(1_110)).is_some(), "all of both are there");
}
