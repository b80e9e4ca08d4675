//! Rules tried on logs, as people do it: limits are suggested, checked and replayed; the log that an Envoy wrote is denied
//! again as it was; and the page of a replay is looked at in a browser.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::commands::{folder, tidegate};
use crate::harness::browser::{Browser, Look};
use crate::harness::envoy::{Envoy, Upstream};
use crate::harness::eventually_true;
use crate::harness::tidegate::Setup;

/// A log of ten minutes: address `10.0.0.N` sends N requests a minute, the last one ten times as many.
fn log() -> String {
    let mut log = String::new();
    for second in 0..600 {
        for address in 1..=40 {
            let per_minute = if address == 40 { 400 } else { address };
            for _ in second * per_minute / 60..(second + 1) * per_minute / 60 {
                let (minute, second) = (second / 60, second % 60);
                log += &format!(
                    "10.0.0.{address} - - [17/May/2015:10:{minute:02}:{second:02} +0000] \"GET /cart HTTP/1.1\" 200 5 \"-\" \"-\"\n"
                );
            }
        }
    }
    log
}

#[test]
fn suggested_rules_are_good_rules_that_deny_what_their_comments_say() {
    let (_folder, path) = folder(&[("access.log", &log())]);
    let (log, rules) = (format!("{path}/access.log"), format!("{path}/rules.yaml"));
    let map = ["--map", "remote_address=$remote_addr"];
    let wanted = ["--domain", "shop", "--window", "1m", "--deny-at-most", "15 % of keys"];
    let (code, suggested, complaints) = tidegate(&[&["suggest"], &map[..], &wanted, &[&log]].concat(), &[]);
    assert_eq!((code, complaints.as_str()), (0, ""));
    // P(Binomial(40, 15 %) ≤ 2) is 4.9 %: two of 40 keys may be denied.
    assert!(suggested.starts_with("# suggest: limits from "), "{suggested}");
    assert!(
        suggested.contains("domain: shop\n") && suggested.contains("- key: remote_address\n"),
        "{suggested}"
    );
    assert!(suggested.contains("second half: denied 2 of 40 keys (5.000 %)"), "{suggested}");
    assert!(suggested.contains("the second half keeps the promise"), "{suggested}");
    fs::write(&rules, &suggested).expect("the folder is ours");
    let (code, text, _) = tidegate(&["check", "--strict", &rules], &[]);
    assert_eq!((code, text.as_str()), (0, "good: files 1, domains 1, limits 1, warnings 0\n"));
    let (_, report, _) = tidegate(&[&["replay", "--rules", &rules], &map[..], &[&log]].concat(), &[]);
    assert!(report.contains("keys 40, denied at least once 2 (5.000 %)"), "{report}");

    let again = ["suggest", "--rules", &rules, "--deny-at-most", "5 % of requests"];
    let (code, other, _) = tidegate(&[&again[..], &map, &[&log]].concat(), &[]);
    assert!(code == 0 && other.contains("denies at most 5 % of requests") && other != suggested, "{other}");
    let bad = |more: &[&str]| tidegate(&[&["suggest"], &map[..], more].concat(), &[]);
    let (code, _, complaint) = bad(&["--deny-at-most", "few", &log]);
    assert!(code == 64 && complaint.contains("of keys or of requests"), "{complaint}");
    let (code, _, complaint) = bad(&["--window", "a while", &log]);
    assert!(code == 64 && complaint.contains("no duration"), "{complaint}");
    assert_eq!(bad(&["--window", "1m", "--rules", &rules, &log]).0, 64);
    let (code, _, complaint) = bad(&["-"]);
    assert!(code == 1 && complaint.contains("read several times"), "{complaint}");
    for command in ["suggest", "replay"] {
        let arguments = [command, "--rules", &rules, "--format", "no_such", &log];
        let (code, _, complaint) = tidegate(&[&arguments[..], &map].concat(), &[]);
        assert!(code == 64 && complaint.starts_with("tidegate: --format: "), "{code} {complaint}");
    }
}

/// What Envoy writes for each request, in milliseconds.
const ENVOY_FORMAT: &str =
    "[%START_TIME%] %DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% %RESPONSE_CODE% %RESPONSE_FLAGS% %DURATION%";

/// Three requests of each client in any four seconds.
const ENVOY_RULES: &str = "domain: edge\ndescriptors:\n  - key: route\n    value: api\n    descriptors:\n      - key: remote_address\n        rate_limit: {window: 4s, requests_per_unit: 3, algorithm: sliding_log}\n";

