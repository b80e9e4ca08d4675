//! Files that load and do less than they seem to: what is warned of, and where; and what is not.

use tidegate_engine::rules::{ShardKey, load};

use crate::rules::{file, loaded, options};

/// The warnings of one file: `line:column: message`.
fn warned(text: &str) -> Vec<String> {
    loaded(text).warnings.iter().map(|warning| warning.to_string().replacen("a.yaml:", "", 1)).collect()
}

fn check(text: &str, expected: &[&str]) {
    assert_eq!(warned(text), expected, "{text}");
}

/// A file with nodes in flow style, the first of which stands at 3:3. `LIMIT` stands for a limit.
fn nodes(says: &str) -> String {
    let lines = says.lines().map(|line| format!("- {{{line}}}\n"));
    let text = lines.fold("domain: d\ndescriptors:\n".to_owned(), |text, line| text + &line);
    text.replace("LIMIT", "rate_limit: {unit: day, requests_per_unit: 1}")
}

const LITERAL_REGEX: &str = "`value` is spelt like a regular expression and taken literally, but for `*` (expected a text, in \
                             which each `*` matches any characters, or `{regex: …}`)";
const LITERAL_RANGE: &str = "`value` is spelt like an address range and taken literally (expected `{cidr: …}`, an address, \
                             or the key `masked_remote_address`)";
const IDLE: &str = "a key that limits nothing (expected `rate_limit` or `descriptors`)";

#[test]
fn a_key_twice_in_metadata_is_warned_of_and_the_last_one_counts() {
    let text = nodes("key: k, LIMIT, metadata: {a: 1, a: 2, b: {c: [{d: 1, d: 3}]}}");
    check(
        &text,
        &[
            "3:76: `a` twice in one mapping: the last one counts (expected once; it is at 3:70 too)",
            "3:97: `d` twice in one mapping: the last one counts (expected once; it is at 3:91 too)",
        ],
    );
    let metadata = loaded(&text).rules.rules()[0].metadata.clone();
    assert_eq!(metadata, serde_json::json!({"a": 2, "b": {"c": [{"d": 3}]}}));
    let strict = load(&[file("a.yaml", text)], &options().strict(true));
    assert_eq!(strict.map(drop).expect_err("it is strict").len(), 2);
}

#[test]
fn a_candidate_that_tries_nothing_is_warned_of() {
    let limit =
        |says: &str| nodes(&format!("key: k, rate_limit: {{unit: day, requests_per_unit: 5, {says}}}"));
    let same = "`candidate` has the numbers of its own limit (expected others, or no candidate)";
    check(&limit("candidate: {requests_per_unit: 5}"), &[&format!("3:69: {same}")]);
    check(&limit("candidate: {requests_per_unit: 6}"), &[]);
    check(&limit("candidate: ~"), &[]);
    let bucket = |says: &str| limit(&format!("algorithm: token_bucket, {says}"));
    check(&bucket("candidate: {burst: 5}"), &[&format!("3:94: {same}")]);
    check(&bucket("burst: 9, candidate: {requests_per_unit: 6}"), &[]);
    let beside = nodes("key: k, LIMIT, candidate: {requests_per_unit: 6}");
    check(&beside, &["3:59: `candidate` is ignored here (expected inside `rate_limit`)"]);
}

#[test]
fn a_class_that_may_use_no_hit_is_warned_of() {
    let classes = |limit: &str, low: &str| {
        let classes = format!("classes: {{key: c, shares: {{top: 1, low: {low}}}}}");
        warned(&format!(
            "domain: d\ndescriptors:\n- key: k\n  rate_limit: {{unit: day, {limit}}}\n  {classes}\n"
        ))
    };
    let nothing = |share: &str, of: u32| {
        let what = "which is no hit, so all of its requests are denied (expected a larger share)";
        [format!("5:43: the class `low` may use {share} of {of}, {what}")]
    };
    assert_eq!(classes("requests_per_unit: 3", "0.33"), nothing("0.33", 3));
    assert!(classes("requests_per_unit: 3", "0.333334").is_empty());
    // In a bucket the shares are those of `burst`.
    let bucket = "requests_per_unit: 100, algorithm: token_bucket, burst: 2";
    assert_eq!(classes(bucket, "0.1"), nothing("0.1", 2));
    // Nothing is for anybody, or each key has its own number.
    assert!(classes("requests_per_unit: 0", "0.5").is_empty());
    let with_records = "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 1}, \
                        limits_from: store, classes: {key: c, shares: {low: 0.5}}}";
    assert!(warned(with_records).is_empty());
}

