//! The oracle, tried on records that somebody thought out.

mod debts;
mod explained;
mod holds;
mod records;
mod slots;

use super::*;
use crate::redis::server::EPOCH_MICROS;
use crate::scenario::{Ban, FULL, Shape};

fn too_much(rules: &Rules<'_>, records: &[Record]) -> Option<String> {
    super::too_much(rules, &Counter::all(rules.limits, records))
}

fn starved(rules: &Rules<'_>, records: &[Record]) -> Option<String> {
    super::starved(rules, &Counter::all(rules.limits, records))
}

fn census(rules: &Rules<'_>, records: &[Record]) -> Census {
    super::census(rules, &Counter::all(rules.limits, records), records, &[])
}

fn limit(algorithm: Algorithm) -> LimitSpec {
    LimitSpec::new(algorithm, 2, 1)
}

fn record((asked, answered): (Time, Time), outcome: Outcome) -> Record {
    let (request, limit, key, hits, requests) = (asked as usize, 0, 0, 1, 2);
    let (is_reported, is_refunded, is_plain) = (false, false, true);
    Record {
        request,
        node: 0,
        process: 1,
        limit,
        key,
        epoch: 0,
        hits,
        asked,
        answered,
        requests,
        share: FULL,
        window: SECOND,
        rule_window: SECOND,
        algorithm: None,
        granularity: 0,
        room: None,
        id: None,
        renews: None,
        reserving: None,
        is_reported,
        is_kept: false,
        is_refunded,
        is_full: false,
        is_single: true,
        is_plain,
        deadline: None,
        remaining: 0,
        reset_nanos: SECOND,
        outcome,
        bans: Bans::default(),
    }
}

fn is_fine(algorithm: Algorithm, losses: &[Loss], times: &[(Time, Time)]) -> bool {
    is_fine_for(limit(algorithm), losses, times)
}

fn is_fine_for(limit: LimitSpec, losses: &[Loss], times: &[(Time, Time)]) -> bool {
    let admitted: Vec<_> = times.iter().map(|&times| record(times, Outcome::Admitted)).collect();
    too_much(&rules(&[limit], losses, true), &admitted).is_none()
}

fn rules<'s>(limits: &'s [LimitSpec], losses: &'s [Loss], is_calm: bool) -> Rules<'s> {
    static NO_TROUBLES: std::sync::LazyLock<Troubles> = std::sync::LazyLock::new(Troubles::default);
    Rules {
        limits,
        losses,
        refunds: &[],
        ban_changes: &[],
        troubles: &NO_TROUBLES,
        has_redis: true,
        remembers_denials: false,
        lease_time: 0,
        local_share_percent: 100,
        stops_increment: false,
        timeout: SECOND / 10,
        cold_max: None,
        knows_losses: false,
        knows_late: false,
        lag: 0,
        lead: 0,
        is_calm,
    }
}

#[test]
fn a_call_without_an_answer_is_done_in_time_or_never() {
    let (denied, timeout) = (Outcome::Denied { over: true }, SECOND / 10);
    let unknown = [record((0, timeout), Outcome::Unknown), record((1, timeout), Outcome::Unknown)];
    let is_fine = |at: Time| {
        let denied = Record { reset_nanos: 0, ..record((at, at + 1), denied) };
        let (records, limits) = ([unknown[0], unknown[1], denied], [limit(Algorithm::SlidingWindow)]);
        starved(&rules(&limits, &[], false), &records).is_none()
    };
    assert!(is_fine(SECOND / 2), "both may count");
    assert!(is_fine(SECOND + timeout), "and until a window after their deadline");
    assert!(!is_fine(2 * SECOND), "but no longer");
}

