//! What README.md and the pages of docs/ show is what happens, and their links lead somewhere.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::harness::tidegate::{Setup, binary};
use crate::harness::{eventually, grpc, http};

const README: &str = include_str!("../../README.md");
const RULES: &str = include_str!("../../docs/rules.md");
const CONTRIBUTING: &str = include_str!("../../CONTRIBUTING.md");

/// The first fenced block of `page` that begins so.
fn block(page: &'static str, beginning: &str) -> &'static str {
    let mut blocks =
        page.split("```").skip(1).step_by(2).map(|block| block.split_once('\n').expect("a line").1);
    let found = blocks.find(|block| block.starts_with(beginning));
    found.unwrap_or_else(|| panic!("no block begins with {beginning:?}"))
}

#[test]
fn the_line_to_try_gets_the_answer_that_is_shown() {
    let limiter = Setup::new().directory(env!("CARGO_MANIFEST_DIR")).env("CONFIG_PATH", "").start();
    let question = block(README, "curl -s localhost:8080/json").split('\'').nth(1).expect("a body in quotes");
    let mut client = http::Client::new(limiter.ports().http);
    let mut ask = || client.send("POST", "/json", &[], question).expect("an answer");
    let but_time = |body: &str| body.split("\"durationUntilReset\"").next().map(str::to_owned);
    assert_eq!(but_time(&ask().body), but_time(block(README, "{\"overallCode\"")));
    let denied = (2..).find(|_| ask().status == 429);
    assert_eq!(denied, Some(101), "README.md names the first that is denied");
}

#[test]
fn check_answers_as_the_comment_beside_its_line_says() {
    let limiter = Setup::new().directory(env!("CARGO_MANIFEST_DIR")).env("CONFIG_PATH", "").start();
    let line = block(README, "curl -i ").split('\'').nth(1).expect("a URL in quotes");
    let path = line.strip_prefix("localhost:8080").expect("the HTTP port");
    let mut client = http::Client::new(limiter.ports().http);
    for (status, retries_after) in [(200, false); 100].into_iter().chain([(429, true)]) {
        let answer = client.get(path);
        assert_eq!((answer.status, answer.header("retry-after").is_some()), (status, retries_after));
        assert_eq!(answer.number("ratelimit-limit"), 100);
    }
}

#[test]
fn the_lines_for_nginx_are_those_of_its_recipe() {
    let recipe = include_str!("../../examples/nginx/nginx.conf");
    for line in block(README, "location / {").lines() {
        let line = line.split('#').next().expect("a line").trim();
        assert!(recipe.lines().any(|of_recipe| of_recipe.trim() == line), "{line}");
    }
}

/// With Docker and without it.
#[test]
fn the_example_of_envoy_fits_a_screen_and_each_way_takes_three_lines() {
    let page = include_str!("../../examples/envoy/README.md");
    assert!(page.lines().count() <= 45, "{} lines", page.lines().count());
    let lines: Vec<_> = page.lines().collect();
    let blocks = lines.split(|line| !line.starts_with("    ")).filter(|block| !block.is_empty());
    let lengths: Vec<_> = blocks.map(<[_]>::len).collect();
    assert_eq!(lengths, [3, 3]);
}

#[test]
fn the_rule_file_does_what_is_said_of_it() {
    let limiter = Setup::new().rules("shop.yaml", block(RULES, "domain: shop")).start();
    let client = limiter.client();
    let limit = |entries| {
        let status = client.ask(grpc::question("shop", &[entries])).statuses.remove(0);
        status.current_limit.map(|limit| (limit.requests_per_unit, limit.unit))
    };
    let (minute, hour) = (2, 3);
    assert_eq!(limit(&[("remote_address", "10.1.2.3")]), Some((100, minute)));
    assert_eq!(limit(&[("plan", "free-trial"), ("user", "alice")]), Some((1000, hour)));
    assert_eq!(limit(&[("plan", "free-trial")]), None);
    assert_eq!(limiter.metric("tidegate_rules_warnings"), 0.0);
}

#[test]
fn the_patterns_and_addresses_do_what_is_said_of_them() {
    let setup = Setup::new().env("STRICT_RULES", "true").rules("site.yaml", block(RULES, "domain: site"));
    fs::create_dir(setup.folder().join("lists")).expect("the folder is ours");
    let list = "lists/scanners.txt";
    setup.write(list, "# seen today\n203.0.113.0/24\n2001:db8::/32 ; all of it\n");
    let limiter = setup.start();
    let client = limiter.client();
    let ask = |key, value| client.ask(grpc::question("site", &[&[(key, value)]])).statuses.remove(0);
    let limit = |key, value| ask(key, value).current_limit.map(|limit| limit.requests_per_unit);
    let left = |address| ask("remote_address", address).limit_remaining;
    assert_eq!(limit("remote_address", "192.0.2.1"), None, "unlimited");
    assert_eq!(
        ["198.51.100.7", "198.51.100.8:443", "::ffff:198.51.100.9"].map(left),
        [49, 48, 47],
        "together"
    );
    assert_eq!(["203.0.113.1", "203.0.113.2", "[2001:db8::1]:80"].map(left), [0; 3], "each by itself");
    assert_eq!(limit("remote_address", "192.0.2.3"), None);
    assert_eq!(limit("path", "/api/v2/orders"), Some(20));
    assert_eq!(limit("path", "/api/orders"), None);

    // A change of the list is in force, and what cannot be read leaves the ranges in force.
    limiter.setup.write(list, "192.0.2.0/24\n");
    eventually("the new ranges", || limit("remote_address", "192.0.2.3").filter(|limit| *limit == 1));
    assert_eq!(limit("remote_address", "203.0.113.1"), None);
    let failures = |count| {
        eventually("the failure to be counted", || {
            (limiter.metric("ratelimit_service_config_load_error") == count).then_some(())
        });
    };
    limiter.setup.write(list, "192.0.2.0/24\n198.51.100.1/24\nscanner\n");
    failures(1.0);
    let shown = |place: &str| limiter.output().iter().any(|line| line.contains(place));
    assert!(shown("scanners.txt:2:1: `198.51.100.1/24`") && shown("scanners.txt:3:1: `scanner`"));
    fs::remove_file(limiter.setup.folder().join(list)).expect("the folder is ours");
    failures(2.0);
    assert_eq!(limit("remote_address", "192.0.2.3"), Some(1));
}

#[test]
fn the_error_that_is_shown_is_what_a_typo_gets() {
    let typo = block(RULES, "domain: shop").replacen("unit: minute ", "unit: minutes ", 1);
    let setup = Setup::new().rules("shop.yaml", &typo);
    let mut process = setup.spawn();
    eventually("the start to be refused", || process.ended());
    let shown = block(RULES, "config/shop.yaml:").trim_end().strip_prefix("config/").expect("it begins so");
    let first = shown.lines().next().expect("three lines");
    assert_eq!(process.lines_with(first), 1, "{first}\n{:#?}", process.output());
    let checked =
        std::process::Command::new(binary()).arg("check").arg(setup.folder()).output().expect("it starts");
    let printed = String::from_utf8(checked.stdout).expect("UTF-8");
    assert!(printed.contains(shown), "{shown}\n{printed}");
}

#[test]
fn what_is_asked_gets_the_explanation_that_is_shown() {
    let limiter = Setup::new().directory(env!("CARGO_MANIFEST_DIR")).env("CONFIG_PATH", "").start();
    let client = limiter.client();
    (0..100).for_each(|_| drop(client.ask(grpc::question("shop", &[&[("user", "alice")]]))));
    let words = block(RULES, "tidegate ask ").split_whitespace().skip(1);
    let asked = std::process::Command::new(binary())
        .args(words)
        .args(["--debug-host=127.0.0.1", &format!("--debug-port={}", limiter.ports().debug)])
        .output()
        .expect("it starts");
    let printed = String::from_utf8(asked.stdout).expect("UTF-8");
    // Where the drawing stands depends on the moment, and so do the waits.
    let but_time = |text: &str| {
        let shown = text.lines().map(|line| line.rsplit('|').next().unwrap_or_default().split(" in ").next());
        shown.map(|shown| shown.map(str::to_owned)).collect::<Vec<_>>()
    };
    assert_eq!(but_time(&printed), but_time(block(RULES, "shop: 1 hit")));
}

/// All pages in Markdown below this folder, except those that were built or installed.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let paths =
        fs::read_dir(folder).expect("the tree can be read").map(|entry| entry.expect("as before").path());
    let is_ours = |path: &PathBuf| ![".git", ".work", "target"].iter().any(|name| path.ends_with(name));
    let of = |path: PathBuf| match path.is_dir() {
        true => pages(&path),
        false => {
            Some(path).filter(|path| path.extension().is_some_and(|end| end == "md")).into_iter().collect()
        }
    };
    paths.filter(is_ours).flat_map(of).collect()
}

