//! Calendar budgets in Redis: nodes with other calendars and other deadlines, and a clock that is set back.

use tidegate_engine::Algorithm;
use tidegate_engine::limit::{COUNT_REQUESTS_MAX, Limit, Periods};
use tidegate_engine::plan::{Check, Hits};
use tidegate_engine::time::Timestamp;
use tidegate_redis::script::{Answered, Call, CounterAnswered, RequestSummary};

use crate::asking::{check, key, plan, store};
use crate::random::Random;
use crate::script::{Asked, SHIFT_MILLIS};
use crate::server::Server;

const SECOND: u64 = 1_000_000;

/// Ten hits in each period of a hundred seconds, the first of which begins at this second.
fn limit(first: u32) -> Limit {
    let periods = Periods::named(&format!("hundreds from {first}"), || (first..2_000).step_by(100).collect());
    Limit::calendar(10, 100 * 1_000_000_000, periods.expect("there is room"))
}

/// What Redis answers at `now` to a call with this deadline, both in microseconds.
fn ask(asked: &mut Asked, name: &str, check: &Check<'static>, now: u64, deadline: u64) -> CounterAnswered {
    let mut call = Call::new(&RequestSummary::default());
    call.push(name.as_bytes().to_vec(), check, false);
    let reply = asked.invoke(&call, deadline, now);
    Answered::read(&reply, [check]).expect("a reply").counters[0]
}

/// Whatever the deadline is, the script finds the period that is running, as the memory store does.
#[test]
fn the_period_is_that_of_the_time_of_redis_and_not_of_the_deadline() {
    let server = Server::start(&[]);
    let mut asked = Asked::new(vec![server.connect()]);
    for seed in 0..200 {
        let (memory, mut random, mut now) = (store(), Random(seed), 300 * SECOND);
        let limits = [0, 0, 1, 30, 99].map(limit);
        let limits = if seed % 2 == 0 { limits } else { limits.map(Limit::carrying_debt) };
        let name = format!("calendar{seed}");
        for step in 0..60 {
            now += random.pick(&[0, 1, SECOND, 9 * SECOND, 40 * SECOND]);
            let (limit, hits) = (random.pick(&limits), random.below(5));
            let hits = if random.one_in(8) { Hits::GiveBack(hits) } else { Hits::Take(hits) };
            let mut check = check(limit, key(1), hits);
            if check.hits != Hits::GiveBack(0) && random.one_in(4) {
                (check.hits, check.reported) = (Hits::Take(1 + random.below(40)), true);
            }
            let deadline = now + random.pick(&[0, 1, SECOND, 60 * SECOND]);
            let redis = ask(&mut asked, &name, &check, now, deadline).verdict;
            let memory = memory.apply(&plan([check]), Timestamp::from_nanos(now * 1_000))[0];
            assert_eq!(Some(redis), memory, "seed {seed}, step {step}, at {now} until {deadline}: {check:?}");
        }
    }
}

/// Doubles have one value for 2^53 and 2^53 + 1.
#[test]
fn the_largest_limit_is_exact_to_the_hit() {
    let server = Server::start(&[]);
    let mut asked = Asked::new(vec![server.connect()]);
    let (most, day) = (COUNT_REQUESTS_MAX, 86_400 * 1_000_000_000);
    let fixed = Limit::new(Algorithm::FixedWindow, u64::MAX, day);
    let calendar = limit(0).with_requests(u64::MAX);
    for (place, limit) in [fixed, calendar, calendar.carrying_debt()].into_iter().enumerate() {
        assert_eq!(limit.requests(), most);
        for (step, (hits, over)) in
            [(most - 1, false), (2, true), (1, false), (1, true)].into_iter().enumerate()
        {
            // A fixed window counts what it denies.
            let over = over || step > 1 && limit.algorithm() == Algorithm::FixedWindow;
            let (memory, now) = (store(), 300 * SECOND);
            let check = check(limit, key(1), Hits::Take(hits));
            let name = format!("largest{place}");
            let redis = ask(&mut asked, &name, &check, now, now).verdict;
            assert_eq!(redis.over, over, "{hits} of {limit:?}");
            let before = Check { hits: Hits::Take(redis.before), reported: true, ..check };
            memory.apply(&plan([before]), Timestamp::from_nanos(now * 1_000));
            let memory = memory.apply(&plan([check]), Timestamp::from_nanos(now * 1_000))[0];
            assert_eq!(Some(redis), memory, "{hits} of {limit:?}");
        }
    }
}

/// A node whose clock is ahead by periods has late deadlines. Counts end too late then, and never too early.
#[test]
fn a_deadline_that_is_periods_ahead_admits_no_more() {
    let server = Server::start(&[]);
    let mut asked = Asked::new(vec![server.connect()]);
    for seed in 0..50 {
        let (mut random, mut now, mut passed) = (Random(seed), 300 * SECOND, [0; 20]);
        let name = format!("ahead{seed}");
        while now < 1_000 * SECOND {
            now += random.pick(&[1, SECOND, 5 * SECOND, 30 * SECOND]);
            let deadline = now + random.below(500 * SECOND);
            let check = check(limit(0), key(1), Hits::Take(1 + random.below(3)));
            passed[(now / SECOND / 100) as usize] += ask(&mut asked, &name, &check, now, deadline).charged;
        }
        assert!(passed.iter().all(|&passed| passed <= 10), "seed {seed}: {passed:?}");
        assert!(passed.iter().sum::<u64>() > 10, "seed {seed}: {passed:?}");
    }
}

