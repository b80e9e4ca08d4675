//! Which limits a set of rules adds, removes and changes.
//!
//! In: the rules in force, and those that replace them. Out: a text for people, of bounded length. Limits are the
//! same if their paths are; limits that share a path are compared in the order of their files, and bounds on calls in
//! flight and bans with one another.

use std::cmp::Ordering;
use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::Value;

use tidegate_engine::classes::Classes;
use tidegate_engine::held_costs::{HeldCosts, HoldSize};
use tidegate_engine::limit::{Algorithm, Limit};
use tidegate_engine::prefix::Prefixes;
use tidegate_engine::rules::{Cost, Rule, RuleSet, StoreFailure, Sync, shown_duration};
use tidegate_engine::text::one_line;
use tidegate_engine::time::SECOND_NANOS;
use tidegate_engine::unit::Window;

/// Limits that are named for each kind of change; of further ones only their number.
const SHOWN_MAX: usize = 5;

/// What differs between two sets of rules: `1 added (shop.path), 1 changed (shop.user: 5 per day → 9 per day)`.
pub(super) fn text(before: &RuleSet, after: &RuleSet) -> String {
    let (mut added, mut removed, mut changed) = (Shown::default(), Shown::default(), Shown::default());
    let (mut old, mut new) = (by_path(before).into_iter().peekable(), by_path(after).into_iter().peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => break,
            (Some((old, _)), Some((new, _))) => old.cmp(new),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
        };
        let old = if order.is_le() { old.next() } else { None };
        let new = if order.is_ge() { new.next() } else { None };
        match (old, new) {
            (Some(((path, _), old)), Some((_, new))) if Terms::of(old) != Terms::of(new) => {
                changed.add(|| format!("{path}: {}", differences(old, new)));
            }
            (Some(((path, _), _)), None) => removed.add(|| path),
            (None, Some(((path, _), _))) => added.add(|| path),
            _ => {}
        }
    }
    let kinds = [(added, "added"), (removed, "removed"), (changed, "changed")];
    let texts: Vec<String> = kinds.iter().filter_map(|(shown, done)| shown.text(done)).collect();
    let text = if texts.is_empty() { "no limit has changed".to_owned() } else { texts.join(", ") };
    one_line(&text).into_owned()
}

fn by_path(rules: &RuleSet) -> Vec<((String, bool), &Rule)> {
    let of = |rule: &Rule| {
        let part = match (rule.ban_terms(), rule.hold_terms()) {
            (Some(_), _) => " (ban)",
            (None, Some(_)) => " (reserve)",
            (None, None) => "",
        };
        (rule.path() + part, rule.call_id.is_some())
    };
    let mut all: Vec<_> = rules.rules().iter().map(|rule| (of(rule), rule)).collect();
    all.sort_by(|(one, _), (other, _)| one.cmp(other));
    all
}

/// Some changes of one kind.
#[derive(Default)]
struct Shown {
    first: Vec<String>,
    count: usize,
}

impl Shown {
    fn add(&mut self, text: impl FnOnce() -> String) {
        if self.first.len() < SHOWN_MAX {
            self.first.push(text());
        }
        self.count += 1;
    }

    fn text(&self, done: &str) -> Option<String> {
        let Self { first, count } = self;
        let mut text = format!("{count} {done} ({}", first.join("; "));
        if *count > first.len() {
            // Writing to a string cannot fail.
            let _ = write!(text, "; and {} more", count - first.len());
        }
        (*count > 0).then(|| text + ")")
    }
}

/// Everything that a rule has about its limit.
#[derive(PartialEq)]
struct Terms<'r> {
    limit: Option<Limit>,
    window: Window,
    candidate: Option<Limit>,
    modes: [bool; 2],
    cost: Cost,
    sync: Option<Sync>,
    on_store_failure: Option<StoreFailure>,
    near: Option<f64>,
    has_records: bool,
    classes: &'r Option<Classes>,
    prefixes: &'r Option<Prefixes>,
    hold: Option<HoldSize>,
    call_id: &'r Option<Arc<str>>,
    name: &'r str,
    replaces: Vec<&'r str>,
    metadata: &'r Value,
    ban_on: &'r [Box<str>],
    retry_nanos: Option<u64>,
}

