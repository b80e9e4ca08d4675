//! Some seeds, each a cluster with faults of its own; and a seed means the same run each time.

use std::ops::Range;

use tidegate_simulation::oracle::{Census, Tally};
use tidegate_simulation::redis::scripts::RunBy;
use tidegate_simulation::run::run;
use tidegate_simulation::scenario::Scenario;

/// More of them run with the program itself: `--runs`, `--minutes`.
const SEEDS: Range<u64> = 0..1_000;
/// Of the descriptors that have an answer at least so many are judged.
const JUDGED_PERCENT_MIN: u64 = 60;
/// Of these the scripts run too.
const SEEDS_OF_BOTH: Range<u64> = 1_000..1_100;
/// Each found a fault that no longer is: a record that was read in an outage and confirmed after it; looks at Redis that were
/// half a minute apart while requests were served; a judge who counted what full memory had no room for; slots from a file that
/// took more memory than before; a candidate that was compared with another limit of its rule; a token from before a reset, whose
/// slot had another id than its call; denials that a call without an answer had reported; whom an exception denied and another
/// limit of the rule denied for longer (twice); a judge who took a day for over that a stepped wall clock had entered; a judge
/// who took a remembered denial of many hits for one of now; a commit to a fixed window that was dropped because another
/// descriptor was over; a metric that counted another limit of a rule than the one that an exception let the answer show (twice);
/// a judge of waits who knew of no clock that a boot had set back; a judge who kept a `burst` that equals N where an exception
/// changes N; a judge of slots who took a `ttl` for known that nobody knew after a loss; a bucket that drained twice, at a node that
/// decided alone and in Redis (twice); a judge of candidates who took for replicated what a denied request had charged them; a log from
/// a file that took more memory than before; a judge for whom a commit ended what was ended already; a judge for whom a paused
/// node passed an answer on too late; a ban that a denial began twice, because a node reported it again after the ban; and five judges: of
/// leases that were granted to requests whose clients had gone, of waits that did not know what another node admitted alone later, of
/// denials apart by a clock that had stepped, of hits that `allow` had charged nowhere before a flush, and of a release that came to
/// Redis before the call that `allow` had let through; a ban by denials that began between the two steps of an operator's ban, and stayed;
/// a judge of bans who knew of no clock that was set ahead between two denials; a node that said of no old primary that it had used
/// it, because it had connected a moment before; and three judges: of memory that was full while a call was renewed, of an operator's
/// ban that was lost, and of a ban whose answer came later than that of the one after it; a ban whose key was gone when a denial from
/// before its end was reported; records of which a Cluster had changed some before it refused, reported as unchanged; and a judge of
/// resets who took a connection for late that was read after it had been; and a judge for whom an exception that was made again as it
/// was became the newest; and a judge of bans who expected answers in time at a node that waits for far replicas; a call that a node sent once more after it had stood still for too
/// long; a reported cost that was dropped, because other hits filled the room for debts (twice: the
/// first mending charged so many costs that others were not carried); a judge of cold buckets who did not know by which N an
/// exception lets them drain; a record that a Cluster had and did not list; and a judge of records who thought that a node hears of
/// a server that is gone while it is cut off; and three judges: of cold counters of candidates that take longer to drain than
/// COLD_START_MAX_WINDOW, of resets by the answer that only who resets waits for, and of waits after what a node admitted
/// alone just before a trouble ended; the end of an exception that a Cluster had and never announced; a judge who counted what an older
/// process of a node decided for a newer one; a record in a folder that was confirmed to an operator, and then undone by a change
/// that had failed; a record that a Cluster listed no more, because it was removed and put at the same time; hits of a limit of 0
/// with a `burst`, which `allow` let through; two judges: of a reservation that had expired when its cost came, and of a denial
/// that was remembered from when others had leased the rest; connections that were lost together and found out one by one; two judges:
/// of a cold bucket whose record has a larger `burst` than its rule, and of what a ban hides where slots are shown; costs that were
/// dropped while an exception denied; and a judge of what is left in a bucket to which several requests gave hits back together.
const REGRESSIONS: [u64; 65] = [
    5736012772374845830,
    6455210636559670481,
    4726,
    164,
    49,
    365,
    1148,
    492,
    1046,
    1795864982,
    1795865292,
    1795865899,
    1795868506,
    1795879469,
    1795878177,
    1795872515,
    1795875609,
    1795867308,
    1795974670,
    1796101969,
    1796102881,
    1796900203,
    425795,
    7018235,
    7004128,
    7007522,
    7015332,
    7023702,
    7024977,
    52996,
    50811,
    8200018,
    8201593,
    8213643,
    8217503,
    8302664,
    8403217,
    8401735,
    8239556,
    9003226,
    300052,
    100728,
    7310812,
    9015970,
    9101014,
    9500132,
    9809983,
    9727941,
    9810605,
    601275,
    9976921,
    536,
    10300201,
    10301052,
    10310711,
    10311017,
    10374006,
    10378381,
    10426933,
    3307923,
    10440430,
    3557,
    10447255,
    10446530,
    10463012,
];

#[test]
fn nothing_goes_wrong() {
    let Census { all, of_classes, of_slots, of_bans, of_holds } =
        judge(&SEEDS.collect::<Vec<_>>(), RunBy::Model);
    for (what, Tally { answered, judged }) in
        [("classes", of_classes), ("slots", of_slots), ("bans", of_bans), ("reservations", of_holds)]
    {
        assert!(2 * judged > answered, "of {answered} descriptors with {what} only {judged} were judged");
    }
    assert!(all.percent() >= JUDGED_PERCENT_MIN, "{all:?} of all descriptors: {} %", all.percent());
}

#[test]
fn what_went_wrong_before_does_not() {
    judge(&REGRESSIONS, RunBy::Model);
}

#[test]
fn the_model_and_the_scripts_agree_in_every_call() {
    judge(&SEEDS_OF_BOTH.collect::<Vec<_>>(), RunBy::Both);
}

/// On two threads, as each world has one. Returns how much was judged.
fn judge(seeds: &[u64], scripts_run_by: RunBy) -> Census {
    let half = |first: usize| {
        let mut census = Census::default();
        for &seed in seeds.iter().skip(first).step_by(2) {
            let scenario = Scenario { scripts_run_by, ..Scenario::new(seed, None) };
            let outcome = run(&scenario, false);
            assert_eq!(outcome.violation, None, "seed {seed}: run tidegate-simulation --seed {seed}");
            census.add(outcome.census);
        }
        census
    };
    std::thread::scope(|scope| {
        let halves = [0, 1].map(|first| scope.spawn(move || half(first)));
        let mut all = Census::default();
        halves.into_iter().for_each(|half| all.add(half.join().expect("no seed goes wrong")));
        all
    })
}

#[test]
fn a_seed_means_the_same_run_each_time() {
    for seed in 10_000..10_020 {
        let scenario = Scenario::new(seed, None);
        let stories = [(); 2].map(|()| run(&scenario, true).story);
        assert!(stories[0].len() > 10_000, "a run has many events");
        assert_eq!(stories[0], stories[1], "seed {seed}");
    }
}
