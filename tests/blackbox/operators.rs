//! What operators type, and what they get: mistakes are named, and answers are for people.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use crate::commands::{folder, tidegate};
use crate::harness::tidegate::Setup;
use crate::harness::{grpc, http};

const RULES: &str =
    "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {unit: hour, requests_per_unit: 2}\n";

#[test]
fn a_misspelt_command_is_blamed_and_not_what_follows_it() {
    for wrong in [&["chekc", "rules"][..], &["chekc", "--strict", "rules"], &["excepton", "put", "x"]] {
        let (code, _, complaint) = tidegate(wrong, &[]);
        assert_eq!(code, 64);
        let expected = format!("tidegate: {:?} is neither a command nor a file or folder of rules", wrong[0]);
        assert!(
            complaint.starts_with(&expected) && complaint.contains("the closest command is"),
            "{complaint}"
        );
    }
    let (code, _, complaint) = tidegate(&["check", "--strcit"], &[]);
    assert!(code == 64 && complaint.contains("'--strcit'"), "{complaint}");
    assert_eq!(tidegate(&["help", "check"], &[]).0, 0);
}

#[test]
fn a_wrong_token_and_none_have_different_messages() {
    let limiter = Setup::new().rules("shop.yaml", RULES).env("ADMIN_TOKEN", "right").start();
    let port = limiter.ports().debug.to_string();
    let list = |token: &[(&str, &str)]| {
        let variables = [&[("DEBUG_HOST", "127.0.0.1"), ("DEBUG_PORT", port.as_str())], token].concat();
        let (code, _, complaint) = tidegate(&["exception", "list"], &variables);
        (code, complaint)
    };
    let (code, complaint) = list(&[]);
    assert!(code == 1 && complaint.contains("and none came"), "{complaint}");
    let (code, complaint) = list(&[("ADMIN_TOKEN", "wrong")]);
    assert!(code == 1 && complaint.contains("this is not the admin token"), "{complaint}");
    assert!(!complaint.contains("right") && !complaint.contains("wrong"), "{complaint}");
    assert_eq!(list(&[("ADMIN_TOKEN", "right")]).0, 0);
}

#[test]
fn ask_bears_the_admin_token() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let to = listener.local_addr().expect("an address").to_string();
    let limiter = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut head = [0; 4096];
        let length = stream.read(&mut head).expect("a request");
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").expect("it reads");
        String::from_utf8_lossy(&head[..length]).to_lowercase()
    });
    let asked = tidegate(&["ask", "--to", &to, "shop", "user=alice"], &[("ADMIN_TOKEN", "right")]);
    assert_eq!(asked, (0, "ok".to_owned(), String::new()));
    let head = limiter.join().expect("a request");
    assert!(head.contains("authorization: bearer right\r\n"), "{head}");
}

#[test]
fn what_is_set_elsewhere_for_redis_and_memcache_gets_the_setting_that_is_meant() {
    let (_, _, complaint) =
        tidegate(&["settings"], &[("REDIS_HOST", "hunter2"), ("REDIS_PASSWORD", "hunter2")]);
    assert!(complaint.contains("REDIS_HOST: has no effect (expected REDIS_URL=HOST:PORT"), "{complaint}");
    assert!(complaint.contains("REDIS_PASSWORD: has no effect (expected REDIS_AUTH="), "{complaint}");
    assert!(!complaint.contains("hunter2"), "{complaint}");
    for command in [&["settings"][..], &[]] {
        for backend in ["memcache", "memcached"] {
            let (code, _, complaint) = tidegate(command, &[("BACKEND_TYPE", backend)]);
            assert!(code == 64 && complaint.contains("increments race (expected REDIS_URL"), "{complaint}");
        }
    }
}

#[test]
fn the_http_port_says_what_it_speaks_and_admits_nobody_by_that() {
    let limiter = Setup::new().rules("shop.yaml", RULES).start();
    let answer = http::Client::new(limiter.ports().http).get("/");
    assert_eq!(answer.status, 404, "it is no answer to a question about a request");
    for word in ["Tidegate", "/check/DOMAIN", "POST /json", "GRPC_PORT", "DEBUG_PORT"] {
        assert!(answer.body.contains(word), "{word}: {}", answer.body);
    }
}

#[test]
fn the_manual_has_a_page_for_each_command_of_a_command() {
    let (_folder, path) = folder(&[]);
    let (code, _, complaint) = tidegate(&["man", "--all", &path], &[]);
    assert_eq!((code, complaint.as_str()), (0, ""));
    let page = |name: &str| fs::read_to_string(format!("{path}/{name}.1")).expect(name);
    let whole = page("tidegate");
    let commands = whole.split("\ntidegate\\-").skip(1).map(|rest| rest.split('(').next().expect("a name"));
    let commands: Vec<_> = commands.map(|name| name.replace('\\', "")).collect();
    assert!(commands.len() > 10, "{commands:?}");
    for command in commands.iter().filter(|name| *name != "help") {
        assert!(
            page(&format!("tidegate-{command}")).contains(&format!(".TH tidegate-{command} 1")),
            "{command}"
        );
    }
    assert!(page("tidegate-counter-reset-all").contains("tidegate counter reset\\-all"));
    assert_eq!(tidegate(&["man", "exception", "put"], &[]).1, page("tidegate-exception-put"));
    let (code, _, complaint) = tidegate(&["man", "excepton"], &[]);
    assert!(code == 64 && complaint.contains("expected one of check, "), "{complaint}");
    assert_eq!(tidegate(&["man", "--all", "/nowhere"], &[]).0, 1);
}