impl<'r> Terms<'r> {
    fn of(rule: &'r Rule) -> Self {
        Self {
            limit: rule.limit,
            window: rule.counting.window,
            candidate: rule.candidate.as_ref().map(|candidate| candidate.limit),
            modes: [rule.shadow_mode, rule.quota_mode],
            cost: rule.cost.said(),
            sync: rule.sync,
            on_store_failure: rule.on_store_failure,
            near: rule.near,
            has_records: rule.records.is_some(),
            classes: &rule.classes,
            prefixes: &rule.prefixes,
            hold: rule.held_costs.as_ref().map(HeldCosts::said),
            call_id: &rule.call_id,
            name: &rule.name,
            replaces: rule.replaces.iter().map(|name| &**name).collect(),
            metadata: &rule.metadata,
            ban_on: &rule.ban_on,
            retry_nanos: retry_nanos(rule),
        }
    }
}

/// The wait of whoever is denied by slots or holds alone, if the rule has some.
fn retry_nanos(rule: &Rule) -> Option<u64> {
    (rule.call_id.is_some() || rule.hold_terms().is_some()).then_some(rule.retry_nanos)
}

/// The width of the buckets of a `sliding_window`, rounded down to a nanosecond.
fn granularity_nanos(rule: &Rule) -> Option<u64> {
    let limit = rule.limit.filter(|limit| limit.algorithm() == Algorithm::SlidingWindow)?;
    let (buckets, nanos) = limit.buckets();
    nanos.checked_div(buckets)
}

