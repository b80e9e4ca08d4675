//! Files of limits as Limitador's operator writes them: which are read, what is refused where, and which limits a request meets,
//! compared with a naive list of limits.

use std::collections::{BTreeMap, HashMap};

use tidegate_engine::decision::{Code, conclude};
use tidegate_engine::limit::Algorithm;
use tidegate_engine::memory::MemoryStore;
use tidegate_engine::plan::Modes;
use tidegate_engine::request::{DescriptorOptions, Entry, Override, Request, Reservation};
use tidegate_engine::rules::{LoadOptions, Loaded, RuleSet, RulesFormat, load};
use tidegate_engine::unit::{Unit, Window};

use crate::asking::{at, small_store};
use crate::random::Random;
use crate::rules::{file, options};

fn limits() -> LoadOptions {
    options().format(RulesFormat::Limitador)
}

fn loaded(text: &str) -> Loaded {
    load(&[file("a.yaml", text)], &limits()).unwrap_or_else(|errors| panic!("{text}\n{errors:#?}"))
}

fn refused(text: &str) -> Vec<String> {
    let errors = load(&[file("a.yaml", text)], &limits()).expect_err("the file loads");
    errors.iter().map(|error| error.to_string().replacen("a.yaml:", "", 1)).collect()
}

/// What the operator makes of a policy with two rates, and of a policy of tokens.
const WRITTEN: &str = r#"- conditions:
  - descriptors[0]["limit.all__1a2b"] == "1"
  max_value: 5
  name: all
  namespace: shop/route
  seconds: 10
  variables: []
- conditions:
  - descriptors[0]["limit.all__1a2b"] == "1"
  max_value: 20
  name: all
  namespace: shop/route
  seconds: 60
  variables: []
- conditions:
  - descriptors[0]["tokenlimit.free__3c4d"] == "1"
  max_value: 1000
  name: free
  namespace: shop/route
  seconds: 86400
  variables:
  - descriptors[0]["auth.identity.userid"]
- conditions: []
  max_value: 7
  namespace: bank
  seconds: 3600
  variables:
  - descriptors[0]["['a', request.path]"]
"#;

/// The paths of the rules, each with its numbers.
fn written(rules: &RuleSet) -> Vec<String> {
    let text = |rule: &tidegate_engine::rules::Rule| {
        let limit = rule.limit.expect("a limit");
        let reserve = rules.holds_of(rule).map(|terms| format!(" {terms}")).unwrap_or_default();
        format!("{} {}: {}/{}{reserve}", rule.path(), &*rule.name, limit.requests(), rule.counting.window)
    };
    rules.limits().map(text).collect()
}

#[test]
fn what_the_operator_writes_is_read() {
    let Loaded { rules, warnings } = loaded(WRITTEN);
    assert_eq!(warnings, []);
    assert_eq!(
        written(&rules),
        [
            "bank.limit_3600s.['a', request.path] : 7/hour",
            "shop/route.limit_10s if limit.all__1a2b == \"1\" all: 5/10 seconds",
            "shop/route.limit_60s if limit.all__1a2b == \"1\" all: 20/minute",
            "shop/route.limit_86400s if tokenlimit.free__3c4d == \"1\".auth.identity.userid free: \
             1000/day ttl: 60s, expired: charge",
        ]
    );
    let example = rules.example().expect("a rule");
    assert_eq!(
        (&*example.domain, &example.entries[..]),
        ("bank", &[("['a', request.path]".to_owned(), "x".to_owned())][..])
    );
}

#[test]
fn a_file_without_limits_is_a_set_without_domains() {
    assert_eq!(loaded("[]\n").rules.domains().count(), 0);
}

/// A limit that says this instead of one of its lines.
fn with(says: &str) -> String {
    let lines = ["namespace: n", "max_value: 1", "seconds: 1", "conditions: []", "variables: []"];
    let name = says.split(':').next().unwrap_or_default();
    let said = lines.iter().map(|line| if line.starts_with(name) { says } else { line }).collect::<Vec<_>>();
    let more = if lines.iter().any(|line| line.starts_with(name)) { "" } else { says };
    format!("[{{{}, {more}}}]", said.join(", "))
}