/// A limiter with a token, and what commands get from it. Their zone is five hours behind.
fn operated(setup: Setup) -> (crate::harness::tidegate::Tidegate, impl Fn(&[&str]) -> (i32, String, String)) {
    let limiter = setup.rules("shop.yaml", RULES).env("ADMIN_TOKEN", "t").start();
    let port = limiter.ports().debug.to_string();
    let run = move |words: &[&str]| {
        let variables = [
            ("DEBUG_HOST", "127.0.0.1"),
            ("DEBUG_PORT", port.as_str()),
            ("ADMIN_TOKEN", "t"),
            ("TZ", "EST5"),
        ];
        tidegate(words, &variables)
    };
    (limiter, run)
}

const BY: [&str; 4] = ["--who", "jane", "--why", "a test"];

#[test]
fn times_are_typed_as_people_say_them_and_said_back_with_their_zone() {
    let (_limiter, run) = operated(Setup::new());
    let put = |more: &[&str]| {
        run(&[&["exception", "put", "x", "shop", "user=a", "--deny"], &BY[..], more].concat())
    };
    let (code, text, complaint) = put(&["--until", "2126-11-30 08:00"]);
    assert_eq!(code, 0, "{complaint}");
    assert!(
        text.starts_with("x: made, until Saturday 2126-11-30 08:00:00 EST (2126-11-30T13:00:00Z)\n"),
        "{text}"
    );
    let (_, text, _) = put(&["--until", "Monday"]);
    assert!(text.starts_with("x: replaced, until Monday 20") && text.contains(" 00:00:00 EST ("), "{text}");
    assert!(put(&["--for", "2h"]).1.contains(" EST ("));
    let (_, listed, _) = run(&["exception", "list"]);
    let lines: Vec<_> = listed.lines().collect();
    assert!(lines[0].starts_with("ID  PATH         LIMIT           IN FORCE  UNTIL"), "{listed}");
    assert!(
        lines[1].starts_with("x   shop user=a  nothing passes  yes       20")
            && lines[1].ends_with("jane  a test"),
        "{listed}"
    );
    for (option, wrong) in [("--until", "someday"), ("--from", "25:00"), ("--for", "ages")] {
        let (code, _, complaint) = put(&[option, wrong]);
        assert!(
            code == 64 && complaint.starts_with(&format!("tidegate: {option}: {wrong:?} is no ")),
            "{complaint}"
        );
    }
    assert_eq!(put(&["--for", "1h", "--until", "Monday"]).0, 64);
    for long in ["3d", "1d12h", "90m"] {
        assert_eq!(put(&["--for", long]).0, 0, "{long}");
    }
    let (_, json, _) = run(&["exception", "list", "--format", "json"]);
    assert!(json.starts_with("{") && json.contains("\"until\":\"20"), "{json}");
}

#[test]
fn all_flags_that_are_missing_are_named_at_once() {
    for words in [&["exception", "put", "x", "shop", "user=a"][..], &["limit", "put", "shop", "user=a"]] {
        let (code, _, complaint) = tidegate(words, &[]);
        assert_eq!(code, 64);
        for flag in ["--who <NAME>", "--why <TEXT>", "--requests-per-unit <N>", "--unlimited"] {
            assert!(complaint.contains(flag), "{words:?}: {flag}: {complaint}");
        }
    }
}

#[test]
fn counters_of_all_rules_are_watched_and_the_audit_lists_changes() {
    let (limiter, run) = operated(Setup::new().env("KEEP_KEYS", "true"));
    let (code, text, complaint) = run(&["counter", "top"]);
    assert_eq!(code, 0, "{complaint}");
    assert!(text.starts_with("shop.user: it has just begun to watch: ask again"), "{text}");
    let client = limiter.client();
    (0..3).for_each(|_| drop(client.ask(grpc::question("shop", &[&[("user", "a")]]))));
    let (_, text, _) = run(&["counter", "top"]);
    assert!(text.contains("\n2     2   user=a ") && text.contains("\n1       user=a\n"), "{text}");
    let (_, text, _) = run(&["counter", "peek", "shop", "user=a"]);
    assert!(
        text.starts_with("shop user=a: 2 counted, 0 left, room again in ") && text.contains(" min\n"),
        "{text}"
    );
    let (_, text, _) = run(&[&["counter", "reset", "shop", "user=a"], &BY[..]].concat());
    assert!(text.starts_with("shop user=a: reset"), "{text}");
    assert!(text.ends_with("\n  before: 2 counted, 0 left\n  now: 0 counted, 2 left\n"), "{text}");
    for asked in [&["counter", "peek", "shop", "user"][..], &["counter", "reset", "shop", "user"]] {
        let (code, _, complaint) = run(asked);
        assert!(code == 64 && complaint.contains("(expected KEY=VALUE)"), "{complaint}");
    }
    let (code, _, complaint) = run(&[&["counter", "reset", "shop", "nobody=a"], &BY[..]].concat());
    assert!(
        code == 1 && complaint.ends_with(": 404 Not Found: no limit applies to these entries\n"),
        "{complaint}"
    );
    let (code, text, complaint) = run(&["audit"]);
    assert_eq!(code, 0, "{complaint}");
    let row: Vec<_> = text.lines().nth(1).unwrap_or_default().split_whitespace().collect();
    assert!(row.contains(&"jane") && row.contains(&"counter_reset") && row.contains(&"done"), "{text}");
    let asked = run(&["ask", "shop", "user=a"]).1;
    assert!(!asked.contains("3600 s"), "{asked}");
}
