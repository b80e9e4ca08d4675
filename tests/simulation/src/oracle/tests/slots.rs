//! The oracle of calls in flight, tried on calls that somebody thought out.

use super::super::slots::{Release, wrong_slots, wrongly_left_slots};
use super::*;

/// A call of this id, which asks for one of two slots for a second.
fn call(id: u8, times: (Time, Time), outcome: Outcome) -> Record {
    Record { id: Some(id), ..record(times, outcome) }
}

fn slots_are_fine(usual: &Rules<'_>, records: &[Record], releases: &[Release]) -> bool {
    wrong_slots(usual, records, releases).is_none()
}

#[test]
fn no_more_calls_hold_slots_at_once_than_there_are() {
    let limits = [limit(Algorithm::Concurrency)];
    let usual = rules(&limits, &[], true);
    let three =
        |third: Time| [(1, 0), (2, 10), (3, third)].map(|(id, at)| call(id, (at, at + 1), Outcome::Admitted));
    let released = |asked: Time| Release { of: 0, epoch: 0, asked, done: asked + 5 };
    assert!(!slots_are_fine(&usual, &three(20), &[]));
    assert!(slots_are_fine(&usual, &three(20), &[released(15)]));
    assert!(!slots_are_fine(&usual, &three(20), &[released(40)]), "it was released later");
    assert!(slots_are_fine(&usual, &three(SECOND + 1), &[]), "the first one ended");
    let loss = [Loss { since: 0, until: 15, acknowledged: true }];
    let lost = Rules { losses: &loss, ..usual };
    assert!(slots_are_fine(&lost, &three(20), &[]));
    assert!(
        !slots_are_fine(&usual, &[three(20)[0], call(1, (20, 21), Outcome::Admitted)], &[]),
        "one id, twice"
    );
    assert!(slots_are_fine(&usual, &[three(20)[0], call(1, (20, 21), Outcome::Admitted)], &[released(15)]));
    let [first, second, third] = three(20);
    let twice = Record { request: first.request, ..first };
    assert!(
        slots_are_fine(&usual, &[first, twice, second], &[]),
        "a request that names a call twice has one slot"
    );
    assert!(!slots_are_fine(&usual, &[first, twice, second, third], &[]));
    let census = census(&usual, &three(20));
    assert_eq!([census.all, census.of_slots], [Tally { answered: 3, judged: 3 }; 2]);
}

#[test]
fn whoever_asks_while_there_is_a_slot_gets_it() {
    let limits = [limit(Algorithm::Concurrency)];
    let usual = rules(&limits, &[], true);
    let (admitted, denied) = (Outcome::Admitted, Outcome::Denied { over: true });
    let is_fine = |all: &[Record], releases: &[Release]| slots_are_fine(&usual, all, releases);
    let two = [call(1, (0, 1), admitted), call(2, (10, 11), admitted)];
    let third = |at: Time| [two[0], two[1], call(3, (at, at + 1), denied)];
    let released = |done: Time| Release { of: 0, epoch: 0, asked: 12, done };
    assert!(is_fine(&third(20), &[]));
    assert!(!is_fine(&third(20), &[released(15)]), "the release made room");
    assert!(is_fine(&third(20), &[released(Time::MAX)]), "nobody acknowledged it");
    assert!(is_fine(&third(20), &[Release { epoch: 1, ..released(15) }]), "it went to another counter");
    assert!(!is_fine(&third(2 * SECOND), &[]), "both have ended");
    assert!(is_fine(&[two[0], call(1, (20, 21), denied)], &[]), "its id holds a slot");
    assert!(!is_fine(&[two[0], call(2, (20, 21), denied)], &[]));
    let lost = [call(1, (0, 9), Outcome::Unknown), call(2, (0, 9), Outcome::Unknown)];
    assert!(is_fine(&[lost[0], lost[1], call(3, (20, 21), denied)], &[]), "their answers were lost");
    assert!(!is_fine(&[lost[0], lost[1], call(3, (2 * SECOND, 2 * SECOND + 1), denied)], &[]));
}

