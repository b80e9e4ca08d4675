//! Counters that are copied out of one store into another go on as if nothing had happened, and bytes that no store has
//! written are refused.

use tidegate_engine::limit::{Algorithm, Limit};
use tidegate_engine::memory::{Encoded, ExportPlace, ImportError, MemoryOptions, MemoryStore};
use tidegate_engine::plan::Hits;
use tidegate_engine::time::{SECOND_NANOS, Timestamp};

use crate::asking::{at, check, key, plan, small_store, store};
use crate::limits_oracle::{Answer, Naive};
use crate::limits_sequences::{next_hits, next_time, terms};
use crate::random::Random;

/// What one step of an export has copied.
struct Piece {
    algorithm: Algorithm,
    counters: u32,
    bytes: Vec<u8>,
}

impl Piece {
    fn encoded(&self, copied_at: Timestamp) -> Encoded<'_> {
        Encoded { algorithm: self.algorithm, counters: self.counters, bytes: &self.bytes, copied_at }
    }
}

fn export(store: &MemoryStore, now: Timestamp) -> Vec<Piece> {
    let mut place = ExportPlace::default();
    std::iter::from_fn(|| {
        let mut bytes = Vec::new();
        let exported = store.export(&mut place, now, &mut bytes)?;
        Some(Piece { algorithm: exported.algorithm, counters: exported.counters, bytes })
    })
    .collect()
}

/// The counters of `store` in `other`.
pub(crate) fn moved(store: &MemoryStore, other: MemoryStore, now: Timestamp) -> MemoryStore {
    for piece in export(store, now) {
        piece.encoded(now).verify().expect("what a store has written is good");
        other.import(&piece.encoded(now)).expect("there is room");
    }
    other
}

/// Random sequences in which the process ends and begins again at any step: every answer is that of the oracle, which
/// knows of no end.
#[test]
fn a_restart_changes_no_answer() {
    let mut restarts = 0;
    for seed in 0..12_000 {
        let mut random = Random(seed);
        let mut store = small_store();
        let mut terms = terms(&mut random, Algorithm::OF_HITS[seed as usize % Algorithm::OF_HITS.len()]);
        let buckets = terms.algorithm.is_bucket();
        let (mut naive, mut now, mut history) =
            (Naive::default(), random.below(3 * terms.window), Vec::new());
        for _ in 0..1 + random.below(20) {
            now = now.max(next_time(&mut random, now, terms.window));
            if random.one_in(3) {
                let time = Timestamp::from_nanos(now);
                store = moved(&store, if random.one_in(2) { small_store() } else { self::store() }, time);
                restarts += store.counters();
                history.push("restart".to_owned());
            }
            if !buckets && random.one_in(10) {
                terms.requests = random.below(12);
            }
            let (hits, giving_back) = (next_hits(&mut random, &terms), random.one_in(6));
            let asked = if giving_back { Hits::GiveBack(hits) } else { Hits::Take(hits) };
            let mut check = check(terms.limit(), key(seed), asked);
            check.reported = random.one_in(4) && hits > 0;
            let verdict = store.apply(&plan([check]), Timestamp::from_nanos(now))[0].expect("a verdict");
            let answer = match giving_back {
                true => naive.give_back(&terms, now, hits),
                false => naive.take(&terms, now, hits, check.reported),
            };
            history.push(format!("{now} {asked:?} {} {}", check.reported, terms.requests));
            let is = Answer {
                over: verdict.over,
                before: verdict.before,
                after: verdict.after,
                remaining: verdict.remaining,
                reset_nanos: verdict.reset_nanos,
            };
            assert_eq!(is, answer, "seed {seed}\n{terms:?}\n{history:#?}");
        }
    }
    assert!(restarts > 10_000, "{restarts} counters were moved");
}

/// A store at its bound fits into the next one, whose bound is the same.
#[test]
fn a_full_store_fits_again() {
    let limit = Limit::new(Algorithm::SlidingWindowWeighted, 5, 3_600 * SECOND_NANOS);
    let (now, options) = (Timestamp::from_secs(1_790_000_000), MemoryOptions::new(16 << 20));
    let store = MemoryStore::new(options);
    let mut numbers = 0..;
    // Sweeping gives back what shards have paid in advance, and others use it.
    for _ in 0..5 {
        let denied = store.full_total().deny + 1_000;
        while store.full_total().deny < denied {
            store.take(&limit, key(numbers.next().expect("it has no end")), 1, now);
        }
        while !store.sweep(now.plus(SECOND_NANOS)).round_done {}
    }
    let next = moved(&store, MemoryStore::new(options), now);
    assert_eq!(next.counters(), store.counters());
}

