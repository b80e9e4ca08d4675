//! Gates of a CI fail where they have proved nothing: rules that no request of a log or of a case meets, rules of two domains
//! that are compared, commands of README.md that do not fit each other.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::commands::{folder, tidegate};
use crate::harness::tidegate::{Setup, binary};

const RULES: &str =
    "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {unit: minute, requests_per_unit: 2}\n";

/// Requests of one address, one a second.
fn log(address: &str, requests: u32) -> String {
    let line = |second: u32| {
        let (minute, second) = (second / 60, second % 60);
        format!(
            "{address} - - [17/May/2015:10:{minute:02}:{second:02} +0000] \"GET /cart HTTP/1.1\" 200 5 \"-\" \"-\"\n"
        )
    };
    (0..requests).map(line).collect()
}

#[test]
fn a_replay_in_which_no_request_meets_a_rule_fails() {
    let (_folder, path) =
        folder(&[("shop.yaml", RULES), ("access.log", &log("10.0.0.1", 9)), ("no.log", "")]);
    let (rules, log) = (format!("{path}/shop.yaml"), format!("{path}/access.log"));
    let replay = |more: &[&str]| tidegate(&[&["replay", "--rules", &rules], more].concat(), &[]);
    // The proxy sends `user`; the map has the misspelt `uesr`.
    let unmatched = ["--map", "uesr=$remote_addr", &log];
    let (code, text, complaint) = replay(&unmatched);
    assert_eq!(code, 1, "{text}");
    assert!(
        complaint.contains("not one request met a rule") && complaint.contains("--allow-unmatched"),
        "{complaint}"
    );
    assert!(text.contains("requests 9, ") && text.contains("note: 9 requests met no rule."), "{text}");
    let (code, _, complaint) = replay(&[&["--fail-if", "denied > 0"], &unmatched[..]].concat());
    assert!(code == 1 && complaint.contains("not one request"), "{code}: {complaint}");
    let (code, text, complaint) =
        replay(&[&["--allow-unmatched", "--report", "json"], &unmatched[..]].concat());
    assert_eq!((code, complaint.as_str()), (0, ""));
    assert_eq!(serde_json::from_str::<serde_json::Value>(&text).expect("JSON")["unmatched"], 9);
    let (code, _, complaint) = replay(&["--map", "user=$remote_addr", &format!("{path}/no.log")]);
    assert!(code == 1 && complaint.contains("not one request"), "an empty log: {code}: {complaint}");
    assert_eq!(replay(&["--map", "user=$remote_addr", &log]).0, 0);
}

#[test]
fn a_condition_is_about_requests_that_met_no_rule() {
    let (_folder, path) = folder(&[
        ("shop.yaml", &RULES.replace("key: user", "key: user\n    value: 10.0.0.1")),
        ("access.log", &(log("10.0.0.1", 97) + &log("10.0.0.2", 3))),
    ]);
    let (rules, log) = (format!("{path}/shop.yaml"), format!("{path}/access.log"));
    let replay = |condition: &str| {
        let arguments =
            ["replay", "--rules", &rules, "--map", "user=$remote_addr", "--fail-if", condition, &log];
        let (code, _, complaint) = tidegate(&arguments, &[]);
        (code, complaint)
    };
    let held = "tidegate: unmatched > 1 %: 3 of 100, 3.000 %\n";
    assert_eq!(replay("unmatched > 1 %"), (2, held.to_owned()));
    assert_eq!(replay("unmatched > 3 %"), (0, String::new()));
}

#[test]
fn rules_without_a_domain_in_common_are_not_compared() {
    let other = RULES.replace("domain: shop", "domain: suggested");
    let (_folder, path) =
        folder(&[("shop.yaml", RULES), ("new.yaml", &other), ("access.log", &log("10.0.0.1", 9))]);
    let (rules, new, log) =
        (format!("{path}/shop.yaml"), format!("{path}/new.yaml"), format!("{path}/access.log"));
    let arguments = ["replay", "--rules", &new, "--against", &rules, "--map", "user=$remote_addr", &log];
    let (code, text, complaint) = tidegate(&arguments, &[]);
    assert_eq!((code, text.as_str()), (1, ""));
    assert!(complaint.contains("no domain suggested, only shop"), "{complaint}");
    let (code, text, _) = tidegate(&[&arguments[..], &["--allow-unmatched"]].concat(), &[]);
    assert!(code == 0 && text.contains("every denial is a new one"), "{text}");
}

