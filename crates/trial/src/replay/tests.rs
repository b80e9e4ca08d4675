//! Complete replays: compared with a naive oracle on a real log, and fed with hostile ones.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use tidegate_engine::key::KeySecret;
use tidegate_engine::limit::Algorithm;
use tidegate_engine::rules::{LoadOptions, SourceFile, load};
use tidegate_engine::time::SECOND_NANOS;

use super::read::SHOWN_MAX;
use super::*;

/// The first 3,000 lines of a real log, out of order as they were written.
const LOG: &str = include_str!("../../../../tests/data/access.log");

fn rules(text: &str) -> RuleSet {
    let file = SourceFile { name: "rules.yaml".to_owned(), bytes: text.into(), presumed: false };
    load(&[file], &LoadOptions::new(KeySecret::new([7; 16]))).expect("good rules").rules
}

fn per_address(requests: u32, seconds: u64, more: &str) -> String {
    format!(
        "domain: shop\ndescriptors:\n  - key: remote_address\n    \
         rate_limit: {{window: {seconds}s, requests_per_unit: {requests}{more}}}\n"
    )
}

fn options(map: &str) -> Options {
    Options {
        format: "combined".to_owned(),
        map: Some(map.to_owned()),
        out_of_order_nanos: 3_600 * SECOND_NANOS,
        ..Options::default()
    }
}

/// Replays these bytes as a log.
fn replayed(
    rules: &RuleSet,
    against: Option<&RuleSet>,
    options: &Options,
    log: &[u8],
) -> Result<Report, ReplayError> {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("log");
    fs::write(&path, log).expect("the folder is ours");
    replay(rules, against, options, &[path], |_| {})
}

/// The page of a report, for a hostile map.
fn page(report: &Report) -> String {
    let logs = [PathBuf::from("access.log")];
    let (rules, options) = (Path::new("rules.yaml"), options("a=<script>\u{202e}"));
    report.html(&About {
        logs: &logs,
        options: &options,
        rules,
        against: None,
        made: Timestamp::from_secs(0),
    })
}

/// The seconds and addresses of the log, read by other code, in the order of time.
fn requests_of(log: &str) -> Vec<(u64, &str)> {
    let request = |line: &'static str| {
        let (address, rest) = line.split_once(' ').expect("an address");
        let stamp = rest.split(['[', ' ']).nth(3).expect("a stamp");
        let parts: Vec<_> = stamp.split(['/', ':']).collect();
        assert_eq!(parts[1..3], ["May", "2015"]);
        let number = |at: usize| parts[at].parse::<u64>().expect("a number");
        // 2015-05-01T00:00:00Z.
        let midnight = 1_430_438_400 + (number(0) - 1) * 86_400;
        (midnight + number(3) * 3_600 + number(4) * 60 + number(5), address)
    };
    let mut requests: Vec<_> = LOG.lines().map(request).collect();
    assert_eq!(log.len(), LOG.len());
    requests.sort_by_key(|(at, _)| *at);
    requests
}

/// Whether a request at `now` is denied, by the definition of each algorithm, in whole seconds. `hits` are those that
/// were admitted; with fixed windows, all.
fn is_denied(algorithm: Algorithm, hits: &[u64], n: u64, w: u64, now: u64) -> bool {
    let count = |counts: &dyn Fn(u64) -> bool| hits.iter().filter(|hit| counts(**hit)).count() as u64;
    match algorithm {
        Algorithm::SlidingLog => count(&|hit| hit + w > now) + 1 > n,
        // A hit counts until its bucket, a sixtieth of the window, has left the window.
        Algorithm::SlidingWindow => count(&|hit| (hit * 60 / w + 1) * w + 60 * w > 60 * now) + 1 > n,
        Algorithm::SlidingWindowWeighted => {
            let (current, previous) =
                (count(&|hit| hit / w == now / w), count(&|hit| hit / w + 1 == now / w));
            (current + 1) * w + previous * (w - now % w) > n * w
        }
        Algorithm::FixedWindow | Algorithm::Calendar => count(&|hit| hit / w == now / w) + 1 > n,
        Algorithm::Concurrency | Algorithm::Ban | Algorithm::Holds => unreachable!("they count no hits"),
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            // The level in hits, times W.
            let (mut level, mut last) = (0, 0);
            for &hit in hits {
                level = u64::saturating_sub(level, (hit - last) * n) + w;
                last = hit;
            }
            u64::saturating_sub(level, (now - last) * n) + w > n * w
        }
    }
}

