//! Calendar budgets: nested ones, over a restart and over midnight, and shared by nodes whose clocks are wrong.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::Signal;

use crate::harness::grpc::{self, OK, OVER_LIMIT};
use crate::harness::redis::Redis;
use crate::harness::tidegate::{Setup, Tidegate};

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

/// The clock of the process is moved, so that the test is at another time of the day than now.
#[test]
fn a_budget_survives_a_restart_and_ends_at_midnight() {
    let to_midnight = DAY - now() % DAY;
    let setup = Setup::new().rules("d.yaml", &rules("{calendar: day}")).keeping_counters();
    let mut limiter = setup.clock_off(to_midnight - 7_000).start();
    assert_eq!(passed(&limiter), 10);
    let (code, left, wait) = ask(&limiter);
    assert_eq!((code, left), (OVER_LIMIT, 0));
    assert!((6_000..=7_000).contains(&wait), "{wait} s to midnight");
    for (before_midnight, passes) in [(3_000, 0), (-10, 10)] {
        limiter.signal(Signal::TERM);
        assert_eq!(limiter.exit_code(), 0, "{:#?}", limiter.output());
        limiter = limiter.into_setup().clock_off(to_midnight - before_midnight).start();
        assert_eq!(passed(&limiter), passes, "{before_midnight} s before midnight");
    }
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

#[test]
fn a_quarter_is_three_months_to_envoy() {
    let limiter = Setup::new().rules("d.yaml", &rules("{calendar: quarter}")).start();
    let status = limiter.client().ask(grpc::question("d", &[&[("k", "v")]])).statuses.remove(0);
    let limit = status.current_limit.expect("a limit");
    assert_eq!((limit.requests_per_unit, limit.unit), (10, 5));
    assert_eq!(limit.unit_multiplier.map(|multiplier| multiplier.value), Some(3));
}
