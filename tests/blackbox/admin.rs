//! The admin API: exceptions, counters, the audit; who may use it, and what survives a restart.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::http::{Answer, Client};
use crate::harness::programs::{installed, succeed};
use crate::harness::redis::Redis;
use crate::harness::small_disk::SmallDisk;
use crate::harness::tidegate::{Setup, Tidegate, binary};
use crate::harness::{eventually_true, grpc};
use crate::status_page::troubles;

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 3}
";
pub const TOKEN: &str = "s3cret";

fn setup() -> Setup {
    let setup = Setup::new().rules("shop.yaml", RULES).env("ADMIN_TOKEN", TOKEN);
    let [exceptions, audit] =
        ["exceptions", "audit"].map(|name| setup.outside().join(name).display().to_string());
    setup.env("EXCEPTIONS_FILE", &exceptions).env("AUDIT_LOG", &audit)
}

pub fn call(limiter: &Tidegate, method: &str, path: &str, body: &Value) -> Answer {
    let bearer = format!("Bearer {TOKEN}");
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let headers = [("host", "limiter"), ("authorization", bearer.as_str())];
    Client::new(limiter.ports().debug).send(method, path, &headers, &body).expect("an answer")
}

pub fn exception(value: Option<&str>, more: &Value) -> Value {
    let mut body = json!({
        "domain": "shop", "entries": [{"key": "user"}], "who": "jane", "why": "a launch",
    });
    if let Some(value) = value {
        body["entries"][0]["value"] = value.into();
    }
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

pub fn put(limiter: &Tidegate, id: &str, body: &Value) {
    let answer = call(limiter, "PUT", &format!("/admin/exceptions/{id}"), body);
    assert!([200, 201].contains(&answer.status), "{answer:?}");
}

fn ask(limiter: &Tidegate, user: &str) -> bool {
    let question = grpc::question("shop", &[&[("user", user)]]);
    limiter.client().ask(question).overall_code == grpc::OK
}

/// How many of ten hits pass.
fn passed(limiter: &Tidegate, user: &str) -> usize {
    (0..10).filter(|_| ask(limiter, user)).count()
}

#[test]
fn an_exception_is_in_force_at_once_survives_a_restart_and_ends() {
    let limiter = setup().start();
    assert_eq!(passed(&limiter, "alice"), 3);
    put(&limiter, "launch", &exception(Some("alice"), &json!({"requests_per_unit": 5})));
    eventually_true("two more to pass", || ask(&limiter, "alice"));
    assert_eq!(passed(&limiter, "alice"), 1);
    assert_eq!(passed(&limiter, "bob"), 3);
    put(&limiter, "abuse", &exception(Some("mal*"), &json!({"deny": true})));
    put(&limiter, "press", &exception(Some("press"), &json!({"unlimited": true})));
    eventually_true("a denial", || !ask(&limiter, "mallory"));
    eventually_true("both to be known", || limiter.metric("tidegate_exceptions") == 3.0);
    assert_eq!((passed(&limiter, "press"), passed(&limiter, "malory")), (10, 0));
    let met = |limiter: &Tidegate, effect| {
        limiter.scrape().sum("tidegate_exceptions_met_total", &[("effect", effect)])
    };
    assert_eq!(met(&limiter, "unlimited"), 10.0);

    let limiter = limiter.restart();
    assert_eq!(
        (passed(&limiter, "press"), passed(&limiter, "mallory"), passed(&limiter, "alice")),
        (10, 0, 5)
    );
    let ended = call(&limiter, "DELETE", "/admin/exceptions/abuse", &json!({"who": "joe", "why": "over"}));
    assert_eq!(ended.status, 200, "{ended:?}");
    eventually_true("the denial to end", || ask(&limiter, "mallory"));
    assert_eq!(call(&limiter, "DELETE", "/admin/exceptions/abuse", &json!({"who": "joe"})).status, 404);

    let audit = fs::read_to_string(limiter.setup.outside().join("audit")).expect("an audit");
    let lines: Vec<Value> = audit.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let did: Vec<_> = lines.iter().filter_map(|line| line["does"].as_str()).collect();
    assert_eq!(did, ["exception_put", "exception_put", "exception_put", "exception_end"]);
    assert!(lines.iter().filter(|line| line["outcome"] == "done").count() == 4, "{audit}");
    assert!(lines[6]["who"] == "joe" && lines[6]["what"]["before"]["why"] == "a launch", "{audit}");
    assert_eq!(lines[6]["what"]["why"], "over");
}

#[test]
fn who_wants_a_new_exception_replaces_none() {
    let limiter = setup().start();
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("host", "limiter"), ("authorization", bearer.as_str()), ("if-none-match", "*")];
    let new = |requests: u32| {
        let body = exception(Some("alice"), &json!({"requests_per_unit": requests})).to_string();
        let mut client = Client::new(limiter.ports().debug);
        client.send("PUT", "/admin/exceptions/a", &headers, &body).expect("an answer")
    };
    assert_eq!([5, 5, 6].map(|requests| new(requests).status), [201, 200, 412]);
    assert_eq!(passed(&limiter, "alice"), 5);
    put(&limiter, "a", &exception(Some("alice"), &json!({"requests_per_unit": 6})));
    assert_eq!(new(6).status, 200);
}

