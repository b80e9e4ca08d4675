//! Complete suggestions: compared with a naive oracle, on generated logs whose truth is known, and on a real one.

use std::collections::{BTreeMap, VecDeque};

use tidegate_engine::key::KeySecret;
use tidegate_engine::rules::LoadOptions;

use super::output::Judgement;
use super::statistics::Rate;
use super::*;

/// A request: its time in milliseconds, and its key.
type Event = (u64, usize);

const MINUTE: u64 = 60_000;

/// Random numbers: SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Above 0, at most 1.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }
}

/// Traffic of keys whose rates are heavy-tailed (Pareto, exponent 1.3), and of one abuser, key 0. Each key's requests come
/// at random times. `rate` multiplies the rates at a time; it changes once at most.
fn traffic(seed: u64, keys: usize, minutes: u64, rate: impl Fn(usize, u64) -> f64) -> Vec<Event> {
    let mut random = Random(seed);
    let mut events = Vec::new();
    for key in 0..keys {
        let per_minute = if key == 0 { 40.0 } else { (0.3 * random.unit().powf(-1.0 / 1.3)).min(30.0) };
        let end = minutes * MINUTE;
        let most = rate(key, 0).max(rate(key, end));
        let mut at = 0.0;
        loop {
            at += -random.unit().ln() / (per_minute * most) * MINUTE as f64;
            if at >= end as f64 {
                break;
            }
            // Of the requests at the greater rate, so many are left at this time.
            if random.unit() * most > rate(key, at as u64) {
                continue;
            }
            events.push((at as u64, key));
        }
    }
    events.sort_unstable();
    events
}

fn log(events: &[Event]) -> String {
    let line = |(at, key): &Event| format!("{}.{:03} key-{key}\n", 1_700_000_000 + at / 1_000, at % 1_000);
    events.iter().map(line).collect()
}

fn options(format: &str, map: &str) -> Options {
    Options { format: format.to_owned(), map: Some(map.to_owned()), ..Options::default() }
}

fn load_options() -> LoadOptions {
    LoadOptions::new(KeySecret::new([7; 16]))
}

/// Suggests limits for these bytes as a log.
fn suggested(
    limited: &Limited,
    promise: &str,
    options: &Options,
    log: &str,
) -> Result<Suggestion, SuggestError> {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("log");
    fs::write(&path, log).expect("the folder is ours");
    // An exact window, so that the oracle needs no buckets.
    let load_options = load_options().default_algorithm(Algorithm::SlidingLog);
    let promise = Promise::parse(promise).expect("good");
    suggest(limited, &promise, options, &load_options, &[path], |_| {})
}

fn per_minute() -> Limited {
    Limited::Map { window: "1m".to_owned() }
}

/// The suggested limit for a log of events.
fn limit_for(events: &[Event], promise: &str) -> (u64, Suggestion) {
    let suggestion = suggested(&per_minute(), promise, &options("$msec $user", "user=$user"), &log(events));
    let suggestion = suggestion.expect("a limit");
    let number = suggestion.text.split("requests_per_unit: ").nth(1).and_then(|rest| rest.lines().next());
    (number.and_then(|number| number.parse().ok()).expect("a number"), suggestion)
}

/// Of each key that came at `from` or later, its requests and the denied ones, by the definition of a sliding window of a
/// minute.
fn denials(events: &[Event], limit: u64, from: u64) -> BTreeMap<usize, (u64, u64)> {
    let mut windows: BTreeMap<usize, VecDeque<u64>> = BTreeMap::new();
    let mut denials: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
    for &(at, key) in events {
        let window = windows.entry(key).or_default();
        while window.front().is_some_and(|hit| hit + MINUTE <= at) {
            window.pop_front();
        }
        let is_denied = window.len() as u64 >= limit;
        if !is_denied {
            window.push_back(at);
        }
        if at >= from {
            let of_key = denials.entry(key).or_default();
            *of_key = (of_key.0 + 1, of_key.1 + u64::from(is_denied));
        }
    }
    denials
}

/// The rate of the second half under a limit, and its standard error.
fn rate_of_keys(events: &[Event], limit: u64, promised: f64) -> (f64, f64) {
    let keys = denials(events, limit, middle(events));
    let denied = keys.values().filter(|(_, denied)| *denied > 0).count();
    let n = keys.len() as f64;
    (denied as f64 / n, (promised * (1.0 - promised) / n).sqrt())
}