#[test]
fn a_denial_is_noticed_where_there_was_room() {
    let is_fine =
        |algorithm, records: &[Record]| starved(&rules(&[limit(algorithm)], &[], true), records).is_none();
    let (admitted, over) = (Outcome::Admitted, Outcome::Denied { over: true });
    for algorithm in [Algorithm::SlidingWindow, Algorithm::SlidingLog, Algorithm::TokenBucket] {
        let denied = record((20, 21), over);
        assert!(is_fine(algorithm, &[record((0, 1), admitted), record((5, 6), admitted), denied]));
        assert!(is_fine(algorithm, &[record((0, 1), admitted), record((5, 6), Outcome::Unknown), denied]));
        assert!(!is_fine(algorithm, &[record((5, 6), over), denied]), "{algorithm:?}");
        let late = record((3 * SECOND, 3 * SECOND + 1), over);
        assert!(!is_fine(algorithm, &[record((0, 1), admitted), record((5, 6), admitted), late]));
    }
}

#[test]
fn three_of_two_in_a_window_are_noticed_wherever_it_begins() {
    let (strict, loss) = (Algorithm::SlidingWindow, Loss { since: 3, until: 7, acknowledged: true });
    assert!(is_fine(strict, &[], &[(0, 1), (5, 6), (SECOND + 1, SECOND + 2)]));
    assert!(!is_fine(strict, &[], &[(0, 1), (5, 6), (SECOND - 2, SECOND - 1)]));
    assert!(is_fine(strict, &[loss], &[(0, 1), (5, 6), (SECOND - 2, SECOND - 1)]), "a server forgot");
    // What was written before, or what replicas had, is not forgotten.
    let late = Loss { since: SECOND / 2, until: SECOND, ..loss };
    assert!(!is_fine(strict, &[late], &[(0, 1), (5, 6), (7, 8)]));
    let denied = Loss { acknowledged: false, ..loss };
    assert!(!is_fine(strict, &[denied], &[(0, 1), (5, 6), (SECOND - 2, SECOND - 1)]));
    let candidate = LimitSpec { candidate: Some(2), ..limit(strict) };
    assert!(is_fine_for(candidate, &[denied], &[(0, 1), (5, 6), (SECOND - 2, SECOND - 1)]));
    // At the same time: nobody knows which was first, but all three are within.
    assert!(!is_fine(strict, &[], &[(0, 9), (1, 8), (2, 7)]));
    // The third may have counted when the first was over.
    assert!(is_fine(strict, &[], &[(0, 1), (5, 6), (SECOND - 2, SECOND + 3)]));
}

#[test]
fn buckets_drain_and_fixed_windows_are_cut() {
    let bucket = Algorithm::TokenBucket;
    assert!(is_fine(bucket, &[], &[(0, 1), (2, 3), (SECOND / 2, SECOND / 2 + 1), (SECOND, SECOND + 1)]));
    assert!(!is_fine(bucket, &[], &[(0, 1), (2, 3), (4, 5), (6, 7)]));
    let cut = Algorithm::FixedWindow;
    let end = SECOND - EPOCH_MICROS * MICRO % SECOND;
    assert!(is_fine(cut, &[], &[(end - 9, end - 8), (end - 7, end - 6), (end + 1, end + 2)]));
    assert!(!is_fine(cut, &[], &[(end - 9, end - 8), (end - 7, end - 6), (end - 5, end - 4)]));
}

#[test]
fn exceptions_are_another_n() {
    let admitted = |times: &[(Time, Time)]| -> Vec<Record> {
        times.iter().map(|&times| record(times, Outcome::Admitted)).collect()
    };
    let limits = [LimitSpec { excepted: Some(3), ..limit(Algorithm::SlidingWindow) }];
    let is_fine = |records: &[Record]| too_much(&rules(&limits, &[], true), records).is_none();
    let mut three = admitted(&[(1, 2), (3, 4), (5, 6)]);
    assert!(!is_fine(&three), "the third was decided under two");
    three[2].requests = 3;
    assert!(is_fine(&three));
    let mut many = admitted(&[(1, 2), (3, 4), (5, 6), (7, 8)]);
    assert!(!is_fine(&many));
    many[1..3].iter_mut().for_each(|it| it.outcome = Outcome::Denied { over: true });
    assert!(is_fine(&many), "two passed beside N");
    let nothing = Record { requests: 0, ..record((0, 1), Outcome::Admitted) };
    assert!(!is_fine(&[nothing]), "nothing may pass");
}

