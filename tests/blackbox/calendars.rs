//! Calendar budgets: nested ones, over a restart and over midnight, and shared by nodes whose clocks are wrong.

use std::fs;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::Signal;

use crate::admin::TOKEN;
use crate::harness::grpc::{self, OK};
use crate::harness::redis::Redis;
use crate::harness::tidegate::{Setup, Tidegate, binary};
use crate::harness::{eventually, eventually_true, http};
use crate::records::put;

const DAY: i64 = 86_400;

fn rules(period: &str) -> String {
    format!(
        "{{domain: d, descriptors: [{{key: k, rate_limit: {{period: {period}, requests_per_unit: 10}}}}]}}"
    )
}

/// The code, what is left, and the seconds until the period ends.
fn ask(limiter: &Tidegate) -> (i32, u32, i64) {
    let status = limiter.client().ask(grpc::question("d", &[&[("k", "v")]])).statuses.remove(0);
    (status.code, status.limit_remaining, status.duration_until_reset.map_or(0, |wait| wait.seconds))
}

/// How many of twenty requests pass.
fn passed(limiter: &Tidegate) -> usize {
    (0..20).filter(|_| ask(limiter).0 == OK).count()
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() as i64
}

/// Money in millionths, far beyond 32 bits: exact to the last one, over both fronts, in memory and in Redis.
#[test]
fn a_budget_of_money_is_exact_beyond_32_bits() {
    let redis = Redis::start(&[]);
    let most = "9007199254740991";
    let rule = format!(
        "{{domain: d, descriptors: [{{key: k, limits_from: store, rate_limit: {{period: {{calendar: year}}, \
         requests_per_unit: {most}, cost: asked}}}}]}}"
    );
    for url in ["", &redis.url()] {
        let setup = Setup::new().rules("d.yaml", &rule).env("ADMIN_TOKEN", TOKEN);
        let folder = setup.outside().join("limits").display().to_string();
        let setup = setup.env("LIMITS_DIR", &folder).env("LIMIT_RESPONSE_HEADERS_FORMAT", "both");
        let limiter = if url.is_empty() { setup } else { setup.env("REDIS_URL", url) }.start();
        let spend = |value: &str, cost: u64| {
            let mut question = grpc::question("d", &[&[("k", value)]]);
            question.descriptors[0].hits_addend = Some(cost);
            let status = limiter.client().ask(question).statuses.remove(0);
            let limit = status.current_limit.map_or(0, |limit| limit.requests_per_unit);
            (status.code == OK, limit, status.limit_remaining)
        };
        assert_eq!(spend("v", 9_007_199_254_740_980), (true, u32::MAX, 11));
        assert_eq!(spend("v", 12), (false, u32::MAX, 11));
        let shown = http::Client::new(limiter.ports().http).get("/check/d?k=v&~hits=10");
        assert_eq!((shown.status, shown.header("ratelimit-remaining")), (200, Some("1")));
        let both = [shown.header("ratelimit-limit"), shown.header("ratelimit-policy")];
        assert_eq!(
            both,
            [Some(most), Some("\"d.k\";q=999999999999999")],
            "15 digits are the most of the standard"
        );
        assert_eq!(spend("v", 1), (true, u32::MAX, 0));
        assert!(!spend("v", 1).0);

        let entries = serde_json::json!([{"key": "k", "value": "w"}]);
        let record = |n: u64| serde_json::json!({"domain": "d", "entries": entries, "requests_per_unit": n});
        let refused = put(&limiter, &record(1 << 53));
        assert!(refused.body.contains("expected a whole number, 0 to 9007199254740991"), "{refused:?}");
        assert_eq!(put(&limiter, &record(12_000_000_000)).status, 201);
        assert_eq!(spend("w", 11_999_999_999), (true, u32::MAX, 1));
        assert_eq!([spend("w", 2).0, spend("w", 1).0, spend("w", 1).0], [false, true, false]);
    }
}

#[test]
fn a_budget_survives_a_restart() {
    let setup = Setup::new().rules("d.yaml", &rules("{calendar: year}")).keeping_counters();
    let mut limiter = setup.start();
    assert_eq!(passed(&limiter), 10);
    limiter.signal(Signal::TERM);
    assert_eq!(limiter.exit_code(), 0, "{:#?}", limiter.output());
    assert_eq!(passed(&limiter.restart()), 0);
}