#[test]
fn a_renewal_holds_the_slot_of_its_call() {
    let limits = [limit(Algorithm::Concurrency)];
    let usual = rules(&limits, &[], true);
    let (admitted, denied) = (Outcome::Admitted, Outcome::Denied { over: true });
    let is_fine = |all: &[Record], releases: &[Release]| slots_are_fine(&usual, all, releases);
    let renewal = |at: Time, outcome| Record { renews: Some(0), ..call(1, (at, at + 1), outcome) };
    let (first, late) = (call(1, (0, 1), admitted), SECOND / 10 * 9);
    let others =
        |second: Time| [call(2, (second, second + 1), admitted), call(3, (second + 5, second + 6), admitted)];
    let [second, third] = others(SECOND + MILLI);
    assert!(is_fine(&[first, second, third], &[]), "the first one ended");
    assert!(!is_fine(&[first, renewal(late, admitted), second, third], &[]), "it was renewed");
    assert!(!is_fine(&[first, renewal(late, denied)], &[]), "it was held");
    let lower = Record { requests: 1, ..renewal(late, admitted) };
    assert!(is_fine(&[first, others(10)[0], lower], &[]), "no room is needed for what is held");
    let released = |asked: Time| Release { of: 0, epoch: 0, asked, done: asked + 5 };
    assert!(
        is_fine(&[first, others(20)[0], others(20)[1], renewal(late, denied)], &[released(10)]),
        "no slot is left"
    );
    assert!(!is_fine(&[first, others(20)[0], renewal(late, denied)], &[released(10)]), "one is left");
    assert!(is_fine(&[first, renewal(late, admitted), second, third], &[released(late + 10)]));
    let early = [first, renewal(late, admitted), second, third];
    assert!(!is_fine(&early, &[released(10)]), "what was released before is taken again");
    let unknown = [first, Record { answered: late + MILLI, ..renewal(late, Outcome::Unknown) }, second];
    let fourth = call(4, (SECOND + 2 * MILLI, SECOND + 3 * MILLI), denied);
    assert!(is_fine(&[unknown[0], unknown[1], unknown[2], fourth], &[]), "its answer was lost");
}

#[test]
fn lost_slots_count_as_taken_for_the_shortest_ttl_in_force() {
    let limits = [limit(Algorithm::Concurrency)];
    let loss = [Loss { since: 0, until: 100, acknowledged: true }];
    let cold =
        Rules { losses: &loss, knows_losses: true, cold_max: Some(3 * SECOND), ..rules(&limits, &[], true) };
    let of = |id, window, at| Record { window, ..call(id, (at, at + 1), Outcome::Admitted) };
    let is_fine = |windows: [Time; 2], third: Time| {
        let all = [of(1, windows[0], 0), of(2, windows[0], 10), of(3, windows[1], third)];
        slots_are_fine(&cold, &all, &[])
    };
    let late = SECOND + 200;
    assert!(!is_fine([2 * SECOND; 2], late), "their calls run");
    assert!(is_fine([2 * SECOND, SECOND], late), "nobody knows of the longer ttl any more");
    assert!(!is_fine([2 * SECOND, SECOND], SECOND), "a shorter one counts too");
    assert!(is_fine([2 * SECOND, 4 * SECOND], 200), "so long a ttl is exempt");
}

#[test]
fn what_answers_say_of_slots_and_of_waits_is_what_there_may_be() {
    let limits = [limit(Algorithm::Concurrency)];
    let usual = rules(&limits, &[], true);
    let said = |(at, outcome), remaining, reset_nanos| Record {
        remaining,
        reset_nanos,
        ..call(at as u8, (at, at + 1), outcome)
    };
    let over = Outcome::Denied { over: true };
    let is_fine = |left: [u64; 3], [waits, again]: [Time; 2]| {
        let of = |at, outcome, left, waits| said((at, outcome), left, waits);
        let records = [
            of(10, Outcome::Admitted, left[0], waits),
            of(20, Outcome::Admitted, left[1], waits),
            of(30, over, left[2], again),
        ];
        wrongly_left_slots(&usual, &records, &[]).is_none()
    };
    assert!(is_fine([1, 0, 0], [0, SECOND]));
    for left in [[0, 0, 0], [2, 0, 0], [1, 1, 0], [1, 0, 1]] {
        assert!(!is_fine(left, [0, SECOND]), "{left:?}");
    }
    assert!(!is_fine([1, 0, 0], [0, SECOND + 1]) && !is_fine([1, 0, 0], [1, SECOND]));
    // Whether a call without an answer holds a slot is not known.
    let unknown = said((15, Outcome::Unknown), 0, 0);
    for (left, expected) in [(2, false), (1, true), (0, true)] {
        let records = [unknown, said((20, Outcome::Admitted), left, 0)];
        assert_eq!(wrongly_left_slots(&usual, &records, &[]).is_none(), expected, "{left}");
    }
}
