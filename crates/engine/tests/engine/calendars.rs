//! Calendar budgets: their rules, their counts, and a calendar that changes while they count.

use tidegate_engine::limit::{Algorithm, Limit, Periods};
use tidegate_engine::memory::Cold;
use tidegate_engine::overlay::{Found, Overlay, Record};
use tidegate_engine::plan::{Hits, Modes, Step};
use tidegate_engine::request::{Entry, Request};
use tidegate_engine::rules::{Rule, RuleSet};
use tidegate_engine::time::{SECOND_NANOS, Timestamp};
use tidegate_engine::unit::{Anchor, CalendarUnit, Unit, Window};

use crate::asking::{check, key, plan, store};
use crate::random::Random;
use crate::rules::{loaded, refused};

/// A file with one rule of this `period` and 10 requests.
fn file(period: &str) -> String {
    format!("domain: d\ndescriptors: [{{key: k, rate_limit: {{period: {period}, requests_per_unit: 10}}}}]")
}

fn budget(period: &str) -> Rule {
    loaded(&file(period)).rules.rules()[0].clone()
}

fn limit(period: &str) -> Limit {
    budget(period).limit.unwrap()
}

fn refusals(period: &str) -> String {
    refused(file(period)).join("\n")
}

fn time(text: &str) -> Timestamp {
    let at: jiff::Timestamp = text.parse().unwrap();
    Timestamp::from_secs(at.as_second() as u64)
}

/// The begin and the end of the period that holds a time, as texts.
fn around(period: &str, at: &str) -> [String; 2] {
    let (begin, end) = limit(period).period_around(time(at));
    [begin, end]
        .map(|at| jiff::Timestamp::from_second((at.as_nanos() / 1_000_000_000) as i64).unwrap().to_string())
}

#[test]
fn periods_begin_at_midnight_of_their_zone() {
    for (period, at, begin, end) in [
        ("{calendar: day}", "2026-10-25T12:00:00Z", "2026-10-25T00:00:00Z", "2026-10-26T00:00:00Z"),
        // 25 hours.
        (
            "{calendar: day, tz: Europe/Berlin}",
            "2026-10-25T12:00:00Z",
            "2026-10-24T22:00:00Z",
            "2026-10-25T23:00:00Z",
        ),
        // Clocks skip midnight.
        (
            "{calendar: day, tz: America/Sao_Paulo}",
            "2015-10-18T12:00:00Z",
            "2015-10-18T03:00:00Z",
            "2015-10-19T02:00:00Z",
        ),
        // A day that was skipped: it has no period.
        (
            "{calendar: day, tz: Pacific/Apia}",
            "2011-12-30T12:00:00Z",
            "2011-12-30T10:00:00Z",
            "2011-12-31T10:00:00Z",
        ),
        ("{calendar: week}", "2026-10-25T12:00:00Z", "2026-10-19T00:00:00Z", "2026-10-26T00:00:00Z"),
        (
            "{calendar: week, anchor: Sunday}",
            "2026-10-25T12:00:00Z",
            "2026-10-25T00:00:00Z",
            "2026-11-01T00:00:00Z",
        ),
        ("{calendar: month}", "2024-02-29T23:59:59Z", "2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z"),
        (
            "{calendar: month, anchor: 31}",
            "2024-02-28T23:59:59Z",
            "2024-01-31T00:00:00Z",
            "2024-02-29T00:00:00Z",
        ),
        (
            "{calendar: month, anchor: 31}",
            "2023-02-28T00:00:00Z",
            "2023-02-28T00:00:00Z",
            "2023-03-31T00:00:00Z",
        ),
        ("{calendar: quarter}", "2026-06-30T23:00:00Z", "2026-04-01T00:00:00Z", "2026-07-01T00:00:00Z"),
        (
            "{calendar: quarter, anchor: 31}",
            "2026-06-30T23:00:00Z",
            "2026-04-30T00:00:00Z",
            "2026-07-31T00:00:00Z",
        ),
        (
            "{calendar: year, anchor: 04-06, tz: Europe/London}",
            "2026-04-05T22:59:59Z",
            "2025-04-05T23:00:00Z",
            "2026-04-05T23:00:00Z",
        ),
        (
            "{calendar: year, anchor: 02-29}",
            "2024-02-29T00:00:00Z",
            "2024-02-29T00:00:00Z",
            "2025-02-28T00:00:00Z",
        ),
    ] {
        assert_eq!(around(period, at), [begin, end], "{period} at {at}");
    }
}