const WINDOW_MILLIS: u64 = 4_000;

/// How near to a change of capacity a request may come: stamps are those of the start, decisions come a little later.
const APART_MILLIS: u64 = 200;

/// When the clients send, in milliseconds: in bunches, and one by one.
const SCHEDULE: [&[u64]; 2] = [
    &[0, 0, 0, 0, 0, 2_000, 2_000, 4_600, 4_600, 4_600, 4_600, 6_600],
    &[0, 1_400, 2_800, 3_400, 4_600, 5_000, 5_800, 6_300, 6_400, 7_300],
];

/// A line of Envoy's log.
struct Logged<'l> {
    millis: u64,
    client: &'l str,
    is_denied: bool,
    duration: u64,
}

impl<'l> Logged<'l> {
    fn parse(line: &'l str) -> Self {
        let words: Vec<_> = line.split(' ').collect();
        let [stamp, client, _, flags, duration] = words[..] else { panic!("{line}") };
        // `[2026-01-02T03:04:05.678Z]`: the day does not change the distances, but at midnight.
        let clock: Vec<_> = stamp.split(['T', 'Z', ':', '.']).collect();
        let number = |at: usize| clock[at].parse::<u64>().expect("a number");
        let millis = ((number(1) * 60 + number(2)) * 60 + number(3)) * 1_000 + number(4);
        Self { millis, client, is_denied: flags == "RL", duration: duration.parse().expect("milliseconds") }
    }
}

/// Sends what the schedule says, and returns the log.
fn log_of_envoy(envoy: &Envoy, log: &str) -> String {
    let before = fs::read_to_string(log).unwrap_or_default().lines().count();
    let clients = SCHEDULE.iter().enumerate();
    let mut requests: Vec<_> =
        clients.flat_map(|(client, times)| times.iter().map(move |at| (*at, client))).collect();
    requests.sort_unstable();
    let (start, mut connection) = (Instant::now(), envoy.client());
    for (at, client) in &requests {
        // The schedule is in real time, because Envoy's stamps are.
        thread::sleep(Duration::from_millis(*at).saturating_sub(start.elapsed()));
        let address = format!("203.0.113.{}", client + before);
        let answer = connection.send("GET", "/api/x", &[("x-forwarded-for", &address)], "");
        answer.expect("Envoy answers");
    }
    let whole = || fs::read_to_string(log).expect("Envoy writes it");
    eventually_true("Envoy to write its log", || whole().lines().count() == before + requests.len());
    whole().lines().skip(before).map(|line| format!("{line}\n")).collect()
}

