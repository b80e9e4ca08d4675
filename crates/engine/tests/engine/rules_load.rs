//! Files that load, and what they mean.

use serde_json::json;
use tidegate_engine::limit::{Algorithm, Limit};
use tidegate_engine::plan::{Check, Modes, Step};
use tidegate_engine::request::{DescriptorOptions, Entry, Override, Request};
use tidegate_engine::rules::{Cost, Rule, RuleSet, SourceFile, StoreFailure, Sync, Unit, load};
use tidegate_engine::time::SECOND_NANOS;
use tidegate_engine::unit::Window;

use crate::rules::{file, loaded, options};

/// The only rule of a file.
fn rule(text: &str) -> Rule {
    let rules = loaded(text).rules;
    assert_eq!(rules.rules().len(), 1, "{text}");
    rules.rules()[0].clone()
}

/// The only rule of a file, whose `rate_limit` says this.
fn limit(says: &str) -> Rule {
    rule(&format!("domain: d\ndescriptors: [{{key: k, rate_limit: {{{says}}}}}]"))
}

#[test]
fn every_field_is_read() {
    let rule = rule(
        "domain: shop
descriptors:
  - key: user
    value: al*
    rate_limit:
      unit: MINUTE
      unit_multiplier: 5
      requests_per_unit: 100
      name: per_user
      replaces: [{name: other}, {name: third}]
      algorithm: sliding_window
      granularity: 2s
      sync: leased
      on_store_failure: allow
      cost: asked
      near: 0.75
    shadow_mode: yes
    quota_mode: on
    detailed_metric: y
    value_to_metric: TRUE
    share_threshold: true
    metadata: {any: [yaml, 0x10, off, ~, 1.5], 1: {a: b}}
",
    );
    assert_eq!(
        (rule.id, &*rule.domain, rule.counting.window),
        (0, "shop", Window { unit: Unit::Minute, multiplier: 5 })
    );
    let limit =
        Limit::new(Algorithm::SlidingWindow, 100, 300 * SECOND_NANOS).with_granularity(2 * SECOND_NANOS);
    assert_eq!(rule.limit, Some(limit));
    assert_eq!(&*rule.name, "per_user");
    assert_eq!(rule.replaces.iter().map(|name| &**name).collect::<Vec<_>>(), ["other", "third"]);
    assert_eq!((rule.sync, rule.on_store_failure), (Some(Sync::Leased), Some(StoreFailure::Allow)));
    assert_eq!((rule.cost.said(), rule.near), (Cost::Asked, Some(0.75)));
    assert!(rule.shadow_mode && rule.quota_mode);
    assert_eq!(rule.metadata, json!({"any": ["yaml", 16, false, null, 1.5], "1": {"a": "b"}}));
    assert_eq!((rule.keyed_levels, rule.metric_name.is_dynamic()), (0, false));
}

#[test]
fn what_is_not_said_has_its_default() {
    let rule = limit("unit: hour, requests_per_unit: 0");
    assert_eq!(rule.limit, Some(Limit::new(Algorithm::SlidingWindow, 0, 3_600 * SECOND_NANOS)));
    assert_eq!((rule.counting.window, &*rule.name), (Window::of(Unit::Hour), ""));
    assert!(rule.replaces.is_empty() && !rule.shadow_mode && !rule.quota_mode && rule.metadata.is_null());
    assert_eq!((rule.sync, rule.on_store_failure, rule.near, rule.keyed_levels), (None, None, None, 1));
    let fixed = options().default_algorithm(Algorithm::FixedWindow);
    let text = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: second, requests_per_unit: 1}}]";
    let rules = load(&[file("a.yaml", text)], &fixed).unwrap().rules;
    assert_eq!(rules.rules()[0].limit.map(|limit| limit.algorithm()), Some(Algorithm::FixedWindow));
}

