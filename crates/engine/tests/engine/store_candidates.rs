//! Candidates, compared with a naive oracle: for each rule with a candidate it tries the request on copies of the
//! counters, with the candidate's limit and counter instead of the rule's. And compared with rules that really have the
//! candidate's numbers.

use tidegate_engine::decision::{Code, Trial, conclude};
use tidegate_engine::limit::{Algorithm, Limit};
use tidegate_engine::memory::{MemoryOptions, MemoryStore};
use tidegate_engine::overlay::{Effect, Exception, Exceptions, Overlay};
use tidegate_engine::path::{Path, PathEntry};
use tidegate_engine::plan::{Candidate, Check, Hits, Modes, Origin, Plan, Step};
use tidegate_engine::request::{DescriptorOptions, Entry, Override, Request};
use tidegate_engine::rules::{RuleSet, Unit};
use tidegate_engine::time::Timestamp;
use tidegate_engine::unit::Window;

use crate::asking::{key, plan, small_store, store};
use crate::limits_oracle::Terms;
use crate::limits_sequences::{next_time, terms};
use crate::random::Random;
use crate::rules::loaded;
use crate::store_requests::{ALGORITHMS, Ask, World, random_ask};

/// The number of a rule's counter plus this is that of its candidate's.
const CANDIDATES: u64 = 100;

/// Limits, each with a candidate or without.
type Limits = Vec<(Terms, Option<Terms>)>;

fn random_limits(random: &mut Random, window: u64) -> Limits {
    let limit =
        |random: &mut Random, algorithm| Terms { window, granularity: None, ..terms(random, algorithm) };
    let both = |random: &mut Random| {
        let algorithm = random.pick(&ALGORITHMS);
        let candidate = limit(random, algorithm);
        (limit(random, algorithm), (!random.one_in(3)).then_some(candidate))
    };
    (0..1 + random.below(4)).map(|_| both(random)).collect()
}

/// What this descriptor asks the candidate of its rule.
fn of_candidate(ask: &Ask, limits: &Limits, seed: u64) -> Option<Ask> {
    let terms = limits[ask.counter as usize].1?;
    let counter = ask.counter + CANDIDATES;
    let check = Check { limit: terms.limit(), key: key(seed * 1_000 + counter), ..ask.check };
    Some(Ask { counter, terms, check })
}

fn candidates(asks: &[Ask], steps: &[usize], limits: &Limits, seed: u64) -> Vec<Candidate<'static>> {
    let candidate = |(ask, &step): (&Ask, &usize)| {
        let check = of_candidate(ask, limits, seed)?.check;
        Some(Candidate { step, rule: ask.counter as usize, check })
    };
    asks.iter().zip(steps).filter_map(candidate).collect()
}

/// A random sequence of requests on one store with candidates, and on one without.
fn run(tried: &MemoryStore, plain: &MemoryStore, seed: u64) {
    let mut random = Random(seed);
    let window = 1 + random.below(400);
    let limits = random_limits(&mut random, window);
    let real: Vec<Terms> = limits.iter().map(|limit| limit.0).collect();
    let (mut world, mut now) = (World::default(), random.below(3 * window));
    for _ in 0..1 + random.below(12) {
        now = next_time(&mut random, now, window);
        let asks: Vec<Ask> = (0..1 + random.below(5)).map(|_| random_ask(&mut random, seed, &real)).collect();
        let mut plan = plan(asks.iter().map(|ask| ask.check));
        plan.modes.quota = random.one_in(10);
        plan.modes.stop_increment_when_over = random.one_in(4);
        let unmatched = random.below(plan.steps.len() as u64 + 1) as usize;
        plan.steps.insert(unmatched, Step::Unmatched);
        let expected_plain = plain.apply(&plan, Timestamp::from_nanos(now));
        let steps: Vec<usize> = (0..plan.steps.len()).filter(|&step| step != unmatched).collect();
        plan.candidates = candidates(&asks, &steps, &limits, seed);
        let verdicts = tried.apply(&plan, Timestamp::from_nanos(now));
        let what = format!("seed {seed} at {now}: {plan:#?}\n{verdicts:#?}");
        assert_eq!(verdicts[..plan.steps.len()], expected_plain[..], "a candidate changes no answer; {what}");
        let before = world.clone();
        world.request(&asks, plan.modes, now);
        let decision = conclude(&plan, &verdicts);
        for rule in 0..limits.len() {
            let of_rule = plan.candidates.iter().zip(decision.trials()).filter(|(it, _)| it.rule == rule);
            let reported: Vec<Trial<'_>> = of_rule.map(|(_, trial)| *trial).collect();
            let stands_in =
                |ask: &Ask| of_candidate(ask, &limits, seed).filter(|_| ask.counter == rule as u64);
            let replaced: Vec<Ask> =
                asks.iter().map(|ask| stands_in(ask).unwrap_or_else(|| ask.clone())).collect();
            check_trial(&mut world, &before, rule as u64, &replaced, &reported, plan.modes, now, &what);
        }
    }
}

