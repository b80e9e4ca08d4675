//! Metrics as a scrape sees them, after decisions over real rules.

use std::collections::BTreeSet;

use super::*;
use crate::service::fixture::rules;
use tidegate_engine::Timestamp;
use tidegate_engine::decision::{Verdicts, conclude};
use tidegate_engine::limit::Verdict;
use tidegate_engine::memory::{MemoryOptions, MemoryStore};
use tidegate_engine::plan::{Modes, Step};
use tidegate_engine::request::{DescriptorOptions, Entry, Override};
use tidegate_engine::rules::{RuleSet, Unit};
use tidegate_engine::unit::Window;

const RULES: &str = r#"
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: second, requests_per_unit: 10}
    descriptors:
      - key: path
        value: /a
        rate_limit: {unit: second, requests_per_unit: 10}
        descriptors:
          - key: "say \"x\""
            rate_limit: {unit: second, requests_per_unit: 10}
  - key: detailed
    descriptors:
      - key: id
        detailed_metric: true
        rate_limit: {unit: second, requests_per_unit: 10}
  - key: seen
    value_to_metric: true
    rate_limit: {unit: second, requests_per_unit: 10}
  - key: wild
    value: foo*
    rate_limit: {unit: second, requests_per_unit: 10}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: second, requests_per_unit: 10}
"#;

fn metrics(max_series: usize) -> Arc<Metrics> {
    Arc::new(Metrics::new(&MetricsOptions {
        near_limit_ratio: 0.8,
        max_series,
        stripes: 4,
        timer_readers: 0,
        constant_labels: Vec::new(),
        names: Names::BuiltIn { response_time_millis: false },
    }))
}

/// Observes a decision whose counters go from 0 to `after`. Panics when the plan has no check.
fn observe(metrics: &Metrics, rules: &RuleSet, request: &Request<'_>, after: u64) {
    let handles = metrics.handles(rules);
    let plan = rules.plan(request, Modes::default());
    let verdict =
        Verdict { over: after > 10, before: 0, after, remaining: 0, reset_nanos: 0, is_counted: true };
    let verdicts: Verdicts =
        plan.steps.iter().map(|step| matches!(step, Step::Check(_)).then_some(verdict)).collect();
    assert!(verdicts.iter().any(Option::is_some) || !plan.domain_known, "no rule for {request:?}");
    metrics.observe(&handles, request, &conclude(&plan, &verdicts));
}

fn shop<'a>(entries: &[(&'a str, &'a str)]) -> Request<'a> {
    Request::new("shop", 0).descriptor(entries)
}

fn rendered(metrics: &Arc<Metrics>) -> String {
    metrics.scrape().collect()
}

/// The samples of a family, without the common part of its name, sorted.
fn samples(metrics: &Arc<Metrics>, family: &str) -> Vec<String> {
    let text = rendered(metrics);
    let mut found: Vec<_> =
        text.lines().filter_map(|line| line.strip_prefix(family)).map(str::to_owned).collect();
    found.sort();
    found
}

fn total_hits(metrics: &Arc<Metrics>) -> Vec<String> {
    samples(metrics, "ratelimit_service_rate_limit_total_hits")
}

#[test]
fn a_path_is_written_as_its_first_two_levels_and_as_a_whole_where_it_is_deeper() {
    let (metrics, rules) = (metrics(10), rules(RULES));
    let deep = [("user", "u"), ("path", "/a"), ("say \"x\"", "1")];
    for depth in 1..=3 {
        observe(&metrics, &rules, &shop(&deep[..depth]), 1);
    }
    observe(&metrics, &rules, &shop(&[("wild", "foobar")]), 1);
    let expected = [
        r#"{domain="shop",key1="user",key2="path_/a"} 1"#,
        r#"{domain="shop",key1="user",key2="path_/a",rule="user.path_/a.say \"x\""} 1"#,
        r#"{domain="shop",key1="user"} 1"#,
        r#"{domain="shop",key1="wild_foo*"} 1"#,
    ];
    let expected: BTreeSet<String> = expected.map(|line| line.replace("say \"x\"", "say \\\"x\\\"")).into();
    assert_eq!(total_hits(&metrics).into_iter().collect::<BTreeSet<_>>(), expected);
}

