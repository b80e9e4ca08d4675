//! The oracle of reservations, tried on answers that somebody thought out.

use tidegate_engine::limit::Found;

use super::*;
use crate::scenario::{Hold, Reserve};

const ADMITTED: Outcome = Outcome::Admitted;
const OVER: Outcome = Outcome::Denied { over: true };

/// Two hits in a second, whose reservations last for a second.
fn is_fine(charges: bool, records: &[Record]) -> bool {
    let shape = Shape { reserve: Some(Reserve { ttl: SECOND, charges, hold: None }), ..Shape::default() };
    let limits = [LimitSpec { shape, ..limit(Algorithm::SlidingWindow) }];
    wrong_holds(&rules(&limits, &[], true), records).is_none()
}

fn reserves(id: u32, at: Time, outcome: Outcome) -> Record {
    let reserving = Some(Reserving { id, rule: Some(0), is_commit: false, found: Some(Found::Nothing) });
    Record { reserving, ..record((at, at + 1), outcome) }
}

fn commits(id: u32, at: Time, hits: u64, found: Found) -> Record {
    let reserving = Some(Reserving { id, rule: Some(0), is_commit: true, found: Some(found) });
    Record { reserving, hits, is_reported: true, ..record((at, at + 1), ADMITTED) }
}

fn asks(at: Time, outcome: Outcome) -> Record {
    record((at, at + 1), outcome)
}

#[test]
fn what_is_held_leaves_no_room() {
    let two = [reserves(1, 0, ADMITTED), reserves(2, 10, ADMITTED)];
    let then = |charges, more: &[Record]| is_fine(charges, &[&two[..], more].concat());
    assert!(then(true, &[asks(20, OVER)]));
    assert!(!then(true, &[asks(20, ADMITTED)]));
    assert!(!then(true, &[reserves(3, 20, ADMITTED)]));
    assert!(then(true, &[commits(1, 20, 0, Found::Open), reserves(3, 30, ADMITTED)]), "one was released");
    assert!(!then(true, &[commits(1, 20, 1, Found::Open), reserves(3, 30, ADMITTED)]), "the cost counts");
    let (expired, over) = (SECOND * 3 / 2, SECOND * 5 / 2);
    assert!(!then(true, &[asks(expired, ADMITTED)]), "an expired one counts for a window");
    assert!(then(false, &[asks(expired, ADMITTED)]));
    assert!(then(true, &[asks(over, ADMITTED)]));
}

#[test]
fn what_has_ended_makes_room() {
    let two = [reserves(1, 0, ADMITTED), reserves(2, 10, ADMITTED)];
    let then = |charges, more: &[Record]| is_fine(charges, &[&two[..], more].concat());
    let released = commits(1, 20, 0, Found::Open);
    assert!(!then(true, &[released, asks(30, OVER)]));
    assert!(!then(true, &[released, reserves(3, 30, OVER)]));
    let no_answer = Record { outcome: Outcome::Unknown, ..released };
    assert!(then(true, &[no_answer, asks(30, OVER)]), "it may not have arrived");
    assert!(!then(false, &[asks(SECOND * 3 / 2, OVER)]), "both have expired");
    assert!(then(true, &[asks(SECOND * 3 / 2, OVER)]), "they count for a window more");
    let late = SECOND * 3 / 2;
    let expired = [commits(1, late, 1, Found::Expired(1)), commits(1, late + 10, 1, Found::Ended)];
    assert!(then(true, &[&expired[..], &[asks(late + 20, OVER)]].concat()), "its cost counts on");
    // One of cost 1 that was committed twice leaves room for another.
    let twice = |found| [reserves(1, 0, ADMITTED), commits(1, 10, 1, Found::Open), commits(1, 20, 1, found)];
    assert!(!is_fine(true, &[&twice(Found::Ended)[..], &[asks(30, OVER)]].concat()));
}

#[test]
fn a_reservation_is_found_as_it_is() {
    let first = reserves(1, 0, ADMITTED);
    assert!(is_fine(true, &[first, commits(1, 10, 1, Found::Open)]));
    assert!(!is_fine(true, &[first, commits(1, 10, 1, Found::Nothing)]), "it is held");
    assert!(!is_fine(true, &[first, commits(1, 10, 1, Found::Expired(1))]), "it has not expired");
    assert!(!is_fine(true, &[commits(1, 10, 1, Found::Open)]), "nobody has reserved it");
    let late = SECOND * 3 / 2;
    assert!(is_fine(true, &[first, commits(1, late, 1, Found::Expired(1))]));
    assert!(!is_fine(true, &[first, commits(1, late, 1, Found::Expired(0))]), "it was charged");
    let forgotten = |at| is_fine(true, &[first, commits(1, at, 1, Found::Nothing)]);
    assert_eq!(
        [late, SECOND * 5 / 2].map(forgotten),
        [false, true],
        "its id is known for as long as it lasted"
    );
    let ended = [first, commits(1, 10, 1, Found::Open)];
    assert!(!is_fine(true, &[&ended[..], &[commits(1, 20, 1, Found::Open)]].concat()), "it ended");
    assert!(is_fine(true, &[&ended[..], &[commits(1, 20, 1, Found::Ended)]].concat()));
}

