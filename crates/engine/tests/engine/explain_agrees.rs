//! What an explanation says is what is then decided: random rules, random requests, in process.

use tidegate_engine::decision::{Code, Decision, Status, conclude};
use tidegate_engine::explain::explain;
use tidegate_engine::limit::Algorithm;
use tidegate_engine::memory::MemoryStore;
use tidegate_engine::plan::{Hits, Modes, Plan, Step};
use tidegate_engine::request::{DescriptorOptions, Entry, Override, Request};
use tidegate_engine::rules::{RuleSet, Unit, load};
use tidegate_engine::time::{SECOND_NANOS, Timestamp};
use tidegate_engine::unit::Window;

use crate::asking::store;
use crate::random::Random;
use crate::rules::{file, options};

const KEYS: [&str; 3] = ["a", "b", "c"];
const VALUES: [&str; 5] = ["v", "w", "vw", "x", "v*"];

/// Nodes at one level: every key with some of its values.
fn nodes(random: &mut Random, indent: usize, text: &mut String) {
    for key in KEYS.iter().take(1 + random.below(3) as usize) {
        for value in ["", "v", "w", "v*", "*w", "*"] {
            if random.one_in(3) {
                continue;
            }
            let pad = " ".repeat(indent);
            *text += &format!("{pad}- key: {key}\n");
            if !value.is_empty() {
                *text += &format!("{pad}  value: '{value}'\n");
            }
            limit(random, &format!("{pad}  "), text);
            // Some hundred nodes in all: most of the time of a run is spent on loading them.
            if indent < 6 && random.one_in(4) {
                *text += &format!("{pad}  descriptors:\n");
                nodes(random, indent + 2, text);
            }
        }
    }
}

fn limit(random: &mut Random, pad: &str, text: &mut String) {
    if random.one_in(6) {
        return;
    }
    let mut says = match random.one_in(12) {
        true => "unlimited: true".to_owned(),
        false => numbers(random),
    };
    let name = random.below(6);
    if random.one_in(2) {
        says += &format!(", name: n{name}");
    }
    if random.one_in(5) {
        says += &format!(", replaces: [{{name: n{}}}]", (name + 1 + random.below(5)) % 6);
    }
    *text += &format!("{pad}rate_limit: {{{says}}}\n");
    for mode in ["shadow_mode", "quota_mode"] {
        if random.one_in(6) {
            *text += &format!("{pad}{mode}: true\n");
        }
    }
}

fn numbers(random: &mut Random) -> String {
    let algorithm = random.pick(&Algorithm::OF_HITS);
    let unit = random.pick(&["second", "minute"]);
    let (requests, other) = (random.below(6), random.below(6));
    let window = match algorithm {
        Algorithm::Calendar => "period: {calendar: day}".to_owned(),
        named => format!("unit: {unit}, algorithm: {}", named.name()),
    };
    let mut says = format!("{window}, requests_per_unit: {requests}");
    if random.one_in(3) {
        says += ", cost: asked";
    }
    if random.one_in(3) {
        says += &format!(", candidate: {{requests_per_unit: {other}}}");
    }
    says
}

/// A set of rules that loads.
fn rules(random: &mut Random) -> (RuleSet, String) {
    let mut text = "domain: d\ndescriptors:\n".to_owned();
    nodes(random, 0, &mut text);
    match load(&[file("a.yaml", &text)], &options()) {
        Ok(loaded) => (loaded.rules, text),
        // Nothing but a domain.
        Err(errors) => panic!("{text}\n{errors:#?}"),
    }
}

fn request(random: &mut Random) -> Request<'static> {
    let mut request = Request::new(if random.one_in(30) { "other" } else { "d" }, random.below(4) as u32);
    for _ in 0..1 + random.below(3) {
        let entries: Vec<Entry<'static>> = (0..1 + random.below(3))
            .map(|_| Entry { key: random.pick(&KEYS), value: random.pick(&VALUES) })
            .collect();
        let limit = Override { requests_per_unit: random.below(4) as u32, window: Window::of(Unit::Minute) };
        let options = DescriptorOptions {
            limit: random.one_in(12).then_some(limit),
            hits_addend: random.one_in(4).then(|| random.below(5)),
            is_negative_hits: random.one_in(10),
            ..DescriptorOptions::default()
        };
        request.push(entries, options);
    }
    request
}

/// The code of a descriptor, and whether its counter is over, its count before and after.
type Shown = (i32, Option<(bool, u64, u64)>);

/// What a decision says of each descriptor: its code, whether its hits fit, and what counted before.
fn shown(decision: &Decision<'_>) -> Vec<Shown> {
    let verdict = |status: &Status<'_>| match status {
        Status::Limited(limited) => {
            let verdict = limited.verdict;
            Some((verdict.over, verdict.before, verdict.after))
        }
        _ => None,
    };
    decision.statuses.iter().map(|status| (status.code() as i32, verdict(status))).collect()
}