/// Like [`rate_of_keys`], of requests; keys are the sample.
fn rate_of_requests(events: &[Event], limit: u64) -> (f64, f64) {
    let keys = denials(events, limit, middle(events));
    let sum = |of: fn(&(u64, u64)) -> u64| keys.values().map(of).sum::<u64>() as f64;
    let (requests, denied) = (sum(|it| it.0), sum(|it| it.1));
    let rate = denied / requests;
    let squares: f64 = keys.values().map(|it| (it.1 as f64 - rate * it.0 as f64).powi(2)).sum();
    (rate, squares.sqrt() / requests)
}

fn middle(events: &[Event]) -> u64 {
    let (first, last) = (events[0].0, events[events.len() - 1].0);
    first + (last - first) / 2
}

fn says(suggestion: &Suggestion, word: &str) -> bool {
    suggestion.text.contains(word)
}

#[test]
fn on_stationary_logs_the_second_half_keeps_the_promise_about_keys() {
    let (mut kept, mut alarms, mut rates) = (0, 0, 0.0);
    for seed in 0..100 {
        let events = traffic(seed, 300, 10, |_, _| 1.0);
        let (limit, suggestion) = limit_for(&events, "3 % of keys");
        let (rate, error) = rate_of_keys(&events, limit, 0.03);
        kept += u32::from(rate <= 0.03 + 3.0 * error);
        alarms += u32::from(says(&suggestion, "DISAGREES") || says(&suggestion, "CHANGED"));
        rates += rate;
        let expected = Judgement::words(match rate <= 0.03 {
            true => Judgement::Agrees,
            false if says(&suggestion, "DISAGREES") => Judgement::Disagrees,
            false => Judgement::WithinChance,
        });
        assert!(says(&suggestion, expected), "{seed}: {rate}\n{}", suggestion.text);
    }
    assert!(kept >= 97 && alarms <= 3, "kept {kept} of 100, {alarms} false alarms");
    assert!(rates / 100.0 > 0.006, "not by denying nearly nobody: {}", rates / 100.0);
}

#[test]
fn on_stationary_logs_the_second_half_keeps_the_promise_about_requests() {
    let mut kept = 0;
    for seed in 0..100 {
        let events = traffic(1_000 + seed, 100, 10, |_, _| 1.0);
        let (limit, suggestion) = limit_for(&events, "5 % of requests");
        let (rate, error) = rate_of_requests(&events, limit);
        kept += u32::from(rate <= 0.05 + 3.0 * error);
        // It is the smallest: one less is too many for the margin, in the first half.
        let first: Vec<_> = events.iter().copied().filter(|(at, _)| *at <= middle(&events)).collect();
        let upper = |limit| {
            let keys = denials(&first, limit, 0);
            Rate::of(keys.values().copied()).upper()
        };
        assert!(upper(limit) <= 0.05 && upper(limit - 1) > 0.05, "{seed}: {limit}\n{}", suggestion.text);
    }
    assert!(kept >= 97, "kept {kept} of 100");
}

#[test]
fn on_logs_that_change_it_says_so() {
    for seed in 0..10 {
        let half = 5 * MINUTE;
        let busier = traffic(seed, 500, 10, |_, at| if at < half { 1.0 } else { 10.0 });
        let suggestion = limit_for(&busier, "2 % of keys").1;
        assert!(says(&suggestion, "DISAGREES") && says(&suggestion, "CHANGED"), "{}", suggestion.text);
        assert!(
            suggestion.warnings.iter().any(|it| it.starts_with("suggested.user: the second half DISAGREES"))
        );
        let quieter = traffic(seed, 500, 10, |_, at| if at < half { 3.0 } else { 1.0 });
        let suggestion = limit_for(&quieter, "2 % of keys").1;
        assert!(says(&suggestion, "CHANGED") && !says(&suggestion, "DISAGREES"), "{}", suggestion.text);
        let abused =
            traffic(seed, 200, 10, |key, at| if key > 0 { 1.0 } else { f64::from(at >= half) * 10.0 });
        let suggestion = limit_for(&abused, "2 % of requests").1;
        assert!(says(&suggestion, "DISAGREES"), "{}", suggestion.text);
    }
}