#[test]
fn each_amount_goes_to_its_own_family() {
    let (metrics, rules) = (metrics(10), rules(RULES));
    let twelve = |key| {
        let mut request = Request::new("shop", 12);
        request.push([Entry { key, value: "x" }], DescriptorOptions::default());
        request
    };
    observe(&metrics, &rules, &twelve("shadow"), 12);
    let family = |stat: &str| {
        samples(&metrics, &format!("ratelimit_service_rate_limit_{stat}{{domain=\"shop\",key1=\"shadow\"}} "))
    };
    let amounts = Stat::ALL.map(|stat| family(stat.name()).join(","));
    assert_eq!(amounts, ["12", "2", "2", "0", "2", ""]);
}

#[test]
fn a_limit_that_was_never_hit_is_not_written() {
    let (metrics, rules) = (metrics(10), rules(RULES));
    metrics.handles(&rules);
    assert_eq!(total_hits(&metrics), [""; 0]);
}

#[test]
fn values_that_were_seen_are_written_where_the_rule_says_so() {
    let (metrics, rules) = (metrics(10), rules(RULES));
    observe(&metrics, &rules, &shop(&[("detailed", "d"), ("id", "")]), 1);
    observe(&metrics, &rules, &shop(&[("seen", "10.1.2.3:80")]), 1);
    observe(&metrics, &rules, &shop(&[("seen", "")]), 1);
    let expected = [
        r#"{domain="shop",key1="detailed_d",key2="id_"} 1"#,
        r#"{domain="shop",key1="seen"} 1"#,
        r#"{domain="shop",key1="seen_10_1_2_3_80"} 1"#,
    ];
    assert_eq!(total_hits(&metrics), expected);
}

#[test]
fn beyond_the_bound_the_rolled_up_path_counts() {
    let text = "
domain: shop
descriptors:
  - {key: seen, value_to_metric: true, rate_limit: {unit: second, requests_per_unit: 10}}
";
    let (metrics, rules) = (metrics(3), rules(text));
    let values: Vec<String> = (0..10).map(|value| value.to_string()).collect();
    for value in values.iter().chain(&values) {
        observe(&metrics, &rules, &shop(&[("seen", value)]), 1);
    }
    observe(&metrics, &rules, &shop(&[("seen", &"x".repeat(60_000))]), 1);
    let expected = [
        r#"{domain="shop",key1="seen"} 15"#,
        r#"{domain="shop",key1="seen_0"} 2"#,
        r#"{domain="shop",key1="seen_1"} 2"#,
        r#"{domain="shop",key1="seen_2"} 2"#,
    ];
    assert_eq!(total_hits(&metrics), expected);
}

/// Rules at several levels, and one without a limit above others.
fn nested() -> String {
    let text = "
domain: shop
descriptors:
  - key: a
    LIMIT
    descriptors:
      - key: b
        LIMIT
        descriptors:
          - {key: c, LIMIT}
  - key: d
    descriptors:
      - {key: e, LIMIT}
  - {key: f, LIMIT}
";
    text.replace("LIMIT", "rate_limit: {unit: second, requests_per_unit: 10}")
}

/// Observes one decision by each rule of `nested`, and two by the third.
fn observe_nested(metrics: &Metrics, rules: &RuleSet) {
    let deep = [("a", "1"), ("b", "2"), ("c", "3")];
    for entries in [&deep[..1], &deep[..2], &deep, &deep, &[("d", "1"), ("e", "2")], &[("f", "1")]] {
        observe(metrics, rules, &shop(entries), 1);
    }
}

