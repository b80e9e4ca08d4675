//! Epochs: a reset below a path sets the counters of its rules to zero, and no others.

use proptest::prelude::*;

use tidegate_engine::memory::{MemoryOptions, MemoryStore};
use tidegate_engine::path::{Path, PathEntry};
use tidegate_engine::plan::{Modes, Origin, Step};
use tidegate_engine::request::{DescriptorOptions, Entry, Request};
use tidegate_engine::rules::{Epochs, Reach, ResetPath, RuleSet};
use tidegate_engine::time::Timestamp;

use crate::rules::loaded;

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: &limit {unit: day, requests_per_unit: 2, candidate: {requests_per_unit: 1}}
    descriptors:
      - {key: path, value: /a, rate_limit: *limit}
      - {key: path, value: '/b*', rate_limit: *limit}
  - {key: user, value: vip, rate_limit: *limit}
  - {key: tenant, rate_limit: *limit}
  - {key: free, rate_limit: {unlimited: true}}
";

/// A descriptor, and paths.
type Asked = (&'static [(&'static str, &'static str)], &'static [&'static str]);

/// All descriptors that meet a rule, each with the paths of its rule and of those above, from the top.
const ASKED: [Asked; 5] = [
    (&[("user", "a")], &["", "user", "one user=a"]),
    (&[("user", "a"), ("path", "/a")], &["", "user", "user path=/a"]),
    (&[("user", "a"), ("path", "/bx")], &["", "user", "user path=/b*", "one user=a path=/bx"]),
    (&[("user", "vip")], &["", "user=vip"]),
    (&[("tenant", "a")], &["", "tenant"]),
];

/// `user path=/b*` as a path, `one user=a` as that of a counter.
fn path(text: &str) -> ResetPath {
    let node = |word: &str| match word.split_once('=') {
        Some((key, value)) => PathEntry { key: key.to_owned(), value: Some(value.to_owned()) },
        None => PathEntry { key: word.to_owned(), value: None },
    };
    let nodes = text.trim_start_matches("one ").split_whitespace().map(node).collect();
    let reach = if text.starts_with("one ") { Reach::Counter } else { Reach::Below };
    ResetPath { path: Path { domain: "shop".into(), entries: nodes }, reach }
}

fn epochs(resets: &[(&str, u64)]) -> Epochs {
    let mut epochs = Epochs::default();
    resets.iter().for_each(|(at, epoch)| _ = epochs.raise(path(at), *epoch));
    epochs
}

fn request<'r>(entries: &'r [(&'r str, &'r str)]) -> Request<'r> {
    let mut request = Request::new("shop", 1);
    request.push(entries.iter().map(|(key, value)| Entry { key, value }), DescriptorOptions::default());
    request
}

/// What identifies the counters of each of these descriptors: here, between nodes, and of the candidate.
fn keys(rules: &RuleSet) -> Vec<(u128, [u8; 16], u128)> {
    let keys = ASKED.iter().map(|(entries, _)| {
        let asked = request(entries);
        let plan = rules.plan(&asked, Modes::default());
        let [Step::Check(check)] = plan.steps.as_slice() else { panic!("{entries:?} meet a limit") };
        let Origin::Rule { counting, .. } = check.origin else { panic!("{entries:?} meet a rule") };
        (check.key.0, counting.shared.0, plan.candidates[0].check.key.0)
    });
    keys.collect()
}

#[test]
fn counters_below_the_path_begin_anew_and_all_others_go_on() {
    let rules = loaded(RULES).rules;
    let before = keys(&rules);
    for (at, below) in [
        ("", 5),
        ("user", 3),
        ("user path=/a", 1),
        ("user path=/b*", 1),
        ("user=vip", 1),
        ("one user=a", 1),
        ("one user=a path=/bx", 1),
        ("one user=other", 1),
    ] {
        assert_eq!(rules.rules_below(&path(at)), Some(below), "{at}");
        let after = keys(&rules.clone().in_epochs(&epochs(&[(at, 7)])));
        for (((entries, paths), before), after) in ASKED.iter().zip(&before).zip(&after) {
            let is_below = paths.contains(&at);
            let kept = [before.0 == after.0, before.1 == after.1, before.2 == after.2];
            assert_eq!(kept, [!is_below; 3], "{at}: {entries:?}");
        }
    }
    assert_eq!(rules.rules_below(&path("free")), Some(0), "it has no counter");
    for nowhere in [
        "user=a",
        "user path=/b",
        "path",
        "user path",
        "user path=/a x",
        "one user",
        "one user=a path=/c",
        "one free=a",
        "one path=/a",
    ] {
        assert_eq!(rules.rules_below(&path(nowhere)), None, "{nowhere}");
    }
    assert_eq!(
        rules.rules_below(&ResetPath {
            path: Path { domain: "other".into(), entries: Vec::new() },
            reach: Reach::Below
        }),
        None
    );
}