/// Only a descriptor's own cost is reported; and only if the rule, or else the default, does not say `asked`.
#[test]
fn what_a_descriptors_own_cost_means_is_said_by_its_rule_or_by_the_default() {
    let text = "domain: d
descriptors:
- {key: says nothing, rate_limit: {unit: second, requests_per_unit: 1}}
- {key: asked, rate_limit: {unit: second, requests_per_unit: 1, cost: asked}}
- {key: reported, rate_limit: {unit: second, requests_per_unit: 1, cost: reported}}
";
    let limit = Some(Override { requests_per_unit: 1, window: Window::of(Unit::Second) });
    for (default_cost, unsaid) in [(Cost::Auto, true), (Cost::Reported, true), (Cost::Asked, false)] {
        let rules = load(&[file("a.yaml", text)], &options().default_cost(default_cost)).unwrap().rules;
        let reported = |key, options| {
            let mut request = Request::new("d", 7);
            request.push([Entry { key, value: "" }], options);
            match rules.plan(&request, Modes::default()).steps[0] {
                Step::Check(check) => check.reported,
                step => panic!("{step:?}"),
            }
        };
        let own = |hits| DescriptorOptions { hits_addend: Some(hits), ..DescriptorOptions::default() };
        let keys = ["says nothing", "asked", "reported"];
        assert_eq!(keys.map(|key| reported(key, own(5))), [unsaid, false, true]);
        assert_eq!(keys.map(|key| reported(key, own(0))), [false; 3], "a question");
        assert_eq!(keys.map(|key| reported(key, DescriptorOptions::default())), [false; 3], "the request's");
        let refund = DescriptorOptions { is_negative_hits: true, ..own(5) };
        assert_eq!(keys.map(|key| reported(key, refund)), [false; 3], "a refund");
        assert_eq!(reported("override", DescriptorOptions { limit, ..own(5) }), unsaid);
        for (cost, expected) in [(Cost::Asked, false), (Cost::Reported, true)] {
            let known = DescriptorOptions { cost, ..own(5) };
            assert_eq!(keys.map(|key| reported(key, known)), [expected; 3], "whoever asks knows it");
            assert_eq!(reported("override", DescriptorOptions { limit, ..known }), expected);
        }
    }
}

/// Who describes a request of a proxy knows it; others that ask the same rule over gRPC may mean something else.
#[test]
fn a_cost_whose_meaning_is_known_teaches_its_rule_nothing() {
    for (cost, still_reported) in [(Cost::Auto, false), (Cost::Asked, true), (Cost::Reported, true)] {
        let text = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: second, requests_per_unit: 1}}]\n";
        let rules = loaded(text).rules;
        let is_reported = |cost| {
            let mut request = Request::new("d", 1);
            let options = DescriptorOptions { hits_addend: Some(5), cost, ..DescriptorOptions::default() };
            request.push([Entry { key: "k", value: "" }], options);
            let plan = rules.plan(&request, Modes::default());
            rules.observe_costs(&request, &plan);
            matches!(plan.steps[0], Step::Check(Check { reported: true, .. }))
        };
        (0..200).for_each(|_| {
            is_reported(cost);
        });
        assert_eq!(is_reported(Cost::Auto), still_reported, "{cost:?}");
    }
}

/// A client that asks with a cost gives back without one, and one that reports gives back what it has reported.
#[test]
fn what_is_given_back_teaches_nothing() {
    for own in [None, Some(5)] {
        let text = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: second, requests_per_unit: 1}}]\n";
        let rules = loaded(text).rules;
        let is_reported = |hits_addend, is_negative_hits| {
            let mut request = Request::new("d", 1);
            let options = DescriptorOptions { hits_addend, is_negative_hits, ..DescriptorOptions::default() };
            request.push([Entry { key: "k", value: "" }], options);
            let plan = rules.plan(&request, Modes::default());
            rules.observe_costs(&request, &plan);
            matches!(plan.steps[0], Step::Check(Check { reported: true, .. }))
        };
        (0..200).for_each(|_| assert!(!is_reported(own, true)));
        let reported = (0..101).map(|_| is_reported(Some(5), false));
        assert_eq!(reported.filter(|is_reported| *is_reported).count(), 100, "{own:?}");
    }
}

