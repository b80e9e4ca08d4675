//! Files that do not load: what is reported, and where. One row for each way in which a file can be bad.

use std::time::{Duration, Instant};

use tidegate_engine::rules::{LoadOptions, load};

use crate::rules::{file, options, refused};

/// Checks the problems of a file.
fn check(text: impl AsRef<[u8]>, expected: &[&str]) {
    assert_eq!(refused(text.as_ref()), expected, "{}", String::from_utf8_lossy(text.as_ref()));
}

/// A file with one node that says this; it begins at 4:1.
fn node(says: &str) -> String {
    let lines = says.lines().map(|line| format!("  {line}\n"));
    lines.fold("domain: d\ndescriptors:\n- key: k\n".to_owned(), |text, line| text + &line)
}

/// A file with one `rate_limit` that says this; it begins at 5:5.
fn limit(says: &str) -> String {
    let lines = says.lines().map(|line| format!("  {line}\n"));
    node(&lines.fold("rate_limit:\n".to_owned(), |text, line| text + &line))
}

/// A file with five requests a minute and this; it begins at 7:5.
fn five(says: &str) -> String {
    limit(&format!("unit: minute\nrequests_per_unit: 5\n{says}"))
}

#[test]
fn what_is_no_yaml() {
    check(
        "domain: d\n\tdescriptors: []",
        &["1:9: not YAML: while scanning a plain scalar, found a tab (expected YAML)"],
    );
    check("domain: d\ndescriptors: [", &["2:14: not YAML: unclosed bracket '[' (expected YAML)"]);
    check(
        "domain: &a [*a]",
        &["1:13: alias of a value that contains it (expected a value that ends before it)"],
    );
    check("domain: d\0", &["1:10: control character U+0000 (expected printable text)"]);
    check(
        b"domain: d\nx: \xFF",
        &["2:4: byte 0xFF is not UTF-8 (expected UTF-8, or UTF-16 with a byte order mark)"],
    );
}

#[test]
fn what_is_no_mapping() {
    let empty = "1:1: the file is empty (expected `domain` and `descriptors`)";
    check("", &[empty]);
    check("# nothing\n", &[empty]);
    check("---\n", &["1:4: nothing stands here (expected a mapping)"]);
    check("[]", &["1:1: a list stands here (expected a mapping)"]);
    check("text", &["1:1: `text` stands here (expected a mapping)"]);
    check("domain: d\ndescriptors: 5", &["2:14: `5` stands here (expected a list)"]);
    check("domain: d\ndescriptors: {key: a}", &["2:14: a mapping stands here (expected a list)"]);
    check(
        "domain: d\ndescriptors:\n- 5\n- [a]\n-\n",
        &[
            "3:3: `5` stands here (expected a mapping)",
            "4:3: a list stands here (expected a mapping)",
            "5:2: nothing stands here (expected a mapping)",
        ],
    );
    check(node("rate_limit: 5"), &["4:15: `5` stands here (expected a mapping)"]);
    check(node("metadata: 5"), &["4:13: `5` stands here (expected a mapping)"]);
    check(five("replaces: [a]"), &["7:16: `a` stands here (expected a mapping)"]);
    check(five("replaces: {name: a}"), &["7:15: a mapping stands here (expected a list)"]);
    check("domain: d\n<<: 5", &["2:5: `5` stands here (expected a mapping or a list of mappings to merge)"]);
    check("domain: d\n<<: [5]", &["2:6: `5` stands here (expected a mapping to merge)"]);
}

#[test]
fn what_is_no_key() {
    check(
        "domain: d\nfoo: 1\nrate_limist: []\n? [a]\n: 1\n",
        &[
            "2:1: unknown key `foo` (expected a known key; the closest is `key`)",
            "3:1: unknown key `rate_limist` (expected a known key; the closest is `rate_limit`)",
            "4:3: a list stands here (expected a key)",
        ],
    );
    check(
        node("shadow_mod: true"),
        &["4:3: unknown key `shadow_mod` (expected a known key; the closest is `shadow_mode`)"],
    );
    check("domain: d\ndomain: e", &["2:1: `domain` twice in one mapping (expected once; it is at 1:1 too)"]);
    check(node("key: again"), &["4:3: `key` twice in one mapping (expected once; it is at 3:3 too)"]);
}