#[test]
fn strangers_are_refused_everywhere_on_loopback_too() {
    let bare = Setup::new().rules("shop.yaml", RULES).start();
    let with_token = setup().start();
    let paths = [
        ("GET", "/admin/exceptions"),
        ("PUT", "/admin/exceptions/a"),
        ("DELETE", "/admin/exceptions/a"),
        ("POST", "/admin/counters/peek"),
        ("POST", "/admin/counters/reset"),
        ("POST", "/admin/counters/top"),
        ("GET", "/admin/resets"),
        ("POST", "/admin/resets"),
        ("PUT", "/admin/records"),
        ("DELETE", "/admin/records"),
        ("POST", "/admin/records/get"),
        ("POST", "/admin/records/list"),
        ("POST", "/admin/records/load"),
        ("GET", "/admin/audit"),
        ("GET", "/admin/openapi.json"),
        ("GET", "/admin/nothing"),
    ];
    let bearer = format!("Bearer {TOKEN}");
    for (method, path) in paths {
        let send = |limiter: &Tidegate, headers: &[(&str, &str)]| {
            let headers = [&[("host", "limiter")], headers].concat();
            let sent = Client::new(limiter.ports().debug).send(method, path, &headers, "{}");
            sent.expect("an answer").status
        };
        assert_eq!(send(&bare, &[("authorization", &bearer)]), 403, "{path}: there is no token");
        let foreign = [("authorization", bearer.as_str()), ("origin", "http://evil.example")];
        assert_eq!(send(&with_token, &foreign), 403, "{path}: another origin");
    }
    let wrong = |value| {
        let headers = [("host", "limiter"), ("authorization", value)];
        Client::new(with_token.ports().debug).send("GET", "/admin/audit", &headers, "").expect("an answer")
    };
    for value in ["", "Bearer", "Bearer ", "Bearer s3cre", "Basic s3cret"] {
        assert_eq!(wrong(value).status, 403, "{value}");
    }
    let refused = with_token.metric("tidegate_admin_refused_total");
    assert_eq!(refused, (paths.len() + 5) as f64);
}

