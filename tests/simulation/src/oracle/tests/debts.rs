//! The oracle of debts that are carried, tried on costs and answers that somebody thought out.

use super::super::debts::owed;
use super::*;

const OVER: Outcome = Outcome::Denied { over: true };

/// A cost that was reported.
fn cost(at: Time, hits: u64) -> Record {
    Record { hits, is_reported: true, ..record((at, at + 1), OVER) }
}

/// Two hits in a second, of which debts are carried.
fn carrying(carries_debt: bool) -> LimitSpec {
    let shape = Shape { carries_debt, ..Shape::default() };
    LimitSpec { is_reported: true, shape, ..limit(Algorithm::SlidingWindow) }
}

#[test]
fn nothing_is_admitted_while_a_debt_waits() {
    let is_fine = |carries, losses: &[Loss], at: Time| {
        let records = [cost(0, 5), record((at, at + 1), Outcome::Admitted)];
        too_much(&rules(&[carrying(carries)], losses, true), &records).is_none()
    };
    assert!(is_fine(false, &[], SECOND * 3 / 2), "without the key it ends with its window");
    assert!(!is_fine(true, &[], SECOND * 3 / 2), "two windows have four hits");
    assert!(is_fine(true, &[], SECOND * 5 / 2), "three have six");
    let lost = [Loss { since: 0, until: 10, acknowledged: true }];
    assert!(is_fine(true, &lost, SECOND * 3 / 2), "the debt was lost");
}

#[test]
fn what_a_node_keeps_may_take_the_room_of_a_debt() {
    let is_fine = |first: Record, at: Time| {
        let records = [first, cost(10, 5), record((at, at + 1), Outcome::Admitted)];
        too_much(&rules(&[carrying(true)], &[], true), &records).is_none()
    };
    let kept = Record { is_kept: true, outcome: Outcome::Unknown, ..cost(0, 5) };
    assert!(!is_fine(cost(0, 5), SECOND * 5 / 2));
    assert!(is_fine(kept, SECOND * 5 / 2), "there may have been no room for the second cost");
    let later = |at| {
        too_much(
            &rules(&[carrying(true)], &[], true),
            &[kept, cost(at, 5), record((at + SECOND, at + SECOND + 1), Outcome::Admitted)],
        )
    };
    assert!(later(10).is_none() && later(60 * SECOND).is_some());
}

#[test]
fn who_is_denied_by_a_debt_has_a_reason_until_it_is_paid() {
    let is_fine = |carries, at: Time| {
        let fits = Record { outcome: Outcome::Admitted, ..cost(0, 2) };
        let records = [fits, cost(SECOND / 2, 2), record((at, at + 1), OVER)];
        starved(&rules(&[carrying(carries)], &[], true), &records).is_none()
    };
    assert!(!is_fine(false, SECOND * 8 / 5));
    assert!(is_fine(true, SECOND * 8 / 5), "the second two are paid by the second window");
    assert!(!is_fine(true, SECOND * 11 / 5));
}

#[test]
fn a_cost_leaves_when_there_was_room_for_all_of_it() {
    let at = |time| owed(2, 10, &mut [(0, 1), (1, 2), (2, 5)], time);
    assert_eq!([at(0), at(9), at(10), at(19), at(20)], [8, 8, 7, 7, 5]);
    assert_eq!([at(59), at(60)], [5, 0], "a cost beyond N counts for a window more than it may");
}