#[test]
fn rules_beyond_the_bound_count_in_file_order_above_and_totals_only_grow() {
    let (metrics, rules_there) = (metrics(2), rules(&nested()));
    assert_eq!(metrics.handles(&rules_there).without_room(), 3);
    observe_nested(&metrics, &rules_there);
    let expected = |times: u32| {
        [("key1=\"a\",key2=\"b\"", 3), ("key1=\"a\"", 1), ("key1=\"other\"", 2)]
            .map(|(labels, count)| format!("{{domain=\"shop\",{labels}}} {}", count * times))
    };
    assert_eq!(total_hits(&metrics), expected(1));
    // The order of the rules has changed. Rules that had a series keep it.
    let text = nested();
    let (first, others) = (text.find("  - key: a").expect("a"), text.find("  - key: d").expect("d"));
    let turned = [&text[..first], &text[others..], &text[first..others]].concat();
    observe_nested(&metrics, &rules(&turned));
    assert_eq!(total_hits(&metrics), expected(2));
}

#[test]
fn what_is_aggregated_counts_in_the_series_above_it() {
    let aggregated = |node: &str, with: &str| nested().replace(node, with);
    let hits = |text: &str| {
        assert!(text.contains("aggregate"));
        let (metrics, rules) = (metrics(10), rules(text));
        assert_eq!(metrics.handles(&rules).without_room(), 0);
        observe_nested(&metrics, &rules);
        assert_eq!(rules.rules()[2].path(), "shop.a.b.c", "a rule is still called by its whole path");
        total_hits(&metrics)
    };
    let line = |labels: &str, count: u64| format!("{{domain=\"shop\",{labels}}} {count}");
    let (d, f) = (line("key1=\"d\",key2=\"e\"", 1), line("key1=\"f\"", 1));
    let b = aggregated("- key: b\n", "- key: b\n        metrics: aggregate\n");
    assert_eq!(hits(&b), [line("key1=\"a\"", 4), d.clone(), f.clone()]);
    let top = aggregated("- key: a\n", "- key: a\n    metrics: aggregate\n");
    assert_eq!(hits(&top), [d, f, line("key1=\"other\"", 4)]);
    // A node above that has no limit has a series all the same.
    let e = aggregated("{key: e,", "{key: e, metrics: aggregate,");
    assert!(hits(&e).contains(&line("key1=\"d\"", 1)));
}