#[test]
fn what_is_no_value() {
    let missing = |place: &str, key: &str| format!("{place}: `{key}` is missing or empty (expected a text)");
    check("domain: ''", &[&missing("1:9", "domain")]);
    check("domain:\n", &[&missing("1:7", "domain")]);
    check("descriptors: []", &[&missing("1:1", "domain")]);
    check("domain: [a]", &["1:9: `domain` is a collection (expected a scalar)"]);
    check(
        "domain: d\ndescriptors: [{key: ''}, {value: x}]",
        &[&missing("2:21", "key"), &missing("2:26", "key")],
    );
    check(node("shadow_mode: maybe"), &["4:16: `shadow_mode` is `maybe` (expected true or false)"]);
    check(node("quota_mode: 'true'"), &["4:15: `quota_mode` is the text `true` (expected true or false)"]);
    check(node("value: [a]"), &["4:10: `value` is a collection (expected a scalar)"]);
    let shared = |place: &str| {
        format!(
            "{place}: `share_threshold` without a pattern (expected `*`, `in`, `cidr`, `cidr_file` or `regex` in `value`)"
        )
    };
    check(node("share_threshold: true"), &[&shared("4:20")]);
    check(node("value: abc\nshare_threshold: true"), &[&shared("5:20")]);
}

#[test]
fn what_is_no_limit() {
    let requests = "`requests_per_unit` is missing (expected a whole number)";
    let window = "no window (expected `unit`, `window`, `period` or `unlimited: true`)";
    check(node("rate_limit: {}"), &[&format!("4:15: {requests}"), &format!("4:15: {window}")]);
    check(limit("unit: minute"), &[&format!("5:5: {requests}")]);
    check(limit("requests_per_unit: 1"), &[&format!("5:5: {window}")]);
    check(
        limit("unit: fortnight\nrequests_per_unit: 1"),
        &["5:11: `unit` is `fortnight` (expected second, minute, hour, day, week, month, year)"],
    );
    let large = "; with `period` or fixed_window to 9007199254740991";
    for (number, text, more) in [
        ("-1", "`-1`", ""),
        ("4294967296", "`4294967296`", large),
        ("9007199254740992", "`9007199254740992`", ""),
        ("'5'", "the text `5`", ""),
    ] {
        check(
            limit(&format!("unit: minute\nrequests_per_unit: {number}")),
            &[&format!(
                "6:24: `requests_per_unit` is {text} (expected a whole number from 0 to 4294967295{more})"
            )],
        );
    }
    check(
        limit("unit: minute\nalgorithm: fixed_window\nrequests_per_unit: 9007199254740992"),
        &[
            "7:24: `requests_per_unit` is `9007199254740992` (expected a whole number from 0 to 9007199254740991)",
        ],
    );
    for name in ["unit: minute", "window: 5s", "unit_multiplier: 2"] {
        let key = name.split(':').next().unwrap();
        let at = format!("6:{}", 7 + key.len());
        check(
            limit(&format!("unlimited: true\n{name}")),
            &[&format!("{at}: `{key}` with `unlimited: true` (expected one of the two)")],
        );
    }
}

#[test]
fn windows_that_are_none() {
    check(five("window: 5s"), &["5:11: `unit` with `window` (expected one of the two)"]);
    check(
        limit("window: 5s\nunit_multiplier: 2\nrequests_per_unit: 1"),
        &["6:22: `unit_multiplier` with `window` (expected one of the two)"],
    );
    check(
        five("unit_multiplier: 0"),
        &["7:22: `unit_multiplier` is `0` (expected a whole number from 1 to 4294967295)"],
    );
    check(
        five("unit_multiplier: 527041"),
        &["7:22: a window of 31622460 seconds (expected 1 second to 366 days)"],
    );
    for (window, message) in [
        ("500ms", "`window` is `500ms` (expected whole seconds, such as `90s`, `5m` or `1h30m`)"),
        ("soon", "`window` is `soon` (expected whole seconds, such as `90s`, `5m` or `1h30m`)"),
        ("0s", "a window of 0 seconds (expected 1 second to 366 days)"),
        ("8785h", "a window of 31626000 seconds (expected 1 second to 366 days)"),
    ] {
        check(limit(&format!("window: {window}\nrequests_per_unit: 1")), &[&format!("5:13: {message}")]);
    }
}

