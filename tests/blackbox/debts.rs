//! `carry_debt`: what was reported beyond N is paid by the next windows and days, in memory and in Redis.

use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::harness::grpc::{OK, OVER_LIMIT, ask_only, question};
use crate::harness::redis::Redis;
use crate::harness::tidegate::{Setup, Tidegate, binary};
use crate::harness::{eventually, eventually_true, http};

const DAY: i64 = 86_400;

fn rules(says: &str) -> String {
    format!(
        "{{domain: d, descriptors: [{{key: k, rate_limit: {{{says}, requests_per_unit: 10, carry_debt: true}}}}]}}"
    )
}

/// Reports a cost of 25 tokens.
fn report(limiter: &Tidegate) -> i32 {
    let mut cost = question("d", &[&[("k", "v")]]);
    cost.descriptors[0].hits_addend = Some(25);
    limiter.client().ask(cost).statuses[0].code
}

/// The code, and the seconds to wait, of a question whether anything is left.
fn ask(limiter: &Tidegate) -> (i32, i64) {
    let status = limiter.client().ask(ask_only("d", &[&[("k", "v")]])).statuses.remove(0);
    (status.code, status.duration_until_reset.map_or(0, |wait| wait.seconds))
}

/// 25 of 10 in four seconds: ten now, ten in the next window, and five in the third, which has room for five more.
#[test]
fn a_report_closes_the_windows_that_pay_it() {
    let redis = Redis::start(&[]);
    for (algorithm, bucket) in [("sliding_log", 0), ("sliding_window, granularity: 1s", 1)] {
        for url in ["", &redis.url()] {
            let setup = Setup::new().rules("d.yaml", &rules(&format!("window: 4s, algorithm: {algorithm}")));
            let limiter = if url.is_empty() { setup } else { setup.env("REDIS_URL", url) }.start();
            assert_eq!(ask(&limiter).0, OK);
            let begun = Instant::now();
            assert_eq!(report(&limiter), OVER_LIMIT);
            let reported = Instant::now();
            // Each window ends with the bucket of its hits.
            let (least, most) = (Duration::from_secs(8), Duration::from_secs(8 + 2 * bucket));
            assert!((7..=8 + 2 * bucket as i64).contains(&ask(&limiter).1), "{algorithm}");
            let open = eventually("room", || {
                let (asked, code) = (Instant::now(), ask(&limiter).0);
                assert!(code == OK || asked < reported + most, "{algorithm}: denied for too long");
                (code == OK).then(Instant::now)
            });
            assert!(open >= begun + least, "{algorithm}: open after {:?}", open - begun);
            let client = limiter.client();
            let passed = (0..6).filter(|_| client.ask(question("d", &[&[("k", "v")]])).overall_code == OK);
            let (count, slow) = (passed.count(), open.elapsed() > Duration::from_secs(3));
            assert!(count == 5 || slow, "{algorithm}: {count} passed");
        }
    }
}

/// The clock is moved to some seconds before midnight: the next day is closed too.
#[test]
fn a_report_closes_the_days_that_pay_it() {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() as i64;
    // A slow start may miss its midnight.
    let limiter = eventually("a start before midnight", || {
        let setup = Setup::new().rules("d.yaml", &rules("period: {calendar: day}"));
        let limiter = setup.clock_off(DAY - now() % DAY - 4).start();
        let is_before = ask(&limiter).0 == OK && report(&limiter) == OVER_LIMIT;
        let wait = ask(&limiter);
        (is_before && wait.0 == OVER_LIMIT && (DAY + 1..=DAY + 4).contains(&wait.1)).then_some(limiter)
    });
    eventually_true("the next day", || ask(&limiter).1 <= DAY);
    let (code, wait) = ask(&limiter);
    assert_eq!(code, OVER_LIMIT, "the first day paid ten, and the second pays ten of the other fifteen");
    assert!((DAY - 100..=DAY).contains(&wait), "{wait}");
}

#[test]
fn a_rule_that_carries_its_debts_says_so() {
    let limiter = Setup::new().rules("d.yaml", &rules("unit: hour")).start();
    let page = http::get(limiter.ports().debug, "/rlconfig?format=json").expect("a page").body;
    assert!(page.contains(r#""carry_debt":true"#), "{page}");
    let page = http::get(limiter.ports().debug, "/rlconfig").expect("a page").body;
    assert!(page.contains("algorithm: sliding_window, carry_debt: true"), "{page}");
    let to = format!("http://127.0.0.1:{}", limiter.ports().debug);
    let asked = Command::new(binary()).args(["ask", "d", "k=v", "--to", &to]).output().expect("it starts");
    let text = String::from_utf8_lossy(&asked.stdout).into_owned();
    assert!(text.contains("10 per hour, carry_debt, sliding_window"), "{text} {asked:?}");
}