#[test]
fn what_is_aggregated_counts_by_the_values_seen_above_it() {
    let text = "
domain: shop
descriptors:
  - key: plan
    detailed_metric: true
    descriptors:
      - {key: user, detailed_metric: true, metrics: aggregate, rate_limit: {unit: second, requests_per_unit: 10}}
";
    let (metrics, rules) = (metrics(10), rules(text));
    observe(&metrics, &rules, &shop(&[("plan", "free"), ("user", "alice")]), 1);
    observe(&metrics, &rules, &shop(&[("plan", "free"), ("user", "bob")]), 1);
    assert_eq!(total_hits(&metrics), [r#"{domain="shop",key1="plan_free"} 2"#]);
}

#[test]
fn overrides_are_written_by_their_entries_and_beyond_the_bound_together() {
    let (metrics, rules) = (metrics(1), rules(RULES));
    let limit = Some(Override { requests_per_unit: 10, window: Window::of(Unit::Second) });
    for key in ["a", "b", "c", "a"] {
        let mut request = Request::new("shop", 0);
        let options = DescriptorOptions { limit, ..DescriptorOptions::default() };
        request.push([Entry { key, value: "x" }, Entry { key: "k", value: "" }], options);
        observe(&metrics, &rules, &request, 1);
    }
    let expected = [r#"{domain="shop",key1="a_x",key2="k"} 2"#, r#"{domain="shop",key1="other"} 2"#];
    assert_eq!(total_hits(&metrics), expected);
}

#[test]
fn unknown_domains_count_once_a_descriptor_and_a_hundred_are_written_by_name() {
    let (metrics, rules) = (metrics(10), rules(RULES));
    let domains: Vec<String> = (0..150).map(|index| format!("unknown{index}")).collect();
    for domain in &domains {
        let request = Request::new(domain, 0).descriptor(&[("a", "b")]).descriptor(&[("c", "d")]);
        observe(&metrics, &rules, &request, 1);
    }
    let samples = samples(&metrics, "ratelimit_service_rate_limit_domain_not_found");
    assert_eq!(samples.len(), 101);
    assert!(samples.contains(&"{domain=\"other\"} 100".to_owned()), "{samples:?}");
    assert_eq!(samples.iter().filter(|line| line.ends_with("} 2")).count(), 100);
}

#[test]
fn descriptors_that_meet_no_rule_of_a_known_domain_are_counted() {
    let metrics = metrics(10);
    let text = format!(
        "{RULES}  - key: replacing\n    rate_limit: {{unit: second, requests_per_unit: 10, replaces: [{{name: x}}]}}\n"
    );
    let text =
        text.replace("shadow_mode: true\n    rate_limit: {", "shadow_mode: true\n    rate_limit: {name: x, ");
    let rules = rules(&text);
    let request = shop(&[("user", "u")])
        .descriptor(&[("nobody", "u")])
        // A node without a limit, one that is not reached, and one whose limit is replaced.
        .descriptor(&[("detailed", "d")])
        .descriptor(&[("user", "u"), ("path", "/b")])
        .descriptor(&[("shadow", "s")])
        .descriptor(&[("replacing", "r")]);
    observe(&metrics, &rules, &request, 1);
    observe(&metrics, &rules, &Request::new("unknown", 0).descriptor(&[("nobody", "u")]), 1);
    assert_eq!(samples(&metrics, "tidegate_unmatched_total"), ["{domain=\"shop\"} 3"]);
}

#[test]
fn what_a_candidate_would_have_done_is_counted_beside_what_its_limit_did() {
    let metrics = metrics(10);
    let rules = rules(&RULES.replacen(
        "requests_per_unit: 10",
        "requests_per_unit: 10, candidate: {requests_per_unit: 5}",
        1,
    ));
    let (handles, store) = (metrics.handles(&rules), MemoryStore::new(MemoryOptions::new(1 << 20)));
    for _ in 0..12 {
        let request = shop(&[("user", "u")]);
        let plan = rules.plan(&request, Modes::default());
        metrics.observe(
            &handles,
            &request,
            &conclude(&plan, &store.apply(&plan, Timestamp::from_secs(1_000))),
        );
    }
    let own = "domain=\"shop\",key1=\"user\"";
    assert_eq!(
        samples(&metrics, "tidegate_candidate_hits_total"),
        [
            format!("{{{own},limit=\"over\",candidate=\"over\"}} 2"),
            format!("{{{own},limit=\"within\",candidate=\"over\"}} 5"),
            format!("{{{own},limit=\"within\",candidate=\"within\"}} 5"),
        ]
    );
    assert_eq!(samples(&metrics, "ratelimit_service_rate_limit_over_limit"), [format!("{{{own}}} 2")]);
}

#[test]
fn a_candidate_is_compared_with_the_limit_that_it_stands_in_for() {
    let metrics = metrics(10);
    let rules = rules(
        "domain: shop\ndescriptors:\n- {key: user, concurrency: {slots: 2, ttl: 60s, id: call}, rate_limit: {unit: minute, \
         requests_per_unit: 10, candidate: {requests_per_unit: 5}}}",
    );
    let (handles, store) = (metrics.handles(&rules), MemoryStore::new(MemoryOptions::new(1 << 20)));
    for _ in 0..4 {
        let request = shop(&[("user", "u")]);
        let plan = rules.plan(&request, Modes::default());
        let verdicts = store.apply(&plan, Timestamp::from_secs(1_000));
        metrics.observe(&handles, &request, &conclude(&plan, &verdicts));
    }
    assert_eq!(
        samples(&metrics, "tidegate_candidate_hits_total"),
        ["{domain=\"shop\",key1=\"user\",limit=\"within\",candidate=\"within\"} 4"],
        "the slots denied two of them"
    );
}

#[test]
fn what_the_deny_cache_answers_counts_for_its_descriptor_alone() {
    let (metrics, rules) = (metrics(10), rules(RULES));
    let handles = metrics.handles(&rules);
    let request = Request::new("shop", 1).descriptor(&[("user", "u")]).descriptor(&[("wild", "foobar")]);
    let plan = rules.plan(&request, Modes::default());
    let verdict =
        Verdict { over: true, before: 10, after: 11, remaining: 0, reset_nanos: 0, is_counted: true };
    let decision = conclude(&plan, &plan.steps.iter().map(|_| Some(verdict)).collect());
    metrics.observe(&handles, &request, &decision);
    metrics.observe_remembered(&handles, &request, &decision, &[1]);
    let counts = samples(&metrics, "ratelimit_service_rate_limit_over_limit_with_local_cache");
    let counted: Vec<_> = counts.iter().filter(|line| !line.ends_with(" 0")).collect();
    assert_eq!(counted, [r#"{domain="shop",key1="wild_foo*"} 1"#], "{counts:?}");
}

#[test]
fn a_reload_keeps_what_was_counted_and_what_was_removed() {
    let metrics = metrics(10);
    let (before, after) = (rules(RULES), rules(&RULES.replace("key: wild", "key: tame")));
    observe(&metrics, &before, &shop(&[("user", "u")]), 1);
    observe(&metrics, &before, &shop(&[("wild", "foo")]), 1);
    observe(&metrics, &after, &shop(&[("user", "u")]), 1);
    observe(&metrics, &after, &shop(&[("tame", "foo")]), 1);
    let expected = [
        r#"{domain="shop",key1="tame_foo*"} 1"#,
        r#"{domain="shop",key1="user"} 2"#,
        r#"{domain="shop",key1="wild_foo*"} 1"#,
    ];
    assert_eq!(total_hits(&metrics), expected);
}

#[test]
fn nothing_is_lost_when_threads_count_while_others_render() {
    let (metrics, rules) = (metrics(1000), rules(RULES));
    let (threads, each) = (6, 500);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                for index in 0..each {
                    observe(&metrics, &rules, &shop(&[("user", "u")]), 1);
                    observe(&metrics, &rules, &shop(&[("seen", &(index % 100).to_string())]), 1);
                }
            });
        }
        scope.spawn(|| (0..20).for_each(|_| assert!(!rendered(&metrics).is_empty())));
    });
    let samples = total_hits(&metrics);
    assert_eq!(samples.len(), 101);
    assert!(samples.contains(&format!("{{domain=\"shop\",key1=\"user\"}} {}", threads * each)));
    assert_eq!(
        samples.iter().filter(|line| line.ends_with(&format!("}} {}", threads * each / 100))).count(),
        100
    );
}