/// The anchors of a page: its headings, as GitHub writes them.
fn anchors(text: &str) -> HashSet<String> {
    let headings = outside_blocks(text).filter_map(|line| line.strip_prefix('#'));
    let kept = |char: &char| char.is_alphanumeric() || matches!(char, ' ' | '-' | '_');
    headings
        .map(|heading| heading.trim_start_matches('#').trim().chars().filter(kept).collect::<String>())
        .map(|heading| heading.to_lowercase().replace(' ', "-"))
        .collect()
}

fn outside_blocks(text: &str) -> impl Iterator<Item = &str> {
    text.split("```").step_by(2).flat_map(str::lines)
}

#[test]
fn every_link_leads_somewhere() {
    let mut links = 0;
    for page in pages(Path::new(env!("CARGO_MANIFEST_DIR"))) {
        let text = fs::read_to_string(&page).expect("the tree can be read");
        let targets = outside_blocks(&text).flat_map(|line| line.split("](").skip(1));
        for target in targets.filter_map(|rest| rest.split(')').next()) {
            if target.starts_with("https://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() { page.clone() } else { page.with_file_name(file) };
            assert!(path.exists(), "{}: {target}", page.display());
            if !anchor.is_empty() {
                let anchors = anchors(&fs::read_to_string(&path).expect("a page"));
                assert!(anchors.contains(anchor), "{}: {target}: {anchors:?}", page.display());
            }
            links += 1;
        }
    }
    assert!(links > 50, "{links} links");
}

#[test]
fn every_file_that_the_map_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let quoted = outside_blocks(CONTRIBUTING).flat_map(|line| line.split('`').skip(1).step_by(2));
    let folders = ["src/", "crates/", "tests/", "benches/", "docs/"];
    let is_path = |name: &&str| folders.iter().any(|at| name.starts_with(at)) && !name.contains([' ', '*']);
    let (mut named, mut missing) = (0, Vec::new());
    for name in quoted.filter(is_path).filter(|name| !name.contains("NAME")) {
        named += 1;
        missing.extend(Some(name).filter(|name| !root.join(name).exists()));
    }
    assert!(named > 50 && missing.is_empty(), "{named} named, missing: {missing:?}");
}
