//! What clients read about limits: the fields of draft-ietf-httpapi-ratelimit-headers-11, parsed by a parser of another
//! language, and problem details; through a real Envoy over gRPC, through `/check`, and from the module.

use std::io::Write as _;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::admin::{TOKEN, exception, put};
use crate::harness::envoy::{EXAMPLE_RULES, Envoy, Upstream, inside};
use crate::harness::eventually_true;
use crate::harness::http::{Answer, Client};
use crate::harness::programs::python;
use crate::harness::proxy::{EXAMPLE_RULES as PROXY_RULES, Kind, Proxy};
use crate::harness::redis::Redis;
use crate::harness::tidegate::{Setup, Tidegate};

const ALICE: &[(&str, &str)] = &[("x-forwarded-for", "203.0.113.1"), ("x-user", "ann")];

/// The items of these fields, each with its parameters, as `structured_fields.py` reads them.
fn items(fields: &[&str]) -> Vec<Value> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/blackbox/harness/structured_fields.py");
    let mut parser = python().arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let parser = parser.as_mut().expect("Python runs");
    let input = parser.stdin.take().expect("its input").write_all(fields.join("\n").as_bytes());
    input.expect("it reads");
    let mut output = String::new();
    std::io::Read::read_to_string(parser.stdout.as_mut().expect("its output"), &mut output).expect("text");
    assert!(parser.wait().is_ok_and(|status| status.success()), "not a list: {fields:?}");
    output.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// `RateLimit-Policy` and `RateLimit` of an answer.
fn fields(answer: &Answer) -> [Value; 2] {
    let texts = ["ratelimit-policy", "ratelimit"]
        .map(|name| answer.header(name).unwrap_or_else(|| panic!("{answer:?}")));
    items(&texts).try_into().expect("two fields")
}