#[test]
fn a_large_scrape_comes_in_small_pieces_that_make_one_exposition() {
    let (metrics, rules) = (metrics(5000), rules(RULES));
    let handles = metrics.handles(&rules);
    for index in 0..5000 {
        let value = index.to_string();
        let request = shop(&[("seen", &value)]);
        let plan = rules.plan(&request, Modes::default());
        let verdict =
            Verdict { over: false, before: 0, after: 1, remaining: 9, reset_nanos: 0, is_counted: true };
        let verdicts: Verdicts = plan.steps.iter().map(|_| Some(verdict)).collect();
        metrics.observe(&handles, &request, &conclude(&plan, &verdicts));
    }
    let pieces: Vec<String> = metrics.scrape().collect();
    assert!(pieces.iter().all(|piece| piece.len() < 100_000));
    let text = pieces.concat();
    let headers: Vec<_> = text.lines().filter(|line| line.starts_with("# TYPE ")).collect();
    assert_eq!(headers.len(), headers.iter().collect::<BTreeSet<_>>().len(), "a family is written once");
    let samples: Vec<_> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.rsplit_once(' ').expect("a value").0)
        .collect();
    assert_eq!(samples.len(), samples.iter().collect::<BTreeSet<_>>().len(), "a sample is written once");
    assert_eq!(samples.iter().filter(|line| line.contains("total_hits")).count(), 5000);

    let pieces: Vec<String> = metrics.stats().collect();
    assert!(pieces.iter().all(|piece| piece.len() < 100_000));
    let lines: BTreeSet<_> = pieces.iter().flat_map(|piece| piece.lines()).collect();
    let hit = |index: usize| {
        lines.contains(&*format!("ratelimit.service.rate_limit.shop.seen_{index}.total_hits: 1"))
    };
    assert!((0..5000).all(hit), "every series is written, and once");
    assert_eq!(lines.iter().filter(|line| line.contains(".total_hits: ")).count(), 5000);
}

