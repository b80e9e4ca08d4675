//! Classes of importance: several thresholds on one counter. Random traffic is compared with the naive oracle, which
//! gets the threshold of each class computed as a fraction.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use tidegate_engine::explain::explain;
use tidegate_engine::limit::Algorithm;
use tidegate_engine::memory::MemoryStore;
use tidegate_engine::overlay::{Effect, Exception, Exceptions, Found, Overlay, Record};
use tidegate_engine::path::{Path, PathEntry};
use tidegate_engine::plan::{Check, Modes, Origin, Plan, Step};
use tidegate_engine::request::{DescriptorOptions, Entry, Request};
use tidegate_engine::rules::{Rule, RuleSet};
use tidegate_engine::time::{SECOND_NANOS, Timestamp};
use tidegate_engine::{Code, decision::conclude};

use crate::asking::{small_store, store};
use crate::limits_oracle::{Naive, Terms};
use crate::limits_sequences::next_time;
use crate::random::Random;
use crate::rules::loaded;

/// Classes, their shares as they are written, and as fractions.
const CLASSES: [(&str, &str, u64, u64); 4] = [
    ("standard", "0.85", 17, 20),
    ("critical", "1.0", 1, 1),
    ("rest", "0.333333", 333_333, 1_000_000),
    ("batch", "0.6", 3, 5),
];

fn rules(limit: &str) -> RuleSet {
    let shares: Vec<String> = CLASSES.iter().map(|(name, share, ..)| format!("{name}: {share}")).collect();
    loaded(&format!(
        "
domain: shop
descriptors:
  - key: user
    detailed_metric: true
    limits_from: store
    rate_limit: {{{limit}}}
    classes: {{key: priority, shares: {{{}}}}}
    descriptors:
      - {{key: path, rate_limit: {{unit: minute, requests_per_unit: 3}}}}
",
        shares.join(", ")
    ))
    .rules
}

fn request<'r>(user: &'r str, class: Option<&'r str>, hits: u32) -> Request<'r> {
    let request = Request::new("shop", hits);
    match class {
        Some(class) => request.descriptor(&[("user", user), ("priority", class)]),
        None => request.descriptor(&[("user", user)]),
    }
}

fn only_check<'p, 'a>(plan: &'p Plan<'a>) -> &'p Check<'a> {
    let [Step::Check(check)] = &plan.steps[..] else { panic!("{plan:?}") };
    check
}

/// How many of 200 single hits pass at one second.
fn passing(
    rules: &RuleSet,
    store: &MemoryStore,
    (user, class): (&str, Option<&str>),
    overlay: Overlay<'_>,
) -> usize {
    let request = request(user, class, 1);
    let passes = |_: &usize| {
        let plan = rules.plan_under(&request, Modes::default(), overlay);
        conclude(&plan, &store.apply(&plan, Timestamp::from_secs(1_000))).code == Code::Ok
    };
    (0..200).filter(passes).count()
}

/// A fixed window counts hits that it denies: those of a low class would take what is left to the others.
#[test]
fn a_class_takes_nothing_from_higher_ones_whatever_way_to_count_a_record_says() {
    for algorithm in Algorithm::NAMED {
        let (rules, store) = (rules("unit: minute, requests_per_unit: 100"), store());
        let record = Record { algorithm: Some(algorithm), ..Record::of(50) };
        let mut found = Found::default();
        found.add(0, &rules.rules()[0], Some(record).into());
        let overlay = Overlay { records: Some(&found), exceptions: None };
        let classes = ["batch", "critical"];
        let passed = classes.map(|class| passing(&rules, &store, ("alice", Some(class)), overlay));
        assert_eq!(passed, [30, 20], "{algorithm:?}");
    }
}