/// The clock is moved to some seconds before midnight.
#[test]
fn a_budget_ends_at_midnight() {
    // A slow start may miss its midnight.
    let (limiter, file) = eventually("a start before midnight", || {
        let setup = Setup::new().rules("d.yaml", &rules("{calendar: day}")).env("EVENTS_KINDS", "denied");
        let file = setup.outside().join("events.jsonl");
        let setup = setup.env("EVENTS_LOG", &file.display().to_string());
        let limiter = setup.clock_off(DAY - now() % DAY - 4).start();
        let is_over = passed(&limiter) == 10 && (1..=4).contains(&ask(&limiter).2);
        is_over.then_some((limiter, file))
    });
    assert_eq!(ask(&limiter).1, 0);
    eventually_true("the next day", || ask(&limiter).0 == OK);
    assert_eq!(passed(&limiter), 9);
    assert!(ask(&limiter).2 > DAY - 100);
    let events = || fs::read_to_string(&file).map_or(0, |text| text.lines().count());
    eventually_true("an event of each day", || events() == 2);
}

/// The end in the counter is moved, because the clock of Redis cannot be.
#[test]
fn a_budget_in_redis_ends_when_its_end_has_come() {
    let redis = Redis::start(&[]);
    let setup = Setup::new().rules("d.yaml", &rules("{calendar: year}"));
    let limiter = setup.env("REDIS_URL", &redis.url()).start();
    assert_eq!(passed(&limiter), 10);
    let keys: Vec<String> = redis.ask(&["KEYS", "*|v"]);
    let [key] = &keys[..] else { panic!("one counter: {keys:?}") };
    let life: i64 = redis.ask(&["TTL", key]);
    let end = (now() + life) as f64 * 1e6;
    let state: Vec<u8> = redis.ask(&["GET", key]);
    let &[latest, count, kept_end] = state.as_chunks().0 else { panic!("{state:?}") };
    let [latest, count, kept_end] = [latest, count, kept_end].map(f64::from_le_bytes);
    assert_eq!(count, 10.0);
    assert!((kept_end - end).abs() < 5e6, "it expires at its end: {kept_end}, {end}");
    let ended: Vec<u8> =
        [latest - 1.0, count, latest].iter().flat_map(|number| number.to_le_bytes()).collect();
    let mut command = redis::cmd("SET");
    let _: () =
        command.arg(key).arg(ended).arg("KEEPTTL").query(&mut redis.connect()).expect("Redis answers");
    assert_eq!(passed(&limiter), 10);
}

/// Redis decides which period is running.
#[test]
fn nodes_with_wrong_clocks_share_one_budget() {
    for redis in Redis::and_valkey() {
        let node = |off: i64| {
            let setup = Setup::new().rules("d.yaml", &rules("{calendar: year, anchor: 01-01}"));
            setup.env("REDIS_URL", &redis.url()).clock_off(off * DAY).start()
        };
        let nodes = [node(0), node(-400), node(400)];
        let all: Vec<(i32, u32, i64)> = (0..18).map(|number| ask(&nodes[number % 3])).collect();
        assert_eq!(all.iter().filter(|(code, ..)| *code == OK).count(), 10, "{all:?}");
        let waits: Vec<i64> = all.iter().map(|(.., wait)| *wait).collect();
        let (least, most) = (waits.iter().min().expect("some"), waits.iter().max().expect("some"));
        assert!(most - least < 600 && *most <= 366 * DAY, "{waits:?}");
    }
}

/// Rules that change between nodes, or in a reload, move the end of the running period, and never empty the count.
#[test]
fn another_zone_or_anchor_empties_no_count() {
    let redis = Redis::start(&[]);
    let node =
        |period: &str| Setup::new().rules("d.yaml", &rules(period)).env("REDIS_URL", &redis.url()).start();
    let nodes = [
        "{calendar: month}",
        "{calendar: month, anchor: 15}",
        "{calendar: month, tz: Pacific/Kiritimati}",
        "{calendar: month, tz: America/Los_Angeles, anchor: 31}",
    ]
    .map(node);
    let passes = (0..24).filter(|number| ask(&nodes[number % 4]).0 == OK).count();
    assert_eq!(passes, 10);
}