#[test]
fn parts_that_do_not_go_together() {
    check(
        five("name: a\nreplaces: [{name: ''}, {name: a}]"),
        &[
            "8:23: `name` is missing or empty (expected a text)",
            "8:35: a limit that replaces itself, `a` (expected the name of another limit)",
        ],
    );
    for (granularity, message) in [
        ("0s", "`granularity` is `0s` (expected a time above 0, such as `1s` or `500ms`)"),
        ("5", "`granularity` is `5` (expected a time above 0, such as `1s` or `500ms`)"),
        ("61s", "`granularity` is `61s` (expected no more than the window)"),
        ("16ms", "`granularity` is `16ms` (expected at least 1/3600 of the window)"),
        ("1s\nalgorithm: sliding_log", "`granularity` on sliding_log (expected `algorithm: sliding_window`)"),
    ] {
        check(five(&format!("granularity: {granularity}")), &[&format!("7:18: {message}")]);
    }
    check(five("burst: 5"), &["7:12: `burst` on sliding_window (expected token_bucket or leaky_bucket)"]);
    check(
        five("burst: 0\nalgorithm: token_bucket"),
        &["7:12: `burst` is `0` (expected a whole number from 1 to 4294967295)"],
    );
    check(
        limit("unit: year\nrequests_per_unit: 1\nalgorithm: leaky_bucket\nburst: 4000000000"),
        &["8:12: a `burst` of 4000000000 takes over 500 years to refill (expected a smaller one)"],
    );
    check(
        limit("unit: minute\nrequests_per_unit: 100001\nalgorithm: sliding_log"),
        &["6:24: 100001 requests with sliding_log (expected at most 100000, or sliding_window)"],
    );
    check(
        five("sync: leased\nalgorithm: fixed_window"),
        &[
            "7:11: `sync: leased` on fixed_window (expected sliding_window or sliding_log, the strict algorithms)",
        ],
    );
}

#[test]
fn candidates_that_are_none() {
    check(five("candidate: 4"), &["7:16: `4` stands here (expected a mapping)"]);
    check(
        five("candidate: {}"),
        &["7:16: `candidate` without numbers (expected `requests_per_unit`, `burst` or both)"],
    );
    check(
        five("candidate: {unit: hour, requests_per_unit: -1}"),
        &[
            "7:17: unknown key `unit` (expected requests_per_unit, burst; all else is as in `rate_limit`)",
            "7:48: `requests_per_unit` is `-1` (expected a whole number from 0 to 4294967295)",
        ],
    );
    check(
        five("candidate: {burst: 4}"),
        &["7:24: `burst` on sliding_window (expected token_bucket or leaky_bucket)"],
    );
    check(
        five("algorithm: sliding_log\ncandidate: {requests_per_unit: 100001}"),
        &["8:36: 100001 requests with sliding_log (expected at most 100000, or sliding_window)"],
    );
    check(
        limit("unlimited: true\ncandidate: {requests_per_unit: 1}"),
        &[
            "6:16: `candidate` with `unlimited: true` (expected a limit in `shadow_mode`, which denies nothing either)",
        ],
    );
}

#[test]
fn words_that_are_none() {
    let algorithms =
        "sliding_log, sliding_window, sliding_window_weighted, fixed_window, token_bucket, leaky_bucket";
    for (key, at, words) in [
        ("algorithm", "7:16", algorithms),
        ("sync", "7:11", "strict, leased"),
        ("on_store_failure", "7:23", "error, deny, allow, local"),
        ("cost", "7:11", "auto, reported, asked"),
    ] {
        check(five(&format!("{key}: magic")), &[&format!("{at}: `{key}` is `magic` (expected {words})")]);
    }
}

#[test]
fn shares_that_are_none() {
    let expected = "(expected a share above 0 and up to 1, such as 0.8)";
    for near in ["0", "-0.5", "1.1", "80%", "much"] {
        check(five(&format!("near: {near}")), &[&format!("7:11: `near` is `{near}` {expected}")]);
    }
    check(five("near: \"0.8\""), &[&format!("7:11: `near` is the text `0.8` {expected}")]);
}