#[test]
fn windows_and_buckets() {
    for (window, secs, unit, multiplier) in [
        ("90s", 90, Unit::Second, 90),
        ("5m", 300, Unit::Minute, 5),
        ("1h30m", 5_400, Unit::Minute, 90),
        ("24h", 86_400, Unit::Day, 1),
        ("8784h", 366 * 86_400, Unit::Day, 366),
        ("1s", 1, Unit::Second, 1),
    ] {
        let rule = limit(&format!("window: {window}, requests_per_unit: 7"));
        assert_eq!(
            rule.limit,
            Some(Limit::new(Algorithm::SlidingWindow, 7, secs * SECOND_NANOS)),
            "{window}"
        );
        assert_eq!(rule.counting.window, Window { unit, multiplier }, "{window}");
    }
    let bucket =
        limit("unit: second, requests_per_unit: 7, burst: 3, algorithm: leaky_bucket").limit.unwrap();
    assert_eq!((bucket.requests(), bucket.burst()), (7, 3));
    assert!(limit("unlimited: yes").limit.is_none());
    assert!(limit("unlimited: yes, requests_per_unit: 5, name: a").limit.is_none());
}

#[test]
fn integers_of_yaml_1_1() {
    for (text, number) in
        [("0x10", 16), ("0b11", 3), ("0o17", 15), ("010", 8), ("1_000", 1_000), ("!!int '5'", 5)]
    {
        let rule = limit(&format!("unit: second, requests_per_unit: {text}"));
        assert_eq!(rule.limit.map(|limit| limit.requests()), Some(number), "{text}");
    }
}

#[test]
fn texts_stay_as_they_are_written() {
    for (written, read) in
        [("010", "010"), ("yes", "yes"), ("1.50", "1.50"), ("'a b'", "a b"), ("\"\\u00e9\"", "é")]
    {
        let rule = rule(&format!(
            "domain: {written}\ndescriptors: [{{key: {written}, value: {written}, rate_limit: {{unlimited: true, name: {written}}}}}]"
        ));
        assert_eq!((&*rule.domain, &*rule.name), (read, read));
        let names: Vec<&str> = rule.metric_name.rolled_up().iter().map(|name| &**name).collect();
        assert_eq!(names, [format!("{read}_{read}")]);
    }
}

#[test]
fn null_and_empty_are_as_if_absent() {
    let text = "domain: d
descriptors:
  - {key: a, value: ~, rate_limit: {unlimited: true, name: '', unit: null, replaces: }, descriptors: ~}
  - {key: b, value: '', rate_limit: ~, metadata: null, shadow_mode: }
";
    let rule = rule(text);
    assert_eq!((&*rule.name, rule.keyed_levels), ("", 1));
    assert!(loaded("domain: d\n").rules.rules().is_empty());
    assert!(loaded("domain: d\ndescriptors:\n").rules.rules().is_empty());
}

#[test]
fn merges_follow_the_order_of_assignment() {
    let requests = |text: &str| {
        let rules = loaded(text).rules;
        rules
            .rules()
            .iter()
            .map(|rule| (rule.counting.window.unit, rule.limit.map(|limit| limit.requests())))
            .collect::<Vec<_>>()
    };
    let text = "domain: d
descriptors:
  - &a {key: a, rate_limit: &l {unit: minute, requests_per_unit: 1}}
  - {<<: *a, key: b}
  - {key: c, rate_limit: {<<: *l, requests_per_unit: 2}}
  - {key: d, rate_limit: {requests_per_unit: 3, <<: *l}}
  - {key: e, rate_limit: {<<: [*l, {requests_per_unit: 4, unit: hour}]}}
  - {<<: *a, key: f, rate_limit: {requests_per_unit: 5}}
  - {<<: *a, key: g, rate_limit: ~}
  - {key: h, rate_limit: *l}
";
    let minute = |requests| (Unit::Minute, Some(requests));
    assert_eq!(requests(text), [1, 1, 2, 1, 1, 5, 1].map(minute));
    let metadata = "domain: d
descriptors:
  - key: k
    rate_limit: {unlimited: true}
    metadata: {a: &m {x: 1, y: 2}, b: {<<: *m, y: 3}, c: {y: 3, <<: *m}}
";
    let rule = rule(metadata);
    assert_eq!(rule.metadata["b"], json!({"x": 1, "y": 3}));
    assert_eq!(rule.metadata["c"], json!({"x": 1, "y": 2}));
}

