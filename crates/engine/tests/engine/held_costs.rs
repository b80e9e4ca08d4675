//! What a reservation holds where a rule says `hold`: learnt from commits, and compared with a sorted list.

use tidegate_engine::held_costs::{COUNTERS_MAX, CostsOf, HeldCosts, HeldCostsTotal, HoldSize};
use tidegate_engine::key::{Key, KeySecret};
use tidegate_engine::limit::Found;
use tidegate_engine::rules::{LoadOptions, RuleSet, SourceFile, load};

const SAID: HoldSize = HoldSize { percentile: 90, of: CostsOf::Rule, initial: 500, max: 8_000 };

/// Rules for these keys, with this `of` and `max`.
fn rules(keys: &[(&str, &str, u32)]) -> RuleSet {
    let rule = |(key, of, max): &(&str, &str, u32)| {
        format!(
            "  - {{key: {key}, rate_limit: {{unit: hour, requests_per_unit: 9}}, reserve: {{ttl: 10s, overdraft: 1, \
             hold: {{percentile: 90, of: {of}, initial: 500, max: {max}}}}}}}\n"
        )
    };
    let text = "domain: d\ndescriptors:\n".to_owned() + &keys.iter().map(rule).collect::<String>();
    let file = SourceFile { name: "a.yaml".to_owned(), bytes: text.into_bytes(), presumed: false };
    load(&[file], &LoadOptions::new(KeySecret::new([7; 16]))).expect("good rules").rules
}

fn learning(rules: &RuleSet) -> Vec<&HeldCosts> {
    rules.rules().iter().filter_map(|rule| rule.held_costs.as_ref()).collect()
}

#[test]
fn the_initial_hold_serves_until_enough_commits_were_seen() {
    let held = HeldCosts::new(SAID);
    for _ in 0..19 {
        held.learn(Key(1), 100, Found::Open);
        assert_eq!(held.hold(Key(1), 8_000), 500);
    }
    held.learn(Key(2), 100, Found::Expired(9));
    assert_eq!(held.hold(Key(1), 8_000), 103);
    assert_eq!(held.hold(Key(1), 50), 50, "no more than the call may cost");
}

#[test]
fn it_is_the_percentile_of_a_sorted_list_or_an_eighth_more() {
    let mut sorted: Vec<u32> = (0..1_000_u32).map(|n| n * n % 7_919 + 1).collect();
    let held = HeldCosts::new(HoldSize { max: u32::MAX, ..SAID });
    sorted.iter().for_each(|&cost| held.learn(Key(1), cost.into(), Found::Open));
    sorted.sort_unstable();
    let (exact, learnt) = (sorted[899], held.hold(Key(1), u32::MAX));
    assert!(learnt >= exact && learnt * 8 <= exact * 9, "{learnt} for {exact}");
}

#[test]
fn what_is_no_end_of_a_call_teaches_nothing() {
    let held = HeldCosts::new(SAID);
    for found in [Found::Nothing, Found::Ended, Found::Other, Found::Full] {
        (0..100).for_each(|_| held.learn(Key(1), 10, found));
    }
    (0..100).for_each(|_| held.learn(Key(1), 0, Found::Open));
    assert_eq!(held.total(), HeldCostsTotal { hold: 500, ..HeldCostsTotal::default() });
}

#[test]
fn old_costs_are_forgotten() {
    let held = HeldCosts::new(SAID);
    (0..10_000).for_each(|_| held.learn(Key(1), 4_000, Found::Open));
    assert_eq!(held.hold(Key(1), 8_000), 4_095);
    (0..20_000).for_each(|_| held.learn(Key(1), 100, Found::Open));
    assert_eq!(held.hold(Key(1), 8_000), 103);
}

/// Of an odd number of costs more than half are forgotten.
#[test]
fn costs_that_were_forgotten_do_not_count_as_seen() {
    let held = HeldCosts::new(HoldSize { percentile: 100, ..SAID });
    for cost in 1..15 {
        (0..285).for_each(|_| held.learn(Key(1), cost, Found::Open));
    }
    (0..11).for_each(|_| held.learn(Key(1), 15, Found::Open));
    assert_eq!(held.hold(Key(1), 8_000), 15);
}

#[test]
fn counters_learn_by_themselves_up_to_a_bound_that_rules_share_and_never_above_max() {
    let rules = rules(&[("a", "counter", 8_000), ("b", "rule", 8_000), ("c", "counter", 8_000)]);
    let held = learning(&rules)[0];
    let learn = |key: u128, cost| (0..20).for_each(|_| held.learn(Key(key), cost, Found::Open));
    learn(1, 7);
    learn(2, 100_000);
    assert_eq!([1, 2].map(|key| held.hold(Key(key), u32::MAX)), [7, 8_000]);
    let most = COUNTERS_MAX as u128 / 2;
    (3..most).for_each(|key| held.learn(Key(key), 7, Found::Open));
    [most, most + 1].into_iter().for_each(|key| learn(key, 1_000));
    let learnt = [most, most + 1, u128::MAX].map(|key| held.hold(Key(key), u32::MAX));
    assert_eq!(learnt, [1_023, 7, 7], "the last two have that of the rule");
}

#[test]
fn commits_above_the_hold_and_above_max_are_counted_and_a_reload_forgets_nothing() {
    let (before, mut after) = (rules(&[("a", "rule", 8_000)]), rules(&[("a", "rule", 9_000)]));
    for cost in [500, 501, 8_000, 8_001] {
        learning(&before)[0].learn(Key(1), cost, Found::Open);
    }
    after.keep_learnt(&before);
    let total = HeldCostsTotal { hold: 500, above_hold: 3, above_max: 1 };
    assert_eq!(learning(&after)[0].total(), total);
}
