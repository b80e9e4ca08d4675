//! A path has many spellings. However a client spells one, it meets the limits of what it reaches.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::harness::application::{self, LOGIN};
use crate::harness::envoy::{self, Envoy, Upstream};
use crate::harness::grpc::ask_only;
use crate::harness::http::{Answer, Client};
use crate::harness::proxy::{self, Kind, Proxy};
use crate::harness::tidegate::{Setup, Tidegate};

/// What reaches a login somewhere, or looks as if it did.
const SPELLINGS: &[&str] = &[
    "/login",
    "/login/",
    "/loginx",
    "/login?next=//x/../y",
    "/login;x",
    "/login;x/../y",
    "/%6Cogin",
    "/%6c%6F%67%69%6e",
    "/logi%6E/",
    "/%256Cogin",
    "/login%20",
    "/login%",
    "/login%zz",
    "/%zz/login",
    "//login",
    "///login",
    "//login//",
    "//%6cogin",
    "/x//login",
    "/./login",
    "/.//login",
    "/x/../login",
    "/x/./../login",
    "/../login",
    "/../../login",
    "/x//../login",
    "//x/../login",
    "/x/..//login",
    "/login/.",
    "/login/..",
    "/login//..",
    "/login/../login",
    "/login//../..",
    "/%2e/login",
    "/x/%2e%2e/login",
    "/x/.%2E/login",
    "/x/%2E./login",
    "/%2e%2e/login",
    "/login//%2e%2e",
    "/login%2f",
    "/%2flogin",
    "/%2Flogin",
    "/x%2f..%2flogin",
    "/x/..%2flogin",
    "/x%2f../login",
    "/%2e%2flogin",
    "/login%2f%2f..",
    "/login%2f..%2fx",
    "\\login",
    "/\\login",
    "/x\\..\\login",
    "/x\\../login",
    "/login\\..\\x",
    "/%5clogin",
    "/x%5c..%5Clogin",
    "/login%5c..%5cx",
    "/x/..;/login",
    "/x/..;a=b/login",
    "/x/.;/login",
    "/x/%2e%2e;/login",
    "/login/..;/x",
    "/login/%2e%2e;/x",
    "/login#x",
    "/login#/../x",
    "/x#/../login",
    "/#/../login",
    "/x%23/../login",
    "/login%23",
    "/login%3fx",
    "http://tests/login",
    "http://tests//login",
    "http://tests/%6Cogin",
    "http://tests/x/../login",
    "http://other/login",
    "/x",
    "/",
    "/x/login",
];

/// Those that no recipe may refuse: clients and links write so.
const HARMLESS: &[&str] =
    &["/login", "/login/", "/%6Cogin", "//login", "//%6cogin", "/login;x", "/login?next=//x/../y"];

fn spell(client: &mut Client, path: &str) -> Answer {
    let headers = [("x-forwarded-for", "203.0.113.1")];
    client.send("POST", path, &headers, "").unwrap_or_else(|error| panic!("POST {path}: {error}"))
}

/// Sends every spelling. Those that are not refused (400) have to get one of these statuses, or not to log in.
fn send_all(port: u16, stopped: &[u16]) {
    // A refusal may end the connection without saying so.
    for path in SPELLINGS {
        let answer = spell(&mut Client::at([127, 0, 0, 2].into(), port), path);
        match answer.status {
            400 => assert!(!HARMLESS.contains(path), "{path} is refused: {answer:?}"),
            200 => assert_ne!(answer.body, LOGIN, "{path} logs in"),
            status => assert!(stopped.contains(&status), "{path}: {answer:?}"),
        }
        if HARMLESS.contains(path) {
            assert!(stopped.contains(&answer.status), "{path}: {answer:?}");
        }
    }
}

/// The login's three are spent; then every spelling is one too many, and without a limiter none gets in.
fn no_spelling_logs_in(mut limiter: Tidegate, port: u16) {
    let mut client = Client::at([127, 0, 0, 2].into(), port);
    let spent = [(); 4].map(|()| spell(&mut client, "/login").status);
    assert_eq!(spent, [200, 200, 200, 429]);
    send_all(port, &[429]);
    limiter.kill();
    send_all(port, &[500, 502, 503, 504]);
}

/// Rules of an example of which only the login's limit is ever met.
fn only_logins(rules: &str) -> String {
    ["requests_per_unit: 20", "requests_per_unit: 30"]
        .iter()
        .fold(rules.to_owned(), |rules, small| rules.replace(small, "requests_per_unit: 1000000"))
}