#[test]
fn what_was_counted_before_a_reset_counts_no_more() {
    let store = MemoryStore::new(MemoryOptions::new(1 << 20));
    let (rules, now) = (loaded(RULES).rules, Timestamp::from_secs(1_700_000_000));
    let passed = |rules: &RuleSet, entries| {
        let asked = request(entries);
        let take = || store.apply(&rules.plan(&asked, Modes::default()), now)[0].is_some_and(|it| !it.over);
        (0..5).filter(|_| take()).count()
    };
    let (user, tenant) = ([("user", "a")], [("tenant", "a")]);
    assert_eq!((passed(&rules, &user), passed(&rules, &tenant)), (2, 2));
    let once = rules.in_epochs(&epochs(&[("user", 7)]));
    assert_eq!((passed(&once, &user), passed(&once, &tenant)), (2, 0));
    let again = once.in_epochs(&epochs(&[("user", 8)]));
    assert_eq!((passed(&again, &user), passed(&again, &tenant)), (2, 0));
}

#[test]
fn a_reset_of_one_counter_is_one_of_all_descriptors_that_lead_to_it() {
    let rules = "
domain: shop
descriptors:
  - {key: path, value: '/a*', share_threshold: true, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: path, value: '/b*', rate_limit: {unit: day, requests_per_unit: 2}}
";
    let rules = loaded(rules).rules;
    let key = |rules: &RuleSet, value| {
        let entries = [("path", value)];
        let plan = rules.plan(&request(&entries), Modes::default());
        plan.checks().next().map(|(_, check)| check.key)
    };
    let values = ["/a1", "/a2", "/b1", "/b2"];
    let before = values.map(|value| key(&rules, value));
    let (mut epochs, mut seen) = (Epochs::default(), vec![before[0]]);
    for (at, epoch) in [("one path=/a1", 7), ("one path=/a2", 3), ("one path=/a1", 8), ("one path=/b1", 7)] {
        epochs.raise(path(at), epoch);
        let after = values.map(|value| key(&rules.clone().in_epochs(&epochs), value));
        assert_eq!((after[0], after[3]), (after[1], before[3]), "{at}");
        assert_eq!(seen.contains(&after[0]), at.ends_with("/b1"), "{at}");
        assert_eq!(after[2] == before[2], !at.ends_with("/b1"), "{at}");
        seen.push(after[0]);
    }
}

/// Resets of some paths, with few numbers so that they collide.
fn resets() -> impl Strategy<Value = Vec<(&'static str, u64)>> {
    let paths = prop::sample::select(vec![
        "",
        "user",
        "user path=/a",
        "user path=/b*",
        "tenant",
        "gone",
        "one user=a",
        "one user=a path=/bx",
        "one user=other",
    ]);
    prop::collection::vec((paths, 1..4_u64), 0..8)
}

proptest! {
    /// Nodes that received the same resets, in any order, have the same keys; also a set that was in other epochs
    /// before.
    #[test]
    fn nodes_agree_whatever_the_order(mut resets in resets(), turn in 0..8_usize) {
        let rules = loaded(RULES).rules;
        let here = epochs(&resets);
        let turn = turn.min(resets.len());
        resets.rotate_left(turn);
        let mut there = epochs(&resets[turn / 2..]);
        let reloaded = rules.clone().in_epochs(&there);
        there.merge(&here);
        prop_assert!(!there.merge(&here), "merging again changes nothing");
        prop_assert_eq!(&there, &here);
        prop_assert_eq!(keys(&reloaded.in_epochs(&there)), keys(&rules.in_epochs(&here)));
    }

    /// No reset brings the counters of an older epoch back.
    #[test]
    fn keys_never_come_back(resets in resets()) {
        let rules = loaded(RULES).rules;
        let (mut epochs, mut seen) = (Epochs::default(), vec![keys(&rules)]);
        for (at, epoch) in resets {
            let is_raised = epochs.raise(path(at), epoch);
            let after = keys(&rules.clone().in_epochs(&epochs));
            for (place, (_, paths)) in ASKED.iter().enumerate() {
                let is_new = is_raised && paths.contains(&at);
                let is_known = seen.iter().any(|before| before[place].0 == after[place].0);
                prop_assert_eq!(is_known, !is_new, "{} at {}", epoch, at);
            }
            seen.push(after);
        }
    }
}