#[test]
fn the_denied_lines_of_a_real_log_are_those_of_a_naive_oracle_for_every_algorithm() {
    let requests = requests_of(LOG);
    for (algorithm, n, w) in
        Algorithm::NAMED.into_iter().flat_map(|it| [(it, 5, 60), (it, 20, 3_600), (it, 1, 61)])
    {
        let text = per_address(n, w, &format!(", algorithm: {}", algorithm.name()));
        let rules = rules(&text);
        let mut reader = reader(&rules, &options("remote_address=$remote_addr")).expect("good");
        let mut replay = Replay::new(&rules, None, Modes::default());
        LOG.lines().for_each(|line| reader.request(line.as_bytes(), &mut replay).expect("a good line"));
        let mut hits: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        let mut denials = 0;
        for (at, address) in &requests {
            let hits = hits.entry(address).or_default();
            let denied = is_denied(algorithm, hits, n.into(), w, *at);
            if !denied || algorithm == Algorithm::FixedWindow {
                hits.push(*at);
            }
            denials += u64::from(denied);
            let turn = reader.order.take().expect("a turn for each request");
            assert_eq!(turn.at, Timestamp::from_secs(*at));
            assert!(replay.decide(turn).is_continue());
            assert_eq!(
                replay.totals.denied,
                denials,
                "{} {n} per {w} s: {address} at {at}",
                algorithm.name()
            );
        }
        assert!(reader.order.take().is_none() && denials > 100, "{denials}");
        let counts = reader.finish(&mut replay).expect("good");
        let report = replay.finish(counts);
        assert_eq!((report.totals.requests, report.side.keys_total), (3_000, hits.len() as u64));
    }
}

/// A candidate denies the lines that its rule would deny with the candidate's numbers, and changes no line.
#[test]
fn a_candidate_denies_what_its_numbers_would_deny() {
    for algorithm in Algorithm::NAMED {
        let named = format!(", algorithm: {}", algorithm.name());
        let report = |requests, more: &str| {
            let rules = rules(&per_address(requests, 60, &format!("{named}{more}")));
            replayed(&rules, None, &options("remote_address=$remote_addr"), LOG.as_bytes()).expect("good")
        };
        let (five, three) = (report(5, ""), report(3, ""));
        let tried = report(5, ", candidate: {requests_per_unit: 3}");
        assert_eq!(tried.totals, five.totals);
        let (limit, trial) = tried.side.rules[0].candidate.clone().expect("a candidate");
        assert_eq!(limit, "3 per minute");
        assert_eq!((trial.admitted, trial.denied), (3_000 - three.totals.denied, three.totals.denied));
        assert_eq!(trial.newly_denied - trial.newly_admitted, three.totals.denied - five.totals.denied);
        let text = tried.to_string();
        assert!(text.contains("candidate 3 per minute: admitted"), "{text}");
        assert!(tried.json().contains("\"newly_admitted\"") && page(&tried).contains("The candidate denies"));
    }
}

/// All requests are of one class: they are denied as by a limit of its share.
#[test]
fn a_class_denies_what_its_share_of_the_limit_would_deny() {
    let denied = |text: &str, map: &str| {
        let report = replayed(&rules(text), None, &options(map), LOG.as_bytes()).expect("good");
        (report.totals.denied, report.side.keys_total)
    };
    let classes = per_address(10, 60, "") + "    classes: {key: priority, shares: {top: 1.0, low: 0.5}}\n";
    let address = "remote_address=$remote_addr";
    for (class, n) in [("top", 10), ("low", 5), ("other", 5)] {
        let of_class = denied(&classes, &format!("{address}, priority={class}"));
        assert_eq!(of_class, denied(&per_address(n, 60, ""), address), "{class}");
        assert!(of_class.0 > 50, "{of_class:?}");
    }
}

