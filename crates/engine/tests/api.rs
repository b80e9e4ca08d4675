//! Uses every public item of the crate once: a change that breaks this breaks programs that embed it.

#![allow(clippy::unwrap_used, reason = "a test that fails shows where")]

use tidegate_engine::{
    Algorithm, Clock, Code, Decision, Diagnostic, Limited, Limiter, LimiterBuilder, Outcome, Request, Status,
    StoreFull, Timestamp,
};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 2}
";

fn builder() -> LimiterBuilder {
    Limiter::builder().file("shop.yaml", RULES)
}

fn question(user: &str) -> Request<'_> {
    Request::new("shop", 1).descriptor(&[("user", user)])
}

#[test]
fn a_limiter_is_built_asked_reloaded_and_swept() {
    let limiter = builder()
        .secret([7; 16])
        .max_bytes(1 << 20)
        .when_full(StoreFull::Allow)
        .algorithm(Algorithm::SlidingLog)
        .strict(false)
        .build()
        .unwrap();
    let now = Timestamp::from_secs(1_000_000);
    let first: Outcome = limiter.decide(&question("alice"), now);
    assert!(first.passes());
    assert_eq!((first.code, first.limit, first.remaining), (Code::Ok, Some(2), Some(1)));
    assert_eq!((first.reset_secs, first.retry_after_secs), (Some(60), None));
    limiter.decide(&question("alice"), now);
    let denied = limiter.decide(&question("alice"), now.plus(1));
    assert_eq!(
        (denied.code, denied.remaining, denied.retry_after_secs),
        (Code::OverLimit, Some(0), Some(60))
    );
    let unknown = limiter.decide(&Request::new("elsewhere", 1), now);
    assert_eq!((unknown.code, unknown.limit), (Code::Ok, None));

    let more = RULES.replace("requests_per_unit: 2", "requests_per_unit: 3");
    limiter.reload([("shop.yaml", more)]).unwrap();
    assert!(
        limiter.decide(&question("alice"), now.plus(2)).passes(),
        "the two hits still count, and no more"
    );
    assert!(!limiter.decide(&question("alice"), now.plus(3)).passes());

    assert_eq!(limiter.sweep(now.plus(3)), 0);
    assert_eq!(limiter.sweep(Timestamp::from_secs(1_000_120)), 1);
}

#[test]
fn a_whole_decision_and_an_explanation_can_be_read() {
    let (limiter, now) = (builder().build().unwrap(), Clock::start().now());
    let left = limiter.decide_with(&question("alice"), now, |decision: &Decision<'_>| {
        let Some(Status::Limited(limited)) = decision.statuses.first() else { return None };
        let limited: &Limited<'_> = limited;
        Some((limited.is_denied(), limited.remaining()))
    });
    assert_eq!(left, Some((false, 1)));
    let explained = limiter.explain(&question("alice"), now);
    assert!(explained.contains("there is room") && explained.contains("user"), "{explained}");
    assert_eq!(explained, limiter.explain(&question("alice"), now), "to explain changes nothing");
    assert_eq!(limiter.decide(&question("alice"), now).remaining, Some(0));
    let explained = limiter.explain(&question("alice"), now);
    assert!(explained.contains("there is no room now"), "{explained}");
}

#[test]
fn bad_rules_are_refused_with_their_place_and_the_old_rules_stay() {
    let bad = "domain: shop\ndescriptors: [{kee: user}]\n";
    let problems: Vec<Diagnostic> = Limiter::builder().file("shop.yaml", bad).build().unwrap_err();
    assert_eq!((&*problems[0].file, problems[0].line), ("shop.yaml", 2));

    let limiter = builder().build().unwrap();
    assert!(limiter.reload([("shop.yaml", bad)]).is_err());
    assert_eq!(limiter.decide(&question("alice"), Timestamp::from_secs(1)).limit, Some(2));
}

#[test]
fn all_threads_share_it() {
    let limiter = builder().build().unwrap();
    let ask = || limiter.decide(&question("alice"), Timestamp::from_secs(9)).passes();
    let passed: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| (0..100).filter(|_| ask()).count())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(passed, 2);
}
