//! `rate_limits`: what loads, which descriptors a request gets by it, and the errors of a bad one.

use std::convert::Infallible;
use std::net::IpAddr;

use tidegate_engine::request::RequestBuf;
use tidegate_engine::rules::{ClientRequest, Cost, Field, Metadata, MetadataSource, load};

use crate::rules::{file, loaded, options, refused};

/// A request as a test describes it: no header comes twice.
struct Client {
    path: &'static str,
    headers: &'static [(&'static str, &'static str)],
    query: &'static [(&'static str, &'static str)],
    address: &'static str,
}

const CLIENT: Client = Client {
    path: "/p?q=a+b&e=",
    headers: &[("x-api-key", "k1"), ("x-tier", "Gold"), ("x-empty", "")],
    query: &[("q", "a b"), ("e", "")],
    address: "10.1.130.5",
};

impl ClientRequest for Client {
    type Error = Infallible;

    fn first(&self, field: &Field) -> Result<Option<&str>, Infallible> {
        Ok(match field {
            Field::Path | Field::RawPath => Some(self.path),
            Field::Method => Some("GET"),
            Field::Authority => Some("shop.example"),
            Field::Header(name) => {
                self.headers.iter().find(|(known, _)| *known == &**name).map(|(_, value)| *value)
            }
            Field::Metadata(Metadata { source, namespace, key }) => match (source, &**namespace, &**key) {
                (MetadataSource::Dynamic, "auth", "tier") => Some("gold"),
                (MetadataSource::Dynamic, "auth", "tokens") => Some("30"),
                (MetadataSource::Dynamic, "auth", "empty") => Some(""),
                (MetadataSource::Route, "team", "name") => Some("cart"),
                _ => None,
            },
            Field::ResponseHeader(name) => (&**name == "x-cost").then_some("12.7"),
            Field::ResponseTrailer(name) => (&**name == "x-bad").then_some("-1"),
        })
    }

    fn any(&self, field: &Field, test: impl Fn(&str) -> bool) -> Result<Option<bool>, Infallible> {
        self.first(field).map(|value| value.map(test))
    }

    fn query_parameter(&self, name: &str, text: &mut String) -> Result<bool, Infallible> {
        let found = self.query.iter().find(|(known, _)| *known == name);
        text.push_str(found.map(|(_, value)| *value).unwrap_or_default());
        Ok(found.is_some())
    }

    fn address(&self) -> Result<IpAddr, Infallible> {
        Ok(self.address.parse().unwrap())
    }
}

/// The descriptors of a request under `rate_limits` with these lists of actions: `key=value` of each entry.
fn described(client: &Client, lists: &[&str]) -> Vec<Vec<String>> {
    let lists = lists.iter().map(|list| format!("  - actions: [{list}]\n")).collect::<String>();
    let rules = loaded(&format!("domain: d\nrate_limits:\n{lists}")).rules;
    let mut buf = RequestBuf::new("d");
    let Ok(()) = rules.actions("d").expect("a known domain").describe(client, &mut buf, 1 << 20);
    let request = buf.as_request();
    let text = |entry: &tidegate_engine::request::Entry<'_>| format!("{}={}", entry.key, entry.value);
    request.descriptors().map(|descriptor| descriptor.entries.iter().map(text).collect()).collect()
}

/// The only descriptor of one action, if there is one.
fn entry(action: &str) -> Option<String> {
    let mut descriptors = described(&CLIENT, &[&format!("{{{action}}}")]);
    assert!(descriptors.len() <= 1);
    descriptors.pop().map(|entries| entries.join(" "))
}