#[test]
fn peaks_and_denials_of_a_real_log_are_those_of_a_naive_oracle() {
    let log = include_str!("../../../../../tests/data/access.log");
    let map =
        Options { out_of_order_nanos: 3_600_000_000_000, ..options("combined", "address=$remote_addr") };
    let rules = "domain: d\ndescriptors:\n  - key: address\n    rate_limit: {unit: hour, requests_per_unit: 1, algorithm: sliding_log}\n";
    let file = SourceFile { name: "rules".to_owned(), bytes: rules.into(), presumed: false };
    let rules = load(&[file], &load_options()).expect("good").rules;
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("log");
    fs::write(&path, log).expect("the folder is ours");
    let promise = Promise::parse("1 % of keys").expect("good");
    let logs = [path];
    let mut search = Searching {
        rules: &rules,
        promise: &promise,
        options: &map,
        logs: &logs,
        progress: |_| {},
        uncounted: 0,
    };
    let halves = search.halves().expect("good");
    let [[first, second]] = &search.measured(&[Some(UNREACHED)], halves.middle).expect("good")[..] else {
        panic!("one rule");
    };
    let mut counts: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let mut peaks: [BTreeMap<String, u64>; 2] = Default::default();
    let mut requests: Vec<_> = log.lines().map(request).collect();
    requests.sort_by_key(|(at, _)| *at);
    for (at, address) in requests {
        let hits = counts.entry(address.clone()).or_default();
        hits.push(at);
        let count = hits.iter().filter(|hit| **hit + 3_600 > at).count() as u64;
        let is_second = Timestamp::from_secs(at) >= halves.middle;
        let peak = peaks[usize::from(is_second)].entry(address).or_default();
        *peak = count.max(*peak);
    }
    for (measured, peaks) in [first, second].into_iter().zip(peaks) {
        let mut peaks: Vec<_> = peaks.into_values().collect();
        peaks.sort_unstable();
        assert_eq!((&measured.peaks, measured.denied), (&peaks, 0));
        assert!(peaks.len() > 100, "{}", peaks.len());
    }
}

/// The second of May 2015 and the address of a line.
fn request(line: &str) -> (u64, String) {
    let (address, rest) = line.split_once(' ').expect("an address");
    let stamp = rest.split(['[', ' ']).nth(3).expect("a stamp");
    let parts: Vec<u64> = stamp.split(['/', ':']).map(|part| part.parse().unwrap_or_default()).collect();
    let at = 1_430_438_400 + (parts[0] - 1) * 86_400 + parts[3] * 3_600 + parts[4] * 60 + parts[5];
    (at, address.to_owned())
}

#[test]
fn a_rule_file_keeps_all_but_its_numbers_and_comments_do_not_pile_up() {
    let text = "# ours\ndomain: shop\ndescriptors:\n  - key: user   # everybody\n    rate_limit: {unit: minute, requests_per_unit: 7, algorithm: sliding_log} # tight\n\
                \x20 - {key: user, value: key-0, rate_limit: {window: 90s, requests_per_unit: 1_000}}\n  \
                - key: user\n    value: never\n    rate_limit:\n      unit: hour\n      requests_per_unit: 5\n";
    let folder = tempfile::tempdir().expect("a folder can be made");
    let rules = folder.path().join("rules.yaml");
    let options = options("$msec $user", "user=$user");
    let log = log(&traffic(3, 300, 10, |_, _| 1.0));
    let run = |text: &str| {
        fs::write(&rules, text).expect("the folder is ours");
        suggested(&Limited::Rules(rules.clone()), "5 % of keys", &options, &log)
    };
    let error = run(text).expect_err("an underscore").to_string();
    assert!(error.contains("rules.yaml:6:") && error.contains("`requests_per_unit: NUMBER`"), "{error}");
    let text = text.replace("1_000", "1000");
    let once = run(&text).expect("good").text;
    assert_eq!(run(&once).expect("good").text, once, "once more changes nothing");
    let kept = |text: &str| {
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("# suggest: "));
        let digits = |line: &str| {
            line.split("requests_per_unit: ")
                .map(|part| part.trim_start_matches(|it: char| it.is_ascii_digit()).to_owned())
                .collect::<Vec<_>>()
        };
        lines.map(digits).collect::<Vec<_>>()
    };
    assert_eq!(kept(&once), kept(&text));
    assert!(
        once.contains("no request of the first half met this rule")
            && once.contains("      requests_per_unit: 5\n")
    );
    assert!(!once.contains("requests_per_unit: 7,") && !once.contains("requests_per_unit: 1000}"), "{once}");
    let shared = "domain: d\ndescriptors:\n  - key: user\n    rate_limit: &l {unit: minute, requests_per_unit: 7}\n  - key: user\n    value: key-0\n    rate_limit: *l\n";
    assert!(matches!(run(shared), Err(SuggestError::Edit(_))));
}

