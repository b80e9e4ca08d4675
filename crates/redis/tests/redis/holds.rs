//! Reservations: random sequences of reserving, committing, asking and reporting, on the memory store and on the script in a
//! real Redis. Every field of every verdict is the same.

use tidegate_engine::limit::{AMOUNT_MAX, Algorithm, Found, HoldTerms, Limit, Periods, Share, Slot};
use tidegate_engine::plan::{Check, Hits, Plan, ReservationStep, Step};
use tidegate_engine::time::Timestamp;

use crate::asking::{check, key, plan, store};
use crate::random::Random;
use crate::script::Asked;
use crate::server::Server;

const SECOND: u64 = 1_000_000;
const TODAY: u64 = 1_790_000_000 * SECOND;

/// A limit, and its holds.
#[derive(Clone, Copy)]
struct Reserving {
    limit: Limit,
    holds: Limit,
    /// In microseconds.
    ttl: u64,
}

fn reserving(random: &mut Random, algorithm: Algorithm, months: Periods) -> Reserving {
    let window = random.pick(&[60, 600, SECOND, 10 * SECOND, 3_600 * SECOND]);
    let requests = random.pick(&[0, 1, 5, 20, 1_000]);
    let limit = match algorithm {
        Algorithm::Calendar => Limit::calendar(requests, 31 * 86_400 * SECOND * 1_000, months),
        _ => Limit::new(algorithm, requests, window * 1_000),
    };
    let ttl = random.pick(&[window / 3, window, 4 * window]);
    let charges = random.one_in(2);
    let after = limit.remembered_nanos().div_ceil(1_000_000_000) as u32;
    let overdraft = random.pick(&["0", "0.05", "0.5", "1", "10"]);
    let terms = HoldTerms {
        ttl_nanos: ttl * 1_000,
        after_secs: if charges && limit.periods().is_none() { after } else { 0 },
        periods: limit.periods().filter(|_| charges),
        worst: if random.one_in(2) { 1 } else { 0 },
        share: Share::with_overdraft(overdraft).expect("an overdraft"),
    };
    Reserving { limit, holds: Limit::holds(&terms), ttl }
}

