//! One hostile text, put wherever a text can come in, and every output that the program has: no character steers a terminal,
//! reorders a line or begins one.

use std::fs;

use serde_json::{Value, json};

use crate::admin::{TOKEN, call};
use crate::commands::tidegate;
use crate::harness::http::{Client, get};
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{eventually_true, grpc};

/// Control characters, C1, marks of direction, separators of lines, an annotation of a workflow on a line of its own.
const HOSTILE: &str =
    "a\u{1b}[2J\u{7f}\u{9b}1A\u{85}\u{202e}\u{2066}\u{2028}\u{2029}\u{feff}\r\n::error::forged";
/// The same, as the name of a file.
const FILE: &str = "b\u{1b}[2J\u{9b}\u{202e}\u{2028}\n::error::forged.yaml";

fn is_unsafe(char: char) -> bool {
    let moves = ['\u{61c}', '\u{200e}', '\u{200f}', '\u{2028}', '\u{2029}', '\u{feff}'];
    let turns = ('\u{202a}'..='\u{202e}').contains(&char) || ('\u{2066}'..='\u{2069}').contains(&char);
    (char.is_control() && !"\n\t".contains(char)) || moves.contains(&char) || turns
}

/// Nothing in this output is raw. `shows`: the text is there, escaped, so that its absence proves something.
fn is_clean(what: &str, text: &str, shows: bool) {
    let found = text.char_indices().find(|(_, char)| is_unsafe(*char));
    let around = found.map(|(at, _)| text[..at].chars().rev().take(60).collect::<Vec<_>>().into_iter().rev());
    let around: Option<String> = around.map(Iterator::collect);
    assert_eq!(found, None, "{what}: behind {around:?}");
    let forged = text.lines().find(|line| line.trim_start().starts_with("::error::forged"));
    assert_eq!(forged, None, "{what}");
    assert!(!shows || text.contains("forged"), "{what} shows nothing of it: {text}");
}

/// As a text in YAML.
fn quoted(text: &str) -> String {
    let char = |char: char| match char.is_ascii_graphic() || char == ' ' {
        true => char.to_string(),
        false => format!("\\u{:04x}", u32::from(char)),
    };
    format!("\"{}\"", text.chars().map(char).collect::<String>())
}

fn rules() -> String {
    let hostile = quoted(HOSTILE);
    format!(
        "domain: shop\ndescriptors:\n\
         \x20 - {{key: user, value: {hostile}, detailed_metric: true, rate_limit: {{unit: day, requests_per_unit: 1}}}}\n\
         \x20 - {{key: path, detailed_metric: true, rate_limit: {{unit: day, requests_per_unit: 1}}}}\n\
         \x20 - {{key: {hostile}, rate_limit: {{unit: day, requests_per_unit: 1}}}}\n\
         \x20 - {{key: tenant, limits_from: store, rate_limit: {{unit: day, requests_per_unit: 1}}}}\n"
    )
}

/// A limiter whose log is in this form, that was asked, changed and reloaded with the text everywhere.
fn attacked(log_format: &str) -> Tidegate {
    let setup = Setup::new().rules("shop.yaml", &rules()).env("ADMIN_TOKEN", TOKEN);
    let files = [("EVENTS_LOG", "events"), ("AUDIT_LOG", "audit"), ("EXCEPTIONS_FILE", "exceptions")];
    let path = |setup: &Setup, name: &str| setup.outside().join(name).display().to_string();
    let setup = files.into_iter().fold(setup, |setup, (setting, name)| {
        let path = path(&setup, name);
        setup.env(setting, &path)
    });
    let records = path(&setup, "records");
    let setup = setup.env("LIMITS_DIR", &records).env("KEEP_KEYS", "true").env("LOG_LEVEL", "debug");
    let limiter = setup.env("LOG_FORMAT", log_format).start();
    let client = limiter.client();
    for (domain, entry) in [
        ("shop", ("user", HOSTILE)),
        ("shop", ("path", HOSTILE)),
        ("shop", ("tenant", HOSTILE)),
        ("shop", (HOSTILE, HOSTILE)),
        (HOSTILE, ("user", "a")),
    ] {
        (0..3).for_each(|_| _ = client.ask(grpc::question(domain, &[&[entry]])));
    }
    let entries = json!([{"key": "user", "value": HOSTILE}]);
    let exception =
        json!({"domain": "shop", "entries": entries, "deny": true, "who": HOSTILE, "why": HOSTILE});
    assert_eq!(call(&limiter, "PUT", "/admin/exceptions/hostile", &exception).status, 201);
    let entries = json!([{"key": "tenant", "value": HOSTILE}]);
    let record =
        json!({"domain": "shop", "entries": entries, "requests_per_unit": 7, "who": HOSTILE, "why": HOSTILE});
    assert_eq!(call(&limiter, "PUT", "/admin/records", &record).status, 201);
    let reset = json!({"domain": "shop", "entries": [{"key": "user"}], "who": HOSTILE, "why": HOSTILE});
    call(&limiter, "POST", "/admin/resets", &reset);
    let load = "/admin/records/load?format=csv&who=jane&why=a";
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("host", "limiter"), ("authorization", bearer.as_str())];
    let loaded = Client::new(limiter.ports().debug).send("POST", load, &headers, HOSTILE).expect("an answer");
    is_clean("a load", &loaded.body, false);
    limiter.setup.write(FILE, &format!("domain: [{HOSTILE}"));
    eventually_true("the file to be refused", || {
        limiter.metric("ratelimit_service_config_load_error") >= 1.0
    });
    let events = || fs::read_to_string(limiter.setup.outside().join("events")).unwrap_or_default();
    eventually_true("the events", || events().contains("reload_refused") && events().contains("denied"));
    limiter
}