#[test]
fn a_budget_is_named_and_has_the_window_of_its_unit() {
    for (period, text, window) in [
        ("{calendar: day}", "10 per calendar day (UTC)", Window::of(Unit::Day)),
        (
            "{calendar: week, anchor: friday}",
            "10 per calendar week (UTC, from friday)",
            Window::of(Unit::Week),
        ),
        (
            "{calendar: month, tz: Europe/Berlin, anchor: 15}",
            "10 per calendar month (Europe/Berlin, from day 15)",
            Window::of(Unit::Month),
        ),
        (
            "{calendar: quarter, anchor: 1}",
            "10 per calendar quarter (UTC)",
            Window { unit: Unit::Month, multiplier: 3 },
        ),
        ("{calendar: year, anchor: 04-06}", "10 per calendar year (UTC, from 04-06)", Window::of(Unit::Year)),
    ] {
        let rule = budget(period);
        assert_eq!((rule.counts_text(&rule.limit.unwrap()).as_str(), rule.counting.window), (text, window));
    }
}

#[test]
fn what_is_no_calendar_is_refused() {
    for (period, expected) in [
        ("{calendar: fortnight}", "`calendar` is `fortnight` (expected day, week, month, quarter, year)"),
        (
            "{calendar: day, tz: etc/unknown}",
            "`tz` is `etc/unknown` (expected a time zone; the closest is `Etc/UCT`)",
        ),
        ("{tz: UTC}", "`calendar` is missing (expected day, week, month, quarter, year)"),
        (
            "{calendar: day, tz: Europe/Berln}",
            "`tz` is `Europe/Berln` (expected a time zone; the closest is `Europe/Berlin`)",
        ),
        ("{calendar: day, anchor: 1}", "`anchor` with `calendar: day` (expected none)"),
        ("{calendar: month, anchor: 32}", "`anchor` is `32` (expected a whole number from 1 to 31)"),
        ("{calendar: quarter, anchor: 0}", "`anchor` is `0` (expected a whole number from 1 to 31)"),
        (
            "{calendar: week, anchor: mon}",
            "`anchor` is `mon` (expected monday, tuesday, wednesday, thursday, friday, saturday, sunday",
        ),
        (
            "{calendar: year, anchor: 02-30}",
            "`anchor` is `02-30` (expected a month and a day, such as `04-06`)",
        ),
        ("{calendar: year, anchor: 4-6}", "`anchor` is `4-6` (expected a month and a day, such as `04-06`)"),
        ("{calendar: day, zone: UTC}", "unknown key `zone` in `period` (expected calendar, tz, anchor)"),
        ("month", "`month` stands here (expected a mapping)"),
    ] {
        let errors = refusals(period);
        assert!(errors.contains(expected), "{period}: {errors}");
    }
}

#[test]
fn a_period_excludes_what_belongs_to_windows() {
    for other in [
        "unit: day",
        "unit_multiplier: 2",
        "window: 5m",
        "algorithm: fixed_window",
        "granularity: 1s",
        "burst: 5",
        "sync: leased",
    ] {
        let errors = refusals(&format!("{{calendar: day}}, {other}"));
        let name = other.split(':').next().unwrap();
        assert!(errors.contains(&format!("`{name}` with `period` (expected one of the two)")), "{errors}");
    }
    let errors = refusals("{calendar: day}, unlimited: true");
    assert!(errors.contains("`period` with `unlimited: true` (expected one of the two)"), "{errors}");
}

