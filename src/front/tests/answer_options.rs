//! What answers have in addition to codes and limits, if that is on.

use prost::Message;
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use serde_json::{Map, Value as Json, json};

use super::{metrics, service};
use crate::front::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::front::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use crate::front::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::front::{AnswerOptions, ClientOptions, Handler, HeadersFormat, LimitHeaders, Reply};
use tidegate_serve::metrics::Front;
use tidegate_serve::refusal::Bounds;

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 10}
    metadata: {tier: free, nested: {a: 1, list: [1, two, null, true]}}
  - key: path
    rate_limit: {unit: hour, requests_per_unit: 2}
    metadata: {tier: gold, nested: {a: 2, b: {c: 3}}, nested_not: {x: 1}}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 0}
    metadata: {seen: shadow, nested: {b: {c: 4, d: 5}}, nested_not: 7}
  - key: quota
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 0}
    metadata: {seen: quota}
  - key: unlimited
    rate_limit: {unlimited: true}
    metadata: {seen: unlimited}
  - key: address
    prefix: {v4: {32: 1, 24: 2}, v6: {64: 1, 56: 4, 48: 16}}
    rate_limit: {unit: hour, requests_per_unit: 5, name: client}
    concurrency: {slots: 3, ttl: 1m, id: call}
  - key: network
    prefix: {v4: 24, v6: 64}
    rate_limit: {unit: hour, requests_per_unit: 5, name: network}
  - key: strict
    rate_limit: {unit: hour, requests_per_unit: 1}
    ban: {after: 1 denial, within: 1m, for: 1h}
  - key: budget
    rate_limit: {period: {calendar: month}, requests_per_unit: 9}
  - key: kind
    value: w*
    rate_limit: {unit: hour, requests_per_unit: 9}
  - key: kind
    value: {in: [x, y]}
    rate_limit: {unlimited: true}
  - key: kind
    value: {cidr: 10.0.0.0/8}
    share_threshold: true
    rate_limit: {unit: hour, requests_per_unit: 0}
  - key: kind
    value: {regex: '^/a[0-9]'}
    descriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 9, name: pages}}]
";

fn handler(options: AnswerOptions) -> Handler {
    let metrics = metrics();
    Handler::new(service(Some(RULES), &metrics).into(), metrics, Bounds::default())
        .with_answer_options(options)
}

fn answer(handler: &Handler, request: &RateLimitRequest) -> RateLimitResponse {
    match handler.answer(Front::Grpc, &request.encode_to_vec(), None, None) {
        Reply::Now(answer) => RateLimitResponse::decode(answer.expect("an answer").message).expect("encoded"),
        Reply::Later(_) => panic!("the memory store never waits"),
    }
}

fn descriptor(key: &str) -> RateLimitDescriptor {
    let entry = Entry { key: key.to_owned(), value: "x".to_owned() };
    RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() }
}

fn request(keys: &[&str]) -> RateLimitRequest {
    let descriptors = keys.iter().map(|key| descriptor(key)).collect();
    RateLimitRequest { domain: "shop".to_owned(), descriptors, hits_addend: 0 }
}

/// A structure as JSON, which is easier to read.
fn json_of(value: &Value) -> Json {
    match value.kind.as_ref().expect("a kind") {
        Kind::NullValue(_) => Json::Null,
        Kind::NumberValue(number) => json!(number),
        Kind::StringValue(string) => json!(string),
        Kind::BoolValue(bool) => json!(bool),
        Kind::StructValue(inner) => fields(inner),
        Kind::ListValue(list) => list.values.iter().map(json_of).collect(),
    }
}

fn fields(of: &Struct) -> Json {
    Json::Object(of.fields.iter().map(|(key, value)| (key.clone(), json_of(value))).collect::<Map<_, _>>())
}

#[test]
fn what_is_off_is_not_sent() {
    let answer = answer(&handler(AnswerOptions::default()), &request(&["user"]));
    assert_eq!((answer.response_headers_to_add.len(), answer.dynamic_metadata), (0, None));
}

fn headers(handler: &Handler, keys: &[&str]) -> Vec<(String, String)> {
    let headers = answer(handler, &request(keys)).response_headers_to_add;
    headers.into_iter().map(|header| (header.key, header.value)).collect()
}