/// A candidate is its limit with other numbers, as if they were written there.
#[test]
fn a_candidate_has_the_numbers_of_its_limit_but_for_its_own() {
    let numbers = |says: &str| {
        let limit = format!("unit: day, requests_per_unit: 5, algorithm: token_bucket, {says}");
        let rules = loaded(&nodes(&format!("key: k, rate_limit: {{{limit}}}"))).rules;
        let candidate = rules.rules()[0].candidate.as_deref().expect("a candidate").limit;
        (candidate.requests(), candidate.burst())
    };
    assert_eq!(numbers("candidate: {requests_per_unit: 6}"), (6, 6));
    assert_eq!(numbers("burst: 9, candidate: {requests_per_unit: 6}"), (6, 9));
    assert_eq!(numbers("burst: 9, candidate: {burst: 3}"), (5, 3));
    assert_eq!(numbers("candidate: {requests_per_unit: 6, burst: 2}"), (6, 2));
}

#[test]
fn values_that_look_like_patterns_of_another_kind_are_warned_of() {
    let regex = |at: &str| format!("{at}: {LITERAL_REGEX}");
    check(&nodes("key: path, value: '^/api', LIMIT"), &[&regex("3:22")]);
    check(&nodes("key: path, value: '/api/.*', LIMIT"), &[&regex("3:22")]);
    check(&nodes("key: a, descriptors: [{key: id, value: '[0-9]+', LIMIT}]"), &[&regex("3:43")]);
    check(&nodes("key: remote_address, value: 10.0.0.0/8, LIMIT"), &[&format!("3:32: {LITERAL_RANGE}")]);
    check(&nodes("key: masked_remote_address, value: 10.0.0.0/8, LIMIT"), &[]);
    check(&nodes("key: path, value: /api/*, LIMIT\nkey: host, value: '*.example.com', LIMIT"), &[]);
}

/// A value that `rate_limits` make themselves is no mistake.
#[test]
fn values_that_the_domains_rate_limits_bring_are_not_warned_of() {
    let text = nodes("key: net, value: 10.0.0.0/8, LIMIT\nkey: header_match, value: ^a, LIMIT");
    assert_eq!(warned(&text).len(), 2);
    let brought = "rate_limits:
- actions: [{generic_key: {descriptor_key: net, descriptor_value: 10.0.0.0/8}}]
- actions: [{header_value_match: {descriptor_value: ^a, headers: [{name: x, present_match: true}]}}]
";
    check(&(text.clone() + brought), &[]);
    let merging = options().merge_domains(true);
    let files = [file("a.yaml", text), file("b.yaml", format!("domain: d\n{brought}"))];
    assert_eq!(load(&files, &merging).expect("good").warnings, []);
}

#[test]
fn texts_that_nobody_means_are_warned_of() {
    check(
        &nodes("key: 'a\u{a0}b', value: '${USER}', LIMIT\nkey: k, value: '{{ .x }}', LIMIT"),
        &[
            "3:9: `key` is `a\\u{a0}b`, with U+00A0 (no-break space) in it (expected visible characters)",
            "3:23: `value` is `${USER}`, a template that was not rendered (expected its result)",
            "4:19: `value` is `{{ .x }}`, a template that was not rendered (expected its result)",
        ],
    );
}