#[test]
fn reported_hits_count_beside_what_is_admitted() {
    let limits = [LimitSpec { is_reported: true, ..limit(Algorithm::SlidingWindow) }];
    let reported = |at: Time, outcome| Record { is_reported: true, ..record((at, at + 1), outcome) };
    let (admitted, over) = (Outcome::Admitted, Outcome::Denied { over: true });
    let is_fine = |records: &[Record]| too_much(&rules(&limits, &[], true), records).is_none();
    assert!(
        is_fine(&[reported(1, admitted), reported(3, admitted), reported(5, over)]),
        "beyond N it is denied"
    );
    assert!(!is_fine(&[reported(1, admitted), reported(3, admitted), reported(5, admitted)]));
    let much = Record { hits: 40, ..reported(1, over) };
    assert!(!is_fine(&[much, reported(3, admitted)]), "what was denied was spent all the same");
    assert!(is_fine(&[much, reported(SECOND + 3, admitted)]), "until a window later");
    let minute = |it: Record| Record { window: 60 * SECOND, rule_window: 60 * SECOND, ..it };
    let kept = minute(Record { hits: 40, is_kept: true, ..reported(1, Outcome::Unknown) });
    let later = |at| minute(reported(at, admitted));
    assert!(!is_fine(&[kept, later(3 * SECOND)]), "what an error was the answer to is sent later");
    assert!(is_fine(&[kept, later(SECOND)]), "not at once");
    assert!(is_fine(&[Record { is_kept: false, ..kept }, later(3 * SECOND)]), "nobody knows");
}

#[test]
fn a_node_may_decide_alone_only_while_something_fails() {
    let limits = [LimitSpec { failure: StoreFailure::Local, ..limit(Algorithm::SlidingWindow) }];
    let fails = |until: Time, forgets| Trouble { node: Some(1), from: 0, until, forgets };
    let is_fine = |all: &[Trouble], records: &[Record]| {
        let troubles = Troubles::new(vec![0; 2], all);
        too_much(&Rules { troubles: &troubles, ..rules(&limits, &[], false) }, records).is_none()
    };
    let of_node = |node: usize, at: Time| Record { node, ..record((at, at + 1), Outcome::Admitted) };
    let four = [of_node(0, 1), of_node(0, 3), of_node(1, 5), of_node(1, 7)];
    assert!(!is_fine(&[], &four), "nothing failed");
    assert!(is_fine(&[fails(SECOND, false)], &four));
    let healed = 10 * SECOND;
    let minute = |it: Record| Record { window: 60 * SECOND, rule_window: 60 * SECOND, ..it };
    let later = [of_node(1, 1), of_node(1, 3), of_node(0, healed)].map(minute);
    assert!(!is_fine(&[fails(SECOND, false)], &later), "what it admitted alone counts afterwards");
    assert!(is_fine(&[fails(SECOND, true)], &later), "unless it died");
}

#[test]
fn alone_a_node_admits_its_share_or_whatever_it_is_asked() {
    let fails = [Trouble { node: None, from: 0, until: SECOND, forgets: false }];
    let (troubles, all) = (Troubles::new(vec![0], &fails), (0..4).map(|at| (at, at + 1)));
    let admitted: Vec<_> = all.map(|times| record(times, Outcome::Admitted)).collect();
    let is_fine = |failure, local_share_percent, admitted: &[Record]| {
        let limits = [LimitSpec { failure, ..limit(Algorithm::SlidingWindow) }];
        let rules = Rules { troubles: &troubles, local_share_percent, ..rules(&limits, &[], false) };
        too_much(&rules, admitted).is_none()
    };
    assert!(is_fine(StoreFailure::Local, 100, &admitted));
    assert!(!is_fine(StoreFailure::Local, 50, &admitted));
    assert!(is_fine(StoreFailure::Local, 50, &admitted[..3]));
    assert!(!is_fine(StoreFailure::Deny, 100, &admitted[..3]), "Redis alone admits");
    assert!(is_fine(StoreFailure::Allow, 100, &admitted));
    let calm: Vec<_> =
        (0..3).map(|at| 10 * SECOND + at).map(|at| record((at, at + 1), Outcome::Admitted)).collect();
    assert!(!is_fine(StoreFailure::Allow, 100, &calm), "where nothing fails it is strict");
}