/// No decision was made near a change of capacity: when a hit leaves the window.
fn is_apart(lines: &[Logged<'_>]) -> bool {
    let is_quick = lines.iter().all(|line| line.duration < APART_MILLIS);
    let changes = |client: &str| {
        let hits: Vec<_> = lines.iter().filter(|line| line.client == client && !line.is_denied).collect();
        hits.into_iter().map(|hit| hit.millis + WINDOW_MILLIS)
    };
    is_quick
        && lines.iter().all(|line| changes(line.client).all(|at| at.abs_diff(line.millis) >= APART_MILLIS))
}

#[test]
fn a_replay_of_envoys_log_denies_just_what_was_denied() {
    let (_folder, path) = folder(&[("edge.yaml", ENVOY_RULES)]);
    let (rules, log) = (format!("{path}/edge.yaml"), format!("{path}/envoy.log"));
    let limiter = Setup::new().rules("edge.yaml", ENVOY_RULES).start();
    let named = "                stat_prefix: edge\n";
    let logging = format!(
        "{named}                access_log:\n                  - name: file\n                    typed_config:\n                      \"@type\": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog\n                      path: \"{log}\"\n                      log_format: {{ text_format_source: {{ inline_string: \"{ENVOY_FORMAT}\\n\" }} }}\n"
    );
    let envoy = Envoy::start_changed(&Upstream::at(&limiter), &[(named, &logging)]);
    // A busy machine may hold a request back until it is too near to a change. Then it proves nothing.
    let text = (0..10)
        .map(|_| log_of_envoy(&envoy, &log))
        .find(|text| is_apart(&text.lines().map(Logged::parse).collect::<Vec<_>>()));
    let text = text.expect("one run of ten in time");
    let lines: Vec<_> = text.lines().collect();
    let denied: Vec<_> = lines.iter().map(|line| Logged::parse(line).is_denied).collect();
    assert_eq!(denied.iter().filter(|denied| **denied).count(), 10, "{text}");
    let part = format!("{path}/part.log");
    for known in 1..=lines.len() {
        fs::write(&part, lines[..known].join("\n")).expect("the folder is ours");
        let map = "route=api,remote_address=$remote_addr";
        let arguments =
            ["replay", "--rules", &rules, "--format", ENVOY_FORMAT, "--map", map, "--report", "json", &part];
        let (code, report, complaint) = tidegate(&arguments, &[]);
        assert_eq!(code, 0, "{complaint}");
        let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
        let expected = denied[..known].iter().filter(|denied| **denied).count();
        assert_eq!(report["denied"], expected, "after line {known} of\n{text}");
    }
}

/// A log of a quiet day with one noisy address, and one line that is none.
fn log_of_a_day() -> String {
    let mut log = String::new();
    for minute in 0..1_440_u64 {
        for address in 0..=(minute * 7 + 3) % 11 {
            let (hour, minute) = (minute / 60, minute % 60);
            let noisy = if hour == 15 { 30 } else { 1 };
            for _ in 0..if address == 4 { noisy } else { 1 } {
                log += &format!(
                    "10.0.0.{address} - - [17/May/2015:{hour:02}:{minute:02}:07 +0000] \"GET /cart HTTP/1.1\" 200 5 \"-\" \"-\"\n"
                );
            }
        }
    }
    log + "no line of this format\n"
}

#[test]
fn the_page_of_a_replay_is_whole_in_a_real_browser() {
    let rules = |requests: u32| {
        format!(
            "domain: shop\ndescriptors:\n  - key: remote_address\n    rate_limit: {{unit: minute, requests_per_unit: {requests}}}\n"
        )
    };
    let (_folder, path) =
        folder(&[("new.yaml", &rules(5)), ("old.yaml", &rules(20)), ("access.log", &log_of_a_day())]);
    let file = |name: &str| format!("{path}/{name}");
    let (new, old, log, page) = (file("new.yaml"), file("old.yaml"), file("access.log"), file("page.html"));
    let map = "remote_address=$remote_addr";
    let arguments = ["replay", "--rules", &new, "--against", &old, "--map", map, "--html", &page, &log];
    let (code, text, complaints) = tidegate(&arguments, &[]);
    assert_eq!((code, complaints.as_str()), (0, ""), "{text}");

    let mut browser = Browser::start();
    for (name, look) in [("light", Look::LIGHT), ("dark", Look::DARK), ("phone", Look::PHONE)] {
        browser.look(look);
        browser.open(&format!("file://{page}"));
        assert_eq!(browser.audit(), Vec::<String>::new(), "{name}");
        let is_wider = browser.eval("document.documentElement.scrollWidth > innerWidth");
        assert_eq!(is_wider, false, "{name}: only tables scroll sideways");
        let picture = format!("{}/replay-{name}.png", env!("CARGO_TARGET_TMPDIR"));
        browser.screenshot(Path::new(&picture), true);
    }
    let denied = text.split("denied ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a number");
    let tile = browser.eval("[...document.querySelectorAll('.tiles div')].find(it => it.innerText.startsWith('denied')).innerText");
    let digits = |text: &str| text.replace(',', "");
    assert!(
        digits(tile.as_str().expect("text")).contains(&format!("\n{denied}\n")),
        "{denied} is not in {tile}"
    );

    // By the keyboard alone: the button of a column sorts its table, and once more the other way round.
    let keys =
        "[...document.querySelectorAll('section')].find(it => it.querySelector('h2').innerText == 'Keys')";
    let column = "[...table.rows].slice(1).map(row => Number(row.cells[1].dataset.n))";
    let requests = format!("(table => {column})({keys}.querySelector('table'))");
    browser.eval(&format!("{keys}.querySelector('th:nth-child(2) button').focus()"));
    browser.press("Enter");
    let descending = browser.eval(&requests);
    browser.press("Enter");
    let ascending = browser.eval(&requests);
    let numbers = |value: &serde_json::Value| -> Vec<u64> {
        value.as_array().expect("rows").iter().map(|it| it.as_u64().expect("a number")).collect()
    };
    let (mut descending, ascending) = (numbers(&descending), numbers(&ascending));
    assert!(descending.is_sorted_by(|a, b| a >= b) && ascending.is_sorted(), "{descending:?} {ascending:?}");
    descending.reverse();
    assert!(descending == ascending && descending.len() == 11, "{descending:?}");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}
