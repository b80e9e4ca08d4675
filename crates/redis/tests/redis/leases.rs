//! Leases inside a real Redis: leased hits count from when they are taken until a window after the lease ends. And
//! hits that go back.

use tidegate_engine::limit::{Algorithm, Limit};
use tidegate_engine::plan::{Check, Hits};
use tidegate_redis::script::{Answered, Call, ChargeId, CounterAnswered, DataId, Granted, RequestSummary};

use crate::asking::{check, key};
use crate::script::Asked;
use crate::server::Server;

const TODAY: u64 = 1_790_000_000_000_000;
const WINDOW: u64 = 60_000_000;
const T: u64 = 100_000;
const STRICT: [Algorithm; 2] = [Algorithm::SlidingLog, Algorithm::SlidingWindow];

/// One counter of N hits a minute in buckets of 20 ms.
struct Counter {
    _server: Server,
    asked: Asked,
    limit: Limit,
}

impl Counter {
    fn new(algorithm: Algorithm, requests: u32) -> Self {
        let server = Server::start(&[]);
        let asked = Asked::new(vec![server.connect()]);
        let limit = Limit::new(algorithm, requests.into(), WINDOW * 1_000);
        let granular = algorithm == Algorithm::SlidingWindow;
        let limit = if granular { limit.with_granularity(20_000_000) } else { limit };
        Self { _server: server, asked, limit }
    }

    /// Takes hits, and asks for a lease of so many more.
    fn take(&mut self, hits: u64, leased: Option<u64>, micros: u64) -> (CounterAnswered, Option<Granted>) {
        self.take_of(&RequestSummary::default(), hits, leased, micros)
    }

    /// The same for a request of which this call is a part.
    fn take_of(
        &mut self,
        request: &RequestSummary,
        hits: u64,
        leased: Option<u64>,
        micros: u64,
    ) -> (CounterAnswered, Option<Granted>) {
        let check = check(self.limit, key(1), Hits::Take(hits));
        let mut call = Call::new(request);
        call.push(b"counter".to_vec(), &check, false);
        leased.into_iter().for_each(|hits| call.lease(hits, T));
        let reply = self.asked.invoke(&call, u64::MAX, TODAY + micros);
        let answered = Answered::read(&reply, [&check]).expect("a reply to it");
        assert_eq!(answered.leases.len(), usize::from(leased.is_some()));
        (answered.counters[0], answered.leases.first().copied())
    }

    /// Takes all hits back, as an operator's reset does.
    fn reset(&mut self, micros: u64) {
        let check = check(self.limit, key(1), Hits::GiveBack(u64::from(u32::MAX)));
        let mut call = Call::new(&RequestSummary::default());
        call.push(b"counter".to_vec(), &check, false);
        self.asked.invoke(&call, u64::MAX, TODAY + micros);
    }

    /// Takes as many hits as pass, one at a time.
    fn take_all(&mut self, micros: u64) -> u64 {
        (0..).take_while(|_| !self.take(1, None, micros).0.verdict.over).count() as u64
    }

    fn left(&mut self, micros: u64) -> u64 {
        self.take(0, None, micros).0.verdict.remaining
    }

    fn give_back(&mut self, stamp: u64, hits: u64, micros: u64) {
        self.give_back_in("now", stamp, hits, micros);
    }

    /// Gives back what was charged in this generation; the server's is `now`.
    fn give_back_in(&mut self, generation: &str, stamp: u64, hits: u64, micros: u64) {
        redis::cmd("SET").arg("generation").arg("now").exec(self.asked.connection()).expect("Redis answers");
        let memory = DataId { key: b"generation".to_vec(), generation: generation.into(), connection: 1 };
        let mut call = Call::giving_back(&memory);
        call.push_give_back(b"counter".to_vec(), &self.limit, ChargeId::of(stamp), hits);
        self.asked.give_back(&call, TODAY + micros);
    }
}

#[test]
fn leased_hits_count_at_once_and_until_a_window_after_their_end() {
    for algorithm in STRICT {
        let mut counter = Counter::new(algorithm, 1_000);
        let (own, lease) = counter.take(1, Some(50), 0);
        assert_eq!((own.verdict.remaining, own.charged), (999, 1), "without the lease");
        assert_eq!(lease.map(|lease| lease.hits), Some(50));
        assert_eq!(counter.left(0), 949);
        // The hit itself stops to count a window after it was taken, the leased hits T later.
        let late = if algorithm == Algorithm::SlidingLog { 0 } else { 20_000 };
        assert_eq!(counter.left(WINDOW - 1), 949);
        assert_eq!(counter.left(WINDOW + late), 950);
        assert_eq!(counter.left(WINDOW + T - 1), 950);
        assert_eq!(counter.left(WINDOW + T + late), 1_000);
    }
}

#[test]
fn the_end_of_a_lease_does_not_move_the_time_of_its_counter() {
    for algorithm in STRICT {
        let mut counter = Counter::new(algorithm, 1_000);
        counter.take(1, Some(50), 0);
        // Later hits join the lease's entry at its end: they count longer, never shorter.
        counter.take(10, None, 30_000);
        assert_eq!(counter.left(WINDOW + 50_000), 940);
        assert_eq!(counter.left(WINDOW + T + 20_000), 1_000);
    }
}