/// Holds the trials of one rule against a world in which it has its candidate's limit. The other counters of that world
/// are as they were before the request.
#[allow(clippy::too_many_arguments, reason = "all that a request and its answer are made of")]
fn check_trial(
    world: &mut World,
    before: &World,
    rule: u64,
    replaced: &[Ask],
    reported: &[Trial<'_>],
    modes: Modes,
    now: u64,
    what: &str,
) {
    let own = rule + CANDIDATES;
    let mut trial = before.clone();
    let (passes, expected) = trial.request_on(replaced, |ask| ask.counter == own, modes, now);
    world.take_counter(&trial, own);
    assert_eq!(reported.len(), expected.len(), "rule {rule}; {what}");
    for (reported, (over, counted, remaining, reset)) in reported.iter().zip(expected) {
        let verdict = reported.limited.verdict;
        let got = (reported.passes, verdict.over, verdict.before, verdict.remaining);
        assert_eq!(got, (passes, over, counted, remaining), "rule {rule}; {what}");
        assert_eq!(reset.unwrap_or(verdict.reset_nanos), verdict.reset_nanos, "rule {rule}; {what}");
    }
}

#[test]
fn candidates_are_settled_in_worlds_of_their_own_and_change_no_answer() {
    let (tried, plain) = (small_store(), small_store());
    for seed in 0..10_000 {
        run(&tried, &plain, seed);
    }
}

/// Rules with a candidate, and the same rules with the candidate's numbers in force.
const TRIED: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 7, ALGORITHM, candidate: {requests_per_unit: 4}}
";

/// A candidate gives the verdicts that its rule would give with the candidate's numbers.
#[test]
fn a_candidate_says_what_the_rule_with_its_numbers_would_say() {
    for algorithm in Algorithm::NAMED {
        let named = TRIED.replace("ALGORITHM", &format!("algorithm: {}", algorithm.name()));
        let really = named.replace("requests_per_unit: 7", "requests_per_unit: 4");
        let really = really.replace(", candidate: {requests_per_unit: 4}", "");
        let (tried, really) = (loaded(&named).rules, loaded(&really).rules);
        let (store, other) = (store(), store());
        let mut random = Random(algorithm.number().into());
        let mut now = 1_000_000_000_000;
        for _ in 0..2_000 {
            now += random.below(20_000_000_000);
            let mut request = Request::new("shop", 0);
            let options = DescriptorOptions {
                hits_addend: random.one_in(4).then(|| random.below(4)),
                is_negative_hits: random.one_in(9),
                ..DescriptorOptions::default()
            };
            request.push([Entry { key: "user", value: random.pick(&["a", "b"]) }], options);
            let decide = |rules: &RuleSet, store: &MemoryStore| {
                let plan = rules.plan(&request, Modes::default());
                let verdicts = store.apply(&plan, Timestamp::from_nanos(now));
                let decision = conclude(&plan, &verdicts);
                let trial = decision.trials().first().map(|trial| (trial.passes, trial.limited.verdict));
                (decision.code == Code::Ok, verdicts[0].expect("a check"), trial)
            };
            let (_, _, reported) = decide(&tried, &store);
            let (passes, verdict, _) = decide(&really, &other);
            assert_eq!(reported, Some((passes, verdict)), "{algorithm:?} at {now}: {request:?}");
        }
    }
}

fn plan_of<'r>(rules: &'r RuleSet, request: &Request<'_>) -> Plan<'r> {
    rules.plan(request, Modes::default())
}

#[test]
fn a_limit_that_is_not_checked_has_no_trial() {
    let rules = loaded(
        "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 7, name: user, candidate: {requests_per_unit: 4}}
  - key: plan
    rate_limit: {unit: minute, requests_per_unit: 9, replaces: [{name: user}]}
",
    )
    .rules;
    let user = Request::new("shop", 0).descriptor(&[("user", "a")]);
    let (own, candidate) = match (&plan_of(&rules, &user).steps[0], &plan_of(&rules, &user).candidates[..]) {
        (Step::Check(own), [candidate]) => (*own, candidate.check),
        other => panic!("{other:?}"),
    };
    assert_ne!(own.key, candidate.key);
    assert_eq!((own.limit.requests(), candidate.limit.requests()), (7, 4));
    let replaced = Request::new("shop", 0).descriptor(&[("user", "a")]).descriptor(&[("plan", "gold")]);
    assert!(plan_of(&rules, &replaced).candidates.is_empty());
    let mut brings_its_own = Request::new("shop", 0);
    let limit = Override { requests_per_unit: 1, window: Window::of(Unit::Day) };
    brings_its_own.push(
        [Entry { key: "user", value: "a" }],
        DescriptorOptions { limit: Some(limit), ..DescriptorOptions::default() },
    );
    let plan = plan_of(&rules, &brings_its_own);
    assert!(matches!(plan.steps[0], Step::Check(Check { origin: Origin::Override { .. }, .. })));
    assert!(plan.candidates.is_empty());
}

