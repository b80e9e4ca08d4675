//! Regular expressions of rules, and values: a value meets the rule exactly if the crate `regex` finds the expression in it,
//! and it is not too long. In the first line is the expression, after it are values, one a line. A search that takes too long
//! is a timeout of the fuzzer.

#![no_main]

use libfuzzer_sys::fuzz_target;
use regex::Regex;
use tidegate_engine::key::KeySecret;
use tidegate_engine::plan::{Modes, Step};
use tidegate_engine::request::Request;
use tidegate_engine::rules::{LoadOptions, SourceFile, load};

/// Longer values match no expression.
const VALUE_BYTES_MAX: usize = 1 << 10;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = str::from_utf8(data) else { return };
    let (expression, values) = text.split_once('\n').unwrap_or((text, ""));
    let quoted = serde_json::Value::from(expression);
    let rules = format!(
        "domain: d\ndescriptors: [{{key: k, value: {{regex: {quoted}}}, rate_limit: {{unit: day, requests_per_unit: 1}}}}]"
    );
    let file = SourceFile { name: "a.yaml".to_owned(), bytes: rules.into(), presumed: false };
    let Ok(loaded) = load(&[file], &LoadOptions::new(KeySecret::new([1; 16]))) else { return };
    let oracle = Regex::new(expression).expect("what rules accept is an expression");
    for value in values.lines() {
        let entries = [("k", value)];
        let request = Request::new("d", 1).descriptor(&entries);
        let plan = loaded.rules.plan(&request, Modes::default());
        let is_met = matches!(plan.steps[0], Step::Check(_));
        let expected = value.len() <= VALUE_BYTES_MAX && oracle.is_match(value);
        assert_eq!(is_met, expected, "{value:?} and {expression:?}");
    }
});