/// A changed zone or anchor keeps the count; another calendar has a count of its own.
#[test]
fn the_zone_and_the_anchor_are_no_part_of_the_key() {
    let key = |period: &str| budget(period).key(&[Entry { key: "k", value: "v" }]);
    let month = key("{calendar: month}");
    assert_eq!(key("{calendar: month, tz: Europe/Berlin, anchor: 15}"), month);
    assert_ne!(key("{calendar: day}"), month);
    assert_ne!(key("{calendar: quarter}"), month);
}

#[test]
fn n_hits_pass_in_each_period_and_denied_ones_do_not_count() {
    let (store, month) = (store(), limit("{calendar: month, tz: Europe/Berlin}"));
    let take = |hits, at| store.take(&month, key(1), hits, time(at));
    assert!(!take(7, "2026-10-31T22:59:58Z").over);
    let denied = take(4, "2026-10-31T22:59:59Z");
    assert!(denied.over && denied.before == 7 && denied.remaining == 3);
    assert_eq!(denied.reset_nanos, SECOND_NANOS);
    assert!(!take(3, "2026-10-31T22:59:59Z").over);
    assert!(take(0, "2026-10-31T22:59:59Z").over, "as one hit would be");
    let november = take(10, "2026-10-31T23:00:00Z");
    assert!(!november.over && november.before == 0);
    assert_eq!(november.reset_nanos, 30 * 86_400 * SECOND_NANOS);
    assert!(!take(0, "2026-11-30T23:00:00Z").over);
}

#[test]
fn a_debt_ends_with_its_period() {
    let (store, day) = (store(), limit("{calendar: day}"));
    let mut report = check(day, key(1), Hits::Take(25));
    report.reported = true;
    store.apply(&plan([report]), time("2026-10-31T12:00:00Z"));
    let verdict = store.take(&day, key(1), 0, time("2026-10-31T23:59:59Z"));
    assert!(verdict.over && verdict.before == 25);
    assert_eq!(store.take(&day, key(1), 0, time("2026-11-01T00:00:00Z")).remaining, 10);
}

#[test]
fn a_store_that_lost_its_counters_exempts_budgets() {
    let since = time("2026-10-31T12:00:00Z");
    let (store, day) = (store().cold(Cold::since(since, u64::MAX / 2)), limit("{calendar: day}"));
    assert!(!store.take(&day, key(1), 10, since).over);
}

/// A calendar whose periods begin at these seconds.
fn table(begins: Vec<u32>) -> Limit {
    let periods = Periods::named(&format!("day ({begins:?})"), || begins).expect("there is room");
    Limit::calendar(10, CalendarUnit::Day.nanos_max(), periods)
}

/// Nodes with other zone data, anchors and records all ask one counter. From each hit that passed until its period ends
/// for the node that asked for it, no more than N pass.
#[test]
fn no_change_of_the_calendar_admits_more_before_an_end() {
    for seed in 0..400 {
        let mut random = Random(seed);
        let limits: Vec<Limit> = (0..2 + seed % 2)
            .map(|number| {
                let shift = random.pick(&[0, 1, 30, 50, 99]);
                // As many tables as a process may have are not needed.
                table((number as u32 % 2 * 7 + shift..2_000).step_by(100).collect())
            })
            .collect();
        let (store, mut now, mut passed) = (store(), 0, Vec::<(u64, u64, u64)>::new());
        while now < 1_900 {
            now += random.pick(&[0, 0, 1, 3, 10, 40]);
            let (limit, hits) = (random.pick(&limits), 1 + random.below(6));
            let at = Timestamp::from_secs(now);
            let verdict = store.take(&limit, key(seed), hits, at);
            if !verdict.over {
                passed.push((now, limit.period_around(at).1.as_nanos() / SECOND_NANOS, hits));
            } else {
                assert!(verdict.reset_nanos > 0, "seed {seed}: a denial without a wait");
            }
        }
        for (place, &(_, end, _)) in passed.iter().enumerate() {
            let sum: u64 = passed[place..].iter().filter(|hit| hit.0 < end).map(|hit| hit.2).sum();
            assert!(sum <= 10, "seed {seed}: {sum} hits before {end}: {:?}", &passed[place..]);
        }
        assert!(passed.len() > 10, "seed {seed}: {} passed", passed.len());
    }
}