/// The limit that it stands in for has other numbers, or none.
#[test]
fn a_limit_under_an_exception_has_no_trial() {
    let rules = loaded(
        "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 7, \
         candidate: {requests_per_unit: 4}}}]",
    )
    .rules;
    let request = Request::new("shop", 1).descriptor(&[("user", "a")]).descriptor(&[("user", "b")]);
    let level = PathEntry { key: "user".to_owned(), value: Some("a".to_owned()) };
    let path = Path { domain: "shop".into(), entries: vec![level] };
    for effect in [Effect::Limit { requests: Some(9), burst: None }, Effect::Unlimited, Effect::Deny] {
        let exceptions = Exceptions::new(&[Exception { path: path.clone(), effect }]);
        let overlay = Overlay { exceptions: Some(&exceptions), records: None };
        let plan = rules.plan_under(&request, Modes::default(), overlay);
        assert_eq!(plan.candidates.iter().map(|it| it.step).collect::<Vec<_>>(), [1], "{effect:?}");
    }
}

/// With SHADOW_MODE a request passes, whatever its limits say.
#[test]
fn under_shadow_mode_a_candidate_denies_nothing() {
    let rules = loaded(
        "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 9, \
         candidate: {requests_per_unit: 1}}}]",
    )
    .rules;
    let (store, modes) = (store(), Modes { shadow: true, ..Modes::default() });
    let request = Request::new("d", 1).descriptor(&[("k", "x")]);
    let tried = |_| {
        let plan = rules.plan(&request, modes);
        let decision = conclude(&plan, &store.apply(&plan, Timestamp::from_secs(1)));
        let [Trial { passes, limited, .. }] = decision.trials() else { panic!("one is tried") };
        (*passes, limited.verdict.over)
    };
    assert_eq!([0, 1].map(tried), [(true, false), (true, true)]);
}

#[test]
fn candidates_are_counted_neither_as_full_nor_as_beyond_their_limit() {
    let after = |store: MemoryStore, candidate: u32| {
        let rules = loaded(&format!(
            "domain: d\ndescriptors: [{{key: k, rate_limit: {{unit: day, requests_per_unit: 9, cost: reported, \
             candidate: {{requests_per_unit: {candidate}}}}}}}]"
        ))
        .rules;
        let mut request = Request::new("d", 1);
        let options = DescriptorOptions { hits_addend: Some(5), ..DescriptorOptions::default() };
        request.push([Entry { key: "k", value: "x" }], options);
        store.apply(&rules.plan(&request, Modes::default()), Timestamp::from_secs(1));
        (store.full_total().deny, store.reported_total().beyond)
    };
    assert_eq!(
        after(MemoryStore::new(MemoryOptions::new(0)), 7),
        (1, 0),
        "one counter of the answer has no room"
    );
    assert_eq!(after(store(), 1), (0, 0), "five are within nine");
}

/// Two descriptors of one rule are on trial together; those of two rules are not.
#[test]
fn the_candidates_of_one_rule_are_on_trial_together() {
    let now = Timestamp::from_secs(1_000);
    let minute = |requests| Limit::new(Algorithm::SlidingWindow, requests, 60_000_000_000);
    let check = |number, requests| crate::asking::check(minute(requests), key(number), Hits::Take(1));
    for (other_rule, passes) in [(0, [false, false]), (1, [true, false])] {
        let mut plan = plan([check(1, 9), check(2, 9)]);
        plan.candidates = vec![
            Candidate { step: 0, rule: 0, check: check(11, 5) },
            Candidate { step: 1, rule: other_rule, check: check(12, 0) },
        ];
        let (store, verdicts) = (store(), |store: &MemoryStore| store.apply(&plan, now));
        let decision = conclude(&plan, &verdicts(&store));
        assert_eq!(decision.code, Code::Ok);
        assert_eq!(decision.trials().iter().map(|trial| trial.passes).collect::<Vec<_>>(), passes);
        let again = conclude(&plan, &verdicts(&store));
        let charged = again.trials()[0].limited.verdict.before;
        assert_eq!(charged, u64::from(passes[0]), "charged only when its own trial passes");
    }
}
