//! Reload, one change at a time: what is taken, what is refused, which counts live on.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use crate::harness::eventually_true;
use crate::harness::grpc::{Client, RateLimit, ask_only, question};
use crate::harness::lateness::Lateness;
use crate::harness::tidegate::{Setup, Tidegate};

const USER: &[(&str, &str)] = &[("user", "alice")];

/// One limit of N a day (or another unit) for each user.
fn rules(domain: &str, requests: u32, unit: &str) -> String {
    format!(
        "domain: {domain}\ndescriptors:\n  - key: user\n    rate_limit: {{unit: {unit}, requests_per_unit: {requests}}}\n"
    )
}

/// The limit in force for a user of this domain.
fn limit(client: &Client, domain: &str) -> Option<u32> {
    let current: Option<RateLimit> = client.ask(ask_only(domain, &[USER])).statuses[0].current_limit.clone();
    current.map(|limit| limit.requests_per_unit)
}

fn remaining(client: &Client, domain: &str) -> u32 {
    client.ask(ask_only(domain, &[USER])).statuses[0].limit_remaining
}

fn spend(client: &Client, domain: &str, hits: u32) {
    for _ in 0..hits {
        client.ask(question(domain, &[USER]));
    }
}

/// Waits until this limit is in force.
fn taken(client: &Client, domain: &str, requests: impl Into<Option<u32>>) {
    let requests = requests.into();
    eventually_true(&format!("{domain} to have the limit {requests:?}"), || {
        limit(client, domain) == requests
    });
}

fn start() -> (Tidegate, Client) {
    let limiter = Setup::new().rules("shop.yaml", &rules("shop", 10, "day")).start();
    let client = limiter.client();
    spend(&client, "shop", 2);
    (limiter, client)
}

#[test]
fn every_kind_of_change_is_taken_and_counts_live_on() {
    let (limiter, client) = start();
    let folder = limiter.setup.folder();
    let file = folder.join("shop.yaml");

    limiter.setup.write("shop.yaml", &rules("shop", 11, "day"));
    taken(&client, "shop", 11);
    assert_eq!(remaining(&client, "shop"), 9, "a change of N keeps the count");
    let line = "in force: 1 changed (shop.user: 10 per day → 11 per day)";
    eventually_true("the change to be logged", || limiter.lines_with(line) == 1);

    let aside = limiter.setup.outside().join("shop.yaml.tmp");
    fs::write(&aside, rules("shop", 12, "day")).expect("the folder is ours");
    fs::rename(&aside, &file).expect("the folder is ours");
    taken(&client, "shop", 12);

    limiter.setup.write("new.yaml", &rules("new", 5, "day"));
    taken(&client, "new", 5);
    spend(&client, "new", 1);

    fs::rename(folder.join("new.yaml"), folder.join("new.yaml.disabled")).expect("the folder is ours");
    taken(&client, "new", None);
    fs::rename(folder.join("new.yaml.disabled"), folder.join("newer.yaml")).expect("the folder is ours");
    taken(&client, "new", 5);
    assert_eq!(
        remaining(&client, "new"),
        4,
        "a rule that was away and came back in another file keeps its count"
    );

    fs::remove_file(&file).expect("the folder is ours");
    taken(&client, "shop", None);
    limiter.setup.write("other.yaml", &rules("shop", 13, "day"));
    taken(&client, "shop", 13);
    assert_eq!(remaining(&client, "shop"), 11);

    limiter.setup.write("other.yaml", &rules("shop", 14, "hour"));
    taken(&client, "shop", 14);
    assert_eq!(remaining(&client, "shop"), 14, "another window is another counter");
    assert_eq!(limiter.metric("ratelimit_service_config_load_error"), 0.0);
}