#[test]
fn nodes_that_no_value_leads_to_are_warned_of() {
    let by = |at: &str, place: &str| {
        format!(
            "{at}: no value leads here: the pattern at a.yaml:{place} takes them all (expected the narrower one first)"
        )
    };
    check(
        &nodes(
            "key: k, value: a*, LIMIT\nkey: k, value: a*b*, LIMIT\nkey: k, value: ab, LIMIT\nkey: j, value: aa*, LIMIT",
        ),
        &[&by("4:9", "3:9")],
    );
    check(&nodes("key: k, LIMIT\nkey: k, value: '*', LIMIT"), &[&by("3:9", "4:9")]);
    check(&nodes("key: k, value: a*b*, LIMIT\nkey: k, value: a*, LIMIT\nkey: k, LIMIT"), &[]);
    check(&nodes("key: k, value: '*a*', LIMIT\nkey: k, value: '*b*a', LIMIT"), &[&by("4:9", "3:9")]);
    check(&nodes("key: k, value: 'a*a', LIMIT\nkey: k, value: 'a*', LIMIT\nkey: k, value: '*a', LIMIT"), &[]);
}

/// Envoy Gateway's names end in the host, which is `*` where a route has none.
#[test]
fn a_star_in_a_key_that_is_its_value_too_is_a_name() {
    check(&nodes("key: 'route/0/*', value: 'route/0/*', LIMIT"), &[]);
    let star = "3:9: `*` in the key `route/0/*` is an ordinary character (expected wildcards in `value`)";
    check(&nodes("key: 'route/0/*', value: 'route/*', LIMIT"), &[star]);
}

#[test]
fn nodes_without_effect_are_warned_of_and_exceptions_are_not() {
    check(&nodes("key: k"), &[&format!("3:9: {IDLE}")]);
    check(&nodes("key: k, value: a, LIMIT\nkey: k, value: b"), &[&format!("4:9: {IDLE}")]);
    check(&nodes("key: k, value: a\nkey: k, LIMIT"), &[]);
    check(&nodes("key: k, value: ab\nkey: k, value: a*, LIMIT"), &[]);
    check(&nodes("key: k, value: ab*\nkey: k, value: a*, LIMIT"), &[]);
    check(
        &nodes("key: k, shadow_mode: true, metadata: {a: 1}, descriptors: [{key: l, LIMIT}]"),
        &[
            "3:9: `metadata` has no effect beside a key without `rate_limit`: the nodes below do not inherit it \
             (expected beside each `rate_limit` that it is for)",
            "3:9: `shadow_mode` has no effect beside a key without `rate_limit`: the nodes below do not inherit it \
             (expected beside each `rate_limit` that it is for)",
        ],
    );
    // What Envoy Gateway sends: a flag on each level.
    check(
        &nodes(
            "key: k, shadow_mode: true, descriptors: [{key: l, descriptors: [{key: m, LIMIT, shadow_mode: true}]}]",
        ),
        &[],
    );
    check(
        &nodes("key: k, quota_mode: true, descriptors: [{key: l, LIMIT, quota_mode: true}, {key: m, LIMIT}]"),
        &[
            "3:9: `quota_mode` has no effect beside a key without `rate_limit`: the nodes below do not inherit it \
           (expected beside each `rate_limit` that it is for)",
        ],
    );
    check("domain: d\n", &["1:9: the domain `d` limits nothing (expected `descriptors`)"]);
    check(
        &nodes(
            "key: k, rate_limit: {unlimited: true, name: a, replaces: [{name: b}]}\nkey: l, rate_limit: {unlimited: true, name: c}",
        ),
        &["3:69: no limit of this domain has the name `b` (expected the `name` of one)"],
    );
}