/// A ban denies the lines that a naive list of denials says, and is a part of its rule in the report.
#[test]
fn a_ban_denies_what_a_naive_oracle_says() {
    let (n, w, within, every, lasts) = (2, 10, 300, 2, 1_800);
    let ban = format!("    ban: {{after: 3 denials, within: {within}s, every: {every}s, for: {lasts}s}}\n");
    let limit = per_address(n, w, ", algorithm: sliding_log");
    let (rules, without) = (rules(&(limit.clone() + &ban)), rules(&limit));
    let (mut denied, mut denied_by_ban) = (0, 0);
    let mut clients: BTreeMap<&str, (Vec<u64>, Vec<u64>, u64)> = BTreeMap::new();
    for (at, address) in requests_of(LOG) {
        let (hits, strikes, until) = clients.entry(address).or_default();
        let fits = hits.iter().filter(|hit| **hit + w > at).count() < n as usize;
        let is_banned = *until > at;
        match (is_banned, fits) {
            (true, _) => denied_by_ban += 1,
            (false, true) => hits.push(at),
            (false, false) if strikes.last().is_some_and(|last| at < last + every) => {}
            (false, false) => strikes.push(at),
        }
        denied += u64::from(is_banned || !fits);
        if strikes.iter().filter(|strike| **strike + within > at).count() == 3 {
            strikes.clear();
            *until = at + lasts;
        }
    }
    let options = options("remote_address=$remote_addr");
    let report = replayed(&rules, Some(&without), &options, LOG.as_bytes()).expect("good");
    assert_eq!(report.totals.denied, denied);
    assert!(denied_by_ban > 100 && report.totals.newly_denied > 50, "{:?}", report.totals);
    assert_eq!((report.side.keys_total, report.side.rules.len()), (clients.len() as u64, 1));
    let text = report.to_string();
    assert!(text.contains("ban: 3 denials within 300s, every 2s, for 1800s"), "{text}");
    assert!(!text.contains("rules that no request met"), "{text}");
}

#[test]
fn slots_that_are_not_counted_are_named() {
    let slots = "domain: shop\ndescriptors:\n  - {key: host, concurrency: {slots: 1, ttl: 1h, id: call}}\n";
    let report = |text: &str, against: Option<&RuleSet>| {
        let map = options("host=a, call=$remote_addr");
        replayed(&rules(text), against, &map, LOG.as_bytes()).expect("good")
    };
    let note = "slots of `concurrency` were asked for and given without counting: a log does not say when calls end.";
    let counted = report(slots, None);
    assert_eq!((counted.totals.denied, counted.totals.unlimited), (0, 3_000));
    assert!(counted.notes.contains(&format!("3000 {note}")), "{:?}", counted.notes);
    let compared =
        report(&slots.replace("concurrency: {slots: 1, ttl: 1h, id: call}", ""), Some(&rules(slots)));
    assert!(compared.notes.contains(&format!("3000 {note}")), "{:?}", compared.notes);
    let without = report(&slots.replace("host", "other"), None);
    assert!(!without.notes.iter().any(|shown| shown.contains("slots")), "{:?}", without.notes);
}

#[test]
fn a_log_that_is_read_as_it_comes_is_decided_as_one_that_is_sorted() {
    let rules = rules(&per_address(5, 60, ""));
    let map = options("remote_address=$remote_addr");
    let mut sorted: Vec<_> = LOG.lines().zip(0..).collect();
    let stamp = |line: &str| line.split(['[', ']']).nth(1).map(str::to_owned);
    sorted.sort_by_key(|(line, number)| (stamp(line), *number));
    let sorted: String = sorted.iter().map(|(line, _)| format!("{line}\n")).collect();
    let report = |log: &str| replayed(&rules, None, &map, log.as_bytes()).expect("good");
    assert_eq!(report(LOG).json(), report(&sorted).json());
    let strict = Options { out_of_order_nanos: 0, ..map.clone() };
    let late = replayed(&rules, None, &strict, LOG.as_bytes()).expect("good");
    assert!(late.totals.late > 100 && late.to_string().contains("requests were out of order"), "{late}");
}

#[test]
fn rules_are_compared_line_by_line() {
    let (five, ten) = (rules(&per_address(5, 60, "")), rules(&per_address(10, 60, "")));
    let map = options("remote_address=$remote_addr");
    let run = |rules, against| replayed(rules, Some(against), &map, LOG.as_bytes()).expect("good");
    let (stricter, laxer, same) = (run(&five, &ten), run(&ten, &five), run(&five, &five));
    let newly = |report: &Report| (report.totals.newly_denied, report.totals.newly_admitted);
    assert_eq!(newly(&same), (0, 0));
    assert!(newly(&stricter).0 > 0 && newly(&stricter).1 == 0);
    assert_eq!(newly(&stricter).0 + newly(&laxer).0, newly(&laxer).1 + newly(&stricter).1);
    let changed = |side: &report::SideReport| side.rules.iter().map(|rule| rule.numbers.changed).sum::<u64>();
    assert_eq!(changed(&stricter.side), newly(&stricter).0);
    assert_eq!(changed(laxer.against.as_ref().expect("compared")), newly(&laxer).1);
    let holds = |text: &str, report: &Report| Condition::parse(text, true).expect("good").holds(report);
    assert!(holds("newly_denied > 0", &stricter).is_some() && holds("newly_denied > 0", &same).is_none());
    assert!(holds("denied_keys > 0.1 %", &stricter).is_some_and(|held| held.contains(" %")));
    assert!(holds("denied_keys > 100 %", &stricter).is_none() && holds("requests == 3000", &same).is_some());
}