#[test]
fn a_node_decides_alone_when_the_time_of_its_client_is_over() {
    let limits = [LimitSpec { failure: StoreFailure::Local, ..limit(Algorithm::SlidingWindow) }];
    let is_fine = |deadline: Time, took: Time| {
        let denied = record((0, took), Outcome::Denied { over: true });
        starved(&rules(&limits, &[], true), &[Record { deadline: Some(deadline), ..denied }]).is_none()
    };
    assert!(is_fine(MILLI, 0), "it has no time to ask Redis");
    assert!(is_fine(5 * MILLI, 2 * MILLI));
    assert!(!is_fine(5 * MILLI, MILLI), "Redis has answered");
    assert!(is_fine(20 * MILLI, 17 * MILLI));
    assert!(!is_fine(20 * MILLI, 16 * MILLI), "Redis has answered");
}

#[test]
fn only_a_process_that_may_be_alone_adds_its_share() {
    let limits = [LimitSpec { failure: StoreFailure::Local, ..limit(Algorithm::SlidingWindow) }];
    let fails = [Trouble { node: Some(1), from: 0, until: SECOND, forgets: false }];
    let troubles = Troubles::new(vec![0; 2], &fails);
    // At the same time: nobody knows what was there before each.
    let of =
        |node: usize, process: u64, at: Time| Record { node, process, ..record((at, 50), Outcome::Admitted) };
    let is_fine = |records: &[Record]| {
        too_much(&Rules { troubles: &troubles, ..rules(&limits, &[], false) }, records).is_none()
    };
    let five = |process| [of(0, 1, 1), of(0, 1, 2), of(1, 1, 3), of(1, process, 4), of(0, 1, 5)];
    assert!(is_fine(&five(1)[..4]));
    assert!(!is_fine(&five(1)), "the other node asked Redis");
    assert!(is_fine(&five(2)), "each process admits its share");
}

#[test]
fn hits_go_back_twice_only_where_something_fails_and_soon_after() {
    let limits = [LimitSpec { failure: StoreFailure::Local, ..limit(Algorithm::SlidingWindow) }];
    let admitted = |at: Time| record((at, at + 1), Outcome::Admitted);
    let fails = [Trouble { node: Some(0), from: 0, until: SECOND, forgets: true }];
    let is_fine = |all: &[Trouble], (taken, asked): (Time, Time), at: Time| {
        let troubles = Troubles::new(vec![0], all);
        let refunds = [Refund { taken: admitted(taken), node: 0, asked, done: asked + 1 }];
        let three: Vec<_> = [at, at + MILLI, at + 2 * MILLI].map(admitted).into();
        too_much(&Rules { refunds: &refunds, troubles: &troubles, ..rules(&limits, &[], false) }, &three)
            .is_none()
    };
    let (late, now) = (10 * SECOND, MILLI / 2);
    assert!(!is_fine(&[], (late, late + now), late), "nothing failed");
    assert!(!is_fine(&fails, (0, 10), late), "that was long ago");
    assert!(
        is_fine(&fails, (0, late + now), late),
        "the node that admitted them has died, and charged nothing"
    );
    let again = [Trouble { from: late, until: late, ..fails[0] }];
    assert!(is_fine(&again, (late - SECOND, late + now), late), "perhaps twice");
}