/// What is different, old → new.
fn differences(before: &Rule, after: &Rule) -> String {
    let limit = |rule: &Rule| {
        let counts = |limit: &Limit| match (limit.ban_terms(), limit.hold_terms()) {
            (Some(terms), _) => terms.to_string(),
            (None, Some(terms)) => terms.to_string(),
            (None, None) => rule.counts_text(limit),
        };
        let of = |limit: &Limit| (counts(limit), limit.algorithm().name());
        rule.limit.as_ref().map_or_else(|| ("unlimited".to_owned(), ""), of)
    };
    let ((old, old_algorithm), (new, new_algorithm)) = (limit(before), limit(after));
    let candidate = |rule: &Rule| {
        let own = rule.candidate.as_deref();
        own.map_or_else(|| "none".to_owned(), |candidate| rule.counts_text(&candidate.limit))
    };
    let classes = |rule: &Rule| rule.classes.as_ref().map_or_else(|| "none".to_owned(), Classes::to_string);
    let prefix = |rule: &Rule| rule.prefixes.as_ref().map_or_else(|| "none".to_owned(), Prefixes::to_string);
    let hold = |rule: &Rule| {
        rule.held_costs.as_ref().map_or_else(|| "none".to_owned(), |costs| costs.said().to_string())
    };
    let on = |rule: &Rule| {
        if rule.ban_on.is_empty() { "its own keys".to_owned() } else { rule.ban_on.join(" and ") }
    };
    let granularity = |rule: &Rule| granularity_nanos(rule).map(shown_duration).unwrap_or_default();
    // By default it follows from the window.
    let counts_alike = before.counting.window == after.counting.window && old_algorithm == new_algorithm;
    let retry = |rule: &Rule| {
        retry_nanos(rule).map_or_else(|| "none".to_owned(), |nanos| format!("{}s", nanos / SECOND_NANOS))
    };
    let named = |name: &str, old: &str, new: &str| (old != new).then(|| format!("{name} {old} → {new}"));
    let flag =
        |name: &str, of: fn(&Rule) -> bool| named(name, &of(before).to_string(), &of(after).to_string());
    let all = [
        (old != new).then(|| format!("{old} → {new}")),
        named("algorithm", old_algorithm, new_algorithm),
        named("granularity", &granularity(before), &granularity(after)).filter(|_| counts_alike),
        named("candidate", &candidate(before), &candidate(after)),
        flag("shadow_mode", |rule| rule.shadow_mode),
        flag("quota_mode", |rule| rule.quota_mode),
        named("cost", before.cost.said().name(), after.cost.said().name()),
        flag("limits_from: store", |rule| rule.records.is_some()),
        named("classes", &classes(before), &classes(after)),
        named("prefix", &prefix(before), &prefix(after)),
        named("hold", &hold(before), &hold(after)),
        named("on", &on(before), &on(after)),
        named("retry", &retry(before), &retry(after)),
        named("id", before.call_id.as_deref().unwrap_or("none"), after.call_id.as_deref().unwrap_or("none")),
    ];
    let mut all: Vec<String> = all.into_iter().flatten().collect();
    if all.is_empty() {
        all.push("other settings".to_owned());
    }
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use super::text;
    use tidegate_engine::key::KeySecret;
    use tidegate_engine::rules::{LoadOptions, RuleSet, SourceFile, load};

    fn rules(descriptors: &str) -> RuleSet {
        let text = format!("domain: shop\ndescriptors: [{descriptors}]\n");
        let file = SourceFile { name: "shop.yaml".to_owned(), bytes: text.into_bytes(), presumed: false };
        load(&[file], &LoadOptions::new(KeySecret::new([0; 16]))).expect("good rules").rules
    }

    fn limit(key: &str, more: &str) -> String {
        format!("{{key: {key}, rate_limit: {{unit: day, requests_per_unit: {more}}}}}")
    }

    #[test]
    fn a_ban_that_is_added_or_changed_is_named() {
        let banning = |lasts: &str| {
            let ban = format!("}}, ban: {{after: 3 denials, within: 60s, for: {lasts}}}");
            rules(&limit("a", "5").replace("}}", &(ban + "}")))
        };
        let (none, short, long) = (rules(&limit("a", "5")), banning("1h"), banning("2h"));
        assert!(text(&none, &short).starts_with("1 added (shop.a (ban))"), "{}", text(&none, &short));
        assert_eq!(
            text(&short, &long),
            "1 changed (shop.a (ban): 3 denials within 60s, every 1s, for 3600s → 3 denials within 60s, every 1s, for 7200s)"
        );
    }

    #[test]
    fn whom_a_ban_is_for_is_named() {
        let banning = |on: &str| {
            let ban = format!("ban: {{after: 3 denials, within: 60s, for: 1h{on}}}");
            let limited = "rate_limit: {unit: day, requests_per_unit: 5}";
            rules(&format!("{{key: a, descriptors: [{{key: b, {limited}, {ban}}}]}}"))
        };
        let said = text(&banning(""), &banning(", on: [b]"));
        assert!(said.starts_with("1 changed (") && said.ends_with(" (ban): on its own keys → b)"), "{said}");
    }

    #[test]
    fn how_long_who_finds_no_slot_or_no_room_for_a_hold_waits_is_named() {
        let calls = |retry| {
            rules(&format!("{{key: a, concurrency: {{slots: 2, ttl: 60s, id: call, retry: {retry}}}}}"))
        };
        assert_eq!(text(&calls("1s"), &calls("5s")), "1 changed (shop.a: retry 1s → 5s)");
        let limited = "rate_limit: {unit: day, requests_per_unit: 5}";
        let holding = |retry| rules(&format!("{{key: a, {limited}, reserve: {{ttl: 60s, retry: {retry}}}}}"));
        assert_eq!(text(&holding("1s"), &holding("5s")), "1 changed (shop.a (reserve): retry 1s → 5s)");
    }

    /// It starts other counters.
    #[test]
    fn another_granularity_is_named_and_the_default_of_another_window_is_not() {
        let (own, day) = (rules(&limit("a", "5, granularity: 90s")), rules(&limit("a", "5")));
        assert_eq!(text(&day, &own), "1 changed (shop.a: granularity 1440s → 90s)");
        let week = rules(&limit("a", "5").replace("day", "week"));
        assert_eq!(text(&day, &week), "1 changed (shop.a: 5 per day → 5 per week)");
        let fixed = rules(&limit("a", "5, algorithm: fixed_window"));
        assert_eq!(text(&own, &fixed), "1 changed (shop.a: algorithm sliding_window → fixed_window)");
    }

    #[test]
    fn what_is_added_removed_and_changed_is_listed() {
        let before = rules(&[limit("a", "5"), limit("b", "5"), limit("c", "5")].join(", "));
        assert_eq!(text(&before, &before.clone()), "no limit has changed");
        let after =
            rules(&[limit("d", "5"), limit("c", "9, algorithm: fixed_window"), limit("b", "5")].join(", "));
        assert_eq!(
            text(&before, &after),
            "1 added (shop.d), 1 removed (shop.a), 1 changed (shop.c: 5 per day → 9 per day, algorithm sliding_window → \
             fixed_window)"
        );
    }

    #[test]
    fn the_first_are_shown_and_all_are_counted() {
        let all: Vec<String> = (0..9).map(|number| limit(&format!("k{number}"), "5")).collect();
        let (none, all) = (rules(""), rules(&all.join(", ")));
        assert_eq!(text(&none, &all), "9 added (shop.k0; shop.k1; shop.k2; shop.k3; shop.k4; and 4 more)");
        assert!(text(&all, &none).starts_with("9 removed (shop.k0"));
    }

    #[test]
    fn each_setting_of_a_limit_is_a_change() {
        let before = rules(&limit("a", "5"));
        for (more, what) in [
            ("5, near: 0.5", "other settings"),
            ("5, sync: leased", "other settings"),
            ("5, candidate: {requests_per_unit: 3}", "candidate none → 3 per day"),
            ("5, cost: asked", "cost auto → asked"),
        ] {
            let said = text(&before, &rules(&limit("a", more)));
            assert_eq!(said, format!("1 changed (shop.a: {what})"));
        }
        let classes = "{key: a, rate_limit: {unit: day, requests_per_unit: 5}, classes: {key: c, shares: {low: 0.6, top: 1.0}}}";
        let prefix = "{key: a, rate_limit: {unit: day, requests_per_unit: 5}, prefix: {v6: 64, not_an_address: deny, nat64: [2001:db8:64::/96]}}";
        let expected =
            "1 changed (shop.a: prefix none → level 1: v4 32, v6 64, nat64 2001:db8:64::/96, others denied)";
        assert_eq!(text(&before, &rules(prefix)), expected);
        let calls = |id| rules(&format!("{{key: a, concurrency: {{slots: 2, ttl: 60s, id: {id}}}}}"));
        assert_eq!(text(&calls("request_id"), &calls("call")), "1 changed (shop.a: id request_id → call)");
        let held = |percentile| {
            rules(&format!(
                "{{key: a, rate_limit: {{unit: day, requests_per_unit: 5}}, reserve: {{ttl: 60s, overdraft: 0.5, \
                 hold: {{percentile: {percentile}, initial: 2, max: 4}}}}}}"
            ))
        };
        assert_eq!(
            text(&held(90), &held(99)),
            "1 changed (shop.a (reserve): hold percentile: 90, of: rule, initial: 2 → percentile: 99, of: rule, initial: 2)"
        );
        assert_eq!(text(&before, &rules(classes)), "1 changed (shop.a: classes none → c: top 1, low 0.6)");
    }
}