#[test]
fn every_action_makes_the_entry_that_envoy_makes() {
    for (action, expected) in [
        ("remote_address: {}", Some("remote_address=10.1.130.5")),
        ("masked_remote_address: {}", Some("masked_remote_address=10.1.130.5/32")),
        ("masked_remote_address: {v4_prefix_mask_len: 16}", Some("masked_remote_address=10.1.0.0/16")),
        ("masked_remote_address: {v4_prefix_mask_len: 0}", Some("masked_remote_address=0.0.0.0/0")),
        ("request_headers: {header_name: X-API-Key, descriptor_key: key}", Some("key=k1")),
        ("request_headers: {header_name: ':path', descriptor_key: key}", Some("key=/p?q=a+b&e=")),
        ("request_headers: {header_name: ':method', descriptor_key: key}", Some("key=GET")),
        ("request_headers: {header_name: ':authority', descriptor_key: key}", Some("key=shop.example")),
        ("request_headers: {header_name: host, descriptor_key: key}", Some("key=shop.example")),
        ("request_headers: {header_name: x-none, descriptor_key: key}", None),
        ("request_headers: {header_name: x-empty, descriptor_key: key}", Some("key=")),
        ("query_parameters: {query_parameter_name: q, descriptor_key: key}", Some("key=a b")),
        ("query_parameters: {query_parameter_name: e, descriptor_key: key}", Some("key=")),
        ("query_parameters: {query_parameter_name: none, descriptor_key: key}", None),
        ("generic_key: {descriptor_value: v}", Some("generic_key=v")),
        ("metadata: {descriptor_key: k, metadata_key: {key: auth, path: [{key: tier}]}}", Some("k=gold")),
        (
            "metadata: {descriptor_key: k, metadata_key: {key: team, path: [{key: name}]}, source: ROUTE_ENTRY}",
            Some("k=cart"),
        ),
        ("metadata: {descriptor_key: k, metadata_key: {key: team, path: [{key: name}]}}", None),
        ("metadata: {descriptor_key: k, metadata_key: {key: auth, path: [{key: empty}]}}", None),
        (
            "metadata: {descriptor_key: k, metadata_key: {key: auth, path: [{key: empty}]}, default_value: d}",
            Some("k=d"),
        ),
        (
            "metadata: {descriptor_key: k, metadata_key: {key: auth, path: [{key: x}]}, skip_if_absent: true}",
            Some(""),
        ),
        ("generic_key: {descriptor_key: k, descriptor_value: 010}", Some("k=010")),
    ] {
        assert_eq!(entry(action).as_deref(), expected, "{action}");
    }
    let client = Client { address: "2001:db8:1:2::3", ..CLIENT };
    let list = "{remote_address: {}}, {masked_remote_address: {v6_prefix_mask_len: 48}}";
    let expected = ["remote_address=2001:db8:1:2::3", "masked_remote_address=2001:db8:1::/48"];
    assert_eq!(described(&client, &[list]), [expected]);
}

#[test]
fn matchers_hold_as_they_do_in_envoy() {
    for (matcher, holds) in [
        ("name: x-tier", true),
        ("name: x-none", false),
        ("name: x-tier, invert_match: true", false),
        ("name: x-none, invert_match: true", true),
        ("name: x-tier, present_match: true", true),
        ("name: x-tier, present_match: false", false),
        ("name: x-none, present_match: false", true),
        ("name: x-none, present_match: false, invert_match: true", false),
        ("name: x-tier, string_match: {exact: Gold}", true),
        ("name: x-tier, string_match: {exact: gold}", false),
        ("name: x-tier, string_match: {exact: gOLD, ignore_case: true}", true),
        ("name: x-tier, string_match: {exact: Gold}, invert_match: true", false),
        ("name: x-none, string_match: {exact: Gold}, invert_match: true", false),
        ("name: x-tier, string_match: {prefix: Go}", true),
        ("name: x-tier, string_match: {suffix: LD, ignore_case: true}", true),
        ("name: x-tier, string_match: {contains: ol}", true),
        ("name: x-tier, string_match: {contains: lo}", false),
        ("name: ':method', string_match: {exact: GET}", true),
    ] {
        let matched = |rest: &str| {
            entry(&format!("header_value_match: {{descriptor_value: v, headers: [{{{matcher}}}]{rest}}}"))
        };
        let expected = Some("header_match=v".to_owned());
        assert_eq!(matched("").is_some(), holds, "{matcher}");
        assert_eq!(matched(", expect_match: false"), expected.filter(|_| !holds), "{matcher}");
    }
    let both = "header_value_match: {descriptor_key: k, descriptor_value: v, headers: [{name: x-tier}, {name: x-none}]}";
    assert_eq!(entry(both), None, "all of them have to hold");
}