#[test]
fn a_bucket_holds_its_burst_and_a_weighted_window_n() {
    let at_once: Vec<_> = (0..4).map(|at| record((at, at + 1), Outcome::Admitted)).collect();
    let holds = |burst, records: &[Record]| {
        let limits = [LimitSpec { burst, ..limit(Algorithm::TokenBucket) }];
        too_much(&rules(&limits, &[], true), records).is_none()
    };
    // What drains meanwhile is rounded up.
    assert!(holds(None, &at_once[..3]) && !holds(None, &at_once));
    assert!(holds(Some(3), &at_once) && !holds(Some(1), &at_once[..3]));
    assert!(is_fine(Algorithm::SlidingWindowWeighted, &[], &[(0, 1), (2, 3)]));
    assert!(!is_fine(Algorithm::SlidingWindowWeighted, &[], &[(0, 1), (2, 3), (4, 5)]));
}

#[test]
fn what_goes_back_makes_room() {
    let limits = [limit(Algorithm::SlidingWindow)];
    let two = [(0, 1), (5, 6)].map(|times| record(times, Outcome::Admitted));
    let denied = record((100, 101), Outcome::Denied { over: true });
    let records = [two[0], two[1], denied];
    let refund = |done: Time| Refund { taken: two[0], node: 0, asked: 20, done };
    let usual = rules(&limits, &[], true);
    let is_fine = |rules: Rules<'_>| starved(&rules, &records).is_none();
    assert!(is_fine(usual));
    assert!(!is_fine(Rules { refunds: &[refund(30)], ..usual }));
    assert!(is_fine(Rules { refunds: &[refund(100 + 1)], ..usual }), "it is not done yet");
    let remembers =
        |node| is_fine(Rules { remembers_denials: true, refunds: &[Refund { node, ..refund(30) }], ..usual });
    assert_eq!([0, 1].map(remembers), [false, true], "only the node that was asked forgets its denials");
    let census = census(&usual, &records);
    assert_eq!(census.all, Tally { answered: 3, judged: 3 });
}

#[test]
fn whoever_is_asked_to_come_back_too_early_is_found() {
    let [first, second] = [(0, 1), (MILLI, 2 * MILLI)].map(|times| record(times, Outcome::Admitted));
    let half = (SECOND / 2, SECOND / 2 + 1);
    let denied = record(half, Outcome::Denied { over: true });
    let limits = [limit(Algorithm::SlidingWindow)];
    let is_fine = |reset_nanos, records: &[Record]| {
        let denied = Record { reset_nanos, ..denied };
        too_much(&rules(&limits, &[], true), &[records, &[denied]].concat()).is_none()
    };
    assert!(is_fine(SECOND / 2, &[first, second]), "the first hit leaves then");
    assert!(!is_fine(SECOND / 3, &[first, second]), "both are there still");
    assert!(is_fine(SECOND / 3, &[first]), "nobody knows what it was denied by");
}

#[test]
fn whoever_is_asked_to_come_back_too_late_is_found() {
    let [first, second] =
        [(0, 1), (SECOND / 2, SECOND / 2 + 1)].map(|times| record(times, Outcome::Admitted));
    let tenths = |tenths: Time| tenths * SECOND / 10;
    let is_fine = |algorithm, hits, waits: Time| {
        let denied = record((tenths(6), tenths(6) + 1), Outcome::Denied { over: true });
        let denied = Record { hits, reset_nanos: tenths(waits), ..denied };
        starved(&rules(&[limit(algorithm)], &[], true), &[first, second, denied]).is_none()
    };
    for algorithm in [Algorithm::SlidingWindow, Algorithm::SlidingLog] {
        assert!(is_fine(algorithm, 1, 4), "{algorithm:?}: the first hit leaves then");
        assert!(!is_fine(algorithm, 1, 7), "{algorithm:?}: it left before");
        assert!(is_fine(algorithm, 2, 9), "{algorithm:?}: the second leaves then");
        assert!(!is_fine(algorithm, 2, 12), "{algorithm:?}: it left before");
        assert!(is_fine(algorithm, 3, 10), "{algorithm:?}: three never fit");
        assert!(!is_fine(algorithm, 3, 13), "{algorithm:?}: in a window all have left");
    }
}

