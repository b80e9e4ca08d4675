//! Files and requests that nobody writes: nothing panics, nothing hangs. The same seeds every time, then new ones for
//! as long as there is time.

use proptest::prelude::*;
use tidegate_engine::plan::Modes;
use tidegate_engine::request::Request;
use tidegate_engine::rules::{Loaded, load};

use crate::random::Random;
use crate::rules::{file, options};
use crate::seeds::seeds_while_there_is_time;

/// A file with everything that rules know. Small changes of it reach all of the code.
const EVERYTHING: &str = "%YAML 1.1
---
domain: shop
descriptors: &all
  - key: user
    value: al*ce
    share_threshold: y
    rate_limit: &limit {unit: minute, unit_multiplier: 0x5, requests_per_unit: 1_00, name: a}
    metadata: {a: [1, 2.5, ~], b: &m {c: d}, e: {<<: *m, f: 'text'}}
  - key: user
    rate_limit:
      <<: *limit
      window: ~
      replaces: [{name: b}]
      algorithm: token_bucket
      burst: 5
    descriptors:
      - {<<: [{key: x}, {key: y}], \"value\": '*', rate_limit: {unlimited: on}}
      - ? key
        : \"\\u00e9\"
        quota_mode: off
        rate_limit: {unit: day, requests_per_unit: 1}
  - key: ip
    detailed_metric: true
    value_to_metric: true
    rate_limit: {name: b, window: 1h30m, requests_per_unit: 5, granularity: 5s, sync: leased, on_store_failure: deny}
...
";

/// Texts that are inserted somewhere.
const PIECES: [&str; 28] = [
    "*limit",
    "&all",
    "*all",
    "<<: *limit\n",
    "[",
    "]",
    "{",
    "}",
    ": ",
    "- ",
    "\n",
    "\n  ",
    "\"",
    "'",
    "|",
    ">",
    "#",
    "!!int ",
    "!<x> ",
    "? ",
    "~",
    "\t",
    "\0",
    "\u{FEFF}",
    "é",
    "---\n",
    "*",
    "99999999999999999999",
];

fn load_and_plan(bytes: &[u8]) {
    let options = options().max_file_bytes(64 << 10);
    let Ok(Loaded { rules, .. }) = load(&[file("a.yaml", bytes)], &options) else { return };
    for domain in rules.domains() {
        let request = Request::new(domain, 0)
            .descriptor(&[("user", "alice"), ("x", "")])
            .descriptor(&[("user", "al"), ("é", "y")])
            .descriptor(&[("ip", "10.1.2.3")]);
        assert_eq!(rules.plan(&request, Modes::default()).steps.len(), 3);
    }
}

#[test]
fn the_file_that_is_changed_is_a_good_one() {
    let loaded =
        load(&[file("a.yaml", EVERYTHING)], &options()).unwrap_or_else(|errors| panic!("{errors:#?}"));
    assert_eq!(loaded.rules.rules().len(), 5);
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
}

#[test]
fn as_many_more_changes_as_there_is_time_for() {
    for seed in seeds_while_there_is_time() {
        let mut random = Random(seed);
        let mut bytes = EVERYTHING.as_bytes().to_vec();
        for _ in 0..1 + random.below(8) {
            let at = random.below(bytes.len() as u64 + 1) as usize;
            let end = bytes.len().min(at + random.below(8) as usize);
            let moved = bytes[at..end].to_vec();
            match random.below(4) {
                0 => bytes.splice(at..end, moved.repeat(2)).for_each(drop),
                1 => bytes.splice(at..end, [random.next() as u8]).for_each(drop),
                _ => bytes.splice(at..end, random.pick(&PIECES).bytes()).for_each(drop),
            }
        }
        let result = std::panic::catch_unwind(|| load_and_plan(&bytes));
        assert!(result.is_ok(), "{}", bytes.escape_ascii());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn no_change_of_a_file_makes_loading_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..5_usize, any::<prop::sample::Index>()), 1..6),
    ) {
        let mut bytes = EVERYTHING.as_bytes().to_vec();
        for (at, removed, piece) in changes {
            let at = at.index(bytes.len() + 1);
            let end = bytes.len().min(at + removed);
            bytes.splice(at..end, piece.get(&PIECES).bytes());
        }
        load_and_plan(&bytes);
    }

    #[test]
    fn no_bytes_make_loading_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        load_and_plan(&bytes);
        load_and_plan(&[&[0xFF, 0xFE], &*bytes].concat());
    }

    #[test]
    fn no_text_of_indicators_makes_loading_panic(text in "[-?:,\\[\\]{}#&*!|>'\"%@`a \n<~0]{0,60}") {
        load_and_plan(text.as_bytes());
        load_and_plan(format!("domain: d\ndescriptors:\n- key: user\n  rate_limit: {text}").as_bytes());
    }
}