/// What each descriptor costs, before the request and at its end.
#[test]
fn hits_are_as_in_envoy_and_what_comes_at_the_end_is_reported() {
    let costs = |rest: &str| {
        let item = format!("actions: [{{remote_address: {{}}}}], {rest}");
        let rules = loaded(&format!("domain: d\nrate_limits: [{{{item}}}]\n")).rules;
        let actions = rules.actions("d").expect("a known domain");
        let mut before = RequestBuf::new("d");
        let Ok(()) = actions.describe(&CLIENT, &mut before, 1 << 20);
        let Ok(costs) = actions.costs("d", &CLIENT, 1 << 20);
        let (at_the_end, _) = costs.known(&CLIENT);
        [before, at_the_end].map(|buf| {
            let request = buf.as_request();
            request.descriptors().next().map(|it| (it.options.hits_addend, it.options.cost))
        })
    };
    let (asked, reported) = (Cost::Asked, Cost::Reported);
    assert_eq!(costs("apply_on_stream_done: false"), [Some((None, asked)), None]);
    assert_eq!(costs("hits_addend: {number: 7}"), [Some((Some(7), asked)), None]);
    assert_eq!(costs("hits_addend: {number: 0}"), [Some((Some(0), asked)), None]);
    assert_eq!(costs("apply_on_stream_done: true"), [None, Some((Some(1), reported))]);
    for (format, expected) in [
        ("%RESP(X-Cost)%", Some(12)),
        ("%RESP(x-none)%", None),
        ("%TRAILER(x-bad)%", None),
        ("%REQ(x-tier)%", None),
        ("%DYNAMIC_METADATA(auth:tokens)%", Some(30)),
        ("%DYNAMIC_METADATA(auth:tier)%", None),
    ] {
        let expected = expected.map(|hits| (Some(hits), reported));
        let rest = format!("apply_on_stream_done: true, hits_addend: {{format: '{format}'}}");
        assert_eq!(costs(&rest), [None, expected], "{format}");
    }
}

#[test]
fn hits_that_cannot_be_known_are_refused() {
    let at = |rest: &str| {
        refused(format!("domain: d\nrate_limits:\n- actions: [{{remote_address: {{}}}}]\n  {rest}"))
    };
    let expected = "(expected %REQ(name)%, %DYNAMIC_METADATA(namespace:key)% or, with `apply_on_stream_done: true`, \
                    %RESP(name)% or %TRAILER(name)%)";
    for format in
        ["%RESP(x)%", "%BYTES_SENT%", "5", "%REQ(a b)%", "%DYNAMIC_METADATA(a)%", "%DYNAMIC_METADATA(a:b:c)%"]
    {
        let problem = format!("4:25: `format` is `{format}` {expected}");
        assert_eq!(at(&format!("hits_addend: {{format: '{format}'}}")), [problem]);
    }
    let one_of = "4:16: none or several keys stand here (expected exactly one of number, format)";
    assert_eq!(at("hits_addend: {}"), [one_of]);
    let number = "4:25: `number` is `1000000001` (expected a whole number from 0 to 1000000000)";
    assert_eq!(at("hits_addend: {number: 1000000001}"), [number]);
}

/// A proxy may remove a header, or route the request elsewhere, before its stream ends.
#[test]
fn what_a_cost_is_charged_to_is_what_came_and_only_its_hits_are_read_at_the_end() {
    let items = ["{format: '%RESP(x-cost)%'}", "{format: '%RESP(x-none)%'}", "{number: 3}"].map(|hits| {
        format!("{{actions: [{{request_headers: {{header_name: x-tier, descriptor_key: tier}}}}], hits_addend: {hits}, apply_on_stream_done: true}}")
    });
    let rules = loaded(&format!("domain: d\nrate_limits: [{}]\n", items.join(", "))).rules;
    let actions = rules.actions("d").expect("a known domain");
    let Ok(costs) = actions.costs("d", &CLIENT, 1 << 20);
    let (known, unknown) = costs.known(&Client { headers: &[("x-cost", "12")], ..CLIENT });
    let request = known.as_request();
    let charged = request.descriptors().map(|it| (it.entries[0].value.to_owned(), it.options.hits_addend));
    let tier = CLIENT.headers.iter().find(|(name, _)| *name == "x-tier").expect("it has one").1;
    assert_eq!(charged.collect::<Vec<_>>(), [(tier.to_owned(), Some(12)), (tier.to_owned(), Some(3))]);
    assert_eq!(unknown, 1);
}