/// Whatever a store holds takes no more bytes in the next one, however its counters have grown, been given back and expired.
#[test]
fn restored_counters_take_no_more_bytes() {
    let options = MemoryOptions::new(4 << 20);
    for seed in 0..1_400 {
        let mut random = Random(seed);
        let algorithm = Algorithm::OF_HITS[seed as usize % Algorithm::OF_HITS.len()];
        let limit = Limit::new(algorithm, random.pick(&[5, 60, 510, 1_200]), 100_000).with_granularity(50);
        let can_carry = matches!(algorithm, Algorithm::SlidingLog | Algorithm::SlidingWindow);
        let limit = if can_carry && random.one_in(2) { limit.carrying_debt() } else { limit };
        let (keys, pace) = (random.pick(&[1, 1, 20]), random.pick(&[20, 90, 300, 4_000]));
        let (mut store, mut now) = (MemoryStore::new(options), 1_000_000);
        for step in 0..random.pick(&[20, 200, 1_500]) {
            now += random.below(pace);
            let hits = random.pick(&[1, 1, 1, 1, 1, 2, 3, 40]);
            let giving_back = random.one_in(12);
            let hits = if giving_back { Hits::GiveBack(hits) } else { Hits::Take(hits) };
            let mut check = check(limit, key(random.below(keys)), hits);
            check.reported = !giving_back && random.one_in(5);
            let time = Timestamp::from_nanos(now);
            store.apply(&plan([check]), time);
            if random.one_in(20) {
                let next = moved(&store, MemoryStore::new(options), time);
                let bytes = [store.bytes(), next.bytes()];
                assert!(bytes[1] <= bytes[0], "seed {seed}, step {step}: {bytes:?} of {limit:?}");
                store = if random.one_in(4) { next } else { store };
            }
        }
    }
}

/// Logs of many blocks and windows of thousands of buckets, some of their hits given back.
#[test]
fn long_counters_are_moved_whole() {
    for algorithm in [Algorithm::SlidingLog, Algorithm::SlidingWindow] {
        let limit = Limit::new(algorithm, 20_000, 100_000).with_granularity(50);
        let (mut moving, staying, mut random, mut now) = (small_store(), small_store(), Random(5), 1_000_000);
        for step in 0..20_000 {
            now += random.below(20);
            let hits = random.pick(&[1, 1, 1, 2, 3, 40]);
            let hits = if random.one_in(9) { Hits::GiveBack(hits) } else { Hits::Take(hits) };
            let ask = plan([check(limit, key(1), hits)]);
            let time = Timestamp::from_nanos(now);
            assert_eq!(moving.apply(&ask, time), staying.apply(&ask, time), "step {step}: {algorithm:?}");
            if random.one_in(1_000) {
                moving = moved(&moving, small_store(), time);
            }
        }
    }
}

#[test]
fn what_has_expired_is_left_out_and_the_rest_expires_when_it_would_have() {
    for algorithm in Algorithm::OF_HITS {
        let before = small_store();
        let limit = |seconds| Limit::new(algorithm, 5, seconds * SECOND_NANOS);
        for (number, seconds) in [(1, 1), (2, 60), (3, 3_600)] {
            before.take(&limit(seconds), key(number), 1, at(10_000.5));
        }
        let after = moved(&before, small_store(), at(10_010.0));
        assert_eq!(after.counters(), 2, "{algorithm:?}");
        while !after.sweep(at(10_130.0)).round_done {}
        assert_eq!(after.counters(), 1, "{algorithm:?}");
        while !after.sweep(at(20_000.0)).round_done {}
        assert_eq!((after.counters(), after.bytes()), (0, 0), "{algorithm:?}");
    }
}