/// Usual mistakes, each reported once, in words that help.
#[test]
fn what_people_often_mean() {
    let rate = |number: &str, same: &str| {
        check(
            limit(&format!("unit: minute\nrequests_per_unit: {number}")),
            &[&format!(
                "6:24: `requests_per_unit` is `{number}` (expected a whole number from 0 to 4294967295; {same} is the \
                 same rate)"
            )],
        );
    };
    rate("0.5", "`requests_per_unit: 1` with `unit_multiplier: 2`");
    rate("1.5", "`requests_per_unit: 3` with `unit_multiplier: 2`");
    let template =
        |at: &str, what: &str| format!("{at}: {what}a template that was not rendered (expected its result)");
    for (text, at, what) in [
        (limit("unit: minute\nrequests_per_unit: ${LIMIT}"), "6:24", "`requests_per_unit` is `${LIMIT}`, "),
        (limit("unit: minute\nrequests_per_unit: {{ .Values.limit }}"), "6:24", "`requests_per_unit` is "),
        (
            limit("unit: minute\nrequests_per_unit: '{{ .limit }}'"),
            "6:24",
            "`requests_per_unit` is `{{ .limit }}`, ",
        ),
        (limit("unit: ${UNIT}\nrequests_per_unit: 1"), "5:11", "`unit` is `${UNIT}`, "),
        (node("shadow_mode: ${SHADOW}"), "4:16", "`shadow_mode` is `${SHADOW}`, "),
        ("domain: d\n{{- if .Values.rules }}\ndescriptors:\n".to_owned(), "2:1", "`{{` begins "),
        ("domain: d\ndescriptors:\n{{ .Values.rules }}\n".to_owned(), "3:1", "`{{` begins "),
    ] {
        check(text, &[&template(at, what)]);
    }
    check(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: rules}\ndata:\n  shop.yaml: |\n    domain: shop\n",
        &[
            "1:1: a Kubernetes manifest of the kind `ConfigMap` (expected rules alone: the text below `data`, in its own file)",
        ],
    );
    let glued = |at: &str, word: &str, key: &str| {
        format!("{at}: `{word}` has no space after its colon (expected `{key}: …`)")
    };
    check("domain:shop\n", &[&glued("1:1", "domain:shop", "domain")]);
    check("domain:shop\ndescriptors: []\n", &[&glued("1:1", "domain:shop", "domain")]);
    check("domain: d\ndescriptors:\n- key: user\n  value:alice\n", &[&glued("4:3", "value:alice", "value")]);
    check("domain: d\ndescriptors:\n- key:user\n", &[&glued("3:3", "key:user", "key")]);
    check(limit("unit:minute\nrequests_per_unit: 5"), &[&glued("5:5", "unit:minute", "unit")]);
    check(
        "domain: d\n\u{a0}descriptors: []\n",
        &[
            "2:1: what stands here is `\\u{a0}descriptors`, with U+00A0 (no-break space) in it (expected visible characters)",
        ],
    );
    check(
        "domain:\u{a0}shop\ndescriptors: []\n",
        &["1:8: U+00A0 (no-break space) stands here (expected a plain space, or nothing)"],
    );
    let alias = |at: &str, word: &str| {
        format!(
            "{at}: `{word}` begins a YAML alias here (expected it in quotes: a `*` that is a wildcard needs them)"
        )
    };
    check(node("value: *"), &[&alias("4:10", "*")]);
    check(node("value: *.example.com"), &[&alias("4:10", "*.example.com")]);
    check("domain: d\ndescriptors: [{key: k, value: *}]", &[&alias("2:31", "*")]);
    check("domain: *x", &[&alias("1:9", "*x")]);
    let units = "second, minute, hour, day, week, month, year";
    for (unit, hint) in [
        ("minutes", "the closest is `minute`"),
        ("Min", "the closest is `minute`"),
        ("30s", "`window: 30s` says a time"),
    ] {
        let message = format!("5:11: `unit` is `{unit}` (expected {units}; {hint})");
        check(limit(&format!("unit: {unit}\nrequests_per_unit: 1")), &[&message]);
    }
    let algorithms =
        "sliding_log, sliding_window, sliding_window_weighted, fixed_window, token_bucket, leaky_bucket";
    for (algorithm, closest) in
        [("token-bucket", "token_bucket"), ("fixed", "fixed_window"), ("slidingwindow", "sliding_window")]
    {
        let message =
            format!("7:16: `algorithm` is `{algorithm}` (expected {algorithms}; the closest is `{closest}`)");
        check(five(&format!("algorithm: {algorithm}")), &[&message]);
    }
    check(
        node("\"\\e[2K\": 1"),
        &["4:3: unknown key `\\u{1b}[2K` (expected a known key; the closest is `key`)"],
    );
}