#[test]
fn no_page_log_or_file_has_it_raw() {
    for format in ["text", "json"] {
        let limiter = attacked(format);
        let debug = limiter.ports().debug;
        let page = |path: &str| {
            Client::new(debug).send("GET", path, &[("host", "localhost")], "").expect("a page").body
        };
        for (path, shows) in [
            ("/", false),
            ("/stats", true),
            ("/metrics", true),
            ("/rlconfig", true),
            ("/rlconfig?format=yaml", true),
            ("/rlconfig?format=json", true),
            ("/status", true),
            ("/status?about=1", true),
            ("/status?find=a", false),
        ] {
            is_clean(path, &page(path), shows);
        }
        is_clean("metrics", &get(limiter.ports().metrics, "/metrics").expect("a page").body, true);
        let question =
            json!({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": HOSTILE}]}]});
        let hostile = json!({"domain": HOSTILE, HOSTILE: 1});
        for (path, body) in [("/ask", &question), ("/ask?format=json", &question), ("/ask", &hostile)] {
            let asked = Client::new(debug).send("POST", path, &[], &body.to_string()).expect("an answer");
            is_clean(path, &asked.body, true);
        }
        let refused = Client::new(limiter.ports().http).send("POST", "/json", &[], &hostile.to_string());
        is_clean("/json", &refused.expect("an answer").body, true);
        for (method, path, body) in [
            ("GET", "/admin/exceptions", Value::Null),
            ("GET", "/admin/exceptions/hostile", Value::Null),
            ("GET", "/admin/audit", Value::Null),
            ("GET", "/admin/resets", Value::Null),
            ("POST", "/admin/records/list", json!({})),
            ("POST", "/admin/records/get", json!({HOSTILE: HOSTILE})),
        ] {
            is_clean(path, &call(&limiter, method, path, &body).body, path != "/admin/resets");
        }
        for name in ["events", "audit", "exceptions"] {
            let text = fs::read_to_string(limiter.setup.outside().join(name)).expect("it was written");
            is_clean(name, &text, true);
        }
        let lines = limiter.output();
        assert!(lines.iter().any(|line| line.contains("forged")), "{lines:#?}");
        lines.iter().for_each(|line| is_clean("the log", line, false));
        commands_of(&limiter);
    }
}

/// Commands that ask a limiter.
fn commands_of(limiter: &Tidegate) {
    let to = format!("127.0.0.1:{}", limiter.ports().debug);
    let user = format!("user={HOSTILE}");
    for words in [
        &["exception", "list"][..],
        &["exception", "list", "--format", "json"],
        &["limit", "get", "shop", &format!("tenant={HOSTILE}")],
        &["counter", "top", "shop", "user"],
        &["counter", "peek", "shop", &user],
        &["exception", "end", HOSTILE],
    ] {
        let (_, text, complaints) = tidegate(&[words, &["--to", &to]].concat(), &[("ADMIN_TOKEN", TOKEN)]);
        is_clean(words[0], &text, false);
        is_clean(words[0], &complaints, false);
        assert!(!(text + &complaints).is_empty(), "{words:?}");
    }
    let (_, text, complaints) = tidegate(&["ask", "shop", &user, "--to", &to], &[]);
    is_clean("ask", &text, true);
    is_clean("ask", &complaints, false);
}

#[test]
fn no_command_prints_it_raw() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let write =
        |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("the folder is ours");
    fs::create_dir(path("rules")).expect("the folder is ours");
    write("rules/shop.yaml", &rules());
    fs::create_dir(path("bad")).expect("the folder is ours");
    write(&format!("bad/{FILE}"), &format!("domain: shop\n{}: 1\n", quoted(HOSTILE)));
    let hostile = quoted(HOSTILE);
    let case = format!("request: {{user: {hostile}}}, expect: {{rule: {hostile}}}");
    write("cases.yaml", &format!("rules: rules\ncases:\n  - {{name: {hostile}, steps: [{{{case}}}]}}\n"));
    write("bad.cases.yaml", &format!("rules: rules\ncases:\n  - {{{hostile}: 1}}\n"));
    let line = json!({"time": "2026-01-01T00:00:00Z", "user": HOSTILE}).to_string();
    write("access.log", &format!("{line}\n").repeat(9));
    let run = |words: &[&str], shows: bool| {
        let (_, text, complaints) = tidegate(words, &[]);
        is_clean(&words.join(" "), &text, shows);
        is_clean(&words.join(" "), &complaints, false);
        assert!(!(text + &complaints).is_empty(), "{words:?}");
    };
    for format in ["text", "json", "github"] {
        run(&["check", "--format", format, &path("bad")], true);
    }
    for format in ["text", "json", "github", "junit"] {
        for cases in ["cases.yaml", "bad.cases.yaml"] {
            run(&["test", "--format", format, &path(cases)], true);
        }
    }
    let (rules, log) = (path("rules"), path("access.log"));
    let replay =
        ["replay", "--rules", &rules, "--format", "json", "--time", "time", "--map", "user=$user", &log];
    for report in ["text", "json", "html"] {
        run(&[&replay[..], &["--report", report]].concat(), true);
    }
    run(&["ask", "shop", &format!("user={HOSTILE}"), "--rules", &rules], true);
    run(&["settings", "--events-log", HOSTILE], true);
    run(&["replay", "--rules", HOSTILE, &log], false);
}