/// Ten hits of ten a second: three more fit when three have drained.
#[test]
fn whoever_is_asked_to_come_back_too_late_by_a_bucket_is_found() {
    let hundredths = |hundredths: Time| hundredths * SECOND / 100;
    let is_fine = |asks, waits: Time| {
        let all = Record { requests: 10, hits: 10, ..record((0, 1), Outcome::Admitted) };
        let denied = record((hundredths(5), hundredths(5) + 1), Outcome::Denied { over: true });
        let denied = Record { requests: 10, hits: 3, reset_nanos: hundredths(waits), ..denied };
        let twice = [denied, Record { hits: 6, ..denied }];
        let limits = [LimitSpec::new(Algorithm::TokenBucket, 10, 1)];
        starved(&rules(&limits, &[], true), &[&[all], &twice[..asks]].concat()).is_none()
    };
    assert!(is_fine(1, 25) && !is_fine(1, 80));
    assert!(is_fine(2, 80), "nine hits of one request have to fit together");
}

#[test]
fn an_answer_leaves_what_nobody_can_have() {
    let is_fine = |algorithm, left: u64, hits: u64| {
        let limits = [LimitSpec::new(algorithm, 99, 1)];
        let before = Record { hits, requests: 99, remaining: 99 - hits, ..record((0, 1), Outcome::Admitted) };
        let now = Record { requests: 99, remaining: left, ..record((2, 3), Outcome::Admitted) };
        left_too_little(&rules(&limits, &[], true), &Counter::all(&limits, &[before, now])).is_none()
    };
    for algorithm in [Algorithm::SlidingWindow, Algorithm::SlidingLog, Algorithm::FixedWindow] {
        assert!(is_fine(algorithm, 95, 3), "{algorithm:?}");
        assert!(!is_fine(algorithm, 94, 3), "{algorithm:?}: only three were there");
    }
    assert!(is_fine(Algorithm::TokenBucket, 94, 3), "what is there is rounded up");
    assert!(!is_fine(Algorithm::TokenBucket, 93, 3));
}

#[test]
fn windows_are_shorter_where_clocks_of_servers_went_ahead() {
    let (limits, three) = ([limit(Algorithm::SlidingLog)], [(0, 1), (5, 6), (SECOND / 2, SECOND / 2 + 1)]);
    let admitted = three.map(|times| record(times, Outcome::Admitted));
    let is_fine = |lead| too_much(&Rules { lead, ..rules(&limits, &[], true) }, &admitted).is_none();
    assert!(!is_fine(0) && !is_fine(SECOND / 3) && is_fine(SECOND * 2 / 3));
}

/// A limit of two hits, of which a lower class may use one.
fn limit_with_classes(algorithm: Algorithm) -> LimitSpec {
    let shape = Shape { classes: Some([FULL, FULL / 2, FULL / 4]), ..Shape::default() };
    LimitSpec { shape, ..limit(algorithm) }
}

fn of_class(share: u64, times: (Time, Time), outcome: Outcome) -> Record {
    Record { share, ..record(times, outcome) }
}

#[test]
fn a_class_has_a_threshold_of_its_own_below_all_hits() {
    let (low, high, admitted) = (FULL / 2, FULL, Outcome::Admitted);
    for algorithm in [Algorithm::SlidingWindow, Algorithm::SlidingLog, Algorithm::TokenBucket] {
        let is_fine = |all: &[(u64, (Time, Time))]| {
            let records: Vec<_> =
                all.iter().map(|&(share, times)| of_class(share, times, admitted)).collect();
            too_much(&rules(&[limit_with_classes(algorithm)], &[], true), &records).is_none()
        };
        assert!(is_fine(&[(low, (0, 1)), (high, (5, 6))]), "{algorithm:?}: the rest is for the higher class");
        assert!(
            is_fine(&[(high, (0, 9)), (low, (1, 8))]),
            "{algorithm:?}: the lower one may have been first"
        );
        assert_eq!(
            is_fine(&[(high, (0, 1)), (low, (5, 6))]),
            algorithm.is_bucket(),
            "what is there is rounded up"
        );
        let three = [(low, (0, 1)), (low, (2, 3)), (low, (4, 5))];
        assert!(!is_fine(&three), "{algorithm:?}: too many of the lower class");
        // Nobody knows which was first, but both are of the lower class.
        assert_eq!(is_fine(&[(low, (0, 9)), (low, (1, 8))]), algorithm.is_bucket(), "{algorithm:?}");
    }
    let closed = of_class(FULL / 4, (0, 1), admitted);
    assert!(
        too_much(&rules(&[limit_with_classes(Algorithm::SlidingWindow)], &[], true), &[closed]).is_some()
    );
}