#[test]
fn a_bad_set_keeps_the_old_one_and_every_problem_is_logged_once() {
    let (limiter, client) = start();
    let loaded = limiter.metric("ratelimit_service_config_load_success");
    let problems = 25;
    let mut bad = "domain: shop\ndescriptors:\n".to_owned();
    for node in 0..problems {
        bad += &format!("  - {{key: k{node}, rate_limit: {{unit: never, requests_per_unit: 1}}}}\n");
    }
    let shown = |limiter: &Tidegate| -> Vec<usize> {
        let place = |node: usize| format!("shop.yaml:{}:", node + 3);
        (0..problems)
            .map(|node| limiter.output().iter().map(|line| line.matches(&place(node)).count()).sum())
            .collect()
    };

    limiter.setup.write("shop.yaml", &bad);
    eventually_true("the failure to be counted", || {
        limiter.metric("ratelimit_service_config_load_error") == 1.0
    });
    eventually_true("every problem to be logged", || shown(&limiter) == vec![1; problems]);
    assert_eq!(
        (limit(&client, "shop"), remaining(&client, "shop")),
        (Some(10), 8),
        "the old set is in force"
    );

    // The same again is no news.
    limiter.setup.write("shop.yaml", &bad);
    limiter.setup.write("extra.yaml", &rules("extra", 1, "day"));
    limiter.setup.write("shop.yaml", &rules("shop", 20, "day"));
    taken(&client, "shop", 20);
    assert_eq!(remaining(&client, "shop"), 18);
    assert_eq!(limit(&client, "extra"), Some(1));
    assert_eq!(shown(&limiter), vec![1; problems], "{:#?}", limiter.output());
    // A set is in force a moment before it is counted.
    eventually_true("the set to be counted", || {
        limiter.metric("ratelimit_service_config_load_success") > loaded
    });
}

#[test]
fn one_bad_file_refuses_the_whole_set() {
    let (limiter, client) = start();
    limiter.setup.write("good.yaml", &rules("good", 1, "day"));
    taken(&client, "good", 1);
    limiter.setup.write("also-bad.yaml", "domain: shop\n");
    eventually_true("the failure to be logged", || limiter.lines_with("shop.yaml:1:9") >= 1);
    limiter.setup.write("good.yaml", &rules("good", 2, "day"));
    fs::remove_file(limiter.setup.folder().join("also-bad.yaml")).expect("the folder is ours");
    taken(&client, "good", 2);
    assert_eq!(remaining(&client, "shop"), 8);
}