/// Every spelling of `/login` that Envoy's `normalize_path` and `merge_slashes` know.
const LOGINS: [&str; 9] = [
    "/login?a=//b",
    "/%6Cogin?a=//b",
    "//login?a=//b",
    "/./login?a=//b",
    "/x/../login?a=//b",
    "/x/%2e%2E/login?a=//b",
    "/%2e/login?a=//b",
    "/x\\..\\login?a=//b",
    "http://shop.example//login?a=//b",
];

#[test]
fn a_path_is_the_same_however_it_is_spelt() {
    let entry = "{request_headers: {header_name: ':path', descriptor_key: path}}";
    let matcher = "{header_value_match: {descriptor_value: login, headers: [{name: ':path', string_match: {prefix: /login}}]}}";
    for path in LOGINS {
        let client = Client { path, ..CLIENT };
        let expected = [["path=/login?a=//b"], ["header_match=login"]];
        assert_eq!(described(&client, &[entry, matcher]), expected, "{path}");
    }
    for path in ["/LOGIN", "/x;y/login", "/%256Cogin", "/x%2flogin"] {
        let client = Client { path, ..CLIENT };
        assert_eq!(described(&client, &[entry, matcher]), [[format!("path={path}")]]);
    }
}

#[test]
fn a_path_is_as_it_was_spelt_where_the_rules_want_it_so() {
    let loaded = loaded(
        "domain: d
normalize_path: false
rate_limits:
  - actions: [{request_headers: {header_name: ':path', descriptor_key: path}}]
  - actions: [{header_value_match: {descriptor_value: odd, headers: [{name: ':path', string_match: {prefix: //}}]}}]
descriptors:
  - {key: path, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: header_match, rate_limit: {unit: day, requests_per_unit: 1}}
",
    );
    assert_eq!(loaded.warnings.len(), 0);
    let mut buf = RequestBuf::new("d");
    let client = Client { path: "//%6Cogin", ..CLIENT };
    let Ok(()) = loaded.rules.actions("d").unwrap().describe(&client, &mut buf, 1 << 20);
    let request = buf.as_request();
    let values = request.descriptors().map(|descriptor| descriptor.entries[0].value.to_owned());
    assert_eq!(values.collect::<Vec<_>>(), ["//%6Cogin", "odd"]);
}

#[test]
fn a_test_of_a_path_that_can_never_hold_is_warned_of() {
    let warned = |test: &str| {
        let header = format!("{{name: ':path', string_match: {{{test}}}}}");
        let action = format!("header_value_match: {{descriptor_value: v, headers: [{header}]}}");
        let rule = "- {key: header_match, rate_limit: {unit: day, requests_per_unit: 1}}";
        let loaded = loaded(&format!(
            "domain: d\nrate_limits:\n- actions:\n    - {{{action}}}\ndescriptors:\n{rule}\n"
        ));
        loaded.warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for test in ["prefix: //x", "exact: /%6Cogin", "contains: /../", "suffix: /.", "prefix: /café"] {
        let warnings = warned(test);
        assert_eq!(warnings.len(), 1, "{test}");
        assert!(
            warnings[0].contains(":4:90: no `:path` in its normal form has `"),
            "{test}: {}",
            warnings[0]
        );
    }
    for test in [
        "prefix: /login",
        "prefix: /.",
        "exact: /a%20b",
        "contains: ..",
        "suffix: .php",
        "contains: '?q=//'",
        "contains: 'url=http://'",
        "suffix: '=//x'",
    ] {
        assert_eq!(warned(test), [""; 0], "{test}");
    }
}

#[test]
fn an_absent_value_drops_the_descriptor_or_only_itself() {
    let absent = |skip| {
        format!("{{request_headers: {{header_name: x-none, descriptor_key: k, skip_if_absent: {skip}}}}}")
    };
    let constant = "{generic_key: {descriptor_value: v}}";
    let [skipped, dropped] = [absent(true), absent(false)];
    assert_eq!(
        described(
            &CLIENT,
            &[
                &format!("{constant}, {dropped}"),
                &format!("{constant}, {skipped}"),
                &format!("{skipped}, {constant}"),
                &skipped,
                constant,
            ],
        ),
        [vec!["generic_key=v"], vec!["generic_key=v"], vec![], vec!["generic_key=v"]]
    );
}

#[test]
fn descriptors_stop_growing_at_the_bound_on_bytes() {
    let list = "{request_headers: {header_name: ':path', descriptor_key: k}},".repeat(10_000);
    let rules = loaded(&format!("domain: d\nrate_limits: [{{actions: [{list}]}}]")).rules;
    let mut buf = RequestBuf::new("d");
    let Ok(()) = rules.actions("d").unwrap().describe(&CLIENT, &mut buf, 100);
    assert!((101..200).contains(&buf.text_bytes()), "{}", buf.text_bytes());
}

#[test]
fn files_of_one_domain_add_to_each_other_and_merges_are_followed() {
    let one = file("a.yaml", "domain: d\nrate_limits: [{actions: [{remote_address: {}}]}]");
    let two = file(
        "b.yaml",
        "domain: d\nrate_limits: [{actions: [{generic_key: {<<: &base {descriptor_value: v}, descriptor_key: k}}]}]",
    );
    let options = options().merge_domains(true);
    let rules = load(&[one, two], &options).unwrap().rules;
    let mut buf = RequestBuf::new("d");
    let Ok(()) = rules.actions("d").unwrap().describe(&CLIENT, &mut buf, 1 << 20);
    assert_eq!(buf.entries_of_each().collect::<Vec<_>>(), [1, 1]);
    assert!(rules.actions("other").is_none());
    assert!(loaded("domain: d").rules.actions("d").unwrap().is_empty());
}

/// Checks the problems of one action; it begins at 4:7.
fn check(action: &str, expected: &[&str]) {
    assert_eq!(
        refused(format!("domain: d\nrate_limits:\n- actions:\n    - {{{action}}}\n")),
        expected,
        "{action}"
    );
}

const ACTIONS: &str = "remote_address, masked_remote_address, request_headers, query_parameters, generic_key, header_value_match, metadata";

#[test]
fn what_is_no_list_of_actions() {
    let at = |text: &str| refused(format!("domain: d\n{text}"));
    assert_eq!(at("rate_limits: 5"), ["2:14: `5` stands here (expected a list)"]);
    assert_eq!(at("rate_limits: [5]"), ["2:15: `5` stands here (expected a mapping)"]);
    assert_eq!(at("rate_limits: [{}]"), ["2:15: `actions` is missing or empty (expected a list)"]);
    assert_eq!(at("rate_limits: [{actions: []}]"), ["2:25: `actions` is missing or empty (expected a list)"]);
    assert_eq!(at("rate_limits: [{actions: {}}]"), ["2:25: a mapping stands here (expected a list)"]);
    assert_eq!(
        at("rate_limits: [{stage: 1, actions: [{remote_address: {}}]}]"),
        [
            "2:16: `stage` of Envoy's is not supported here (expected actions, hits_addend, apply_on_stream_done)"
        ]
    );
    assert_eq!(
        at("rate_limits: [{action: [{remote_address: {}}]}]"),
        [
            "2:15: `actions` is missing or empty (expected a list)",
            "2:16: unknown key `action` (expected actions, hits_addend, apply_on_stream_done)"
        ]
    );
    assert_eq!(
        at("descriptors: [{key: k, rate_limits: []}]"),
        ["2:24: unknown key `rate_limits` (expected a known key; the closest is `rate_limit`)"]
    );
}

#[test]
fn what_is_no_action() {
    let one_of = format!("4:7: none or several keys stand here (expected exactly one of {ACTIONS})");
    check("", &[&one_of]);
    check("remote_address: {}, generic_key: {descriptor_value: v}", &[&one_of]);
    check("remote_address: yes", &["4:24: `yes` stands here (expected a mapping)"]);
    check("remote_address: {key: k}", &["4:25: unknown key `key` (expected nothing in it)"]);
    check(
        "source_cluster: {}",
        &[&one_of, &format!("4:8: `source_cluster` of Envoy's is not supported here (expected {ACTIONS})")],
    );
    check(
        "masked_remote_address: {v4_prefix_mask_len: 33, v6_prefix_mask_len: x}",
        &[
            "4:52: `v4_prefix_mask_len` is `33` (expected a whole number from 0 to 32)",
            "4:76: `v6_prefix_mask_len` is `x` (expected a whole number from 0 to 128)",
        ],
    );
    check(
        "request_headers: {skip_if_absent: maybe}",
        &[
            "4:25: `descriptor_key` is missing or empty (expected a text)",
            "4:25: `header_name` is missing or empty (expected a text)",
            "4:42: `skip_if_absent` is `maybe` (expected true or false)",
        ],
    );
    check(
        "request_headers: {header_name: 'x y', descriptor_key: k}",
        &["4:39: `header_name` is `x y` (expected a header's name, `:path`, `:method` or `:authority`)"],
    );
    check(
        "query_parameters: {query_parameter_name: '', descriptor_key: k}",
        &["4:49: `query_parameter_name` is missing or empty (expected a text)"],
    );
    check("generic_key: {}", &["4:21: `descriptor_value` is missing or empty (expected a text)"]);
    check(
        "generic_key: {descriptor_value: v, default_value: w}",
        &[
            "4:43: `default_value` of Envoy's is not supported here (expected descriptor_key, descriptor_value)",
        ],
    );
}

#[test]
fn what_is_no_key_of_metadata() {
    let metadata = |says: &str, expected: &[&str]| {
        check(&format!("metadata: {{descriptor_key: k, {says}}}"), expected);
    };
    metadata("default_value: x", &["4:18: `metadata_key` is missing (expected `key` and `path`)"]);
    metadata(
        "metadata_key: {key: a, path: [{key: b}, {key: c}]}",
        &["4:78: `path` has a second item (expected one: a key of the namespace)"],
    );
    metadata("metadata_key: {key: a}", &["4:52: `path` is missing or empty (expected a list)"]);
}

#[test]
fn what_is_no_matcher() {
    let matcher = |says: &str, expected: &[&str]| {
        check(&format!("header_value_match: {{descriptor_value: v, headers: [{{{says}}}]}}"), expected);
    };
    check(
        "header_value_match: {descriptor_value: v}",
        &["4:28: `headers` is missing or empty (expected a list)"],
    );
    matcher("string_match: {exact: a}", &["4:60: `name` is missing or empty (expected a text)"]);
    matcher(
        "name: a, string_match: {exact: a}, present_match: true",
        &["4:60: both `string_match` and `present_match` (expected one of the two)"],
    );
    matcher(
        "name: a, exact_match: b",
        &[
            "4:70: `exact_match` of Envoy's is not supported here (expected name, string_match, present_match, invert_match)",
        ],
    );
    let tests = "exact, prefix, suffix, contains";
    let one_of = format!("4:84: none or several keys stand here (expected exactly one of {tests})");
    matcher("name: a, string_match: {}", &[&one_of]);
    matcher("name: a, string_match: {exact: a, prefix: b}", &[&one_of]);
    matcher("name: a, string_match: {prefix: ''}", &["4:93: `prefix` is missing or empty (expected a text)"]);
    matcher(
        "name: a, string_match: {safe_regex: {regex: a}}",
        &[
            &one_of,
            &format!("4:85: `safe_regex` of Envoy's is not supported here (expected {tests}, ignore_case)"),
        ],
    );
}