#[test]
fn a_lease_of_a_class_may_be_older_than_what_higher_ones_were_admitted() {
    let limits = [LimitSpec { is_leased: true, ..limit_with_classes(Algorithm::SlidingWindow) }];
    let is_fine = |shares: [u64; 2]| {
        let records = [(0, 1), (5, 5)].map(|times| record(times, Outcome::Admitted));
        let records = [0, 1].map(|place| Record { share: shares[place], ..records[place] });
        too_much(&rules(&limits, &[], true), &records).is_none()
    };
    assert!(is_fine([FULL, FULL / 2]));
    assert!(!is_fine([FULL / 2, FULL / 2]));
}

#[test]
fn a_class_is_denied_below_its_threshold_by_nothing() {
    let limits = [limit_with_classes(Algorithm::SlidingWindow)];
    let usual = rules(&limits, &[], true);
    let denied = |share: u64| of_class(share, (20, 21), Outcome::Denied { over: true });
    let one = record((0, 1), Outcome::Admitted);
    let is_fine = |records: &[Record]| starved(&usual, records).is_none();
    assert!(is_fine(&[one, denied(FULL / 2)]), "its share is used up");
    assert!(!is_fine(&[denied(FULL / 2)]));
    assert!(!is_fine(&[one, denied(FULL)]), "the higher class has room");
    assert!(is_fine(&[denied(FULL / 4)]), "a quarter of two hits is none");
}

#[test]
fn a_remembered_denial_is_one_of_the_same_class() {
    let limits = [limit_with_classes(Algorithm::SlidingWindow)];
    let usual = Rules { remembers_denials: true, ..rules(&limits, &[], true) };
    let of = |share, times| of_class(share, times, Outcome::Denied { over: true });
    let two = [record((0, 1), Outcome::Admitted), record((2, 3), Outcome::Admitted)];
    let is_fine = |share| {
        let (asked, remembered) = (of(share, (5, 9)), of(FULL / 2, (20, 20)));
        too_much(&usual, &[two[0], two[1], asked, remembered]).is_none()
    };
    assert!(is_fine(FULL / 2));
    assert!(!is_fine(FULL), "the node has no answer about the lower class");
}

/// What is wrong with answers at these times, in tenths of a second: for how long each says that the key is banned, if it does; the
/// first such denial is by the limit. `None`: it was admitted.
fn wrong_about_bans(answers: &[(Time, Option<Time>)]) -> bool {
    wrong_about_changed_bans(&[], answers)
}