#[test]
fn lines_with_a_status_can_be_left_out() {
    let rules = rules(&per_address(5, 60, ""));
    let without = Options {
        without_status: vec!["404".to_owned(), "304".to_owned()],
        ..options("remote_address=$remote_addr")
    };
    let report = replayed(&rules, None, &without, LOG.as_bytes()).expect("good");
    let left_out =
        LOG.lines().filter(|line| [" 404 ", " 304 "].iter().any(|status| line.contains(status))).count();
    assert_eq!(report.totals.left_out, left_out as u64);
    assert_eq!(report.totals.requests + report.totals.left_out, 3_000);
}

#[test]
fn the_domains_own_rate_limits_make_the_descriptors() {
    let text = per_address(5, 60, "")
        + "rate_limits:\n  - actions: [{remote_address: {}}]\n  - actions: [{request_headers: {header_name: \":path\", descriptor_key: path}}]\n";
    let own = rules(&text);
    let by_actions = Options { map: None, ..options("") };
    let by_map = options("remote_address=$remote_addr; path=$path");
    let run = |options: &Options| replayed(&own, None, options, LOG.as_bytes()).expect("good");
    assert_eq!(run(&by_actions).json(), run(&by_map).json());
    let header = text.replace(":path", "x-user");
    let error = replayed(&rules(&header), None, &by_actions, b"").expect_err("the log has no such header");
    assert!(error.to_string().starts_with("the log has no `$http_x_user` (there are: "), "{error}");
    let error = replayed(&rules(&per_address(5, 60, "")), None, &by_actions, b"").expect_err("none");
    assert!(error.to_string().contains("has no `rate_limits`"), "{error}");
}