#[test]
fn what_is_no_list_of_limits_is_refused() {
    for (text, expected) in [
        ("", "1:1: the file is empty (expected a list of limits, [] for none)"),
        ("domain: d\ndescriptors: []", "1:1: a mapping stands here (expected a list of limits)"),
        ("- 5", "1:3: `5` stands here (expected a mapping)"),
        (
            "apiVersion: v1\nkind: ConfigMap",
            "1:1: a Kubernetes manifest of the kind `ConfigMap` (expected rules alone: the text below `data`, in its own file)",
        ),
    ] {
        assert_eq!(refused(text), [expected], "{text}");
    }
}

#[test]
fn all_else_than_the_form_of_the_operator_is_refused_with_its_place() {
    let known = "expected namespace, max_value, seconds, name, id, conditions, variables";
    for (says, at, expected) in [
        ("namespace: ''", 14, "`namespace` is missing or empty (expected a text)"),
        ("max_value: -1", 28, "`max_value` is `-1` (expected a whole number from 0 to 9007199254740991)"),
        (
            "max_value: 9007199254740992",
            28,
            "`max_value` is `9007199254740992` (expected a whole number from 0 to 9007199254740991)",
        ),
        ("seconds: 0", 40, "`seconds` is `0` (expected a whole number from 1 to 31622400)"),
        ("seconds: 31622401", 40, "`seconds` is `31622401` (expected a whole number from 1 to 31622400)"),
        ("conditions: 5", 55, "`5` stands here (expected a list)"),
        ("max_values: 1", 74, &format!("unknown key `max_values` in a limit ({known})")),
        ("policy: deny", 74, &format!("unknown key `policy` in a limit ({known})")),
    ] {
        assert_eq!(refused(&with(says)), [format!("1:{at}: {expected}")], "{says}");
    }
}

#[test]
fn a_limit_that_is_too_large_for_the_algorithm_gets_one_that_can_count_it() {
    let sliding =
        "`max_value` is too large for sliding_window, so fixed_window counts (expected at most 4294967295)";
    let log = "`max_value` is too large for sliding_log, so sliding_window counts (expected at most 100000)";
    for (default, most, expected, warning) in [
        (Algorithm::SlidingWindow, 4_294_967_295_u64, Algorithm::SlidingWindow, None),
        (Algorithm::SlidingWindow, 4_294_967_296, Algorithm::FixedWindow, Some(sliding)),
        (Algorithm::FixedWindow, 4_294_967_296, Algorithm::FixedWindow, None),
        (Algorithm::SlidingLog, 100_001, Algorithm::SlidingWindow, Some(log)),
    ] {
        let text = with(&format!("max_value: {most}"));
        let loaded =
            load(&[file("a.yaml", &text)], &limits().default_algorithm(default)).expect("good limits");
        let limit = loaded.rules.rules()[0].limit.expect("a limit");
        assert_eq!((limit.algorithm(), limit.requests()), (expected, most));
        let warnings: Vec<_> = loaded.warnings.iter().map(|warning| &*warning.message).collect();
        assert_eq!(warnings, Vec::from_iter(warning));
    }
}