#[test]
fn headers_carry_the_tightest_limit_under_the_names_that_were_set() {
    let names = LimitHeaders { limit: "L".into(), remaining: "M".into(), reset: "R".into() };
    let handler = handler(AnswerOptions { headers: Some(names), ..AnswerOptions::default() });
    let admitted = headers(&handler, &["user", "path"]);
    assert_eq!(admitted[..2], [("L".into(), "2".into()), ("M".into(), "1".into())]);
    // A bucket of the default algorithm is a sixtieth of the window.
    let within = |text: &str| (3_600..=3_660).contains(&text.parse::<u64>().expect("plain seconds"));
    assert!(admitted.len() == 3 && admitted[2].0 == "R" && within(&admitted[2].1), "{admitted:?}");
    headers(&handler, &["path"]);
    let denied = headers(&handler, &["user", "path"]);
    let named: Vec<_> = denied.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(named, ["L", "M", "R", "Retry-After"]);
    assert_eq!((&*denied[1].1, &denied[3].1), ("0", &denied[2].1));
    assert!(within(&denied[3].1), "{denied:?}");
    assert_eq!(headers(&handler, &["unlimited", "nowhere"]), [], "no counter was asked");
}

fn of_draft(shadow: bool) -> Handler {
    let names = LimitHeaders { limit: "L".into(), remaining: "M".into(), reset: "R".into() };
    let client = ClientOptions { format: HeadersFormat::Draft11, shadow, ..ClientOptions::default() };
    handler(AnswerOptions { headers: Some(names), client, ..AnswerOptions::default() })
}

/// The fields of the draft and the problem of an answer.
fn described(answer: &RateLimitResponse) -> [String; 3] {
    let headers = &answer.response_headers_to_add;
    let field =
        |name: &str| headers.iter().find(|header| header.key == name).map(|header| header.value.clone());
    let problem = String::from_utf8(answer.raw_body.clone()).expect("text");
    [field("ratelimit-policy").unwrap_or_default(), field("ratelimit").unwrap_or_default(), problem]
}