#[test]
fn options_that_do_not_fit_are_refused() {
    let rules = rules(&per_address(5, 60, ""));
    for (options, expected) in [
        (Options { domain: Some("bar".to_owned()), ..options("a=b") }, "the rules have no domain bar"),
        (options("user=$http_x_user"), "--map: the log has no `$http_x_user`"),
        (Options { format: "none".to_owned(), ..options("a=b") }, "--format: \"none\" is no format"),
        (
            Options {
                format: "$time_local x".to_owned(),
                without_status: vec!["429".to_owned()],
                ..options("a=b")
            },
            "the log has no `$status`",
        ),
    ] {
        let error = replayed(&rules, None, &options, LOG.as_bytes()).expect_err(expected).to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    let json = Options { format: "json".to_owned(), time: Some("t".to_owned()), ..options("user=$usr") };
    let error =
        replayed(&rules, None, &json, b"{\"t\": 1, \"user\": \"alice\"}\n").expect_err("no line has it");
    assert_eq!(error.to_string(), "the log has no `$usr` (there are: t, user)");
    let missing =
        replay(&rules, None, &self::options("a=b"), &["/nowhere".into()], |_| {}).expect_err("none");
    assert!(missing.to_string().starts_with("/nowhere: No such file"), "{missing}");
}

#[test]
fn windows_that_are_short_beside_the_stamps_are_warned_of() {
    let short = rules(&per_address(5, 9, ""));
    let long = rules(&per_address(5, 10, ""));
    let map = options("remote_address=$remote_addr");
    let warns = |rules: &RuleSet, log: &[u8]| {
        replayed(rules, None, &map, log).expect("good").to_string().contains("the window is short")
    };
    assert!(warns(&short, LOG.as_bytes()) && !warns(&long, LOG.as_bytes()));
    let fine = Options { format: "$msec $remote_addr".to_owned(), ..map.clone() };
    let report = replayed(&short, None, &fine, b"1.000 a\n1.001 b\n").expect("good");
    assert!(!report.to_string().contains("the window is short"));
}

/// A line with this address, stamp and agent.
fn line(address: &str, second: u64, agent: &str) -> String {
    let (minute, second) = (second / 60 % 60, second % 60);
    format!(
        "{address} - - [17/May/2015:10:{minute:02}:{second:02} +0000] \"GET / HTTP/1.1\" 200 1 \"-\" \"{agent}\"\n"
    )
}

#[test]
fn a_hostile_log_ends_in_a_report_that_counts_what_it_could_not_read() {
    let rules = rules(&per_address(1, 60, ""));
    let map = options("remote_address=$remote_addr");
    let binary: Vec<u8> =
        (0..200_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let good = line("a", 1, "-").repeat(2);
    let log =
        [good.as_bytes(), &vec![b'x'; 3 << 20], b"\n", &binary, b"\n", good.as_bytes(), b"\n\n"].concat();
    let report = replayed(&rules, None, &map, &log).expect("good lines");
    assert_eq!((report.totals.requests, report.totals.denied), (4, 3));
    assert_eq!(report.totals.lines, report.totals.unreadable + 4);
    assert_eq!(report.unreadable.len(), SHOWN_MAX);
    assert!(report.unreadable[0].contains(":3:1: expected at most 65536 bytes"), "{:?}", report.unreadable);
    let shown = report.to_string() + &page(&report) + &report.json();
    assert!(!shown.contains(|char: char| char.is_control() && char != '\n'), "{shown:?}");
    let error = replayed(&rules, None, &map, &binary).expect_err("not one line").to_string();
    assert!(error.starts_with("no line has the format of --format; the first: "), "{error}");
    assert_eq!(replayed(&rules, None, &map, b"").expect("nothing is no error").totals.lines, 0);
}

#[test]
fn hostile_keys_stay_text() {
    let rules = rules(
        "domain: shop\ndescriptors:\n  - key: agent\n    rate_limit: {unit: minute, requests_per_unit: 0}\n",
    );
    let hostile = "</td><script>alert(1)</script>\u{202e}\u{1b}[2J&amp;'";
    let log = line("a", 1, hostile);
    let report = replayed(&rules, None, &options("agent=$http_user_agent"), log.as_bytes()).expect("good");
    let html = page(&report);
    assert!(
        html.contains(
            "agent=&lt;/td&gt;&lt;script&gt;alert(1)&lt;/script&gt;\\u{202e}\\u{1b}[2J&amp;amp;&#39;"
        ),
        "{html}"
    );
    assert_eq!(html.matches("<script>").count(), 1);
    for text in [html, report.to_string()] {
        assert!(!text.contains(['\u{202e}', '\u{1b}']));
    }
    assert!(serde_json::from_str::<serde_json::Value>(&report.json()).is_ok());
}

#[test]
fn a_page_has_everything_in_it() {
    let rules = rules(&per_address(5, 60, ""));
    let report = replayed(&rules, None, &options("remote_address=$remote_addr"), LOG.as_bytes());
    let html = page(&report.expect("good"));
    for asset in ["http://", "https://", " src=", " href=", "@import", "url("] {
        assert!(!html.contains(asset), "{asset}");
    }
    for (open, close) in
        [("<section>", "</section>"), ("<table>", "</table>"), ("<tr>", "</tr>"), ("<g>", "</g>")]
    {
        assert!(html.contains(open) && html.matches(open).count() == html.matches(close).count(), "{open}");
    }
    assert!(html.contains("prefers-color-scheme: dark") && html.contains("name=\"viewport\""));
}

#[test]
fn many_keys_and_a_compressed_bomb_take_bounded_memory() {
    let rules = rules(&per_address(0, 60, ""));
    let map = options("remote_address=$remote_addr");
    let log: String = (0..150_000).map(|n| line(&format!("host-{n}"), n / 100, "-")).collect();
    let report = replayed(&rules, None, &map, log.as_bytes()).expect("good");
    assert_eq!((report.totals.requests, report.totals.denied), (150_000, 150_000), "totals are exact");
    assert!(
        report.side.is_estimated && report.side.keys_total.abs_diff(150_000) < 7_500,
        "{}",
        report.side.keys_total
    );
    assert!(report.to_string().contains("counts of keys are estimates"));
    let zeros = zstd::encode_all(std::io::Read::take(std::io::repeat(0), 256 << 20), 1).expect("memory");
    assert!(zeros.len() < 1 << 20);
    let error = replayed(&rules, None, &map, &zeros).expect_err("not one line").to_string();
    assert!(error.contains(":1:1: expected at most 65536 bytes"), "{error}");
}
