//! What the admin API says of requests that are wrong: each with its status and its message, in `admin_mistakes.txt`.
//!
//! A request is a line of that file, and what is answered stands below it. `<x*1025>` is a text that stands there so many
//! times, and ⏎ is the end of a line. Of a success the file has the status only. With TIDEGATE_WRITE_MISTAKES=1 the test
//! writes what is answered today into the file: read the difference before it goes in.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::admin::TOKEN;
use crate::harness::http::{Answer, Client};
use crate::harness::tidegate::{Setup, Tidegate};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 3}
    limits_from: store
";

const ANSWER: &str = "    ";

fn start() -> Tidegate {
    let setup = Setup::new().rules("shop.yaml", RULES).env("ADMIN_TOKEN", TOKEN);
    let records = setup.outside().join("records").display().to_string();
    setup.env("LIMITS_DIR", &records).start()
}

/// The text with all that is abbreviated in it.
fn written_out(line: &str) -> String {
    let (mut whole, mut rest) = (String::new(), line);
    while let Some((before, from)) = rest.split_once('<') {
        let (what, after) = from.split_once('>').expect("a `>` for each `<`");
        let (text, times) = what.rsplit_once('*').expect("a `*` between them");
        whole += before;
        whole += &text.repeat(times.parse().expect("a number after the `*`"));
        rest = after;
    }
    (whole + rest).replace('⏎', "\n")
}

/// The status, and what is wrong.
fn shown(answer: &Answer) -> String {
    let body = answer.body.trim_end();
    let value = serde_json::from_str::<Value>(body).unwrap_or_default();
    let alone = value.as_object().filter(|fields| fields.len() == 1);
    let error = alone.and_then(|fields| fields.get("error")).and_then(Value::as_str);
    match (answer.status, error) {
        (200..300, _) => answer.status.to_string(),
        (status, Some(error)) => format!("{status} {error}"),
        (status, None) => format!("{status} {body}"),
    }
}

fn asked(limiter: &Tidegate, line: &str) -> String {
    let line = written_out(line);
    let (method, rest) = line.split_once(' ').expect("a method and a path");
    let (path, body) = rest.split_once(' ').unwrap_or((rest, ""));
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("host", "limiter"), ("authorization", bearer.as_str())];
    let answer = Client::new(limiter.ports().debug).send(method, path, &headers, body).expect("an answer");
    shown(&answer)
}

#[test]
fn each_mistake_is_answered_with_its_status_and_what_is_wrong() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/blackbox/admin_mistakes.txt");
    let file = fs::read_to_string(&path).expect("the file is there");
    let limiter = start();
    let (mut now, mut requests) = (String::new(), 0);
    for line in file.lines().filter(|line| !line.starts_with(ANSWER)) {
        writeln!(now, "{line}").expect("a text takes it");
        if !line.is_empty() && !line.starts_with('#') {
            requests += 1;
            writeln!(now, "{ANSWER}{}", asked(&limiter, line)).expect("a text takes it");
        }
    }
    assert!(requests > 100, "{requests}");
    if std::env::var_os("TIDEGATE_WRITE_MISTAKES").is_some() {
        fs::write(&path, &now).expect("writable");
    }
    let file = fs::read_to_string(&path).expect("the file is there");
    let differs = file.lines().zip(now.lines()).find(|(then, now)| then != now);
    assert_eq!(differs, None, "first the file, then what is answered (TIDEGATE_WRITE_MISTAKES=1 writes it)");
    assert_eq!(file, now);
}