#[test]
fn each_class_stops_at_its_share_of_what_all_have_used() {
    for limit in [
        "unit: minute, requests_per_unit: 20",
        "unit: minute, requests_per_unit: 20, algorithm: sliding_log",
        "unit: minute, requests_per_unit: 20, algorithm: sliding_window_weighted",
        "unit: minute, requests_per_unit: 1, algorithm: token_bucket, burst: 20",
        "unit: minute, requests_per_unit: 1, algorithm: leaky_bucket, burst: 20",
        "period: {calendar: day}, requests_per_unit: 20",
    ] {
        let (rules, store) = (rules(limit), store());
        let pass = |class| passing(&rules, &store, ("alice", class), Overlay::default());
        let all = [
            Some("rest"),
            Some("batch"),
            None,
            Some("unheard"),
            Some("standard"),
            Some("batch"),
            Some("critical"),
        ];
        assert_eq!(all.map(pass), [6, 6, 0, 0, 5, 0, 3], "{limit}");
        assert_eq!(
            passing(&rules, &store, ("bob", None), Overlay::default()),
            6,
            "no class is the lowest; {limit}"
        );
    }
}

#[test]
fn a_class_is_no_part_of_the_counter_and_only_the_last_entry_names_one() {
    let rules = rules("unit: minute, requests_per_unit: 20");
    let key = |entries: &[(&str, &str)]| {
        let plan = rules.plan(&Request::new("shop", 1).descriptor(entries), Modes::default());
        plan.checks().next().map(|(_, check)| (check.key, check.limit.capacity(), check.limit.requests()))
    };
    let alice = key(&[("user", "alice")]).expect("it meets the limit");
    assert_eq!((alice.1, alice.2), (6, 20));
    assert_eq!(key(&[("user", "alice"), ("priority", "critical")]), Some((alice.0, 20, 20)));
    assert_eq!(key(&[("user", "alice"), ("path", "/"), ("priority", "critical")]), None);
    assert_eq!(key(&[("user", "alice"), ("priority", "critical"), ("path", "/")]), None);
    assert_eq!(key(&[("user", "alice"), ("priority", "critical"), ("priority", "batch")]), None);
    assert_eq!(key(&[("priority", "critical")]), None);
    let entries = [("user", "alice"), ("priority", "critical")]
        .map(|(key, value)| tidegate_engine::request::Entry { key, value });
    let Rule { metric_name, .. } = &rules.rules()[0];
    assert_eq!(metric_name.resolve(&entries).into_iter().collect::<Vec<_>>(), ["user_alice"]);
}

#[test]
fn the_share_applies_to_the_n_of_an_exception_or_a_record() {
    let (rules, path) = (rules("unit: minute, requests_per_unit: 20"), [("user", Some("alice"))]);
    let level = |(key, value): (&str, Option<&str>)| PathEntry {
        key: key.to_owned(),
        value: value.map(str::to_owned),
    };
    let exception = |effect| {
        let path = Path { domain: "shop".into(), entries: path.map(level).into() };
        Exceptions::new(&[Exception { path, effect }])
    };
    let more = exception(Effect::Limit { requests: Some(100), burst: None });
    fn pass(rules: &RuleSet, class: &str, overlay: Overlay<'_>) -> usize {
        passing(rules, &store(), ("alice", Some(class)), overlay)
    }
    fn under(exceptions: &Exceptions) -> Overlay<'_> {
        Overlay { exceptions: Some(exceptions), records: None }
    }
    assert_eq!(
        ["batch", "standard", "critical"].map(|class| pass(&rules, class, under(&more))),
        [60, 85, 100]
    );
    assert_eq!(pass(&rules, "critical", under(&exception(Effect::Deny))), 0);
    assert_eq!(pass(&rules, "batch", under(&exception(Effect::Unlimited))), 200);

    for (record, expected) in [
        (Record::of(40), [24, 34, 40]),
        (Record { algorithm: Some(Algorithm::TokenBucket), burst: Some(50), ..Record::of(1) }, [30, 42, 50]),
        (Record { algorithm: Some(Algorithm::SlidingLog), ..Record::of(40) }, [24, 34, 40]),
    ] {
        let asked = request("alice", None, 1);
        let (mut found, plan) = (Found::default(), rules.plan(&asked, Modes::default()));
        let Check { origin: Origin::Rule { rule, .. }, .. } = *only_check(&plan) else { panic!("{plan:?}") };
        found.add(0, rule, Some(record).into());
        let overlay = Overlay { records: Some(&found), exceptions: None };
        assert_eq!(
            ["batch", "standard", "critical"].map(|class| pass(&rules, class, overlay)),
            expected,
            "{record:?}"
        );
    }
}