#[test]
fn calls_reloads_and_registered_families_are_written() {
    let metrics = metrics(10);
    metrics.requests(Front::Grpc, Outcome::OverLimit, 1);
    metrics.requests(Front::Check, Outcome::StoreFailure, 1);
    metrics.requests(Front::Json, Outcome::InvalidArgument, 1);
    metrics.grpc_calls(GrpcMethod::ShouldRateLimit, 300_000, 1);
    metrics.decisions_took(400, 1);
    metrics.config_failed();
    metrics.config_loaded("bead".into(), 7, 2, 1_795_000_000);
    let part = Arc::new(42);
    metrics
        .of(&part)
        .value(MetricType::Gauge, "tidegate_counters", "Counters in memory.", |counters| *counters)
        .samples(MetricType::Counter, "tidegate_store_full_total", "Refused.", |_, samples| {
            samples.push(&[("answer", "deny")], 1);
            samples.push(&[("answer", "allow")], 0);
        });
    let text = rendered(&metrics);
    drop(part);
    assert!(!rendered(&metrics).contains("tidegate_counters"), "its part is gone");
    for line in [
        "tidegate_requests_total{front=\"grpc\",code=\"OVER_LIMIT\"} 1",
        "tidegate_requests_total{front=\"check\",code=\"STORE_FAILURE\"} 1",
        "ratelimit_service_should_rate_limit_error{err_type=\"redis_error\"} 1",
        "ratelimit_service_should_rate_limit_error{err_type=\"service_error\"} 1",
        "ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"} 1",
        "ratelimit_service_response_time_seconds_bucket{grpc_method=\"ShouldRateLimit\",le=\"0.00025\"} 0",
        "ratelimit_service_response_time_seconds_bucket{grpc_method=\"ShouldRateLimit\",le=\"0.0005\"} 1",
        "ratelimit_service_response_time_seconds_sum{grpc_method=\"ShouldRateLimit\"} 0.0003",
        "tidegate_decision_seconds_count 1",
        "ratelimit_service_config_load_success 1",
        "ratelimit_service_config_load_error 1",
        "ratelimit_service_global_shadow_mode 0",
        "tidegate_config_last_reload_success_timestamp_seconds 1795000000",
        "tidegate_rules 7",
        "tidegate_rules_info{hash=\"bead\"} 1",
        "tidegate_rules_warnings 2",
        "# TYPE tidegate_counters gauge",
        "tidegate_counters 42",
        "tidegate_store_full_total{answer=\"deny\"} 1",
    ] {
        assert!(text.lines().any(|written| written == line), "{line} is missing in:\n{text}");
    }
    assert!(text.contains("tidegate_build_info{version="));
    assert!(text.contains("\nprocess_open_fds "));
}

#[test]
fn global_shadow_mode_is_counted_where_it_turned_the_answer() {
    let (metrics, rules) = (metrics(10), rules(RULES));
    let handles = metrics.handles(&rules);
    for over in [true, false] {
        let request = shop(&[("user", "u")]);
        let plan = rules.plan(&request, Modes { shadow: true, ..Modes::default() });
        let verdict = Verdict { over, before: 10, after: 11, remaining: 0, reset_nanos: 0, is_counted: true };
        metrics.observe(&handles, &request, &conclude(&plan, &[Some(verdict)].into_iter().collect()));
    }
    assert_eq!(samples(&metrics, "ratelimit_service_global_shadow_mode"), [" 1"]);
    assert_eq!(
        samples(&metrics, "ratelimit_service_rate_limit_over_limit{"),
        ["domain=\"shop\",key1=\"user\"} 1"]
    );
}