#[test]
fn a_clock_that_is_set_back_empties_no_count() {
    let server = Server::start(&[]);
    let mut asked = Asked::new(vec![server.connect()]);
    let mut passed = |name: &str, second: u64| {
        let one = check(limit(0), key(1), Hits::Take(1));
        let at = second * SECOND;
        (0..15).map(|_| ask(&mut asked, name, &one, at, at + SECOND).charged).sum::<u64>()
    };
    assert_eq!([950, 951, 250, 300, 899, 999].map(|second| passed("full", second)), [10, 0, 0, 0, 0, 0]);
    assert_eq!(passed("full", 1_000), 10);
    // One that has room has ten for all of the time that it sees twice.
    assert_eq!([250, 950, 240, 320].map(|second| passed("other", second)), [10, 10, 0, 0]);
}

/// Hits that go back are those of the period in which they were charged.
#[test]
fn hits_go_back_to_their_own_period() {
    use tidegate_redis::script::DataId;
    let server = Server::start(&[]);
    let mut asked = Asked::new(vec![server.connect()]);
    redis::cmd("SET").arg("generation").arg("one").exec(asked.connection()).expect("Redis answers");
    let memory = DataId { key: b"generation".to_vec(), generation: b"one".to_vec(), connection: 1 };
    let three = check(limit(0), key(1), Hits::Take(3));
    let charged = ask(&mut asked, "back", &three, 350 * SECOND, 351 * SECOND);
    let give_back = |asked: &mut Asked, now: u64| {
        let mut call = Call::giving_back(&memory);
        call.push_give_back(b"back".to_vec(), &three.limit, charged.stamp, 2);
        asked.give_back(&call, now);
    };
    give_back(&mut asked, 360 * SECOND);
    assert_eq!(ask(&mut asked, "back", &three, 370 * SECOND, 371 * SECOND).verdict.before, 1);
    assert_eq!(ask(&mut asked, "back", &three, 470 * SECOND, 471 * SECOND).verdict.before, 0);
    give_back(&mut asked, 480 * SECOND);
    assert_eq!(ask(&mut asked, "back", &three, 490 * SECOND, 491 * SECOND).verdict.before, 3);
}

/// Hits that a node admitted while Redis was away count in the period in which it admitted them.
#[test]
fn unsynced_hits_of_a_period_that_is_over_do_not_count() {
    let server = Server::start(&[]);
    let mut asked = Asked::new(vec![server.connect()]);
    for (age, counted) in [(0, 4), (49, 4), (50, 4), (51, 0), (120, 0)] {
        let question = check(limit(0), key(1), Hits::Take(0));
        let mut call = Call::new(&RequestSummary::default());
        call.push(format!("unsynced{age}").into_bytes(), &question, false);
        call.add_unsynced((age * SECOND, 4));
        let reply = asked.invoke(&call, 451 * SECOND, 450 * SECOND);
        let answered = Answered::read(&reply, [&question]).expect("a reply").counters[0];
        assert_eq!(answered.verdict.before, counted, "{age} s ago");
    }
}

/// A call may be answered in the next period, and is not yet.
#[test]
fn unsynced_hits_of_the_period_that_runs_count_until_its_end() {
    let server = Server::start(&[]);
    let mut asked = Asked::new(vec![server.connect()]);
    let question = check(limit(0), key(1), Hits::Take(0));
    let mut call = Call::new(&RequestSummary::default());
    call.push(b"unsynced".to_vec(), &question, false);
    call.add_unsynced((SECOND, 4));
    let reply = asked.invoke(&call, 501 * SECOND, 499 * SECOND);
    assert_eq!(Answered::read(&reply, [&question]).expect("a reply").counters[0].verdict.before, 4);
}

/// A report of 25 is owed for three periods of ten. What a node admitted alone meanwhile is no debt, however much it is.
#[test]
fn only_reports_are_owed_after_a_period() {
    let server = Server::start(&[]);
    let mut asked = Asked::new(vec![server.connect()]);
    let limit = limit(0).carrying_debt();
    let question = check(limit, key(1), Hits::Take(0));
    let report = Check { hits: Hits::Take(25), reported: true, ..question };
    for (name, unsynced) in [("alone", 12), ("both", 12), ("report", 0)] {
        let mut call = Call::new(&RequestSummary::default());
        call.push(name.as_bytes().to_vec(), if name == "alone" { &question } else { &report }, false);
        if unsynced > 0 {
            call.add_unsynced((SECOND, unsynced));
        }
        asked.invoke(&call, 450 * SECOND, 450 * SECOND);
    }
    let before = |asked: &mut Asked, name| {
        [499, 500, 600, 700]
            .map(|second| ask(asked, name, &question, second * SECOND, second * SECOND).verdict.before)
    };
    assert_eq!(before(&mut asked, "report"), [25, 15, 5, 0]);
    assert_eq!(before(&mut asked, "alone"), [12, 0, 0, 0]);
    assert_eq!(before(&mut asked, "both"), [37, 25, 15, 5]);
}

/// A month may be longer than months are in the mean: the key has to stay until a long one is over.
#[test]
fn a_debt_is_remembered_until_the_end_of_a_long_month() {
    let server = Server::start(&[]);
    let mut asked = Asked::new(vec![server.connect()]);
    let months = Periods::named("months of 1970", || vec![2_678_400, 5_097_600, 7_776_000, 10_368_000]);
    let months = months.expect("there is room");
    let limit = Limit::calendar(10, 31 * 86_400 * 1_000_000_000, months).carrying_debt();
    let report = Check { reported: true, ..check(limit, key(1), Hits::Take(15)) };
    let february = 5_000_000;
    ask(&mut asked, "owed", &report, february * SECOND, february * SECOND);
    let millis: i64 = redis::cmd("PTTL").arg("owed").query(asked.connection()).expect("an answer");
    let april = (7_776_000 - february as i64) * 1_000;
    assert!(millis - SHIFT_MILLIS > april - 60_000, "it lives {millis} ms");
}