fn behind(kind: Kind) {
    let rules = only_logins(proxy::EXAMPLE_RULES);
    let limiter = Setup::new().rules("edge.yaml", &rules).env("CHECK_PROXY", kind.check_proxy()).start();
    let address = format!("127.0.0.1:{}", limiter.ports().http);
    let proxy = Proxy::start_before(kind, &address, Some(application::start()));
    no_spelling_logs_in(limiter, proxy.port);
}

#[test]
fn no_spelling_of_a_path_evades_the_limit_of_the_login_behind_nginx() {
    behind(Kind::Nginx);
}

#[test]
fn no_spelling_of_a_path_evades_the_limit_of_the_login_behind_caddy() {
    behind(Kind::Caddy);
}

#[test]
fn no_spelling_of_a_path_evades_the_limit_of_the_login_behind_haproxy() {
    behind(Kind::Haproxy);
}

#[test]
fn no_spelling_of_a_path_evades_the_limit_of_the_login_behind_envoy() {
    let limiter = Setup::new().rules("edge.yaml", &only_logins(envoy::EXAMPLE_RULES)).start();
    let envoy = Envoy::start_before(&Upstream::at(&limiter), application::start());
    no_spelling_logs_in(limiter, envoy.port);
}

/// The canned application shows the path that reached it.
const TELLS_ITS_PATH: (&str, &str) = (
    "- header: { key: x-cost, value: \"28\" }\n",
    "- header: { key: x-cost, value: \"28\" }\n                            - header: { key: x-path, value: \"%REQ(:path)%\" }\n",
);

const KEEPS_ESCAPED_SLASHES: (&str, &str) = ("REJECT_REQUEST", "KEEP_UNCHANGED");

const MANY: u32 = 1_000_000;

#[test]
fn check_and_envoy_make_the_same_path_of_every_spelling() {
    let rules = format!(
        "domain: edge\nrate_limits: [{{actions: [{{request_headers: {{header_name: ':path', descriptor_key: spelt}}}}]}}]\n\
         descriptors: [{{key: spelt, rate_limit: {{unit: day, requests_per_unit: {MANY}}}}}]\n"
    );
    let limiter = Setup::new().rules("edge.yaml", &rules).start();
    let changes = [TELLS_ITS_PATH, KEEPS_ESCAPED_SLASHES];
    let envoy = Envoy::start_changed(&Upstream::at(&limiter), &changes);
    let counted = std::cell::RefCell::new(std::collections::HashMap::<String, u32>::new());
    let grpc = limiter.client();
    let compare = |spelt: &str| {
        let answer = envoy.client().send("GET", spelt, &[], "").expect("Envoy answers");
        // Envoy leaves a path of nothing but slashes with two.
        if answer.status == 400 || answer.header("x-path").is_some_and(|path| path.starts_with("//")) {
            return;
        }
        let normal = answer.header("x-path").unwrap_or_else(|| panic!("{spelt}: {answer:?}"));
        let described = [("x-original-uri", spelt), ("x-original-method", "GET")];
        let asked = Client::new(limiter.ports().http).send("GET", "/check/edge", &described, "");
        assert_eq!(asked.expect("an answer").status, 200, "{spelt}");
        let times =
            *counted.borrow_mut().entry(normal.to_owned()).and_modify(|times| *times += 1).or_insert(1);
        let left = grpc.ask(ask_only("edge", &[&[("spelt", normal)]])).statuses[0].limit_remaining;
        assert_eq!(left, MANY - times, "{spelt} is {normal} in Envoy");
    };
    SPELLINGS.iter().for_each(|spelt| compare(spelt));

    let piece = prop::sample::select(vec![
        "/", "/", "/", ".", "..", "%2e", "%2E", ";", "\\", "%5c", "%2f", "%", "%2", "%4", "6c", "%6C", "%7E",
        "%zz", "%25", "a", "B", "~", "\"", "<", "|", "^", "{", "$", "+", ":", "@", "[", "'", "?", "?",
    ]);
    let paths = prop::collection::vec(piece, 0..12).prop_map(|pieces| format!("/{}", pieces.concat()));
    // Envoy does not see the parameters of dots between backslashes.
    let paths = paths.prop_filter("both", |path| !(path.contains(';') && path.contains('\\')));
    let config = Config { cases: 400, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let compared = TestRunner::new_with_rng(config, rng).run(&paths, |path| {
        compare(&path);
        Ok(())
    });
    compared.unwrap_or_else(|error| panic!("{error}"));
}