/// A list of ranges that breaks while the program runs, in each of these ways.
#[test]
fn a_list_that_cannot_be_read_leaves_its_ranges_in_force() {
    const RULES: &str = "
domain: shop
descriptors:
  - {key: ip, value: {cidr_file: scanners.txt}, rate_limit: {unit: day, requests_per_unit: 1}}
";
    let setup = Setup::new().rules("shop.yaml", RULES).rules("scanners.txt", "198.51.100.0/24\n");
    let (list, events) = (setup.folder().join("scanners.txt"), setup.outside().join("events.jsonl"));
    let limiter = setup.env("EVENTS_LOG", &events.display().to_string()).start();
    let client = limiter.client();
    let is_limited = |ip: &str| {
        let answer = client.ask(ask_only("shop", &[&[("ip", ip)]]));
        answer.statuses[0].current_limit.is_some()
    };
    let event = |problem: &str| {
        let text = fs::read_to_string(&events).unwrap_or_default();
        text.lines().any(|line| line.contains(r#""event":"reload_refused""#) && line.contains(problem))
    };

    let put = |bytes: &[u8]| fs::write(&list, bytes).expect("the folder is ours");
    for (failures, (broken, problem)) in (1..).zip([
        (Some(&b"203.0.113.0/24\nscanner\n"[..]), "scanners.txt:2:1: "),
        (Some(b"203.0.113.0/24\n\xff\n"), "scanners.txt:2:1: "),
        (None, "scanners.txt: No such file"),
    ]) {
        match broken {
            Some(bytes) => put(bytes),
            None => fs::remove_file(&list).expect("the folder is ours"),
        }
        eventually_true("the failure to be counted", || {
            limiter.metric("ratelimit_service_config_load_error") == f64::from(failures)
        });
        eventually_true("the event", || event(problem));
        assert!(is_limited("198.51.100.7") && !is_limited("203.0.113.7"), "{problem}");
    }
    put(b"203.0.113.0/24\n");
    eventually_true("the new ranges", || is_limited("203.0.113.7") && !is_limited("198.51.100.7"));
}

#[test]
fn without_a_single_file_the_rules_in_force_stay() {
    let (limiter, client) = start();
    let folder = limiter.setup.folder();
    let failures = |count: f64| {
        eventually_true("the failure to be counted", || {
            limiter.metric("ratelimit_service_config_load_error") == count
        });
        assert_eq!((limit(&client, "shop"), remaining(&client, "shop")), (Some(10), 8));
        let shown = limiter.output().into_iter().filter(|line| line.contains("no rules are here"));
        assert_eq!(
            shown.filter(|line| line.contains("ERROR")).count() as f64,
            count,
            "{:#?}",
            limiter.output()
        );
    };
    let (file, away) = (folder.join("shop.yaml"), folder.join("shop.yaml.disabled"));
    fs::rename(&file, &away).expect("the folder is ours");
    failures(1.0);
    fs::remove_file(&away).expect("the folder is ours");
    failures(2.0);
    limiter.setup.write("other.yaml", &rules("shop", 11, "day"));
    taken(&client, "shop", 11);
    assert_eq!(remaining(&client, "shop"), 9);
}

#[test]
fn without_a_single_file_nothing_is_limited_where_that_may_be() {
    let setup = Setup::new().rules("shop.yaml", &rules("shop", 10, "day"));
    let limiter = setup.env("RULES_MAY_BE_EMPTY", "true").start();
    let client = limiter.client();
    assert_eq!(limit(&client, "shop"), Some(10));
    fs::remove_file(limiter.setup.folder().join("shop.yaml")).expect("the folder is ours");
    taken(&client, "shop", None);
    assert_eq!(limiter.metric("ratelimit_service_config_load_error"), 0.0);
}

#[test]
fn a_single_file_is_watched_too() {
    let setup = Setup::new().rules("shop.yaml", &rules("shop", 10, "day"));
    let file = setup.folder().join("shop.yaml");
    let limiter = setup.env("CONFIG_PATH", &file.display().to_string()).start();
    let client = limiter.client();
    assert_eq!(limit(&client, "shop"), Some(10));
    limiter.setup.write("other.yaml", &rules("other", 1, "day"));
    let aside = limiter.setup.outside().join("aside");
    fs::write(&aside, rules("shop", 11, "day")).expect("the folder is ours");
    fs::rename(&aside, &file).expect("the folder is ours");
    taken(&client, "shop", 11);
    assert_eq!(limit(&client, "other"), None, "only the file that was named is rules");
}

#[test]
fn files_at_any_depth_of_a_runtime_tree_are_watched() {
    let setup = Setup::new().env("RULES_MAY_BE_EMPTY", "false");
    let deep = setup.folder().join("config/team/a");
    fs::create_dir_all(&deep).expect("the folder is ours");
    fs::write(deep.join("shop"), rules("shop", 10, "day")).expect("the folder is ours");
    let root = setup.folder().display().to_string();
    let limiter = setup.env("CONFIG_PATH", "").env("RUNTIME_ROOT", &root).start();
    let client = limiter.client();
    assert_eq!(limit(&client, "shop"), Some(10), "whatever the extension");
    fs::write(deep.join("shop"), rules("shop", 11, "day")).expect("the folder is ours");
    taken(&client, "shop", 11);
    let new = limiter.setup.folder().join("config/team/b");
    fs::create_dir(&new).expect("the folder is ours");
    fs::write(new.join("more.yaml"), rules("more", 3, "day")).expect("the folder is ours");
    taken(&client, "more", 3);
    // What is not called YAML and says nothing is no rules.
    fs::remove_dir_all(&new).expect("the folder is ours");
    taken(&client, "more", None);
    fs::write(deep.join("shop"), "").expect("the folder is ours");
    eventually_true("the failure to be counted", || {
        limiter.metric("ratelimit_service_config_load_error") >= 1.0
    });
    assert_eq!(limit(&client, "shop"), Some(11), "the rules in force stay");
}

/// How `envoyproxy/ratelimit` is deployed: RUNTIME_ROOT is a link that is swapped to a new tree.
#[test]
fn a_runtime_root_that_is_a_link_is_followed_when_it_is_swapped() {
    let setup = Setup::new();
    let tree = |name: &str, requests| {
        let config = setup.outside().join(name).join("ratelimit/config");
        fs::create_dir_all(&config).expect("the folder is ours");
        fs::write(config.join("shop.yaml"), rules("shop", requests, "day")).expect("the folder is ours");
    };
    tree("old", 10);
    tree("new", 11);
    let root = setup.outside().join("current");
    symlink("old", &root).expect("the folder is ours");
    let swapped = setup.outside().join("swapped");
    symlink("new", &swapped).expect("the folder is ours");
    let setup = setup.env("CONFIG_PATH", "").env("RUNTIME_SUBDIRECTORY", "ratelimit");
    let limiter = setup.env("RUNTIME_ROOT", &root.display().to_string()).start();
    let client = limiter.client();
    spend(&client, "shop", 3);
    fs::rename(&swapped, &root).expect("the folder is ours");
    taken(&client, "shop", 11);
    assert_eq!(remaining(&client, "shop"), 8);
}

#[test]
fn a_folder_that_goes_away_leaves_the_rules_in_force() {
    let (limiter, client) = start();
    let (folder, away) = (limiter.setup.folder(), limiter.setup.outside().join("away"));
    fs::rename(&folder, &away).expect("the folder is ours");
    eventually_true("the failure to be counted", || {
        limiter.metric("ratelimit_service_config_load_error") == 1.0
    });
    assert_eq!((limit(&client, "shop"), remaining(&client, "shop")), (Some(10), 8));
    fs::write(away.join("shop.yaml"), rules("shop", 11, "day")).expect("the folder is ours");
    fs::rename(&away, &folder).expect("the folder is ours");
    taken(&client, "shop", 11);
    assert_eq!(remaining(&client, "shop"), 9);
}

#[test]
fn hostile_files_are_refused_fast_and_in_little_memory() {
    const MIB: u64 = 1024 * 1024;
    let (limiter, client) = start();
    let before = limiter.memory_peak_bytes();
    let file = limiter.setup.folder().join("hostile.yaml");

    let mut laughs = "domain: x\na0: &a0 [lol]\n".to_owned();
    for level in 1..40 {
        let alias = format!("*a{}", level - 1);
        laughs += &format!("a{level}: &a{level} [{}]\n", vec![alias; 10].join(", "));
    }
    let mut failures = 0.0;
    let mut refused = |bytes: &[u8], size: u64| {
        let aside = limiter.setup.outside().join("aside");
        fs::write(&aside, bytes).expect("the folder is ours");
        let grown = fs::File::options().write(true).open(&aside).and_then(|file| file.set_len(size));
        grown.expect("the folder is ours");
        fs::rename(&aside, &file).expect("the folder is ours");
        failures += 1.0;
        let (began, watched) = (Instant::now(), Lateness::watch());
        eventually_true("the refusal", || limiter.metric("ratelimit_service_config_load_error") == failures);
        let (took, late) = (began.elapsed(), watched.allowance());
        assert!(took < Duration::from_secs(10) + late, "{took:?}, the machine is {late:?} late");
    };
    refused(laughs.as_bytes(), laughs.len() as u64);
    refused(b"domain: \xff\n", 10);
    refused(b"domain: x\n", 100 * MIB);
    assert!(limiter.lines_with("hostile.yaml:") >= 3, "{:#?}", limiter.output());

    let grown = limiter.memory_peak_bytes() - before;
    assert!(grown < 96 * MIB, "{} MiB, of which 32 MiB are what a file may have", grown / MIB);
    assert_eq!((limit(&client, "shop"), remaining(&client, "shop")), (Some(10), 8));
}
