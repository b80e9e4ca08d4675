//! The time to plan a request among many rules, and to load the rules.
//!
//! `cargo bench --bench rules`

#![allow(missing_docs, reason = "criterion's macros make functions without documentation")]

use std::fmt::Write;
use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use tidegate_engine::key::KeySecret;
use tidegate_engine::plan::Modes;
use tidegate_engine::request::Request;
use tidegate_engine::rules::{LoadOptions, RuleSet, SourceFile, load};

fn options() -> LoadOptions {
    LoadOptions::new(KeySecret::new([7; 16]))
}

/// A file with this many rules, each with a value of its own: a text, or a pattern in braces.
fn file(rules: usize, value: impl Fn(usize) -> String) -> SourceFile {
    let mut text = "domain: shop\ndescriptors:\n".to_owned();
    for index in 0..rules {
        let value = value(index);
        let value = if value.starts_with('{') { value } else { format!("'{value}'") };
        let rule = "    rate_limit:\n      unit: minute\n      requests_per_unit: 100\n";
        write!(text, "  - key: user\n    value: {value}\n{rule}").expect("a string takes everything");
    }
    SourceFile { name: "rules.yaml".to_owned(), bytes: text.into_bytes(), presumed: false }
}

fn rules(file: SourceFile) -> RuleSet {
    load(&[file], &options()).expect("the file is good").rules
}

fn plan(c: &mut Criterion) {
    let mut group = c.benchmark_group("plan");
    let mut bench = |name: &str, file: SourceFile, value: &str| {
        let rules = rules(file);
        group.bench_function(name, |b| {
            b.iter(|| {
                let request = Request::new(black_box("shop"), 0).descriptor(black_box(&[("user", value)]));
                black_box(rules.plan(&request, Modes::default()).steps.len())
            });
        });
    };
    let exact = |index: usize| format!("user-{index}");
    bench("exact, 1 rule", file(1, exact), "user-0");
    bench("exact, 10,000 rules", file(10_000, exact), "user-7777");
    bench("exact, 100,000 rules", file(100_000, exact), "user-77777");
    bench("no match, 100,000 rules", file(100_000, exact), "nobody");
    bench("any value, 1 rule", file(1, |_| String::new()), "user-0");
    bench("prefix, 1 rule", file(1, |index| format!("user-{index}-*")), "user-0-and-more");
    bench("prefix, 10,000 rules", file(10_000, |index| format!("user-{index}-*")), "user-7777-and-more");
    bench(
        "suffix, 10,000 rules",
        file(10_000, |index| format!("*.{index}.example.com")),
        "www.7777.example.com",
    );
    bench("both ends, 10,000 rules", file(10_000, |index| format!("user-{index}-*-x")), "user-7777-and-x");
    bench("one start, 10,000 ends", file(10_000, |index| format!("user-*-{index}")), "user-and-7777");
    let contains = |index: usize| format!("*-{index}-*");
    bench("contains, 10,000 rules", file(10_000, contains), "user-9999-and-more");
    let all_pieces: String = (0..10_000).map(|index| format!("-{}-", 9_999 - index)).collect();
    bench("contains, 10,000 rules, all in one value of 59 kB", file(10_000, contains), &all_pieces);
    let between = |index: usize| format!("user-*-{index}-*-x");
    bench("one start, one end, 10,000 middles", file(10_000, between), "user-and-9999-and-x");
    let range = |at: usize| format!("{{cidr: {}.{}.{}.0/24}}", 11 + at / 65_536, at / 256 % 256, at % 256);
    bench("ranges of addresses, 100,000", file(100_000, range), "12.47.209.9");
    bench("ranges of addresses, 100,000, none matches", file(100_000, range), "2001:db8:1:2:3:4:5:6");
    let expression = |index: usize| format!("{{regex: '^/api/v[0-9]+/{index}-[a-z]+'}}");
    let path = "/api/v1/777-abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz";
    bench("regular expressions, 1,000, a value of 64 bytes", file(1_000, expression), path);
    let hostile = "/api/v1".to_owned() + &"1".repeat(1_000);
    bench("regular expressions, 1,000, a hostile value of 1 kB", file(1_000, expression), &hostile);
    group.finish();
}

fn load_many(c: &mut Criterion) {
    let mut group = c.benchmark_group("load");
    group.sample_size(10);
    for (name, rules) in [("10,000 rules", 10_000), ("100,000 rules", 100_000)] {
        let files = [file(rules, |index| format!("user-{index}"))];
        // Dropping the rule set is not measured.
        group.bench_function(name, |b| {
            b.iter_batched(|| (), |()| load(&files, &options()), BatchSize::PerIteration)
        });
    }
    group.finish();
}

criterion_group!(benches, plan, load_many);
criterion_main!(benches);