/// A bound on calls in flight is a limit as any other, in the same node or alone.
#[test]
fn of_bounds_on_calls_nothing_is_warned() {
    let slots = "concurrency: {slots: 1, ttl: 1s, id: i, name: calls}";
    let rate = "rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: calls}]}";
    for more in ["", ", LIMIT"] {
        let nodes = nodes(&format!(
            "key: k, shadow_mode: true, {slots}{more}, descriptors: [{{key: m, LIMIT}}]\nkey: l, {rate}"
        ));
        check(
            &(nodes + "rate_limits: [{actions: [{request_headers: {header_name: k, descriptor_key: k}}]}]\n"),
            &[],
        );
    }
}

/// A refused part is reported; what would follow from it is not.
#[test]
fn where_something_is_refused_nothing_else_is_warned_of() {
    let places = |text: &str| {
        let strict = options().strict(true);
        let errors = load(&[file("a.yaml", text)], &strict).map(drop).expect_err("it does not load");
        errors.iter().map(|error| (error.line, error.column)).collect::<Vec<_>>()
    };
    assert_eq!(places(&nodes("key: k, rate_limit: {unit: days, requests_per_unit: 1}")), [(3, 31)]);
    assert_eq!(places(&nodes("key: k\nkey: ''")), [(4, 9)]);
}

#[test]
fn a_limit_one_level_out_is_one_warning() {
    check(
        "domain: d\ndescriptors:\n- key: k\n  rate_limit:\n  unit: day\n  requests_per_unit: 5\n",
        &[
            "5:3: `unit`, `requests_per_unit` are ignored here, and nothing is limited (expected below `rate_limit:`, \
           further to the right)",
        ],
    );
    check(
        "domain: d\nrate_limit: {unit: day, requests_per_unit: 5}\n",
        &[
            "2:1: `rate_limit` is ignored here, and limits nothing (expected in a descriptor, next to its `key`)",
        ],
    );
}

#[test]
fn rate_limits_that_meet_no_limit_are_warned_of() {
    let with = |actions: &str| {
        "rate_limits:\n".to_owned()
            + &actions.lines().map(|line| format!("- actions: [{line}]\n")).collect::<String>()
            + &nodes(
                "key: path, value: /a*, LIMIT\nkey: ip, descriptors: [{key: user, LIMIT}]\nkey: kind, value: b, LIMIT",
            )
    };
    let header = |key: &str, skip: bool| {
        format!("{{request_headers: {{header_name: x, descriptor_key: {key}, skip_if_absent: {skip}}}}}")
    };
    let generic =
        |value: &str| format!("{{generic_key: {{descriptor_key: kind, descriptor_value: {value}}}}}");
    let line = |at: &str, keys: &str| {
        format!("{at}: the descriptor `{keys}` meets no limit (expected `descriptors` with these keys)")
    };
    let (path, user, ip) = (header("path", false), header("user", false), header("ip", false));
    check(&with(&format!("{path}\n{ip}, {user}\n{}", generic("b"))), &[]);
    check(
        &with(&format!("{user}\n{ip}\n{ip}, {user}, {path}\n{}", generic("c"))),
        &[&line("2:3", "user"), &line("3:3", "ip"), &line("4:3", "ip, user, path"), &line("5:3", "kind")],
    );
    // Actions that may be left out make a shorter descriptor.
    check(&with(&format!("{}, {path}\n{ip}, {user}, {}", header("x", true), header("y", true))), &[]);
}