#[test]
fn an_expression_that_names_more_or_less_than_an_entry_is_refused() {
    let refuse = |name: &str, at: u32, expression: &str, form: &str| {
        let expected = format!(
            "1:{at}: `{expression}` in `{name}` (expected {form}, without quotes or backslashes inside)"
        );
        assert_eq!(refused(&with(&format!("{name}: ['{expression}']"))), [expected]);
    };
    for expression in [
        r#"descriptors[0]["a"] != "1""#,
        r#"descriptors[1]["a"] == "1""#,
        r#"descriptors[0]["a\n"] == "1""#,
        r#"descriptors[0]["a"] == "\n""#,
        r#"descriptors[0]["a"] == 1"#,
        r#"descriptors[0]["a"] == "1" || true"#,
        r#"descriptors[0]["a"] == "1""#.trim_end_matches('"'),
        r#"descriptors[0]["a"] == """1""""#,
        r#"descriptors[0]["a"]"#,
        r#"descriptors[0]["a"] == "1" && descriptors[0]["b"] == "1""#,
        "x == y",
    ] {
        refuse("conditions", 56, expression, r#"`descriptors[0]["KEY"] == "VALUE"`"#);
    }
    for expression in [
        "descriptors[0].",
        "descriptors[0].1a",
        "descriptors[0].a.b",
        "descriptors[0].a-b",
        r#"descriptors[0]["a"] == "1""#,
        r#"descriptors[0]["request.headers["x"]"]"#,
        r#"descriptors[0][""]"#,
        r#"descriptors[0]["a"].size()"#,
    ] {
        refuse("variables", 71, expression, r#"`descriptors[0]["KEY"]`"#);
    }
}

/// As Limitador's own pages write them. A limit is the same in every form.
#[test]
fn an_entry_may_be_named_in_three_ways() {
    let limit = |condition: &str, variable: &str| {
        let list = format!("conditions: [{condition:?}], variables: [{variable:?}]");
        written(&loaded(&format!("[{{namespace: n, max_value: 1, seconds: 9, {list}}}]")).rules)
    };
    for condition in
        [r#"descriptors[0]["a"] == "1""#, "descriptors[0]['a'] == '1'", " descriptors[0].a=='1' "]
    {
        for variable in [r#"descriptors[0]["b_2"]"#, "descriptors[0]['b_2']", " descriptors[0].b_2 "] {
            assert_eq!(limit(condition, variable), [r#"n.limit_9s if a == "1".b_2 : 1/9 seconds"#]);
        }
    }
}

#[test]
fn everything_that_is_wrong_is_reported_at_once() {
    let form = r#"(expected `descriptors[0]["KEY"]`, without quotes or backslashes inside)"#;
    assert_eq!(
        refused("- {namespace: n, seconds: x}\n- {variables: [a, [b]], max_value: 1, conditions: ~}\n"),
        [
            "1:3: `conditions` is missing (expected a list, [] for none)",
            "1:3: `max_value` is missing (expected a number)",
            "1:3: `variables` is missing (expected a list, [] for none)",
            "1:27: `seconds` is `x` (expected a whole number from 1 to 31622400)",
            "2:3: `namespace` is missing or empty (expected a text)",
            "2:3: `seconds` is missing (expected a number)",
            &format!("2:16: `a` in `variables` {form}"),
            &format!("2:19: a list in `variables` {form}"),
        ]
    );
}

#[test]
fn a_file_is_bounded() {
    let limit = |secs: usize| {
        format!("- {{namespace: n, max_value: 1, seconds: {secs}, conditions: [], variables: []}}\n")
    };
    let text = |count: usize| (1..=count).map(limit).collect::<String>();
    assert_eq!(loaded(&text(1_000)).rules.rules().len(), 1_000);
    let expected = "too many limits in one namespace (expected at most 1000)";
    assert_eq!(refused(&text(1_002)), ["1001", "1002"].map(|line| format!("{line}:3: {expected}")));
    let many = (0..32).map(|key| format!("'descriptors[0][\"{key}\"]'")).collect::<Vec<_>>().join(", ");
    assert_eq!(
        refused(&with(&format!("variables: [{many}]"))),
        ["1:2: too many `variables` (expected at most 31)"]
    );
}

#[test]
fn of_limits_that_count_the_same_the_smallest_holds() {
    let same = |most: u32| {
        format!("- {{namespace: n, max_value: {most}, seconds: 9, conditions: [], variables: []}}\n")
    };
    for order in [[3, 2, 5], [2, 3, 5], [5, 3, 2]] {
        let Loaded { rules, warnings } = loaded(&order.map(same).concat());
        assert_eq!(written(&rules), ["n.limit_9s : 2/9 seconds"]);
        assert_eq!(warnings.len(), 2);
        let expected = "a limit that counts the same is at 1:3 (expected one: the smaller `max_value` holds)";
        assert!(order[0] != 2 || warnings[0].message == expected, "{warnings:?}");
    }
}

#[test]
fn limits_whose_names_look_alike_count_apart() {
    let keys = ["'descriptors[0][\"a, b\"]'", "'descriptors[0][\"a\"]', 'descriptors[0][\"b\"]'"];
    let limit =
        |keys| format!("- {{namespace: n, max_value: 1, seconds: 9, conditions: [], variables: [{keys}]}}\n");
    let Loaded { rules, warnings } = loaded(&keys.map(limit).concat());
    assert_eq!(written(&rules), ["n.limit_9s.a, b : 1/9 seconds", "n.limit_9s.a.b : 1/9 seconds"]);
    assert_eq!(warnings, []);
}

/// A limit as a list of what it needs and counts by.
#[derive(Clone, Debug)]
struct Naive {
    namespace: &'static str,
    most: u64,
    secs: u64,
    conditions: Vec<(&'static str, &'static str)>,
    variables: Vec<&'static str>,
}

const NAMESPACES: [&str; 2] = ["shop/route", "bank"];
const KEYS: [&str; 4] = ["limit.a__1", "limit.b__2", "user", "limit"];
const VALUES: [&str; 3] = ["1", "2", "10s"];

impl Naive {
    fn random(random: &mut Random) -> Self {
        Self {
            namespace: random.pick(&NAMESPACES),
            most: random.below(6),
            secs: random.pick(&[10, 60]),
            conditions: (0..random.below(3)).map(|_| (random.pick(&KEYS), random.pick(&VALUES))).collect(),
            variables: (0..random.below(3)).map(|_| random.pick(&KEYS)).collect(),
        }
    }

    fn text(&self) -> String {
        let Self { namespace, most, secs, .. } = self;
        let conditions = self
            .conditions
            .iter()
            .map(|(key, value)| format!("  - descriptors[0][\"{key}\"] == \"{value}\"\n"));
        let variables = self.variables.iter().map(|key| format!("  - descriptors[0][\"{key}\"]\n"));
        format!(
            "- namespace: {namespace}\n  max_value: {most}\n  seconds: {secs}\n  conditions:\n{}  variables:\n{}",
            conditions.collect::<String>(),
            variables.collect::<String>()
        )
    }

    /// The name of the counter that a descriptor of these entries has. `None`: it does not meet the limit.
    fn counter(&self, namespace: &str, entries: &BTreeMap<&str, &str>) -> Option<String> {
        let met = self.conditions.iter().all(|(key, value)| entries.get(key) == Some(value));
        if self.namespace != namespace || !met {
            return None;
        }
        let sorted = |mut parts: Vec<String>| {
            parts.sort();
            parts.dedup();
            parts
        };
        let conditions = sorted(self.conditions.iter().map(|part| format!("{part:?}")).collect());
        let variables: Option<Vec<_>> =
            self.variables.iter().map(|key| Some(format!("{key:?} {:?}", entries.get(key)?))).collect();
        Some(format!("{namespace:?} {} {conditions:?} {:?}", self.secs, sorted(variables?)))
    }
}

fn passes(rules: &RuleSet, store: &MemoryStore, request: &Request<'_>) -> bool {
    let plan = rules.plan(&rules.asked(request), Modes::default());
    conclude(&plan, &store.apply(&plan, at(0.0))).code == Code::Ok
}

#[test]
fn a_request_meets_the_limits_that_a_naive_list_says_and_charges_all_or_none() {
    for seed in 0..500 {
        let mut random = Random(seed);
        let limits: Vec<_> = (0..1 + random.below(8)).map(|_| Naive::random(&mut random)).collect();
        let rules = loaded(&limits.iter().map(Naive::text).collect::<String>()).rules;
        let (store, mut counted) = (small_store(), HashMap::<String, u64>::new());
        for _ in 0..60 {
            let namespace = random.pick(&NAMESPACES);
            if !limits.iter().any(|limit| limit.namespace == namespace) {
                continue;
            }
            let entry = |random: &mut Random| (random.pick(&KEYS), random.pick(&VALUES));
            let entries: Vec<_> = (0..random.below(6)).map(|_| entry(&mut random)).collect();
            let hits = 1 + random.below(2);
            let mut request = Request::new(namespace, hits as u32);
            request
                .push(entries.iter().map(|&(key, value)| Entry { key, value }), DescriptorOptions::default());
            // Labels for metrics: they meet nothing.
            request.push([Entry { key: "limit.a__1", value: "1" }], DescriptorOptions::default());
            // The last of several entries with one key counts.
            let entries = entries.into_iter().collect();
            let met: Vec<_> = limits
                .iter()
                .filter_map(|limit| Some((limit.counter(namespace, &entries)?, limit.most)))
                .collect();
            let expected =
                met.iter().all(|(counter, most)| counted.get(counter).unwrap_or(&0) + hits <= *most);
            if expected {
                let mut counters: Vec<_> = met.into_iter().map(|(counter, _)| counter).collect();
                counters.sort();
                counters.dedup();
                counters.into_iter().for_each(|counter| *counted.entry(counter).or_default() += hits);
            }
            assert_eq!(passes(&rules, &store, &request), expected, "seed {seed}: {limits:#?} {request:?}");
        }
    }
}

#[test]
fn a_request_keeps_what_it_says_besides_entries_and_brings_no_limit_of_its_own() {
    let rules = loaded(WRITTEN).rules;
    let limit = Some(Override { requests_per_unit: 1_000, window: Window::of(Unit::Second) });
    let options = DescriptorOptions { hits_addend: Some(3), limit, ..DescriptorOptions::default() };
    let reservation = Reservation { id: "x", hits: 3, ttl_nanos: None, is_commit: false };
    let mut request = Request::new("shop/route", 0).with_reservation(reservation);
    request.push([Entry { key: "limit.all__1a2b", value: "1" }], options);
    let asked = rules.asked(&request);
    assert_eq!(
        (asked.domain(), asked.hits_addend(), asked.reservation()),
        ("shop/route", 0, Some(&reservation))
    );
    let expected = DescriptorOptions { limit: None, ..options };
    assert_eq!(asked.descriptors().map(|it| it.options).collect::<Vec<_>>(), [expected, expected]);
}

#[test]
fn other_domains_and_rules_of_ours_are_asked_the_same() {
    let same = |rules: &RuleSet, domain: &str| {
        let reservation = Reservation { id: "x", hits: 3, ttl_nanos: None, is_commit: true };
        let request = Request::new(domain, 7).descriptor(&[("a", "b"), ("c", "d")]).descriptor(&[("e", "f")]);
        let request = request.with_reservation(reservation);
        format!("{:?}", rules.asked(&request)) == format!("{request:?}")
    };
    let rules = loaded(WRITTEN).rules;
    assert!(rules.selects() && !same(&rules, "bank") && same(&rules, "unknown"));
    let others = crate::rules::loaded("domain: bank\ndescriptors: []").rules;
    assert!(!others.selects() && same(&others, "bank"));
}

/// A new `max_value`, another order and another name leave the counters as they are.
#[test]
fn counters_outlive_a_change_of_the_numbers() {
    let text = |most: u32, name: &str| {
        format!(
            "{{namespace: n, max_value: {most}, seconds: 60, name: {name}, conditions: [], variables: ['descriptors[0][\"user\"]']}}"
        )
    };
    let other = "{namespace: n, max_value: 9, seconds: 5, conditions: [], variables: []}";
    let before = loaded(&format!("[{}, {other}]", text(2, "a"))).rules;
    let after = loaded(&format!("[{other}, {}]", text(3, "b"))).rules;
    let (store, request) = (small_store(), Request::new("n", 1).descriptor(&[("user", "u")]));
    assert!(passes(&before, &store, &request) && passes(&before, &store, &request));
    assert!(!passes(&before, &store, &request));
    assert!(passes(&after, &store, &request) && !passes(&after, &store, &request));
}