/// Customers with a billing day of their own, in memory and in Redis.
#[test]
fn the_record_of_a_key_says_where_its_periods_begin() {
    let redis = Redis::start(&[]);
    let rules = rules("{calendar: week}").replace("{key: k,", "{key: k, limits_from: store,");
    for url in ["", &redis.url()] {
        let setup = Setup::new().rules("d.yaml", &rules).env("ADMIN_TOKEN", TOKEN);
        let folder = setup.outside().join("limits").display().to_string();
        let setup = setup.env("LIMITS_DIR", &folder);
        let limiter = if url.is_empty() { setup } else { setup.env("REDIS_URL", url) }.start();
        let record = |value: &str, anchor: serde_json::Value| {
            let entries = serde_json::json!([{"key": "k", "value": value}]);
            serde_json::json!({"domain": "d", "entries": entries, "requests_per_unit": 3, "anchor": anchor})
        };
        let mut ends: Vec<i64> = Vec::new();
        for day in ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"] {
            assert_eq!(put(&limiter, &record(day, day.into())).status, 201);
            let ask = || limiter.client().ask(grpc::question("d", &[&[("k", day)]])).statuses.remove(0);
            let answers: Vec<_> = (0..5).map(|_| ask()).collect();
            assert_eq!(answers.iter().filter(|answer| answer.code == OK).count(), 3, "{day}");
            let wait = answers[4].duration_until_reset.as_ref().expect("a wait").seconds;
            ends.push((now() + wait + DAY / 2) / DAY);
        }
        ends.sort_unstable();
        assert!(ends.windows(2).all(|pair| pair[1] == pair[0] + 1), "{ends:?}");
        let refused = put(&limiter, &record("x", 32.into()));
        assert!(
            refused.status == 400 && refused.body.contains("`anchor` is 32 (expected a day"),
            "{refused:?}"
        );
        let unfit = put(&limiter, &record("x", 15.into()));
        let expected =
            "begins at the anchor 15: it counts by the calendar week (UTC), so the anchor changes nothing";
        assert!(unfit.status == 201 && unfit.body.contains(expected), "{unfit:?}");
    }
}

#[test]
fn a_quarter_is_three_months_to_envoy() {
    let limiter = Setup::new().rules("d.yaml", &rules("{calendar: quarter}")).start();
    let body = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "k", "value": "v"}]}]}"#;
    let answer = http::Client::new(limiter.ports().http).send("POST", "/json", &[], body).expect("an answer");
    let answer: serde_json::Value = serde_json::from_str(&answer.body).expect("JSON");
    let limit = &answer["statuses"][0]["currentLimit"];
    assert_eq!((&limit["unit"], &limit["unitMultiplier"]), (&"MONTH".into(), &3.into()), "{answer}");
}

/// A table of periods is kept until the process ends.
#[test]
fn more_calendars_than_there_is_room_for_are_refused() {
    let setup = Setup::new();
    let rule = |(number, (zone, calendar)): (usize, (&str, &str))| {
        // Another anchor needs no more room.
        let of = |key: &str, more: &str| {
            let period = format!("{{calendar: {calendar}, tz: {zone}{more}}}");
            format!("{{key: {key}{number}, rate_limit: {{period: {period}, requests_per_unit: 1}}}}")
        };
        let more = [("month", ", anchor: 15"), ("quarter", ", anchor: 31"), ("week", ", anchor: sunday")];
        let more =
            more.iter().find(|(with_anchor, _)| *with_anchor == calendar).map(|(_, more)| of("a", more));
        more.into_iter().chain([of("k", "")]).collect::<Vec<_>>().join(",\n")
    };
    let zones = "Asia/Tokyo Asia/Kolkata Asia/Tehran Europe/Berlin Europe/London America/Bogota America/Caracas \
        America/Denver Africa/Lagos UTC Africa/Cairo Africa/Nairobi America/Chicago America/Halifax America/Lima \
        America/New_York Asia/Dubai Asia/Manila Asia/Seoul Europe/Lisbon Europe/Madrid Europe/Oslo Europe/Paris \
        Europe/Rome Pacific/Apia Pacific/Guam";
    let zones: Vec<&str> = zones.split_whitespace().collect();
    let calendars = ["day", "week", "month", "quarter", "year"];
    let all = zones.iter().flat_map(|zone| calendars.map(|calendar| (*zone, calendar)));
    let check = |count: usize| {
        let rules: Vec<String> = all.clone().take(count).enumerate().map(rule).collect();
        setup.write("d.yaml", &format!("{{domain: d, descriptors: [{}]}}", rules.join(",\n")));
        let output = Command::new(binary()).arg("check").arg(setup.folder()).output().expect("it starts");
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr),
        )
    };
    assert!(check(127).0, "{}", check(127).1);
    let (passes, shown) = check(128);
    let refusal = "no room for the calendar month (Pacific/Guam, from day 15)";
    assert!(!passes && shown.matches("no room").count() == 2 && shown.contains(refusal), "{shown}");
}