/// The problem details of a denial.
fn problem(answer: &Answer) -> Value {
    assert_eq!(answer.status, 429, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{answer:?}");
    serde_json::from_str(&answer.body).expect("JSON")
}

/// What is left, by the name of each limit.
fn left(limits: &Value) -> Vec<(String, u64)> {
    let limits = limits.as_array().expect("a list").iter();
    limits
        .map(|limit| (limit[0].as_str().expect("a name").to_owned(), limit[1]["r"].as_u64().expect("r")))
        .collect()
}

fn draft(setup: Setup) -> Setup {
    setup.env("LIMIT_RESPONSE_HEADERS_ENABLED", "true").env("LIMIT_RESPONSE_HEADERS_FORMAT", "draft11")
}

#[test]
fn a_client_of_envoy_reads_all_limits_and_why_it_was_denied() {
    let limiter = draft(Setup::new().rules("edge.yaml", EXAMPLE_RULES)).start();
    let typed = "response_headers_to_add: [{ header: { key: content-type, value: application/problem+json }, \
        append_action: OVERWRITE_IF_EXISTS_OR_ADD }]\n                      rate_limit_service: &limiter";
    let envoy = Envoy::start_changed(&Upstream::at(&limiter), &[("rate_limit_service: &limiter", typed)]);
    let get = || envoy.client().send("GET", "/shop/", ALICE, "").expect("Envoy answers");
    for passed in 1..=5 {
        let answer = get();
        assert_eq!(answer.status, 200, "{answer:?}");
        let [policies, limits] = fields(&answer);
        assert_eq!(policies, json!([["shop_total", {"q": 8, "w": 60}], ["shop_client", {"q": 5, "w": 60}]]));
        assert_eq!(left(&limits), [("shop_total".into(), 8 - passed), ("shop_client".into(), 5 - passed)]);
        assert!(limits[1][1]["t"].as_u64().is_some_and(|wait| (1..=61).contains(&wait)), "{limits}");
        assert_eq!((answer.header("ratelimit-limit"), answer.header("retry-after")), (None, None));
    }
    let denied = get();
    let problem = problem(&denied);
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(problem["violated-policies"], json!(["shop_client"]));
    let [_, limits] = fields(&denied);
    assert_eq!(left(&limits), [("shop_client".into(), 0), ("shop_total".into(), 3)]);
    assert_eq!(denied.header("retry-after"), Some(&*limits[0][1]["t"].to_string()));
}

/// Envoy then adds the headers of a denial to the application's answer.
#[test]
fn a_denial_that_envoy_does_not_enforce_leaves_the_answer_as_it_is() {
    let limiter = draft(Setup::new().rules("edge.yaml", EXAMPLE_RULES)).start();
    let lenient = "filter_enforced: { default_value: { numerator: 0 } }\n                      rate_limit_service: &limiter";
    let envoy = Envoy::start_changed(&Upstream::at(&limiter), &[("rate_limit_service: &limiter", lenient)]);
    let answers = [(); 6].map(|()| envoy.client().send("GET", "/shop/", ALICE, "").expect("Envoy answers"));
    let of_type = |answer: &Answer| answer.header("content-type").map(str::to_owned);
    assert_eq!(answers.each_ref().map(of_type), [(); 6].map(|()| of_type(&answers[0])));
    let [_, limits] = fields(&answers[5]);
    assert_eq!((answers[5].status, left(&limits)[0].1), (200, 0));
}

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {name: 'größe \"1\" 50%', unit: minute, requests_per_unit: 3}}
  - {key: path, rate_limit: {unit: hour, requests_per_unit: 4294967295}}
  - {key: tried, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
";

fn check(limiter: &Tidegate, query: &str) -> Answer {
    Client::new(limiter.ports().http).get(&format!("/check/shop?{query}"))
}

#[test]
fn check_has_both_families_and_a_key_for_each_partition() {
    let setup = || {
        let setup = Setup::new().rules("shop.yaml", RULES).env("LIMIT_RESPONSE_HEADERS_FORMAT", "both");
        let secret = setup.outside().join("secret");
        std::fs::write(&secret, "a secret of all nodes").expect("it can be written");
        setup.env("KEY_SECRET_FILE", &secret.display().to_string())
    };
    let keyed = || setup().env("LIMIT_RESPONSE_HEADERS_PARTITION_KEY", "true").start();
    let [limiter, other] = [keyed(), keyed()];
    let answer = check(&limiter, "user=ann&&path=/&&tried=x&&user=ben");
    assert_eq!(
        (answer.status, answer.number("ratelimit-remaining")),
        (200, 0),
        "the least, of the rule on trial"
    );
    let [policies, limits] = fields(&answer);
    let name = "gr%C3%B6%C3%9Fe \"1\" 50%25";
    let names: Vec<_> = left(&limits);
    assert_eq!(names, [(name.into(), 2), ("shop.path".into(), 4_294_967_294), (name.into(), 2)]);
    assert_eq!(policies[1][1]["q"], 4_294_967_295_u64);
    let keys = |items: &Value| [0, 1, 2].map(|place| items[place][1]["pk"].as_str().expect("pk").to_owned());
    assert_eq!(keys(&policies), keys(&limits));
    assert_ne!(keys(&limits)[0], keys(&limits)[2], "two users");
    let [_, elsewhere] = fields(&check(&other, "user=ann&&path=/&&user=ben"));
    assert_eq!(keys(&elsewhere), keys(&limits), "nodes with one secret agree");

    let limiter = setup().start();
    let [policies, limits] = fields(&check(&limiter, "user=ann&&user=ben"));
    assert_eq!(policies, json!([[name, {"q": 3, "w": 60}]]), "a policy is listed once");
    assert_eq!(left(&limits).len(), 2);
    let denied = check(&limiter, "user=ann&~hits=3");
    assert_eq!(problem(&denied)["violated-policies"], json!([name]));
    assert!(
        denied.header("retry-after").is_some()
            && denied.header("retry-after") == denied.header("ratelimit-reset")
    );
    let none = check(&limiter, "unknown=x");
    assert_eq!((none.status, none.header("ratelimit"), none.header("ratelimit-policy")), (200, None, None));
}

#[test]
fn whom_an_operator_denies_reads_of_abnormal_usage() {
    let setup = Setup::new().rules("shop.yaml", RULES).env("LIMIT_RESPONSE_HEADERS_FORMAT", "draft11");
    let limiter = setup.env("ADMIN_TOKEN", TOKEN).start();
    put(&limiter, "mallory", &exception(Some("mallory"), &json!({"deny": true})));
    eventually_true("the exception", || check(&limiter, "user=mallory").status == 429);
    let denied = check(&limiter, "path=/&&user=mallory");
    assert_eq!(
        problem(&denied)["type"],
        "https://iana.org/assignments/http-problem-types#abnormal-usage-detected"
    );
    let [policies, _] = fields(&denied);
    assert_eq!((&policies[0][1]["q"], denied.header("ratelimit-limit")), (&json!(0), None));
    let head = Client::new(limiter.ports().http).send("HEAD", "/check/shop?user=mallory", &[], "");
    let head = head.expect("an answer");
    assert_eq!((head.status, &*head.body, head.header("ratelimit").is_some()), (429, "", true));
}

#[test]
fn a_request_that_cannot_be_decided_has_problem_details_too() {
    let mut redis = Redis::start(&[]);
    let setup = Setup::new().rules("shop.yaml", RULES).env("LIMIT_RESPONSE_HEADERS_FORMAT", "draft11");
    let limiter = setup.env("REDIS_URL", &redis.url()).start();
    assert_eq!(check(&limiter, "user=ann").status, 200);
    redis.kill();
    let undecided = check(&limiter, "user=ann");
    assert_eq!((undecided.status, undecided.header("content-type")), (503, Some("application/problem+json")));
    let problem: Value = serde_json::from_str(&undecided.body).expect("JSON");
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity");
}

#[test]
fn a_client_of_nginx_reads_all_limits() {
    let setup = Setup::new().rules("edge.yaml", PROXY_RULES).env("LIMIT_RESPONSE_HEADERS_FORMAT", "draft11");
    let limiter = setup.start();
    let proxy = Proxy::start(Kind::Nginx, &format!("127.0.0.1:{}", limiter.ports().http));
    let get = || Client::new(proxy.port).send("POST", "/login", &[], "").expect("NGINX answers");
    let answers = [(); 4].map(|()| get());
    assert_eq!(answers.each_ref().map(|answer| answer.status), [200, 200, 200, 429]);
    let [policies, admitted] = fields(&answers[0]);
    let [_, denied] = fields(&answers[3]);
    assert_eq!(policies[1][1], json!({"q": 3, "w": 900}), "{policies}");
    assert_eq!((left(&admitted)[1].1, left(&denied)[0].1), (2, 0));
    assert_eq!(answers[0].header("ratelimit-limit"), None);
}

#[test]
fn the_module_says_the_same() {
    let settings = "settings: { LIMIT_RESPONSE_HEADERS_FORMAT: draft11 }";
    let commented = r#"# settings: { REDIS_URL: "127.0.0.1:6379" }"#;
    let envoy = Envoy::start_config(&inside(&[(commented, settings)]));
    let get = || envoy.client().send("GET", "/", ALICE, "").expect("Envoy answers");
    for passed in 1..=5 {
        let answer = get();
        assert_eq!(answer.status, 200, "{answer:?}");
        let [policies, limits] = fields(&answer);
        assert_eq!([&policies[0][1]["q"], &policies[1][1]["q"]], [&json!(1_000), &json!(5)]);
        let left = left(&limits);
        assert_eq!((left.len(), left[1].1), (2, 5 - passed));
        // Of a second: on a slow machine, requests have left its window.
        assert!((1_000 - passed..1_000).contains(&left[0].1), "{limits}");
    }
    let denied = get();
    let [policies, _] = fields(&denied);
    assert_eq!(problem(&denied)["violated-policies"], json!([policies[0][0]]));
}