/// Each day another anchor: the end only moves to later times, and the count begins at zero when it is reached.
#[test]
fn an_anchor_that_changes_every_day_empties_no_count() {
    let store = store();
    let begins = |day: u32| (0..400).filter(move |at| at % 30 == day % 30).map(|at| at * 86_400).collect();
    let (mut end, mut in_period, mut ends) = (0, 10, 0);
    for day in 0..390_u32 {
        // The anchor is always the day before yesterday: a period that has just begun.
        let limit = table(begins(day.saturating_sub(2)));
        let at = Timestamp::from_secs(u64::from(day) * 86_400 + 5);
        if end <= at.as_nanos() {
            assert_eq!(in_period, 10, "day {day}");
            (in_period, ends) = (0, ends + 1);
        }
        for _ in 0..3 {
            if !store.take(&limit, key(1), 1, at).over {
                in_period += 1;
                end = end.max(limit.period_around(at).1.as_nanos());
            }
        }
        assert!(in_period <= 10, "day {day}");
    }
    // Ten hits pass in four days, and move the end on three of them.
    assert_eq!(ends, 390_u32.div_ceil(31));
}

/// A store, and a rule with records. Its holds count as what they held to the end of the period in which they expire.
const WITH_RECORDS: &str = "domain: d
descriptors:
  - key: k
    limits_from: store
    rate_limit: {period: {calendar: month, anchor: 15}, requests_per_unit: 10}
    reserve: {ttl: 1h}
";

fn anchored(rules: &RuleSet, record: Option<Record>) -> Vec<Limit> {
    let request = Request::new("d", 1).descriptor(&[("k", "v")]);
    let mut found = Found::default();
    found.add(0, &rules.rules()[0], record.into());
    let overlay = Overlay { records: Some(&found), ..Overlay::default() };
    let plan = rules.plan_under(&request, Modes::default(), overlay);
    let mut limits = Vec::new();
    for step in &plan.steps {
        if let Step::Check(check) = step {
            limits.push(check.limit);
        }
    }
    limits
}

#[test]
fn the_record_of_a_key_says_where_its_periods_begin() {
    let rules = loaded(WITH_RECORDS).rules;
    let begin = |record: Option<Record>| {
        let limit = anchored(&rules, record)[0];
        let (begin, end) = limit.period_around(time("2026-02-10T00:00:00Z"));
        let day = |at: Timestamp| {
            jiff::Timestamp::from_second((at.as_nanos() / SECOND_NANOS) as i64).unwrap().to_string()[5..10]
                .to_owned()
        };
        (day(begin), day(end), limit.requests())
    };
    let of = |anchor: &str| Some(Record { anchor: Anchor::parse(anchor), ..Record::of(7) });
    let dates = |begin: &str, end: &str, requests| (begin.to_owned(), end.to_owned(), requests);
    assert_eq!(begin(None), dates("01-15", "02-15", 10));
    assert_eq!(begin(of("1")), dates("02-01", "03-01", 7));
    assert_eq!(begin(of("31")), dates("01-31", "02-28", 7));
    // Another rule's: the anchor of this one stays.
    assert_eq!(begin(of("sunday")), dates("01-15", "02-15", 7));
    assert_eq!(begin(Some(Record::of(7))), dates("01-15", "02-15", 7));
    // Every anchor of every calendar.
    for (calendar, anchors) in [
        ("week", ["monday", "wednesday", "sunday"]),
        ("quarter", ["1", "15", "31"]),
        ("year", ["01-01", "02-29", "12-31"]),
    ] {
        let rules =
            loaded(&WITH_RECORDS.replace("calendar: month, anchor: 15", &format!("calendar: {calendar}")))
                .rules;
        for anchor in anchors {
            let of_rule = limit(&format!("{{calendar: {calendar}, anchor: {anchor}}}"));
            assert_eq!(anchored(&rules, of(anchor))[0].periods(), of_rule.periods(), "{calendar} {anchor}");
        }
    }
}