/// Two hits in a second, and an overdraft of half of that: a call costs two hits at most, and holds less perhaps.
#[test]
fn what_is_learnt_bounds_from_both_sides() {
    let (overdraft, max) = (500, 2);
    let hold = Hold { percentile: 50, is_of_counter: false, initial: 1, max, overdraft };
    let reserve = Reserve { ttl: SECOND, charges: false, hold: Some(hold) };
    let limits = [LimitSpec {
        shape: Shape { reserve: Some(reserve), ..Shape::default() },
        ..limit(Algorithm::SlidingWindow)
    }];
    let is_fine = |records: &[Record]| wrong_holds(&rules(&limits, &[], true), records).is_none();
    let of = |hits, record| Record { hits, ..record };
    assert!(is_fine(&[of(2, reserves(1, 0, ADMITTED)), asks(10, ADMITTED)]), "it may hold one of its two");
    assert!(!is_fine(&[of(2, reserves(1, 0, ADMITTED)), of(2, asks(10, ADMITTED))]));
    let two = [of(1, reserves(1, 0, ADMITTED)), of(1, reserves(2, 10, ADMITTED))];
    assert!(!is_fine(&[&two[..], &[reserves(3, 20, ADMITTED)]].concat()), "three hold three of two");
    let worst = [of(9, reserves(1, 0, ADMITTED)), of(9, reserves(2, 10, ADMITTED))];
    assert!(!is_fine(&worst), "four of three may be spent");
    assert!(is_fine(&[of(9, reserves(1, 0, ADMITTED)), of(9, reserves(2, 10, OVER))]));
    assert!(!is_fine(&[of(1, reserves(1, 0, ADMITTED)), asks(10, OVER)]), "one of two is left");
}

/// As above, and what has expired is charged.
#[test]
fn an_expired_reservation_counts_what_its_call_has_cost() {
    let hold = Hold { percentile: 50, is_of_counter: false, initial: 1, max: 2, overdraft: 500 };
    let reserve = Some(Reserve { ttl: SECOND, charges: true, hold: Some(hold) });
    let limits =
        [LimitSpec { shape: Shape { reserve, ..Shape::default() }, ..limit(Algorithm::SlidingWindow) }];
    let is_fine = |cost: u64| {
        let late = SECOND * 3 / 2;
        let first = Record { hits: 2, ..reserves(1, 0, ADMITTED) };
        let all = [first, commits(1, late, cost, Found::Expired(2)), asks(late + 20, OVER)];
        wrong_holds(&rules(&limits, &[], true), &all).is_none()
    };
    assert!(is_fine(2), "it held one, but has cost both");
    assert!(!is_fine(1), "one is left");
}

#[test]
fn as_much_is_held_as_calls_have_cost() {
    let hold = Hold { percentile: 50, is_of_counter: true, initial: 60, max: 100, overdraft: 10_000 };
    let reserve = Some(Reserve { ttl: SECOND, charges: false, hold: Some(hold) });
    let shape = Shape { reserve, ..Shape::default() };
    let limits = [LimitSpec { shape, requests: [100; 2], ..limit(Algorithm::SlidingWindow) }];
    let worst = |id: u32, at: Time, outcome| Record { hits: 100, ..reserves(id, at, outcome) };
    let then = |ended: u32, outcome: Outcome| {
        let call = |id: u32| {
            let at = 10 * Time::from(id);
            [worst(id, at, ADMITTED), commits(id, at + 2, 1, Found::Open)]
        };
        let two = [worst(50, 500, ADMITTED), worst(51, 510, outcome)];
        let all = (0..ended).flat_map(call).chain(two);
        let all: Vec<_> = all.map(|it| Record { requests: 100, ..it }).collect();
        wrong_holds(&rules(&limits, &[], true), &all).is_none()
    };
    assert_eq!([ADMITTED, OVER].map(|outcome| then(19, outcome)), [false, true], "too few have ended");
    assert_eq!([ADMITTED, OVER].map(|outcome| then(20, outcome)), [true, false]);
}

#[test]
fn what_is_left_is_no_less_than_what_nobody_has_or_holds() {
    let is_fine = |is_ended: bool, remaining: u64| {
        let shape =
            Shape { reserve: Some(Reserve { ttl: SECOND, charges: true, hold: None }), ..Shape::default() };
        let limits = [LimitSpec { shape, ..limit(Algorithm::SlidingWindow) }];
        let ended = is_ended.then(|| commits(1, 10, 0, Found::Open));
        let last = Record { remaining, ..reserves(2, 20, ADMITTED) };
        let first = Record { remaining: 1, ..reserves(1, 0, ADMITTED) };
        let all: Vec<_> = [first].into_iter().chain(ended).chain([last]).collect();
        wrongly_left_holds(&rules(&limits, &[], true), &all).is_none()
    };
    assert!(is_fine(false, 0), "both are held");
    assert!(is_fine(true, 1));
    assert!(!is_fine(true, 0), "one was released");
}