#[test]
fn every_encoding_and_line_ending_means_the_same() {
    let text = "domain: dé\ndescriptors:\n- key: k\n  rate_limit:\n    unit: day\n    requests_per_unit: 5\n";
    let utf16 = |unit: fn(u16) -> [u8; 2]| -> Vec<u8> {
        "\u{FEFF}".encode_utf16().chain(text.encode_utf16()).flat_map(unit).collect()
    };
    let json = "{\"domain\": \"d\\u00e9\", \"descriptors\": [{\"key\": \"k\", \"rate_limit\":\n\
                {\"unit\": \"day\", \"requests_per_unit\": 5}}]}";
    let variants = [
        text.into(),
        text.replace('\n', "\r\n").into(),
        format!("\u{FEFF}{text}").into(),
        format!("%YAML 1.1\n---\n{text}...\n").into(),
        json.into(),
        utf16(u16::to_le_bytes),
        utf16(u16::to_be_bytes),
    ];
    let key = |bytes: Vec<u8>| {
        let loaded =
            load(&[file("a.yaml", &bytes)], &options()).unwrap_or_else(|errors| panic!("{errors:?}"));
        assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
        loaded.rules.rules()[0].key(&[])
    };
    let keys: Vec<_> = variants.into_iter().map(key).collect();
    assert!(keys.iter().all(|key| *key == keys[0]));
}