#[test]
fn values_that_no_path_has_are_warned_of_where_a_key_holds_paths_alone() {
    let action = |header: &str, key: &str| {
        format!("- actions: [{{request_headers: {{header_name: '{header}', descriptor_key: {key}}}}}]\n")
    };
    let path = action(":path", "path");
    let warned = |before: &str, value: &str| {
        warned(&(nodes(&format!("key: path, value: '{value}', LIMIT\nkey: k, LIMIT")) + before))
    };
    let brought = format!("rate_limits:\n{path}");
    for value in [
        "//login",
        "/a/../b",
        "/%6Cogin",
        "/login/.",
        "/caf\u{e9}",
        "/a b",
        "//login?x=1",
        "http://host/login",
        "//*",
        "/a/../*",
        "/%6C*",
        "/a//b*c",
        "http://*",
    ] {
        let expected = format!(
            "3:22: `value` is `{value}`, which matches no `:path` in its normal form, and `rate_limits` fill this key \
             with nothing else (expected the normal form, or `normalize_path: false` beside `rate_limits`)"
        );
        assert_eq!(warned(&brought, value), [expected]);
    }
    for value in [
        "/login",
        "/login/",
        "/",
        "/*",
        "*",
        "*//x",
        "/a?b=//../%6c",
        "/a%20b",
        "/login%2f",
        "/.*well-known",
        "/a..*",
        "/%*",
        "/%6*",
        "/a/%2*",
        "/login*//x",
        "host:443",
    ] {
        let warnings = warned(&brought, value);
        assert!(!warnings.iter().any(|warning| warning.contains("normal form")), "{value}: {warnings:?}");
    }
    // Another action that fills the key may make the value; and if none fills it, clients do.
    for others in [
        format!("{brought}{}", action("x-path", "path")),
        format!(
            "{brought}- actions: [{{generic_key: {{descriptor_key: path, descriptor_value: //login}}}}]\n"
        ),
        format!("rate_limits:\n{}", action(":path", "k")),
        format!("normalize_path: false\n{brought}"),
        String::new(),
    ] {
        assert_eq!(warned(&others, "//login"), [""; 0], "{others}");
    }
    // A value with another problem is reported once.
    assert_eq!(warned(&brought, "/a\\.b").len(), 1);
    // Files of one domain count together.
    let merging = options().merge_domains(true);
    let files = |raw: &str| {
        let rules = nodes("key: path, value: //login, LIMIT");
        [file("a.yaml", rules), file("b.yaml", format!("domain: d\n{raw}{brought}"))]
    };
    let warnings = |raw| load(&files(raw), &merging).expect("good").warnings.len();
    assert_eq!((warnings(""), warnings("normalize_path: false\n")), (1, 0));
}

/// The time grows with the number of rules, not with its square.
#[test]
#[allow(clippy::disallowed_methods, reason = "how long it takes is what is tested")]
fn many_patterns_take_no_time() {
    let lines: String = (0..20_000).map(|at| format!("key: k, value: 'a{at}b*', LIMIT\n")).collect();
    let began = std::time::Instant::now();
    check(
        &nodes(&(lines + "key: k, value: 'a17b*c', LIMIT")),
        &[
            "20003:9: no value leads here: the pattern at a.yaml:20:9 takes them all (expected the narrower one first)",
        ],
    );
    assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
}

const SPREAD: &str = "requests with different values of `user` share a counter of this limit, and every node counts it \
                      by itself (expected the key `user` in its path, without `share_threshold`)";

#[test]
fn limits_that_several_nodes_would_count_are_warned_of_or_refused() {
    let text = nodes(
        "key: user, LIMIT\n\
         key: plan, LIMIT\n\
         key: plan, value: gold, descriptors: [{key: user, value: a*, LIMIT}]\n\
         key: user, value: b*, share_threshold: true, LIMIT\n\
         key: user, value: alice, descriptors: [{key: path, LIMIT}]\n\
         key: free, rate_limit: {unlimited: true}",
    );
    let files = [file("a.yaml", text)];
    let by_user = |is_required| options().shard_key(Some(ShardKey { key: "user".into(), is_required }));
    let at = |line| format!("a.yaml:{line}:9: {SPREAD}");
    let loaded = load(&files, &by_user(false)).expect("it only warns");
    assert_eq!(loaded.warnings.iter().map(ToString::to_string).collect::<Vec<_>>(), [at(4), at(6)]);
    let refused = load(&files, &by_user(true)).map(drop).expect_err("it refuses");
    assert_eq!(refused.iter().map(ToString::to_string).collect::<Vec<_>>(), [at(4), at(6)]);
    assert_eq!(load(&files, &options()).expect("one node").warnings, []);
}