/// Bounds on calls in flight, bans and shorter prefixes have no number of their own to suggest.
#[test]
fn of_several_limits_of_a_rule_the_first_gets_a_number() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let rules = folder.path().join("rules.yaml");
    let slots = "concurrency: {slots: 3, ttl: 1m, id: request_id}";
    let ban = "ban: {after: 3 denials, within: 60s, for: 1h}";
    let log = log(&traffic(3, 300, 10, |_, _| 1.0));
    let options = options("$msec $user", "user=$user");
    for further in [slots, ban] {
        let text = format!(
            "domain: shop\ndescriptors:\n  - key: user\n    {further}\n    prefix: {{v4: {{24: 1, 16: 2}}}}\n    \
             rate_limit: {{unit: minute, requests_per_unit: 1}}\n  - {{key: other, {slots}}}\n"
        );
        fs::write(&rules, text).expect("the folder is ours");
        let limited = Limited::Rules(rules.clone());
        let suggestion = suggested(&limited, "5 % of keys", &options, &log).expect("good").text;
        assert!(
            suggestion.contains(further) && !suggestion.contains("requests_per_unit: 1}"),
            "{suggestion}"
        );
        assert_eq!(suggestion.matches("peaks of").count(), 2, "of one limit in two halves: {suggestion}");
    }
}

#[test]
fn what_nothing_follows_from_is_refused() {
    let good = log(&traffic(1, 20, 10, |_, _| 1.0));
    let map = options("$msec $user", "user=$user");
    let error = |limited: &Limited, options: &Options, log: &str| {
        suggested(limited, "1 % of keys", options, log).expect_err("nothing follows").to_string()
    };
    assert!(error(&per_minute(), &Options { map: None, ..map.clone() }, &good).contains("expected --map"));
    assert!(error(&per_minute(), &options("$msec $user", "user=$usr"), &good).contains("no `$usr`"));
    assert!(error(&per_minute(), &map, "").contains("no request of the first half"));
    assert!(error(&per_minute(), &map, "nonsense\n").contains("no line has the format"));
    let nowhere = Limited::Rules("/nowhere".into());
    assert!(error(&nowhere, &map, &good).starts_with("/nowhere: No such file"));
    let promise = Promise::parse("1 % of keys").expect("good");
    let input = suggest(&per_minute(), &promise, &map, &load_options(), &["-".into()], |_| {});
    assert!(input.expect_err("it cannot be read twice").to_string().contains("several times"));
    let few = suggested(&per_minute(), "1 % of keys", &map, &good).expect("a limit").warnings.join("\n");
    assert!(few.contains(" keys in the first half are too few for the promise (expected 299)"), "{few}");
    let odd = format!("nonsense\n{good}1700000000.000 -\n");
    let odd = suggested(&per_minute(), "1 % of keys", &map, &odd).expect("a limit").warnings.join("\n");
    assert!(
        odd.contains("1 of ")
            && odd.contains(":1:1: expected")
            && odd.contains("1 requests got no descriptor"),
        "{odd}"
    );
    let drained = suggest(
        &per_minute(),
        &promise,
        &map,
        &load_options().default_algorithm(Algorithm::TokenBucket),
        &["/nowhere".into()],
        |_| {},
    );
    let drained = drained.expect_err("a bucket has no peaks").to_string();
    assert!(drained.contains("a bucket that drains has no peaks"), "{drained}");
}

#[test]
fn a_stamp_from_far_ahead_does_not_move_the_middle() {
    let mut events = traffic(5, 400, 10, |_, _| 1.0);
    let (limit, _) = limit_for(&events, "2 % of keys");
    events.push((40 * 365 * 24 * 60 * MINUTE, 0));
    assert_eq!(limit_for(&events, "2 % of keys").0, limit);
}