#[test]
fn expired_holds_count_in_the_periods_of_the_record() {
    let rules = loaded(WITH_RECORDS).rules;
    let request = Request::new("d", 1).descriptor(&[("k", "v")]);
    let mut found = Found::default();
    let record = Record { anchor: Anchor::day(3), ..Record::of(7) };
    found.add(0, &rules.rules()[0], Some(record).into());
    let overlay = Overlay { records: Some(&found), ..Overlay::default() };
    let plan = rules.plan_under(&request, Modes::default(), overlay);
    let periods: Vec<_> = plan.checks().map(|(_, check)| check.limit.periods()).collect();
    assert_eq!(periods.len(), 2);
    assert_eq!(periods[0].unwrap().to_string(), "month (UTC, from day 3)");
    assert_eq!(periods[1], periods[0]);
}

/// Each day the record of the key has another anchor: a period that has just begun. The end only moves to later times, and
/// the count begins at zero when it is reached.
#[test]
fn a_record_whose_anchor_changes_every_day_empties_no_count() {
    let (rules, store) = (loaded(WITH_RECORDS).rules, store());
    let (mut end, mut in_period, mut ends) = (Timestamp::default(), 10, 0);
    for day in 0..800_u64 {
        let at = time("2026-01-01T00:00:05Z").plus(day * 86_400 * SECOND_NANOS);
        // The day of the month two days ago.
        let anchored_at =
            jiff::Timestamp::from_second((at.as_nanos() / SECOND_NANOS) as i64 - 2 * 86_400).unwrap();
        let anchor = Anchor::day(anchored_at.to_string()[8..10].parse().unwrap());
        let limit = anchored(&rules, Some(Record { anchor, ..Record::of(10) }))[0];
        assert!(at.nanos_since(limit.period_around(at).0) < 4 * 86_400 * SECOND_NANOS, "day {day}");
        if end <= at {
            assert_eq!(in_period, 10, "day {day}");
            (in_period, ends) = (0, ends + 1);
        }
        for _ in 0..3 {
            if !store.take(&limit, key(1), 1, at).over {
                in_period += 1;
                end = end.max(limit.period_around(at).1);
            }
        }
        assert!(in_period <= 10, "day {day}");
    }
    // Ten hits pass in four days, and then none for most of a month.
    assert!((20..=27).contains(&ends), "{ends}");
}

/// A record may have been made for a rule with a window.
#[test]
fn a_record_changes_only_n() {
    let rules = loaded(&(file("{calendar: month}").replace("10}}]", "10}, limits_from: store}]"))).rules;
    let record = Record {
        window: Some(Window::of(Unit::Day)),
        algorithm: Some(Algorithm::TokenBucket),
        burst: Some(3),
        ..Record::of(25)
    };
    let request = Request::new("d", 1).descriptor(&[("k", "v")]);
    let planned = |record: Option<Record>| {
        let mut found = Found::default();
        found.add(0, &rules.rules()[0], record.into());
        let overlay = Overlay { records: Some(&found), ..Overlay::default() };
        let plan = rules.plan_under(&request, Modes::default(), overlay);
        let Step::Check(check) = &plan.steps[0] else { panic!("no check") };
        (check.limit, check.key)
    };
    let (own, counter) = planned(None);
    assert_eq!(planned(Some(record)), (own.with_numbers(Some(25), None), counter));
}