#[test]
fn a_candidate_has_the_same_classes() {
    let rules = rules("unit: minute, requests_per_unit: 20, candidate: {requests_per_unit: 10}");
    let plan = rules.plan(&request("alice", Some("batch"), 1), Modes::default());
    assert_eq!(plan.candidates[0].check.limit.capacity(), 6);
}

#[test]
fn an_explanation_names_the_class() {
    let rules = rules("unit: minute, requests_per_unit: 20");
    let explained = |class| {
        let request = request("alice", class, 1);
        let plan = rules.plan(&request, Modes::default());
        let explanation = explain(&rules, &request, &plan, store().look(&plan, Timestamp::from_secs(1_000)));
        (explanation.to_string(), explanation.json()["descriptors"][0]["class"].to_string())
    };
    let (text, json) = explained(Some("batch"));
    assert!(text.contains("\n  class     batch: 12 of 20\n") && text.contains("12 left"), "{text}");
    assert!(!text.contains("level 2"), "a class is no level of the rules: {text}");
    assert_eq!(json, r#"{"hits":12,"name":"batch","share":0.6}"#);
    let (text, _) = explained(None);
    assert!(
        text.contains("\n  class     rest: 6 of 20, because the request names no class of this limit\n"),
        "{text}"
    );
    let (text, _) = explained(Some("rest"));
    assert!(text.contains("\n  class     rest: 6 of 20\n"), "{text}");
}

#[test]
fn an_explanation_says_of_what_higher_classes_have_used_more() {
    let (rules, store) = (rules("unit: minute, requests_per_unit: 20"), store());
    let now = Timestamp::from_secs(1_000);
    store.apply(&rules.plan(&request("alice", Some("critical"), 9), Modes::default()), now);
    let request = request("alice", Some("rest"), 1);
    let plan = rules.plan(&request, Modes::default());
    let text = explain(&rules, &request, &plan, store.look(&plan, now)).to_string();
    assert!(text.contains("\n  counter   9 counted, 0 left, 3 beyond the share of its class\n"), "{text}");
}

/// A limit of every algorithm with classes, and its terms.
fn random_limit(random: &mut Random, algorithm: Algorithm) -> (String, Terms) {
    let (secs, requests) = (random.pick(&[1, 7, 60, 3_600]), random.pick(&[0, 1, 2, 3, 7, 20, 100]));
    let is_bucket = matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket);
    let burst = if is_bucket { 1 + random.below(30) } else { requests };
    let written = if is_bucket { format!(", burst: {burst}") } else { String::new() };
    let name = algorithm.name();
    let text = format!("window: {secs}s, requests_per_unit: {requests}, algorithm: {name}{written}");
    (text, Terms { algorithm, requests, burst, window: secs * SECOND_NANOS, granularity: None })
}

#[test]
fn random_traffic_of_all_classes_is_decided_as_the_oracle_does() {
    let algorithms = [
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
        Algorithm::SlidingWindowWeighted,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
    ];
    let (mut denied, mut admitted) = (0, 0);
    for seed in 0..400 {
        let mut random = Random(seed ^ 0xC1A5);
        let algorithm = random.pick(&algorithms);
        let (text, terms) = random_limit(&mut random, algorithm);
        let (rules, store, mut naive) = (rules(&text), small_store(), Naive::default());
        let mut now = 1_790_000_000 * SECOND_NANOS;
        for step in 0..60 {
            now = next_time(&mut random, now, terms.window);
            let (class, _, numerator, denominator) = random.pick(&CLASSES);
            let part = |number: u64| number * numerator / denominator;
            let own = match algorithm {
                Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                    Terms { burst: part(terms.burst), ..terms }
                }
                _ => Terms { requests: part(terms.requests), ..terms },
            };
            let hits = random.pick(&[1, 1, 1, 2, 3, 10]);
            let request = request("alice", Some(class), hits);
            let plan = rules.plan(&request, Modes::default());
            let verdict = store.apply(&plan, Timestamp::from_nanos(now))[0].expect("a verdict");
            let answer = naive.take(&own, now, hits.into(), false);
            let ours = (verdict.over, verdict.before, verdict.remaining, verdict.reset_nanos);
            let theirs = (answer.over, answer.before, answer.remaining, answer.reset_nanos);
            assert_eq!(ours, theirs, "seed {seed}, step {step}: {class} of {terms:?}");
            if answer.over { denied += 1 } else { admitted += 1 }
        }
    }
    assert!(denied > 2_000 && admitted > 2_000, "{denied} denied, {admitted} admitted");
}