#[test]
fn a_counter_takes_few_bytes() {
    for algorithm in Algorithm::OF_HITS {
        let store = small_store();
        for number in 0..1_000 {
            store.take(&Limit::new(algorithm, 5, SECOND_NANOS), key(number), 1, at(1.0));
        }
        let bytes: usize = export(&store, at(1.0)).iter().map(|piece| piece.bytes.len()).sum();
        let most = match algorithm {
            Algorithm::SlidingWindowWeighted | Algorithm::FixedWindow => 36,
            Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Calendar => 40,
            Algorithm::SlidingWindow => 42,
            Algorithm::SlidingLog => 44,
            Algorithm::Concurrency | Algorithm::Ban | Algorithm::Holds => unreachable!("they count no hits"),
        };
        assert_eq!(bytes, 1_000 * most, "{algorithm:?}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    for algorithm in Algorithm::OF_HITS {
        let (large, small) = (store(), MemoryStore::new(MemoryOptions::new(10_000)));
        for number in 0..2_000 {
            large.take(&Limit::new(algorithm, 5, SECOND_NANOS), key(number), 1, at(1.0));
        }
        let taken: Result<(), _> =
            export(&large, at(1.0)).iter().try_for_each(|piece| small.import(&piece.encoded(at(1.0))));
        assert_eq!(taken, Err(ImportError::Full), "{algorithm:?}");
        assert!(small.bytes() <= 10_000);
    }
}

#[test]
fn a_counter_that_is_there_twice_or_comes_from_the_future_is_refused() {
    let before = small_store();
    before.take(&Limit::new(Algorithm::SlidingWindow, 5, SECOND_NANOS), key(1), 1, at(1.0));
    let pieces = export(&before, at(1.0));
    let [piece] = pieces.as_slice() else { panic!("one shard has the counter") };
    let after = small_store();
    after.import(&piece.encoded(at(1.0))).expect("good");
    let damaged = |what| Err(ImportError::Damaged { counter: 0, what });
    assert_eq!(after.import(&piece.encoded(at(1.0))), damaged("its key is there twice"));
    let later = small_store().import(&piece.encoded(at(0.9)));
    assert_eq!(later, damaged("its latest time is later than the copy"));
}

/// Bytes with any change are refused, or are those of another counter: then the store holds exactly that one. Nothing
/// panics, whatever they are.
#[test]
fn bytes_that_were_changed_are_refused_or_taken_as_they_stand() {
    let (mut refused, mut taken, mut random) = (0, 0, Random(9));
    for algorithm in Algorithm::OF_HITS.repeat(300) {
        let before = small_store();
        let window = random.pick(&[50, SECOND_NANOS, 3_600 * SECOND_NANOS]);
        let limit = Limit::new(algorithm, 40, window);
        let mut now = 1_700_000_000 * SECOND_NANOS;
        for _ in 0..random.below(20) + 1 {
            now += random.below(window / 20 + 2);
            before.take(&limit, key(1), 1 + random.below(3), Timestamp::from_nanos(now));
        }
        let time = Timestamp::from_nanos(now);
        for mut piece in export(&before, Timestamp::default()) {
            for _ in 0..40 {
                let good = piece.bytes.clone();
                change(&mut piece, &mut random);
                let after = small_store();
                match after.import(&piece.encoded(time)) {
                    Ok(()) => {
                        let again = export(&after, Timestamp::default());
                        assert_eq!(
                            again.iter().map(|piece| piece.bytes.len()).sum::<usize>(),
                            piece.bytes.len()
                        );
                        assert!(again.iter().all(|again| again.bytes == piece.bytes), "{algorithm:?}");
                        after.sweep(Timestamp::MAX);
                        taken += 1;
                    }
                    Err(_) => refused += 1,
                }
                piece = Piece { bytes: good, counters: 1, algorithm };
            }
        }
    }
    assert!(refused > 10_000 && taken > 1_000, "{refused} refused, {taken} taken");
}

fn change(piece: &mut Piece, random: &mut Random) {
    let place = random.below(piece.bytes.len() as u64) as usize;
    match random.below(5) {
        0 => piece.bytes.truncate(place),
        1 => piece.bytes.push(random.next() as u8),
        2 => piece.counters = random.below(3) as u32,
        3 => piece.bytes[place..].fill(random.pick(&[0, 0xff])),
        _ => piece.bytes[place] ^= 1 << random.below(8),
    }
}