/// How long each descriptor waits whose hits do not fit.
fn waits(decision: &Decision<'_>) -> Vec<Option<u64>> {
    let wait = |status: &Status<'_>| match status {
        Status::Limited(limited) => limited.verdict.over.then_some(limited.verdict.reset_nanos),
        _ => None,
    };
    decision.statuses.iter().map(wait).collect()
}

fn run(seed: u64) {
    let mut random = Random(seed);
    let (rules, text) = rules(&mut random);
    let (store, mut now) = (store(), Timestamp::from_secs(1_000_000));
    let modes = Modes {
        shadow: random.one_in(10),
        quota: random.one_in(10),
        stop_increment_when_over: random.one_in(5),
    };
    for _ in 0..1 + random.below(8) {
        now = now.plus(random.pick(&[0, 1, SECOND_NANOS / 7, SECOND_NANOS, 20 * SECOND_NANOS]));
        let request = request(&mut random);
        let plan = rules.plan(&request, modes);
        let explanation = explain(&rules, &request, &plan, store.look(&plan, now));
        let (counted, what) =
            (counts(&store, &plan, now), format!("seed {seed}: {request:?}\n{text}{explanation}"));
        let verdicts = store.apply(&plan, now);
        let decision = conclude(&plan, &verdicts);
        let explained = explanation.decision();
        assert_eq!((explained.code, explained.shadowed), (decision.code, decision.shadowed), "{what}");
        assert_eq!(shown(explained), shown(&decision), "{what}");
        // The wait in an answer is that after the charge: here nothing is charged.
        if decision.code == Code::OverLimit && plan.checks().all(|(_, check)| !check.reported) {
            assert_eq!(waits(explained), waits(&decision), "{what}");
        }
        let trials = |decision: &Decision<'_>| {
            decision
                .trials()
                .iter()
                .map(|it| (it.descriptor, it.passes, it.limited.verdict.over))
                .collect::<Vec<_>>()
        };
        assert_eq!(trials(explained), trials(&decision), "{what}");
        charges_what_it_says(&explanation.json(), &plan, (&counted, &counts(&store, &plan, now)), &what);
    }
}

/// What the counter of each step counts.
fn counts(store: &MemoryStore, plan: &Plan<'_>, now: Timestamp) -> Vec<Option<u64>> {
    let mut question = plan.clone();
    for step in &mut question.steps {
        if let Step::Check(check) = step {
            (check.hits, check.reported) = (Hits::Take(0), false);
        }
    }
    let looks = store.look(&question, now);
    (0..plan.steps.len()).map(|step| looks[step].as_ref().map(|look| look.verdict.before)).collect()
}

/// The hits that an explanation says are charged to a counter are there afterwards. Strict limits count each hit until it
/// leaves; other algorithms round.
fn charges_what_it_says(
    json: &serde_json::Value,
    plan: &Plan<'_>,
    (before, after): (&[Option<u64>], &[Option<u64>]),
    what: &str,
) {
    for (index, step) in plan.steps.iter().enumerate() {
        let Step::Check(check) = step else { continue };
        let same: Vec<_> = plan.checks().filter(|(_, other)| other.key == check.key).collect();
        let only_takes = same.iter().all(|(_, other)| matches!(other.hits, Hits::Take(_)));
        if !check.limit.algorithm().is_strict() || !only_takes {
            continue;
        }
        let charged =
            |place: usize| json["descriptors"][place]["settled"]["charged"].as_u64().expect("a number");
        let charged: u64 = same.iter().map(|&(place, _)| charged(place)).sum();
        assert_eq!(after[index], before[index].map(|before| before + charged), "{what}");
    }
}

#[test]
fn an_explanation_agrees_with_what_is_then_decided() {
    (0..10_000).for_each(run);
}

/// The waits that it shows are true: a hit does not fit a nanosecond before, and fits then.
#[test]
fn what_does_not_fit_fits_after_the_wait_and_not_before() {
    let mut waited = 0;
    for seed in 0..1_000 {
        let mut random = Random(seed);
        let (rules, text) = rules(&mut random);
        let (store, now) = (store(), Timestamp::from_secs(1_000_000));
        let request = Request::new("d", 1).descriptor(&[("a", random.pick(&VALUES))]);
        let plan = rules.plan(&request, Modes::default());
        (0..random.below(9)).for_each(|_| _ = store.apply(&plan, now));
        let fits = |after: u64| store.look(&plan, now.plus(after))[0].as_ref().map(|look| !look.verdict.over);
        let Some(look) = store.look(&plan, now).swap_remove(0) else { continue };
        let limit = match &plan.steps[0] {
            Step::Check(check) => check.limit,
            other => panic!("{other:?}"),
        };
        if look.wait_one_nanos > 0 && limit.requests() > 0 {
            let wait = look.wait_one_nanos;
            assert_eq!(
                (fits(wait - 1), fits(wait)),
                (Some(false), Some(true)),
                "seed {seed}\n{text}{limit:?}"
            );
            waited += 1;
        }
    }
    assert!(waited > 100, "{waited}");
}