#[test]
fn cases_of_which_no_request_meets_a_rule_fail() {
    let cases = |entry: &str| {
        format!(
            "rules: shop.yaml\ncases:\n  - name: two a minute\n    steps:\n      - {{request: {{{entry}: alice}}, expect: OK}}\n"
        )
    };
    let (_folder, path) =
        folder(&[("shop.yaml", RULES), ("good.yml", &cases("user")), ("typo.yml", &cases("uesr"))]);
    let (good, typo) = (format!("{path}/good.yml"), format!("{path}/typo.yml"));
    let (code, text, _) = tidegate(&["test", &good, &typo], &[]);
    assert_eq!(code, 1, "{text}");
    assert!(text.starts_with(&format!("{typo}: not one request of its cases met a rule")), "{text}");
    assert!(text.ends_with("bad: files 2, cases 2, requests 2, failed 1\n"), "{text}");
    for format in ["junit", "github", "json"] {
        let (code, text, _) = tidegate(&["test", "--format", format, &typo], &[]);
        assert!(code == 1 && text.contains("not one request"), "{format}: {text}");
    }
    assert_eq!(tidegate(&["test", "--allow-unmatched", &typo], &[]).0, 0);
    assert_eq!(tidegate(&["test", &good], &[]).0, 0);
}

#[test]
fn the_page_of_a_replay_says_where_it_comes_from() {
    let (_folder, path) = folder(&[("shop.yaml", RULES), ("access.log", &log("10.0.0.1", 9))]);
    let (rules, log) = (format!("{path}/shop.yaml"), format!("{path}/access.log"));
    let map = "user=$remote_addr; agent=<$http_user_agent>";
    let arguments =
        ["replay", "--rules", &rules, "--against", &rules, "--map", map, "--report", "html", &log];
    let (code, page, complaint) = tidegate(&arguments, &[]);
    assert_eq!((code, complaint.as_str()), (0, ""));
    for (name, value) in [
        ("Log", log.as_str()),
        ("Format", "combined"),
        ("Map", "user=$remote_addr; agent=&lt;$http_user_agent&gt;"),
        ("Rules", &rules),
        ("Compared with", &rules),
    ] {
        assert!(page.contains(&format!("<dt>{name}</dt><dd>{value}</dd>")), "{name}: {page}");
    }
    assert!(page.contains("Requests from 2015-05-17 10:00:00 to 2015-05-17 10:00:08 UTC"), "{page}");
    let made = page.split("<dt>Made</dt><dd>").nth(1).and_then(|rest| rest.split("</dd>").next());
    assert!(
        made.is_some_and(|made| made.starts_with("20") && made.contains(" UTC, by tidegate ")),
        "{made:?}"
    );
}