#[test]
fn equal_nodes() {
    check(
        "domain: d\ndescriptors:\n- key: a\n  value: b\n- key: a\n  value: c\n- value: b\n  key: a\n- key: x\n- key: x\n",
        &[
            "8:8: key `a` with value `b` is at a.yaml:3:8 too (expected one such node)",
            "10:8: key `x` without a value is at a.yaml:9:8 too (expected one such node)",
        ],
    );
}

#[test]
fn a_domain_in_two_files() {
    let files = [
        file("a.yaml", "domain: d\ndescriptors:\n- key: k\n"),
        file("b.yaml", "descriptors:\n- key: l\n- key: k\ndomain: d\n"),
    ];
    let found = |options: &LoadOptions| {
        let errors = load(&files, options).map(drop).expect_err("the set loads");
        errors.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let equal = "b.yaml:3:8: key `k` without a value is at a.yaml:3:8 too (expected one such node)";
    let domain = "b.yaml:4:9: domain `d` is in a.yaml:1:9 too (expected one file a domain, or merge_domains)";
    assert_eq!(found(&options()), [equal, domain]);
    assert_eq!(found(&options().merge_domains(true)), [equal]);
}

#[test]
fn levels_without_end() {
    let nested = |levels: usize| {
        "{\"domain\":\"d\",\"descriptors\":[{\"key\":\"k\"".to_owned()
            + &",\"descriptors\":[{\"key\":\"k\"".repeat(levels - 1)
            + &"}]".repeat(levels)
            + "}"
    };
    assert!(load(&[file("a.yaml", nested(32))], &options()).is_ok());
    let found = refused(nested(33));
    assert_eq!(found.len(), 1);
    assert!(found[0].ends_with("`descriptors` nested too deep (expected at most 32 levels)"), "{found:?}");
    for open in ["[", "{a: ", "- ", "? "] {
        let found = refused(open.repeat(1_000_000));
        assert!(
            found.len() == 1 && found[0].contains("not YAML") || found[0].contains("too deep"),
            "{found:?}"
        );
    }
}

#[test]
fn classes_that_share_no_limit() {
    let classes = |limit: &str, classes: &str| {
        let limit = if limit.is_empty() { String::new() } else { format!("rate_limit: {limit}\n") };
        node(&format!("{limit}classes: {classes}"))
    };
    let day = "{unit: day, requests_per_unit: 5}";
    let share = |text: &str| {
        format!(
            "5:45: the share of `low` is `{text}` (expected a number above 0 and up to 1, with at most six digits after the point)"
        )
    };
    for text in ["0", "1.01", "2", "-0.5", "half", "1e-1", "0.1234567"] {
        check(classes(day, &format!("{{key: c, shares: {{top: 1.0, low: {text}}}}}")), &[&share(text)]);
    }
    let empty = "`classes` without `shares` (expected a share for each class, such as `batch: 0.6`)";
    check(classes(day, "{key: c}"), &[&format!("5:12: {empty}")]);
    check(classes(day, "{key: c, shares: }"), &[&format!("5:27: {empty}")]);
    check(classes(day, "{key: c, shares: {}}"), &[&format!("5:29: {empty}")]);
    check(
        classes(day, "{key: c, shares: [low]}"),
        &["5:29: a list stands here (expected a mapping of classes and their shares)"],
    );
    check(
        classes(day, "{key: c, shares: {low: 0.5, low: 0.6}}"),
        &["5:40: the class `low` twice (expected once)"],
    );
    check(
        classes(day, "{key: c, shares: {<<: {low: 0.5}, top: 1}}"),
        &["5:30: `<<` does not merge into `shares` (expected each class here, or an alias of all shares)"],
    );
    check(classes(day, "{shares: {low: 0.5}}"), &["5:12: `key` is missing or empty (expected a text)"]);
    check(
        classes(day, "{key: c, shares: {low: 0.5}, x: 1}"),
        &["5:41: unknown key `x` in `classes` (expected key, shares)"],
    );
    check(
        classes("{unit: day, requests_per_unit: 5, algorithm: fixed_window}", "{key: c, shares: {low: 0.5}}"),
        &["5:12: `classes` with fixed_window, which counts hits that it denies (expected another algorithm)"],
    );
    check(
        classes("{unlimited: true}", "{key: c, shares: {low: 0.5}}"),
        &["5:12: `classes` with `unlimited: true` (expected a limit that they share)"],
    );
    check(
        classes("", "{key: c, shares: {low: 0.5}}"),
        &["4:12: `classes` without `rate_limit` (expected the limit that they share)"],
    );
    let many: Vec<String> = (0..17).map(|class| format!("c{class}: 0.5")).collect();
    check(
        classes(day, &format!("{{key: c, shares: {{{}}}}}", many.join(", "))),
        &["5:29: 17 classes (expected at most 16)"],
    );
    check(
        classes(day, "{key: c, shares: {low: 0.5}}") + "  descriptors: [{key: b}, {key: c, value: x}]\n",
        &["6:33: the key `c` names the classes of the limit above (expected another key)"],
    );
}

#[test]
fn problems_without_end_are_counted() {
    let found = refused("domain: d\n".to_owned() + &"nonsense: 1\n".repeat(50_000));
    assert_eq!(found.len(), 1_001);
    assert_eq!(found[1_000], "1001:1: 49000 more problems (expected none)");
}

/// Every value takes more memory than it takes bytes in a file.
#[test]
fn a_file_of_nothing_but_brackets_is_refused_before_it_is_read_to_its_end() {
    let short = options().max_file_bytes(4 << 20);
    for what in ["{},", "[],", "a,", "{key: a},"] {
        let text = format!("domain: d\ndescriptors: [{}]", what.repeat((4 << 20) / what.len() - 20));
        let found = load(&[file("a.yaml", text)], &short).map(drop).expect_err("the file loads");
        let bound = "too many values up to here (expected at most 1048576; max_file_bytes sets the bound)";
        assert_eq!(found.iter().map(|it| &*it.message).collect::<Vec<_>>(), [bound], "{what}");
    }
}

/// Ten thousand small bombs are as bad as a large one.
#[test]
fn the_files_of_a_set_share_one_bound_on_what_aliases_stand_for() {
    let list = |at: usize| format!("    a{at}: &a{at} [{}]\n", vec![format!("*a{}", at - 1); 10].join(","));
    let lists: String = (1..4).map(list).collect();
    let bomb = node("metadata:\n  a0: &a0 [x, x]\n") + &lists;
    let files: Vec<_> = (0..1_000)
        .map(|index| {
            file(&format!("{index:04}.yaml"), bomb.replace("domain: d", &format!("domain: d{index}")))
        })
        .collect();
    assert!(load(&files[..10], &options()).is_ok());
    let found = load(&files, &options()).map(drop).expect_err("the set loads");
    assert!(found[0].message.contains("the aliases up to here expand to too much"), "{}", found[0]);
}

/// Files that are refused quickly. The bound is generous, for busy machines.
#[test]
#[allow(clippy::disallowed_methods, reason = "how long it takes is what is tested")]
fn hostile_files_take_no_time() {
    let laughs = |lists: usize| {
        let list =
            |at: usize| format!("    a{at}: &a{at} [{}]\n", vec![format!("*a{}", at - 1); 10].join(","));
        let lists: String = (1..lists).map(list).collect();
        node("metadata:\n").replace("metadata:", "metadata:\n    a0: &a0 [x, x]") + &lists
    };
    assert!(load(&[file("a.yaml", laughs(4))], &options()).is_ok());
    let nested = (1..60).fold("descriptors: &d0 [{key: a}]\n".to_owned(), |text, at| {
        let last = at - 1;
        text + &format!(
            "x{at}: &d{at} [{{key: a, descriptors: *d{last}}}, {{key: b, descriptors: *d{last}}}]\n"
        )
    });
    let huge = "domain: d\n#".to_owned() + &"x".repeat(100 << 20);
    let bombs = [
        (laughs(60), "the aliases up to here expand to too much (expected at most 33554432 bytes)"),
        (nested, "expand to too much"),
        (huge, "1:1: the file is too long (expected at most 33554432 bytes; max_file_bytes sets the bound)"),
        ("[".to_owned() + &"[],".repeat(300_000), "not YAML"),
        ("domain: \"".to_owned() + &"\\n".repeat(500_000), "not YAML"),
        ("%TAG ! a\n".repeat(300_000), "not YAML"),
        ("&a ".repeat(300_000), "(expected a mapping)"),
    ];
    for (bomb, expected) in bombs {
        let start = Instant::now();
        let found = refused(&bomb);
        assert!(found.iter().any(|message| message.contains(expected)), "{found:?}");
        assert!(start.elapsed() < Duration::from_secs(20), "{expected}: {:?}", start.elapsed());
    }
}
