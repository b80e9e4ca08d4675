//! Records of single keys that count in another way than their rule, so that one key has several counters.

use super::*;

/// By a record with another algorithm.
fn apart(times: (Time, Time), outcome: Outcome) -> Record {
    Record { algorithm: Some(Algorithm::SlidingLog), ..record(times, outcome) }
}

#[test]
fn a_denial_by_a_counter_of_a_record_has_its_cause_there() {
    let (admitted, over) = (Outcome::Admitted, Outcome::Denied { over: true });
    let limits = [limit(Algorithm::SlidingWindow)];
    let is_fine = |records: &[Record]| starved(&rules(&limits, &[], true), records).is_none();
    let denied = apart((20, 21), over);
    let own = [0, 5].map(|at| record((at, at + 1), admitted));
    let of_record = [0, 5].map(|at| apart((at, at + 1), admitted));
    assert!(is_fine(&[&of_record[..], &[denied]].concat()));
    assert!(!is_fine(&[&own[..], &[denied]].concat()), "these are of the other counter");
    let unknown = record((5, 6), Outcome::Unknown);
    assert!(is_fine(&[of_record[0], unknown, denied]), "either of them may have counted this");
    assert!(!is_fine(&[own[0], unknown, denied]));
    let wider = |it: Record| Record { granularity: SECOND / 2, ..it };
    assert!(
        !is_fine(&[wider(own[0]), wider(own[1]), record((20, 21), over)]),
        "wider buckets are another counter"
    );
}

#[test]
fn what_may_have_counted_in_another_counter_is_no_cause_to_admit_less() {
    let limits = [limit(Algorithm::SlidingWindow)];
    let unknown = record((5, 6), Outcome::Unknown);
    let admitted = [0, 10].map(|at| apart((at, at + 1), Outcome::Admitted));
    let all = [admitted[0], unknown, admitted[1]];
    assert!(too_much(&rules(&limits, &[], true), &all).is_none());
    let kept = Record { is_kept: true, is_reported: true, ..unknown };
    assert!(too_much(&rules(&limits, &[], true), &[admitted[0], kept, admitted[1]]).is_none());
}