#[test]
fn hits_go_back_from_their_own_stamp_and_once() {
    for algorithm in STRICT {
        let mut counter = Counter::new(algorithm, 1_000);
        let (_, lease) = counter.take(1, Some(50), 0);
        let stamp = lease.expect("granted").stamp;
        let (_, later) = counter.take(1, Some(20), 50_000);
        let other = later.expect("granted").stamp;
        assert_ne!(stamp, other);
        assert_eq!(counter.left(60_000), 1_000 - 72);
        counter.give_back(stamp, 30, 110_000);
        assert_eq!(counter.left(110_000), 1_000 - 42);
        counter.give_back(stamp + 1_000_000_000, 30, 110_000);
        assert_eq!(counter.left(110_000), 1_000 - 42, "no such stamp");
        counter.give_back_in("before", stamp, 1_000, 110_000);
        assert_eq!(counter.left(110_000), 1_000 - 42, "of a memory that is lost");
        counter.give_back(stamp, 1_000, 110_000);
        // All that is there goes back, the hit that joined it included, and nothing of the later lease.
        assert_eq!(counter.left(110_000), 1_000 - 21);
        counter.give_back(stamp, 1_000, 110_000);
        assert_eq!(counter.left(110_000), 1_000 - 21, "nothing is left of that stamp, between others");
        counter.give_back(other, 20, 160_000);
        assert_eq!(counter.left(160_000), 999);
    }
}

/// What a node does with a lease from before a reset: it spends a part, and gives the rest back after others have taken
/// all that fits.
#[test]
fn a_lease_from_before_a_reset_adds_its_own_hits_at_most() {
    for algorithm in STRICT {
        // In the bucket of the lease, in its last one, and later.
        for taken in [5_000, 99_000, 110_000] {
            for spends in [0, 3, u64::MAX] {
                let mut counter = Counter::new(algorithm, 100);
                let leased = counter.take(1, Some(50), 0).1.expect("granted");
                let spent = spends.min(leased.hits);
                counter.reset(4_000);
                assert_eq!(counter.left(4_000), 100, "{algorithm:?}");
                let mut passed = spent + counter.take_all(taken);
                counter.give_back(leased.stamp, leased.hits - spent, 130_000);
                passed += counter.take_all(140_000);
                assert!(passed <= 100 + leased.hits, "{algorithm:?}: {passed}, {leased:?}");
            }
        }
    }
}

#[test]
fn leases_shrink_as_the_limit_comes_near() {
    let mut counter = Counter::new(Algorithm::SlidingLog, 100);
    let mut granted = Vec::new();
    for micros in 0.. {
        let (own, lease) = counter.take(1, Some(1_000), micros);
        granted.push(lease.expect("asked").hits);
        if own.verdict.over {
            break;
        }
    }
    assert_eq!(granted[..4], [12, 10, 9, 8]);
    assert!(granted.is_sorted_by(|one, next| one >= next), "{granted:?}");
    let last = granted.iter().rev().take_while(|&&hits| hits == 0).count();
    assert!(last > 10, "the last ones are asked for one at a time: {granted:?}");
    let taken: u64 = granted.iter().map(|hits| hits + 1).sum();
    assert_eq!(taken - 1, 100, "and no lease goes over the limit");
}

#[test]
fn a_request_that_is_denied_gets_no_lease() {
    // A counter that is asked alone has a way of its own through the script.
    for quotas in [0, 1] {
        let request = RequestSummary { quotas, ..RequestSummary::default() };
        for algorithm in STRICT {
            let mut counter = Counter::new(algorithm, 100);
            let mut leased = |hits| counter.take_of(&request, hits, Some(10), 0).1.expect("asked").hits;
            assert_eq!([60, 60].map(&mut leased), [5, 0], "{algorithm:?}, {quotas}");
        }
    }
}

#[test]
fn a_key_lives_until_its_leases_count_no_more() {
    for algorithm in STRICT {
        let mut counter = Counter::new(algorithm, 1_000);
        let lives = |counter: &mut Counter| -> i64 {
            redis::cmd("PEXPIRETIME").arg("counter").query(counter.asked.connection()).expect("an answer")
        };
        counter.take(1, None, 0);
        let without = lives(&mut counter);
        counter.take(1, Some(50), 0);
        assert_eq!(lives(&mut counter), without + T as i64 / 1_000, "{algorithm:?}");
    }
}

/// A debt that is carried waits for room before anybody else does.
#[test]
fn there_is_no_lease_while_a_debt_waits() {
    for algorithm in STRICT {
        let mut counter = Counter::new(algorithm, 1_000);
        counter.limit = counter.limit.carrying_debt();
        let report = Check { reported: true, ..check(counter.limit, key(1), Hits::Take(2_500)) };
        let mut call = Call::new(&RequestSummary::default());
        call.push(b"counter".to_vec(), &report, false);
        counter.asked.invoke(&call, u64::MAX, TODAY);
        let leased = [T, WINDOW - 1, WINDOW, 2 * WINDOW - 1, 2 * WINDOW + 100_000]
            .map(|micros| counter.take(0, Some(80), micros).1.expect("an answer").hits);
        assert_eq!(leased, [0, 0, 0, 0, 62], "{algorithm:?}");
    }
}