#[test]
fn hostile_names_and_values_are_refused_or_stay_text() {
    let limiter = setup().start();
    let hostile = "<script>\u{2028}\n{\"who\":\"root\"}";
    put(&limiter, "a", &exception(Some(hostile), &json!({"deny": true, "why": hostile})));
    for page in ["/admin/exceptions", "/admin/audit", "/admin/exceptions/a"] {
        let shown = call(&limiter, "GET", page, &Value::Null).body;
        assert!(shown.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{shown}");
        assert!(!shown.contains('\u{2028}'), "{shown}");
    }
    for (path, body) in [
        ("/admin/exceptions/a%2Fb", exception(None, &json!({"deny": true}))),
        ("/admin/exceptions/", exception(None, &json!({"deny": true}))),
        ("/admin/exceptions/a", json!([])),
        ("/admin/exceptions/a", exception(None, &json!({"deny": true, "requests_per_unit": 3}))),
        ("/admin/exceptions/a", exception(None, &json!({"deny": true, "until": "soon"}))),
    ] {
        let answer = call(&limiter, "PUT", path, &body);
        assert!(answer.status == 400 && answer.body.starts_with("{\"error\":"), "{path} {answer:?}");
    }
    let twice = r#"{"who":"a","who":"b"}"#;
    let headers = [("host", "limiter"), ("authorization", "Bearer s3cret")];
    let mut client = Client::new(limiter.ports().debug);
    let answer = client.send("DELETE", "/admin/exceptions/a", &headers, twice).expect("an answer");
    assert!(answer.status == 400 && answer.body.contains("duplicate field"), "{answer:?}");
}

#[test]
fn a_counter_is_shown_and_reset_in_memory_and_in_redis() {
    let redis = Redis::start(&[]);
    for setup in [
        setup(),
        setup().env("REDIS_URL", &redis.url()).env("REDIS_TIMEOUT", "10s"),
        setup().env("REDIS_URL", &redis.url()).env("REDIS_TIMEOUT", "10s").env("REDIS_SYNC", "leased"),
    ] {
        let limiter = setup.start();
        assert_eq!(passed(&limiter, "alice"), 3);
        let counter = json!({"domain": "shop", "entries": [{"key": "user", "value": "alice"}]});
        let peeked = call(&limiter, "POST", "/admin/counters/peek", &counter);
        assert_eq!(peeked.status, 200, "{peeked:?}");
        let mut reset = counter.clone();
        (reset["who"], reset["why"]) = ("jane".into(), "a mistake".into());
        let answer = call(&limiter, "POST", "/admin/counters/reset", &reset);
        assert_eq!(answer.status, 200, "{answer:?}");
        eventually_true("the counter to be unused", || ask(&limiter, "alice"));
        assert_eq!(passed(&limiter, "alice"), 2);
        put(&limiter, "press", &exception(Some("press"), &json!({"unlimited": true})));
        eventually_true("it to be in force", || (0..4).all(|_| ask(&limiter, "press")));
        let met = || limiter.scrape().sum("tidegate_exceptions_met_total", &[]);
        let before = met();
        assert_eq!((passed(&limiter, "press"), met() - before), (10, 10.0), "each is counted once");
        let nothing =
            json!({"domain": "shop", "entries": [{"key": "other", "value": "x"}], "who": "a", "why": "b"});
        assert_eq!(call(&limiter, "POST", "/admin/counters/reset", &nothing).status, 404);
        // Who did it, before and after.
        let audit = fs::read_to_string(limiter.setup.outside().join("audit")).expect("an audit");
        assert!(audit.contains("\"does\":\"counter_reset\"") && audit.contains("a mistake"), "{audit}");
        redis.ask::<()>(&["FLUSHALL"]);
    }
}

#[test]
fn commands_do_the_same_at_every_limiter_and_say_which_failed() {
    let (one, two) = (setup().start(), setup().start());
    let tidegate = |words: &[&str]| {
        let mut command = Command::new(binary());
        command.env_clear().env("ADMIN_TOKEN", TOKEN).args(words).output().expect("it runs")
    };
    let [first, second] = [&one, &two].map(|limiter| format!("127.0.0.1:{}", limiter.ports().debug));
    let both = format!("{first},{second}");
    let words = ["exception", "put", "x", "shop", "user=alice", "--requests-per-unit", "7", "--who", "jane"];
    let put = tidegate(&[&words[..], &["--why", "a launch", "--to", &both]].concat());
    assert!(put.status.success(), "{put:?}");
    for limiter in [&one, &two] {
        eventually_true("the exception", || limiter.metric("tidegate_exceptions") == 1.0);
        assert_eq!(passed(limiter, "alice"), 7);
    }
    drop(two);
    let end = tidegate(&["exception", "end", "x", "--who", "jane", "--to", &both]);
    assert_eq!(end.status.code(), Some(1));
    let (out, problems) = (String::from_utf8_lossy(&end.stdout), String::from_utf8_lossy(&end.stderr));
    assert_eq!(out, format!("{first}: x: ended\n"));
    assert!(problems.starts_with(&format!("tidegate: {second}: ")), "{problems}");
    let reset =
        ["counter", "reset", "shop", "user=alice", "--who", "jane", "--why", "why not", "--to", &first];
    assert!(tidegate(&reset).status.success());
    assert_eq!(passed(&one, "alice"), 3);
    let shown = tidegate(&["exception", "list", "--to", &first]);
    assert!(shown.status.success() && shown.stdout == b"no exceptions\n", "{shown:?}");
    let json = tidegate(&["exception", "end", "x", "--who", "jane", "--to", &both, "--format", "json"]);
    let replies: Vec<Value> = String::from_utf8_lossy(&json.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("each line is JSON"))
        .collect();
    assert_eq!([&replies[0]["limiter"], &replies[1]["limiter"]], [&json!(first), &json!(second)], "{json:?}");
    assert!(
        replies.len() == 2 && replies[0]["error"].as_str().is_some_and(|why| why.starts_with("404")),
        "{replies:?}"
    );
    let path = tidegate(&["exception", "end", "../counters/top", "--who", "jane", "--to", &first]);
    let problem = String::from_utf8_lossy(&path.stderr).into_owned();
    assert!(path.status.code() == Some(1) && problem.contains("there is no exception"), "{path:?}");
    let past = ["exception", "put", "x", "shop", "user=a", "--deny", "--who", "jane", "--why", "late"];
    let past = tidegate(&[&past[..], &["--until", "2020-01-01T00:00:00Z", "--to", &first]].concat());
    assert!(
        String::from_utf8_lossy(&past.stderr).ends_with(": 400 Bad Request: until: is past\n"),
        "{past:?}"
    );
    let unnamed = tidegate(&["exception", "put", "x", "shop", "user", "--deny", "--to", &first]);
    let missing = String::from_utf8_lossy(&unnamed.stderr).into_owned();
    assert!(missing.contains("--who <NAME>") && missing.contains("--why <TEXT>"), "all at once: {missing}");
    assert_eq!(tidegate(&["counter", "peek", "shop", "user=a", "--to", "nowhere"]).status.code(), Some(64));
}

#[test]
fn an_exception_that_changes_nothing_is_made_with_a_warning() {
    let limiter = setup().start();
    let warning = |id: &str, body: &Value| -> Value {
        let answer = call(&limiter, "PUT", &format!("/admin/exceptions/{id}"), body);
        assert_eq!(answer.status, 201, "{answer:?}");
        serde_json::from_str::<Value>(&answer.body).expect("JSON")["warning"].clone()
    };
    let deny = json!({"deny": true});
    assert_eq!(warning("a", &exception(Some("alice"), &deny)), Value::Null);
    assert_eq!(warning("b", &exception(None, &deny)), Value::Null);
    let unmet = json!({"deny": true, "entries": [{"key": "usr", "value": "alice"}]});
    assert!(warning("c", &exception(None, &unmet)).to_string().contains("no rule applies"));
    let nowhere = json!({"deny": true, "domain": "shp"});
    assert!(warning("d", &exception(None, &nowhere)).to_string().contains("no rules of this domain"));
}

#[test]
fn the_audit_may_be_standard_output_and_what_cannot_be_audited_is_not_done() {
    let limiter = setup().env("AUDIT_LOG", "-").start();
    put(&limiter, "a", &exception(Some("alice"), &json!({"deny": true})));
    for line in ["\"does\":\"exception_put\"", "\"outcome\":\"done\""] {
        eventually_true(line, || limiter.lines_with(line) == 1);
    }
    let limiter = setup().env("AUDIT_LOG", "/dev/full").start();
    let counter = json!([{"key": "user", "value": "alice"}]);
    let why = json!({"domain": "shop", "entries": counter, "who": "jane", "why": "a test"});
    assert_eq!(passed(&limiter, "alice"), 3);
    for (method, path, body) in [
        ("PUT", "/admin/exceptions/a", exception(Some("alice"), &json!({"unlimited": true}))),
        ("POST", "/admin/counters/reset", why),
        ("POST", "/admin/resets", json!({"domain": "shop", "who": "jane", "why": "a test"})),
    ] {
        let answer = call(&limiter, method, path, &body);
        assert!(answer.status == 503 && answer.body.contains("cannot be audited"), "{path}: {answer:?}");
    }
    for path in ["/admin/exceptions", "/admin/resets"] {
        assert_eq!(call(&limiter, "GET", path, &Value::Null).body, "");
    }
    assert_eq!((passed(&limiter, "alice"), passed(&limiter, "bob")), (0, 3), "decisions go on");
}

#[test]
fn a_start_with_a_broken_file_of_exceptions_fails_and_names_the_line() {
    let setup = setup();
    fs::write(setup.outside().join("exceptions"), "{}\n").expect("writable");
    let mut process = setup.spawn();
    assert_eq!(process.exit_code(), 1);
    assert!(process.lines_with("exceptions:1: id: is missing") == 1, "{:#?}", process.output());
}

#[test]
fn a_file_of_exceptions_that_cannot_be_written_ends_the_start_and_is_said_later() {
    let bad = setup().env("EXCEPTIONS_FILE", "/proc/self/exceptions");
    let mut process = bad.spawn();
    assert_eq!(process.exit_code(), 1);
    let said = "EXCEPTIONS_FILE: cannot write /proc/self/exceptions: ";
    assert_eq!(process.lines_with(said), 1, "{:#?}", process.output());

    let setup = setup();
    let disk = SmallDisk::at(setup.outside().join("small"));
    let file = disk.path().join("exceptions").display().to_string();
    let limiter = setup.env("EXCEPTIONS_FILE", &file).start();
    let is_up = || limiter.metric("tidegate_exceptions_file_up") == 1.0;
    let trouble = "Exceptions can be neither made nor ended. EXCEPTIONS_FILE: cannot write ";
    let change =
        || call(&limiter, "PUT", "/admin/exceptions/a", &exception(Some("a"), &json!({"deny": true})));
    assert!(is_up() && !troubles(&limiter).contains(trouble));
    disk.remount("ro");
    let refused = change();
    assert!(refused.status == 503 && refused.body.contains("cannot be stored"), "{refused:?}");
    assert!(!is_up() && troubles(&limiter).contains(trouble), "{}", troubles(&limiter));
    disk.remount("rw");
    assert_eq!(change().status, 201);
    assert!(is_up() && !troubles(&limiter).contains(trouble));
    let left: Vec<_> =
        fs::read_dir(disk.path()).expect("ours").flatten().map(|file| file.file_name()).collect();
    assert_eq!(left, ["exceptions"]);
}

#[test]
fn the_openapi_document_is_valid_and_knows_every_path() {
    let limiter = setup().start();
    let document = call(&limiter, "GET", "/admin/openapi.json", &Value::Null).body;
    let path = limiter.setup.outside().join("openapi.json");
    fs::write(&path, &document).expect("writable");
    succeed(installed("validate").arg("--").arg(&path));
    let document: Value = serde_json::from_str(&document).expect("JSON");
    for (path, methods) in document["paths"].as_object().expect("paths") {
        let path = path.replace("{id}", "unknown");
        for method in ["get", "put", "post", "delete", "patch"] {
            let status = call(&limiter, &method.to_uppercase(), &path, &json!({})).status;
            assert_eq!(status == 405, methods.get(method).is_none(), "{method} {path}: {status}");
        }
    }
}

#[test]
fn who_meets_an_exception_sees_which_what_it_does_and_until_when() {
    let limiter = setup().env("RESPONSE_DYNAMIC_METADATA", "true").start();
    let until = "2099-01-01T00:00:00Z";
    put(&limiter, "launch", &exception(Some("alice"), &json!({"requests_per_unit": 5, "until": until})));
    put(&limiter, "abuse", &exception(Some("mal*"), &json!({"deny": true})));
    put(&limiter, "press", &exception(Some("press"), &json!({"unlimited": true})));
    eventually_true("a denial", || !ask(&limiter, "mallory"));
    let post = |port: u16, path: &str, user: &str| -> String {
        let body = json!({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": user}]}]});
        let headers = [("host", "limiter")];
        Client::new(port).send("POST", path, &headers, &body.to_string()).expect("an answer").body
    };
    let (debug, http) = (limiter.ports().debug, limiter.ports().http);
    for (user, line) in [
        ("alice", "  exception launch: 5 instead of 3, until 2099-01-01T00:00:00Z\n"),
        ("mallory", "  exception abuse: nothing passes, until it is ended\n"),
        ("press", "  exception press: counted and never denied, until it is ended\n"),
    ] {
        let shown = post(debug, "/ask", user);
        assert!(shown.contains(line), "{user}: {shown}");
    }
    assert!(!post(debug, "/ask", "bob").contains("exception"));
    let shown: Value = serde_json::from_str(&post(debug, "/ask?format=json", "alice")).expect("JSON");
    let instead_of = json!({"requests_per_unit": 3, "burst": 3});
    let expected = json!({"id": "launch", "effect": "limit", "until": until, "instead_of": instead_of});
    assert_eq!(shown["descriptors"][0]["exception"], expected);

    let shown = |user: &str| -> Value {
        let answer: Value = serde_json::from_str(&post(http, "/json", user)).expect("JSON");
        answer["dynamicMetadata"]["exceptions"].clone()
    };
    let expected = json!([{"descriptor": 0.0, "id": "launch", "effect": "limit", "until": until}]);
    assert_eq!(shown("alice"), expected);
    assert_eq!(shown("mallory"), json!([{"descriptor": 0.0, "id": "abuse", "effect": "deny"}]));
    assert_eq!(shown("bob"), Value::Null);
}