/// The commands of README.md, as they stand there, one after the other.
#[test]
fn what_readme_suggests_can_be_replayed_against_what_is_in_force() {
    // The second half is quieter, so it keeps what the first one promises.
    let log = log("10.0.0.1", 3_000);
    let lines = log.split_inclusive('\n').enumerate();
    let log: String = lines.map(|(second, line)| line.repeat(if second < 1_500 { 2 } else { 1 })).collect();
    let (_folder, path) = folder(&[("access.log", &log)]);
    let root = env!("CARGO_MANIFEST_DIR");
    let program = Path::new(binary()).parent().expect("a folder");
    fs::create_dir(format!("{path}/config")).expect("the folder is ours");
    fs::copy(format!("{root}/config/shop.yaml"), format!("{path}/config/shop.yaml"))
        .expect("both can be had");
    let readme = include_str!("../../README.md");
    let blocks: Vec<_> =
        readme.split("```").skip(1).step_by(2).filter_map(|block| block.strip_prefix("sh\n")).collect();
    let run = |script: &str| {
        let output = Command::new("/bin/bash")
            .args(["-euc", script])
            .current_dir(&path)
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", program.display()))
            .output()
            .expect("bash starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    assert_eq!(run("gzip access.log").0, Some(0));
    for command in ["tidegate suggest ", "tidegate replay "] {
        let block = blocks.iter().find(|block| block.starts_with(command)).expect("README has it");
        let (code, text, complaint) = run(block);
        assert_eq!(code, Some(0), "{block}\n{text}\n{complaint}");
    }
    let page = fs::read_to_string(format!("{path}/report.html")).expect("it was written");
    assert!(page.contains("shop.remote_address"), "the rules that were suggested are replayed");
}

/// Rules of which one reads records.
const READING: &str = "
domain: shop
descriptors:
  - key: tenant
    limits_from: store
    rate_limit: {unit: hour, requests_per_unit: 5}
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 5}
";

#[test]
fn records_that_no_rule_reads_are_errors_of_a_check_and_warnings_of_a_load() {
    let csv = "domain,entry.tennant,requests_per_unit\nshop,acme,7\nshop,smith,many\n";
    let json =
        "{\"domain\":\"shop\",\"entries\":[{\"key\":\"user\",\"value\":\"a\"}],\"requests_per_unit\":5}\n";
    let (_folder, path) = folder(&[
        ("shop.yaml", READING),
        ("typo.csv", csv),
        ("good.csv", "domain,entry.tenant,requests_per_unit\nshop,acme,7\n"),
        ("user.json", json),
    ]);
    let file = |name: &str| format!("{path}/{name}");
    let (rules, typo, good, user) =
        (file("shop.yaml"), file("typo.csv"), file("good.csv"), file("user.json"));
    let (code, text, _) = tidegate(&["check", &rules, "--records", &good], &[]);
    assert_eq!((code, text.as_str()), (0, "good: files 2, domains 1, limits 2, warnings 0\n"));
    let (code, text, _) = tidegate(&["check", &rules, "--records", &typo, "--records", &user], &[]);
    let expected = format!(
        "{typo}:2:1: no rule applies to tennant=acme (the closest is tenant)\n\
         {typo}:3:1: `requests_per_unit` is \"many\" (expected a whole number, 0 to 9007199254740991)\n\
         {user}:1:1: the rule at {rules}:7:10 reads no records (expected `limits_from: store`)\n\
         bad: files 3, problems 3, warnings 0\n"
    );
    assert_eq!((code, text), (1, expected));
    let (_of_month, month) = folder(&[
        (
            "month.yaml",
            "{domain: m, descriptors: [{key: t, limits_from: store, rate_limit: {period: {calendar: month}, requests_per_unit: 1}}]}",
        ),
        (
            "anchors.csv",
            "domain,entry.t,requests_per_unit,anchor\nm,a,7,31\nm,b,7,\nm,c,7,32\nm,d,7,sunday\n",
        ),
    ]);
    let (month, anchors) = (format!("{month}/month.yaml"), format!("{month}/anchors.csv"));
    let (code, text, _) = tidegate(&["check", &month, "--records", &anchors], &[]);
    let expected = format!(
        "{anchors}:4:1: `anchor` is \"32\" (expected a day of the month from 1 to 31, a weekday such as `sunday`, \
         or a date such as `04-06`)\n\
         {anchors}:5:1: no period of the rule at {month}:1:33 begins at the anchor sunday: it counts by the calendar \
         month (UTC)\n\
         bad: files 2, problems 2, warnings 0\n"
    );
    assert_eq!((code, text), (1, expected));
    let (code, text, _) = tidegate(&["check", &rules, "--records", &file("none.csv")], &[]);
    assert!(code == 1 && text.contains("none.csv: No such file"), "{text}");

    let limiter =
        Setup::new().rules("shop.yaml", READING).env("LIMITS_DIR", &file("store")).env("ADMIN_TOKEN", "t");
    let limiter = limiter.start();
    let port = limiter.ports().debug.to_string();
    let variables = [("DEBUG_HOST", "127.0.0.1"), ("DEBUG_PORT", port.as_str()), ("ADMIN_TOKEN", "t")];
    let who = ["--who", "jane", "--why", "test"];
    fs::write(&typo, csv.replace("many", "8")).expect("the folder is ours");
    let (code, text, complaint) = tidegate(&[&["limit", "load", &typo][..], &who].concat(), &variables);
    assert_eq!((code, text.as_str()), (0, "loaded 2 records\n"), "{complaint}");
    assert!(complaint.contains("tennant=acme (the closest is tenant), so nothing changes"), "{complaint}");
    assert!(complaint.ends_with("typo.csv: no rule reads 2 of 2 records\n"), "{complaint}");
    let (code, _, complaint) = tidegate(&[&["limit", "load", &good][..], &who].concat(), &variables);
    assert_eq!((code, complaint.as_str()), (0, ""));
    let put = |entry: &str| {
        let arguments = ["limit", "put", "shop", entry, "--requests-per-unit", "9"];
        tidegate(&[&arguments[..], &who].concat(), &variables).1
    };
    assert!(put("tenat=acme").contains("the closest is tenant"), "{}", put("tenat=acme"));
    assert!(!put("tenant=acme").contains("warning"));
    let exception = ["exception", "put", "x", "shop", "uesr=a", "--deny"];
    let (_, text, _) = tidegate(&[&exception[..], &who].concat(), &variables);
    assert!(text.contains("no rule applies to uesr=a (the closest is user), so nothing changes"), "{text}");
}