#[test]
fn the_draft_has_all_limits_that_can_deny_those_that_do_first() {
    let handler = of_draft(false);
    let mut asked = request(&["user", "shadow", "quota", "path", "unlimited", "nowhere"]);
    asked.hits_addend = 3;
    let [policy, limit, problem] = described(&answer(&handler, &asked));
    assert_eq!(policy, r#""shop.quota";q=0;w=3600, "shop.path";q=2;w=3600, "shop.user";q=10;w=3600"#);
    assert!(limit.starts_with(r#""shop.quota";r=0;t="#), "{limit}");
    let problem: Json = serde_json::from_str(&problem).expect("JSON");
    assert_eq!(problem["violated-policies"], json!(["shop.quota", "shop.path"]));
    let own = RateLimitOverride { requests_per_unit: 7, unit: 2, unit_multiplier: None };
    let mut asked = request(&["user"]);
    asked.descriptors[0].limit = Some(own);
    assert_eq!(described(&answer(&handler, &asked))[0], r#""override";q=7;w=60"#);
    let policy = &described(&answer(&handler, &request(&["budget"])))[0];
    assert_eq!(policy, r#""shop.budget";q=9"#, "months are not equally long");
    assert_eq!(described(&answer(&handler, &request(&["unlimited", "shadow"]))), ["", "", ""]);
    let [policy, limit, problem] = described(&answer(&of_draft(true), &request(&["user"])));
    assert_eq!([policy, limit, problem], ["", "", ""], "SHADOW_MODE denies nothing");
}

#[test]
fn each_limit_of_a_rule_has_a_policy_of_its_own_name() {
    let names_of = |key: &str, address: &str| {
        let mut asked = request(&[key]);
        asked.descriptors[0].entries[0].value = address.to_owned();
        let [policy, limit, _] = described(&answer(&of_draft(false), &asked));
        let names = |field: &str| {
            let mut names: Vec<String> =
                field.split(", ").map(|item| item[..item.find(';').expect("numbers")].to_owned()).collect();
            names.sort_unstable();
            names
        };
        assert_eq!(names(&policy), names(&limit), "{policy} {limit}");
        names(&policy)
    };
    let names = |address: &str| names_of("address", address);
    let slots = r#""shop.address/slots""#;
    assert_eq!(names("2001:db8::1"), [r#""client/48""#, r#""client/56""#, r#""client/64""#, slots]);
    assert_eq!(names("192.0.2.1"), [r#""client/24""#, r#""client/32""#, slots]);
    assert_eq!(names_of("network", "192.0.2.1"), [r#""network""#], "a rule with one length has one limit");
}

#[test]
fn who_is_banned_reads_of_abnormal_usage() {
    let handler = of_draft(false);
    let problem_of = |key: &str| {
        let [.., problem] = described(&answer(&handler, &request(&[key])));
        let problem: Json = serde_json::from_str(&problem).unwrap_or_default();
        problem["type"].as_str().and_then(|kind| Some(kind.split_once('#')?.1.to_owned()))
    };
    let [quota, abnormal] = ["quota-exceeded", "abnormal-usage-detected"].map(|kind| Some(kind.to_owned()));
    assert_eq!(["path"; 3].map(problem_of), [None, None, quota]);
    assert_eq!(["strict"; 3].map(problem_of), [None, abnormal.clone(), abnormal], "a denial begins a ban");
}

#[test]
fn fields_of_the_draft_are_bounded_and_keep_what_denied() {
    let mut asked = request(&["user"; 64]);
    for (number, descriptor) in asked.descriptors.iter_mut().enumerate() {
        descriptor.entries[0].value = number.to_string();
    }
    asked.descriptors[63] = descriptor("path");
    asked.hits_addend = 3;
    let [policy, limit, problem] = described(&answer(&of_draft(false), &asked));
    assert!(limit.len() <= 1_500 && limit.split(", ").count() > 50, "{limit}");
    assert!(limit.starts_with(r#""shop.path";r=2;"#), "{limit}");
    assert_eq!(policy, r#""shop.path";q=2;w=3600, "shop.user";q=10;w=3600"#);
    assert!(problem.contains(r#""violated-policies":["shop.path"]"#), "{problem}");
}

fn metadata(request: &RateLimitRequest) -> Json {
    let handler = handler(AnswerOptions { dynamic_metadata: true, ..AnswerOptions::default() });
    fields(&answer(&handler, request).dynamic_metadata.expect("it is on"))
}

#[test]
fn metadata_holds_what_was_asked() {
    let mut asked = request(&["nowhere", "user"]);
    asked.hits_addend = 3;
    asked.descriptors[0].entries.push(Entry { key: "k".to_owned(), value: String::new() });
    asked.descriptors[0].hits_addend = Some(0);
    asked.descriptors[1].limit =
        Some(RateLimitOverride { requests_per_unit: 3, unit: 3, unit_multiplier: None });
    let expected = json!({
        "domain": "shop",
        "hitsAddend": 3.0,
        "descriptors": [
            {"entries": ["nowhere=x", "k="], "hitsAddend": 0.0},
            {"entries": ["user=x"], "limit": "requests_per_unit:3 unit:HOUR"},
        ],
    });
    assert_eq!(metadata(&asked), expected, "the rule of an override says nothing");
    asked.descriptors[1].limit =
        Some(RateLimitOverride { requests_per_unit: 0, unit: 7, unit_multiplier: Some(2) });
    assert_eq!(metadata(&asked)["descriptors"][1]["limit"], "unit:WEEK unit_multiplier:{value:2}");
}

#[test]
fn metadata_names_the_rule_of_a_pattern_that_envoyproxy_does_not_know() {
    let named = |entries: &[(&str, &str)]| {
        let entry = |&(key, value): &(&str, &str)| Entry { key: key.to_owned(), value: value.to_owned() };
        let mut asked = request(&["user"]);
        asked.descriptors[0].entries = entries.iter().map(entry).collect();
        metadata(&asked)["descriptors"][0].get("rule").map(ToString::to_string)
    };
    for (entries, rule) in [
        (&[("user", "x")][..], None),
        (&[("kind", "word")], None),
        (&[("kind", "none of them")], None),
        (&[("kind", "y")], Some("shop.kind_x,y")),
        (&[("kind", "10.1.2.3")], Some("shop.kind_10_0_0_0/8")),
        (&[("kind", "/a7"), ("user", "alice")], Some("shop.kind_^/a[0-9].user")),
        (&[("network", "2001:db8::1")], Some("shop.network")),
        (&[("address", "2001:db8::1")], Some("shop.address")),
    ] {
        assert_eq!(named(entries), rule.map(|rule| format!("{rule:?}")), "{entries:?}");
    }
}

#[test]
fn metadata_of_rules_merges_deeply_and_the_first_one_wins() {
    let merged = metadata(&request(&["user", "path", "shadow"]));
    let expected = json!({
        "tier": "free",
        "nested": {"a": 1.0, "list": [1.0, "two", null, true], "b": {"c": 3.0, "d": 5.0}},
        "nested_not": {"x": 1.0},
        "seen": "shadow",
    });
    assert_eq!(merged["metadata"], expected);
    assert_eq!(metadata(&request(&["path", "user"]))["metadata"]["tier"], "gold", "merging changes no rule");
}

#[test]
fn only_descriptors_that_pass_a_counter_of_a_rule_give_metadata() {
    assert_eq!(metadata(&request(&["quota", "shadow"]))["metadata"]["seen"], "shadow");
    for silent in ["quota", "unlimited", "nowhere"] {
        assert_eq!(metadata(&request(&[silent])).get("metadata"), None, "{silent}");
    }
}