/// The check that bounds the worst cases of a limit, if it has one.
fn bound(of: &Reserving, limited: &Check<'static>, worst: u32) -> Option<Check<'static>> {
    let terms = of.holds.hold_terms().filter(|terms| terms.worst > 0)?;
    let Hits::Take(asked) = limited.hits else { return None };
    let hits = if limited.reservation == ReservationStep::Hold { worst.into() } else { asked };
    let (limit, reservation) = (of.limit.with_share(terms.share), ReservationStep::Bound);
    (!limited.reported).then_some(Check { limit, hits: Hits::Take(hits), reservation, ..*limited })
}

/// The holds of a limit whose calls cost no more than this.
fn at_most(holds: &Limit, worst: u32) -> Limit {
    holds
        .hold_terms()
        .filter(|terms| terms.worst > 0)
        .map_or(*holds, |terms| Limit::holds(&HoldTerms { worst, ..terms }))
}

/// One request: the checks of some limits, then those that bound their worst cases, and those of their holds.
fn request(random: &mut Random, of: &[Reserving], seed: u64) -> (Plan<'static>, Vec<usize>) {
    let places: Vec<usize> = (0..of.len()).filter(|_| random.one_in(2)).collect();
    let places = if places.is_empty() { vec![0] } else { places };
    let (what, id, number) = (random.below(8), 1 + random.below(6), random.below(3));
    let hits = random.pick(&[0, 1, 1, 2, 3, 10, 500]);
    let worst = random.pick(&[1, 2, 5, 20, 800]).max(hits as u32);
    let limits = places.iter().map(|&place| {
        let of = &of[place];
        let mut check = check(of.limit, key(seed * 8 + place as u64), Hits::Take(hits));
        match what {
            0..=2 => (check.hits, check.reservation) = (Hits::Take(hits.max(1)), ReservationStep::Hold),
            3 | 4 => (check.reported, check.reservation) = (true, ReservationStep::Commit),
            5 => check.reported = hits > 0,
            6 => check.hits = Hits::GiveBack(hits),
            _ => {}
        }
        check
    });
    let limits: Vec<Check<'static>> = limits.collect();
    let holds = places.iter().map(|&place| {
        let of = &of[place];
        let named = at_most(&of.holds, worst).for_slot(Slot::of(id, number));
        let (limit, hits, reported) = match what {
            0..=2 => (named, hits.max(1), false),
            3 | 4 => (named.ending_hold(), hits + 1, true),
            _ => (of.holds, 0, false),
        };
        let key = key(seed * 8 + 4 + place as u64);
        Check { reported, ..check(limit, key, Hits::Take(hits)) }
    });
    let bounds = places.iter().zip(&limits).map(|(&place, limited)| bound(&of[place], limited, worst));
    let further = bounds.zip(holds).enumerate();
    let further: Vec<(usize, Check<'static>)> = further
        .flat_map(|(index, (bound, holds))| bound.into_iter().chain([holds]).map(move |check| (index, check)))
        .collect();
    let mut plan = plan(limits.iter().copied().chain(further.iter().map(|(_, check)| *check)));
    plan.further = further.iter().map(|(index, _)| *index).collect();
    plan.modes.stop_increment_when_over = random.one_in(4);
    (plan, places)
}

fn next_time(random: &mut Random, now: u64, ttl: u64) -> u64 {
    match random.below(8) {
        0..=2 => now,
        3 => now + 1,
        4 => now + random.below(ttl / 4 + 2),
        5 => now + (ttl + random.below(3)).saturating_sub(1),
        6 => now.saturating_sub(random.below(ttl)),
        _ => now + random.below(3 * ttl),
    }
}

fn run(asked: &mut Asked, seed: u64, months: Periods) {
    let (memory, mut random) = (store(), Random(seed));
    let of: Vec<Reserving> = (0..1 + random.below(2))
        .map(|_| {
            let algorithm = random.pick(&Algorithm::OF_HITS);
            reserving(&mut random, algorithm, months)
        })
        .collect();
    let mut now = TODAY + random.below(of[0].ttl);
    let mut steps = Vec::new();
    for _ in 0..1 + random.below(30) {
        now = next_time(&mut random, now, of[0].ttl);
        let (plan, places) = request(&mut random, &of, seed);
        let name = |step: usize| match &plan.steps[step] {
            Step::Check(check) if check.is_of_holds() => {
                format!("{{{seed}}}:{}h", places[plan.descriptor_of(step)])
            }
            _ => format!("{{{seed}}}:{}", places[plan.descriptor_of(step)]),
        };
        let memory = memory.apply(&plan, Timestamp::from_nanos(now * 1_000));
        let redis = asked.apply(&plan, name, now);
        steps.push(format!("at {now}: {}", short(&plan)));
        assert_eq!(redis, memory, "redis is left, memory is right; seed {seed}\n{}", steps.join("\n"));
    }
}

fn short(plan: &Plan<'_>) -> String {
    let check = |step: &Step<'_>| match step {
        Step::Check(check) => format!(
            "\n    {:?} {:?} reported {} {:?} {:?}",
            check.hits,
            check.reservation,
            check.reported,
            check.limit.slot(),
            check.limit
        ),
        other => format!("{other:?}"),
    };
    plan.steps.iter().map(check).collect()
}

/// Months of 30 days from 1970 on, and a few that are shorter.
fn months() -> Periods {
    let begins = || (1..1_000).map(|month| month * 30 * 86_400 - month % 3).collect();
    Periods::named("month (of tests)", begins).expect("there is room")
}

#[test]
fn reservations_are_the_same_in_redis() {
    let server = Server::start(&[]);
    let mut asked = Asked::new(vec![server.connect()]);
    let months = months();
    (0..2_500).for_each(|seed| run(&mut asked, seed, months));
    let keys: Vec<String> = redis::cmd("KEYS").arg("*h").query(asked.connection()).expect("keys");
    assert!(keys.len() > 500, "most sequences hold something: {}", keys.len());
    for key in keys {
        let ttl: i64 = redis::cmd("PTTL").arg(&key).query(asked.connection()).expect("a time");
        assert!(ttl > 0, "{key} lives for ever: {ttl}");
    }
}

/// The slot of a Cluster that holds gives back for a request that another slot denied. Its client may have come again.
#[test]
fn what_an_earlier_attempt_gives_back_leaves_the_hold_of_a_later_one() {
    use tidegate_redis::script::{Answered, Call, ChargeId, DataId, RequestSummary};
    let server = Server::start(&[]);
    let mut asked = Asked::new(vec![server.connect()]);
    redis::cmd("SET").arg("generation").arg("now").exec(asked.connection()).expect("Redis answers");
    let generation = DataId { key: b"generation".to_vec(), generation: "now".into(), connection: 1 };
    let share = Share::with_overdraft("0").expect("an overdraft");
    let terms = HoldTerms { ttl_nanos: 300_000 * SECOND, after_secs: 0, periods: None, worst: 0, share };
    let holds = |attempt: u64| Limit::holds(&terms).for_slot(Slot::of(1, attempt));
    let found = |asked: &mut Asked, attempt: u64| {
        let limit = Limit::new(Algorithm::SlidingLog, 10, 60_000 * SECOND);
        let mut limited = check(limit, key(0), Hits::Take(3));
        limited.reservation = ReservationStep::Hold;
        let checks = [limited, check(holds(attempt), key(1), Hits::Take(3))];
        let mut call = Call::new(&RequestSummary::default());
        for (key, check) in [&b"{again}:0"[..], b"{again}:1"].iter().zip(&checks) {
            call.push(key.to_vec(), check, false);
        }
        call.holds_of(0, None);
        let answered = Answered::read(&asked.invoke(&call, TODAY, TODAY), &checks).expect("a reply");
        (Found::numbered(answered.counters[1].verdict.remaining), answered.counters[1].stamp)
    };
    let give_back = |asked: &mut Asked, attempt: u64, stamp: ChargeId| {
        let mut back = Call::giving_back(&generation);
        back.push_give_back(b"{again}:1".to_vec(), &holds(attempt), stamp, 3);
        asked.give_back(&back, TODAY);
    };
    let [first, second] = [1, 2].map(|attempt| found(&mut asked, attempt));
    assert_eq!([first.0, second.0], [Found::Nothing, Found::Open]);
    give_back(&mut asked, 1, first.1);
    assert_eq!(found(&mut asked, 3).0, Found::Open);
    give_back(&mut asked, 3, first.1);
    let made = found(&mut asked, 4);
    let again = found(&mut asked, 5);
    assert_eq!([made.0, again.0], [Found::Nothing, Found::Open]);
    give_back(&mut asked, 5, again.1);
    assert_eq!(found(&mut asked, 6).0, Found::Open, "what was held before stays");
}

/// In shadow mode the limit holds nothing back, only numbers do.
#[test]
fn no_more_is_held_than_numbers_can_be() {
    let server = Server::start(&[]);
    let (mut asked, memory) = (Asked::new(vec![server.connect()]), store());
    let limit = Limit::new(Algorithm::SlidingLog, 10, 60_000 * SECOND);
    let (ttl_nanos, share) = (300_000 * SECOND, Share::with_overdraft("0").expect("an overdraft"));
    let terms = HoldTerms { ttl_nanos, after_secs: 0, periods: None, worst: 0, share };
    let mut found = |id: u64, hits: u64, is_commit: bool| {
        let mut limited = check(limit, key(0), Hits::Take(hits));
        limited.reservation = if is_commit { ReservationStep::Commit } else { ReservationStep::Hold };
        let named = Limit::holds(&terms).for_slot(Slot::of(id, 1));
        let (named, hits) = if is_commit { (named.ending_hold(), hits + 1) } else { (named, hits) };
        let mut holds = check(named, key(1), Hits::Take(hits));
        (limited.reported, holds.reported) = (is_commit, is_commit);
        (limited.shadow, holds.shadow) = (true, true);
        let mut plan = plan([limited, holds]);
        plan.further = [0].into_iter().collect();
        let memory = memory.apply(&plan, Timestamp::from_nanos(TODAY * 1_000));
        let redis = asked.apply(&plan, |step| format!("{{large}}:{step}"), TODAY);
        let [memory, redis] = [memory[1], redis[1]].map(|verdict| verdict.expect("a verdict").remaining);
        assert_eq!(memory, redis, "{id}, {hits} hits");
        Found::numbered(redis)
    };
    for (id, hits, is_commit, expected) in [
        (1, AMOUNT_MAX, false, Found::Nothing),
        (2, AMOUNT_MAX, false, Found::Full),
        (2, 8, false, Found::Full),
        (3, 7, false, Found::Nothing),
        (4, AMOUNT_MAX, true, Found::Nothing),
        (1, 1, true, Found::Open),
        (2, AMOUNT_MAX - 7, false, Found::Nothing),
        (5, 8, false, Found::Full),
        (5, 7, false, Found::Nothing),
    ] {
        assert_eq!(found(id, hits, is_commit), expected, "{id}, {hits} hits");
    }
}