/// N changes while a bucket is above what a class may use: the class does not see the level as above `burst`.
#[test]
fn a_bucket_whose_n_was_lowered_drains_by_the_n_in_force_for_every_class() {
    let rules = rules("unit: hour, requests_per_unit: 3600, algorithm: token_bucket, burst: 100");
    let (store, at) = (store(), Timestamp::from_secs);
    let ask = |class, hits, requests, secs| {
        let plan = rules.plan(&request("alice", Some(class), hits), Modes::default());
        let check = *only_check(&plan);
        let check = Check { limit: check.limit.with_numbers(Some(requests), None), ..check };
        let plan = Plan { steps: [Step::Check(check)].into_iter().collect(), ..plan };
        store.apply(&plan, at(secs))[0].expect("a verdict")
    };
    assert!(!ask("critical", 100, 3_600, 10_000).over);
    // From a hit a second to one in ten, asked for by the lowest class alone.
    assert!(ask("rest", 1, 360, 10_000).over);
    assert!(ask("rest", 1, 360, 10_050).over);
    let verdict = ask("critical", 1, 360, 10_100);
    assert_eq!((verdict.over, verdict.remaining), (false, 9), "10 of 100 hits have drained");
}

/// Every class as one of 8 threads sees it: no class takes the sum beyond its share, and all is used in the end.
#[test]
fn no_class_takes_the_sum_beyond_its_share_under_8_threads() {
    let admitted: [AtomicU64; 4] = Default::default();
    let (rules, store) = (rules("unit: day, requests_per_unit: 10000"), store());
    thread::scope(|scope| {
        for thread in 0..8 {
            let (rules, store, admitted) = (&rules, &store, &admitted);
            scope.spawn(move || {
                let mut random = Random(thread);
                for _ in 0..20_000 {
                    let class = random.below(4) as usize;
                    let hits = 1 + random.below(3);
                    let request = request("alice", Some(CLASSES[class].0), hits as u32);
                    let plan = rules.plan(&request, Modes::default());
                    if !store.apply(&plan, Timestamp::from_secs(1_000))[0].expect("a verdict").over {
                        admitted[class].fetch_add(hits, Relaxed);
                    }
                }
            });
        }
    });
    let [standard, critical, rest, batch] = admitted.map(AtomicU64::into_inner);
    assert!(
        rest <= 3_333 && rest + batch <= 6_000 && rest + batch + standard <= 8_500,
        "{rest} {batch} {standard}"
    );
    assert_eq!(standard + critical + rest + batch, 10_000);
    assert!(rest > 500 && batch > 500 && standard > 500, "all classes had a part: {rest} {batch} {standard}");
}

#[test]
fn hits_that_a_low_class_gives_back_are_no_denial() {
    let (rules, store) = (rules("unit: minute, requests_per_unit: 10"), store());
    let decide = |request: &Request<'_>| {
        let plan = rules.plan(request, Modes::default());
        conclude(&plan, &store.apply(&plan, Timestamp::from_secs(1))).code
    };
    assert_eq!(decide(&request("ann", Some("critical"), 9)), Code::Ok);
    let entries = [("user", "ann"), ("priority", "batch")];
    let mut back = Request::new("shop", 1);
    let options = DescriptorOptions { is_negative_hits: true, ..DescriptorOptions::default() };
    back.push(entries.map(|(key, value)| Entry { key, value }), options);
    assert_eq!(decide(&back), Code::Ok);
    assert_eq!(decide(&request("ann", Some("batch"), 1)), Code::OverLimit);
}