#[test]
fn what_is_probably_not_meant_is_warned_of() {
    let text = "domain: d
unit: minute
descriptors:
- key: a*
  unit: minute
  rate_limit: {unit: minute, requests_per_unit: 1, shadow_mode: true, key: a}
---
domain: e
";
    let loaded = loaded(text);
    assert!(!loaded.rules.rules()[0].shadow_mode);
    let messages: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    let expected = [
        "a.yaml:2:1: `unit` is ignored here (expected inside `rate_limit`)",
        "a.yaml:4:8: `*` in the key `a*` is an ordinary character (expected wildcards in `value`)",
        "a.yaml:5:3: `unit` is ignored here (expected inside `rate_limit`)",
        "a.yaml:6:52: `shadow_mode` is ignored here (expected in a descriptor)",
        "a.yaml:6:71: `key` is ignored here (expected in a descriptor)",
        "a.yaml:8:1: a second YAML document is ignored (expected one in each file)",
    ];
    assert_eq!(messages, expected);
    let strict = load(&[file("a.yaml", text)], &options().strict(true));
    assert_eq!(strict.unwrap_err().iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
    for empty in ["---\n", "---\n# nothing\n...\n", "...\n---\n~\n"] {
        let text = "domain: d\ndescriptors: [{key: k, rate_limit: {unlimited: true}}]\n".to_owned() + empty;
        assert!(crate::rules::loaded(&text).warnings.is_empty(), "{empty}");
    }
}

#[test]
fn domains_merge_in_file_order_when_that_is_allowed() {
    let merging = options().merge_domains(true);
    let node =
        |key: &str| format!("domain: d\ndescriptors: [{{key: {key}, rate_limit: {{unlimited: true}}}}]");
    let rules = load(&[file("a.yaml", node("b")), file("b.yaml", node("a"))], &merging).unwrap().rules;
    let names: Vec<&str> = rules.rules().iter().map(|rule| &*rule.metric_name.rolled_up()[0]).collect();
    assert_eq!(names, ["b", "a"]);
    assert_eq!(rules.domains().collect::<Vec<_>>(), ["d"]);
    assert_eq!(RuleSet::empty(&options()).domains().count(), 0);
}

/// All of these were tried on Go's yaml.v2, which reads them so.
#[test]
fn scalars_are_read_as_go_reads_them() {
    for (written, read) in [
        ("a:b", "a:b"),
        ("/a/b?c=d&e", "/a/b?c=d&e"),
        ("a#b", "a#b"),
        ("a # b", "a"),
        ("-x", "-x"),
        ("?x", "?x"),
        (":x", ":x"),
        ("~x", "~x"),
        ("b*", "b*"),
        ("\tx\t", "x"),
        ("'it''s'", "it's"),
        ("\"\\x41\\e\"", "A\u{1b}"),
        (">\n    folded\n    text", "folded text\n"),
        ("|-\n    literal", "literal"),
        ("multi\n    line", "multi line"),
        ("\"a\n    b\"", "a b"),
        ("!!str 5", "5"),
        ("!foo x", "x"),
        ("! x", "x"),
        ("2001-01-01", "2001-01-01"),
        ("1.5", "1.5"),
    ] {
        let text = format!(
            "domain: d\ndescriptors:\n- key: k\n  value: {written}\n  rate_limit: {{unlimited: true}}\n"
        );
        let expected = format!("k_{}", read.replace(':', "_"));
        assert_eq!(*rule(&text).metric_name.rolled_up()[0], *expected, "{written}");
    }
}

/// All of these were tried on Go's yaml.v2, which takes them.
#[test]
fn documents_that_go_reads_load() {
    for text in [
        "domain: d\ndescriptors:\n- {key: &k a, value: *k}\n",
        "{\"domain\":\"d\",\"descriptors\":[{\"key\":\"a\",\n\t\"value\":\"b\"}]}",
        "{\n\t\"domain\": \"d\",\n\t\"descriptors\": [\n\t\t{\"key\": \"a\"}\n\t]\n}\n",
        "domain: d\ndescriptors: [{key: a,value: b},]\n",
        "domain: d\ndescriptors: [{key: a, value: b*}, {key: c, value: b:c}]\n",
        "domain: d\ndescriptors: [{key: a, value: b, }, ]\n",
        "domain: d\rdescriptors: []\r",
        "domain: d\ndescriptors: []\n...\ngarbage: [\n",
        "domain: d\ndescriptors: []\n---\ngarbage: [\n",
        "--- \ndomain: d\n",
        "domain: d\ndescriptors:\n- ? key\n  : a\n",
        "domain: d\ndescriptors:\n- {\"key\":a}\n",
        "domain: d\ndescriptors:\n  - key: a\n  # c\n    value: b\n",
        "domain: d\ndescriptors: [\n{key: a}\n]\n",
        "domain: d\ndescriptors: &x\n- key: a\n",
        "domain: d\n  \t# c\ndescriptors: []\n",
        "domain: d\ndescriptors: [{key: &a v, value: *a }]\n",
        "domain: d\ndescriptors: [{key: &a v, value: *a}]\n",
        "domain: d\ndescriptors:\n- key: a\n-\n  key: b\n",
    ] {
        loaded(text);
    }
}

#[test]
fn a_file_that_is_only_presumed_to_be_rules_is_skipped_unless_it_is_a_mapping_with_a_domain() {
    let presumed = |name: &str, text: &str| SourceFile { presumed: true, ..file(name, text) };
    let files = [
        presumed("config/README", "Rules of the shop: ask the platform team.\n"),
        presumed("config/image", "\u{0}\u{1}: ["),
        presumed(
            "config/shop",
            "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {unlimited: true}\n",
        ),
    ];
    let loaded = load(&files, &options()).expect("the two others are skipped");
    assert_eq!(loaded.rules.domains().collect::<Vec<_>>(), ["shop"]);
    let skipped: Vec<_> = loaded.warnings.iter().map(|warning| warning.file.as_str()).collect();
    assert_eq!(skipped, ["config/README", "config/image"]);
    let broken = [presumed("config/shop", "domain: shop\nbroken: true\n")];
    assert!(load(&broken, &options()).is_err(), "it says that it is rules");
}

#[test]
fn the_example_is_a_question_for_the_first_rule() {
    let rules = loaded(
        "domain: shop\ndescriptors:\n  - key: plan\n    value: free*\n    descriptors:\n      - key: user\n        \
         rate_limit: {unit: hour, requests_per_unit: 5}\n",
    )
    .rules;
    let example = rules.example().expect("there is a rule");
    let entries: Vec<_> = example.entries.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assert_eq!(entries, [("plan", "freex"), ("user", "alice")]);
    let request = Request::new(&example.domain, 1).descriptor(&entries);
    assert!(matches!(rules.plan(&request, Modes::default()).steps[0], Step::Check(_)));
    assert_eq!(loaded("domain: shop\n").rules.example(), None);
}

#[test]
fn what_was_learnt_of_costs_outlives_a_reload() {
    let text = |requests| {
        format!(
            "domain: d\ndescriptors: [{{key: k, rate_limit: {{unit: day, requests_per_unit: {requests}}}}}]\n"
        )
    };
    let (first, mut second) = (loaded(&text(1)).rules, loaded(&text(2)).rules);
    let mut request = Request::new("d", 0);
    let own = DescriptorOptions { hits_addend: Some(5), ..DescriptorOptions::default() };
    request.push([Entry { key: "k", value: "" }], own);
    for _ in 0..100 {
        let plan = first.plan(&request, Modes::default());
        assert!(plan.has_reports() && plan.learns_costs);
        first.observe_costs(&request, &plan);
    }
    assert!(second.plan(&request, Modes::default()).has_reports());
    second.keep_learnt(&first);
    assert!(!second.plan(&request, Modes::default()).has_reports());
}

/// A stream that asked before the reload may report after it. Further limits of a rule learn nothing by themselves.
#[test]
fn what_was_learnt_of_costs_outlives_another_window_another_algorithm_and_further_limits() {
    let rules = |limit: &str| {
        loaded(&format!("domain: d\ndescriptors: [{{key: k, rate_limit: {{requests_per_unit: 1, {limit}}}]"))
            .rules
    };
    let request = |hits_addend| {
        let mut request = Request::new("d", 0);
        let options = DescriptorOptions { hits_addend, ..DescriptorOptions::default() };
        request.push([Entry { key: "k", value: "" }], options);
        request
    };
    let asks = |rules: &RuleSet, hits: u64, times: usize| {
        let request = request(Some(hits));
        (0..times).for_each(|_| rules.observe_costs(&request, &rules.plan(&request, Modes::default())));
    };
    let is_reported = |rules: &RuleSet| rules.plan(&request(Some(5)), Modes::default()).has_reports();
    let slots = "concurrency: {slots: 9, ttl: 60s, id: call}";
    for before in ["unit: day}".to_owned(), format!("unit: day}}, {slots}")] {
        for after in [
            "unit: hour}".to_owned(),
            "unit: day, algorithm: token_bucket}".to_owned(),
            "unit: day, granularity: 3600s}".to_owned(),
            format!("unit: minute}}, {slots}"),
        ] {
            let [first, mut second, mut third] = [&before, &after, &before].map(|limit| rules(limit));
            asks(&first, 5, 100);
            assert!(!is_reported(&first), "{before}");
            second.keep_learnt(&first);
            assert!(!is_reported(&second), "{before} → {after}");
            asks(&second, 0, 1);
            third.keep_learnt(&second);
            asks(&third, 5, 100);
            assert!(is_reported(&third), "{before} → {after} and back: it is for good");
        }
    }
}

/// Those of requests that bring a limit have no rule that learns.
#[test]
fn what_was_learnt_of_the_costs_of_other_limits_outlives_a_reload() {
    let (first, mut second) = (loaded("domain: d\n").rules, loaded("domain: d\n").rules);
    let mut request = Request::new("d", 0);
    let limit = Some(Override { requests_per_unit: 1, window: Window::of(Unit::Second) });
    let own = DescriptorOptions { hits_addend: Some(5), limit, ..DescriptorOptions::default() };
    request.push([Entry { key: "k", value: "" }], own);
    let is_reported = |rules: &RuleSet| {
        let plan = rules.plan(&request, Modes::default());
        rules.observe_costs(&request, &plan);
        plan.has_reports()
    };
    assert!((0..100).all(|_| is_reported(&first)) && is_reported(&second));
    second.keep_learnt(&first);
    assert!(!is_reported(&second));
}