/// The same where operators banned the key at these times for so long, or lifted its ban: whether it was banned.
fn wrong_about_changed_bans(
    changes: &[(Time, Result<Time, bool>)],
    answers: &[(Time, Option<Time>)],
) -> bool {
    let tenths = |tenths: Time| tenths * SECOND / 10;
    let ban =
        Ban { after: 2, within: 10 * SECOND, every: 0, first: 2 * SECOND, longest: 8 * SECOND, on: None };
    let limits =
        [LimitSpec { shape: Shape { ban: Some(ban), ..Shape::default() }, ..limit(Algorithm::SlidingLog) }];
    let (mut records, mut ends) = (Vec::new(), 0);
    for &(at, left) in answers {
        let (at, left) = (tenths(at), left.map(tenths));
        let is_banned = at < ends;
        ends = left.filter(|left| *left > 0).map_or(ends, |left| at + left);
        let outcome = left.map_or(Outcome::Admitted, |_| Outcome::Denied { over: !is_banned });
        let strikes = left.is_some() && !is_banned;
        let left = left.filter(|left| *left > 0);
        let bans = Bans { of: Some(0), is_banned, left, strikes, has_room: true, ..Bans::default() };
        records.push(Record { bans, ..record((at, at), outcome) });
    }
    let (limit, of, epoch, node, is_known) = (0, 0, 0, 0, true);
    let change = |&(at, what): &(Time, Result<Time, bool>)| {
        let (lasts, was_banned, asked) = (what.ok().map(tenths), what.err(), tenths(at));
        BanChange { limit, of, epoch, node, asked, done: asked, lasts, is_known, was_banned }
    };
    let ban_changes = &changes.iter().map(change).collect::<Vec<_>>()[..];
    // Without Redis denials count at once.
    wrong_bans(&Rules { has_redis: false, ban_changes, ..rules(&limits, &[], true) }, &records).is_some()
}

#[test]
fn bans_of_operators_last_as_long_as_they_say() {
    let (banned, lifted) = (wrong_about_changed_bans, Err(true));
    assert!(!banned(&[(10, Ok(30))], &[(12, Some(28)), (41, None)]));
    assert!(banned(&[(10, Ok(30))], &[(12, Some(20))]), "it is shorter");
    assert!(banned(&[(10, Ok(30))], &[(20, None)]), "it denies nobody");
    assert!(banned(&[], &[(12, Some(28))]), "nobody has begun it");
    let first = [(10, Some(0)), (11, Some(20))];
    let then = |more: &[(Time, Option<Time>)]| [&first[..], more].concat();
    assert!(!banned(&[(20, Ok(100))], &then(&[(25, Some(95))])));
    assert!(banned(&[(20, Ok(100))], &then(&[(25, Some(6))])), "the one before stays");
    let later = |left| then(&[(61, Some(0)), (62, Some(left))]);
    assert!(!banned(&[(20, Ok(30))], &later(20)));
    assert!(banned(&[(20, Ok(30))], &later(40)), "the one before counts as one in a row");
    assert!(!banned(&[(20, lifted)], &then(&[(25, None)])));
    assert!(banned(&[(20, lifted)], &then(&[(25, Some(6))])), "a ban that was lifted stays");
    assert!(banned(&[(20, Err(false))], &first), "the answer to the lift is wrong");
    assert!(banned(&[(20, lifted)], &[(10, Some(0))]), "nothing was there to lift");
    assert!(banned(&[(20, Err(false))], &[(10, Some(0)), (21, Some(20))]), "a denial before it counts");
}

#[test]
fn bans_have_causes_double_and_last() {
    let first = [(10, Some(0)), (11, Some(20)), (20, Some(11))];
    let then = |more: &[(Time, Option<Time>)]| wrong_about_bans(&[&first[..], more].concat());
    assert!(!then(&[(32, None)]));
    assert!(then(&[(30, None)]), "it is banned still");
    assert!(then(&[(33, Some(5))]), "nothing has begun another ban");
    assert!(!then(&[(40, Some(0)), (41, Some(40)), (80, Some(1))]));
    assert!(then(&[(40, Some(0)), (41, Some(20))]), "the second is as long as the first");
    assert!(then(&[(40, Some(0)), (41, Some(80))]), "the second is as long as the third");
    assert!(!then(&[(120, Some(0)), (121, Some(20))]), "the first is forgotten");
    assert!(wrong_about_bans(&[(11, Some(20))]), "one denial begins none");
    assert!(wrong_about_bans(&[(10, Some(0)), (150, Some(20))]), "the first does not count any more");
    assert!(wrong_about_bans(&[(10, Some(0)), (11, Some(0)), (12, None)]), "two denials begin one");
}
