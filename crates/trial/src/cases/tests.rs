//! Cases of files: those of the repository pass, and what is wrong is reported with its place.

use std::fs;
use std::path::Path;

use tidegate_engine::key::KeySecret;
use tidegate_engine::rules::{LoadOptions, SourceFile, load};

use super::*;

const RULES: &str = "
domain: shop
rate_limits:
  - actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 2, name: per_user}
";

fn rules(text: &[u8], name: &str) -> RuleSet {
    let file = SourceFile { name: name.to_owned(), bytes: text.to_vec(), presumed: false };
    load(&[file], &LoadOptions::new(KeySecret::new([0; 16]))).expect("good rules").rules
}

/// Runs cases under [`RULES`].
fn ran(cases: &str) -> FileResult {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("cases.yaml");
    fs::write(&path, cases).expect("the folder is ours");
    let result = run(&path, Modes::default(), false, |_| Ok(rules(RULES.as_bytes(), "rules.yaml")));
    FileResult { file: "cases.yaml".to_owned(), ..result }
}

fn one_case(steps: &str) -> FileResult {
    ran(&format!("rules: rules.yaml\ncases:\n  - name: a <case>\n    steps:\n{steps}"))
}

#[test]
fn what_the_repository_ships_does_what_its_cases_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = fs::read_dir(root.join("../../tests/cases")).expect("it is there");
    let results: Vec<_> = files
        .map(|file| {
            run(&file.expect("a file").path(), Modes::default(), false, |path| {
                let file = fs::read_dir(path).expect("rules").next().expect("one").expect("a file").path();
                Ok(rules(&fs::read(&file).expect("it can be read"), "rules.yaml"))
            })
        })
        .collect();
    assert!(results.len() >= 5 && results.iter().all(FileResult::is_good), "{}", text(&results));
}

#[test]
fn a_failure_says_when_and_why() {
    let result = one_case(
        "      - {every: 10s x 5, request: {user: alice}, expect: OK}\n      - {request: {user: bob}, expect: OVER_LIMIT}\n",
    );
    let failure = result.cases[0].failure.as_ref().expect("the third is denied");
    assert_eq!(
        (failure.line, failure.column, failure.number, failure.at_nanos),
        (5, 9, (3, 5), 20_000_000_000)
    );
    assert_eq!(
        (failure.expected.as_str(), failure.got.as_str()),
        ("OK", "OVER_LIMIT, rule per_user, remaining 0, wait 41s")
    );
    assert!(failure.explanation.contains("there is no room now"), "{}", failure.explanation);
    assert!(failure.explanation.contains("2 counted, 0 left"), "{}", failure.explanation);
    let files = [result];
    let text = text(&files);
    assert!(
        text.starts_with(
            "cases.yaml:5:9: a <case> failed at 20s, request 3 of 5\n  expected: OK\n  got:      OVER_LIMIT"
        ),
        "{text}"
    );
    assert!(text.ends_with("bad: files 1, cases 1, requests 3, failed 1\n"), "{text}");
    let xml = junit(&files);
    assert!(
        xml.contains("<testsuites tests=\"1\" failures=\"1\">")
            && xml.contains("name=\"a &lt;case&gt;\"><failure"),
        "{xml}"
    );
    let json: serde_json::Value = serde_json::from_str(&json(&files)).expect("JSON");
    assert_eq!(
        (&json["good"], &json["files"][0]["cases"][0]["failure"]["request"]),
        (&false.into(), &3.into())
    );
    let lines = github(&files, |at, what| format!("{at:?} {what}\n"));
    assert!(
        lines.starts_with("Some((\"cases.yaml\", 5, 9)) a <case> at 20s, request 3 of 5: expected OK"),
        "{lines}"
    );
}

#[test]
fn answers_are_held_to_all_that_is_expected() {
    for (expect, is_met) in [
        ("{code: OK, rule: per_user, remaining: 1, wait: 61s}", true),
        ("{rule: shop.user}", true),
        ("{}", true),
        ("OVER_LIMIT", false),
        ("{rule: other}", false),
        ("{remaining: 2}", false),
        ("{wait: 60s}", false),
    ] {
        let result = one_case(&format!("      - {{request: {{user: alice}}, expect: {expect}}}\n"));
        assert_eq!(result.is_good(), is_met, "{expect}: {}", text(&[result]));
    }
    let other = one_case("      - {request: {path: /}, expect: {remaining: 1}}\n");
    assert_eq!(other.cases[0].failure.as_ref().expect("no limit").got, "OK, no limit was met");
    let domain =
        one_case("      - {domain: bar, request: {user: alice}, expect: {code: OK, remaining: 1}}\n");
    assert!(!domain.is_good());
}

/// The explanation is of what the request met, not of what it left behind.
#[test]
fn a_request_that_should_have_been_denied_is_explained_as_it_was_admitted() {
    let result = one_case(
        "      - {request: {user: alice}, expect: OK}\n      - {request: {user: alice}, expect: OVER_LIMIT}\n",
    );
    let failure = result.cases[0].failure.as_ref().expect("it fails");
    let (got, explanation) = (&failure.got, &failure.explanation);
    assert!(got.starts_with("OK, rule per_user, remaining 0"), "{got}");
    assert!(
        explanation.contains("1 hit would get OK") && explanation.contains("1 counted, 1 left"),
        "{explanation}"
    );
}

#[test]
fn each_case_has_counters_of_its_own_and_a_request_may_be_http() {
    let step = "      - {hits: 2, http: {headers: {X-User: alice}}, expect: {code: OK, remaining: 0}}\n";
    let both =
        format!("rules: r\ncases:\n  - name: a\n    steps:\n{step}  - name: b\n    steps:\n{step}{step}");
    let result = ran(&both);
    let failed: Vec<_> = result.cases.iter().map(|case| case.failure.is_some()).collect();
    assert_eq!(failed, [false, true], "{}", text(&[result]));
}

#[test]
fn a_ban_begins_and_ends_at_the_times_of_a_case() {
    let ban = "    ban: {after: 3 denials, within: 60s, every: 1s, for: 1h, doubling_to: 24h}\n";
    let banning = RULES.replace("requests_per_unit: 2", "requests_per_unit: 1") + ban;
    let banning = |_: &Path| Ok(rules(banning.as_bytes(), "rules.yaml"));
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("cases.yaml");
    let cases = "rules: rules.yaml
cases:
  - name: three denials ban, the next time for twice as long
    steps:
      - {request: {user: alice}, expect: OK}
      - {request: {user: alice}, expect: OVER_LIMIT}
      - {after: 500ms, request: {user: alice}, expect: OVER_LIMIT}
      - {after: 500ms, request: {user: alice}, expect: OVER_LIMIT}
      - {after: 1s, request: {user: alice}, expect: {code: OVER_LIMIT, rule: per_user, remaining: 0, wait: 3600s}}
      - {after: 10s, request: {user: alice}, expect: {code: OVER_LIMIT, wait: 3590s}}
      - {request: {user: bob}, expect: OK}
      - {after: 3589s, request: {user: alice}, expect: {code: OVER_LIMIT, wait: 1s}}
      - {after: 1s, request: {user: alice}, expect: OK}
      - {every: 1s x 3, request: {user: alice}, expect: OVER_LIMIT}
      - {request: {user: alice}, expect: {code: OVER_LIMIT, wait: 7200s}}
";
    fs::write(&path, cases).expect("the folder is ours");
    let result = run(&path, Modes::default(), false, banning);
    assert!(result.is_good(), "{}", text(&[result]));
}

#[test]
fn what_is_wrong_with_a_file_is_reported_with_its_place() {
    for (steps, expected) in [
        ("      - {request: {user: a}}\n", "5:9: `expect` is missing"),
        ("      - {expect: OK}\n", "5:9: expected `request` or `http`"),
        ("      - {request: {user: a}, expect: YES}\n", "5:38: `YES` (expected OK or OVER_LIMIT)"),
        (
            "      - {request: {user: a}, expects: OK}\n",
            "5:30: unknown key `expects` (expected at, after, every,",
        ),
        (
            "      - {at: soon, request: {user: a}, expect: OK}\n",
            "5:14: `soon` (expected a duration, such as",
        ),
        (
            "      - {every: 1s, request: {user: a}, expect: OK}\n",
            "5:17: `1s` (expected an interval and a number",
        ),
        (
            "      - {at: 1s, after: 1s, request: {user: a}, expect: OK}\n",
            "`at` and `after` (expected one of them)",
        ),
        (
            "      - {at: 2s, request: {user: a}, expect: OK}\n      - {at: 1s, request: {user: a}, expect: OK}\n",
            "6:9: time goes back",
        ),
        ("      - {request: {user: a}, expect: {wait: 1500ms}}\n", "expected a duration in whole seconds"),
        ("      - [\n", "not YAML"),
    ] {
        let result = one_case(steps);
        let problem = result.problems[0].to_string();
        assert!(!result.is_good() && problem.contains(expected), "{steps}: {problem}");
    }
    let problem = |cases: &str| ran(cases).problems[0].to_string();
    assert!(problem("").contains("1:1: the file is empty"));
    assert!(problem("rules: r\ncases: []\n").contains("2:8: there is no case"));
    assert!(problem("rules: r\ncases: [{name: a, steps: []}]\n").contains("2:26: there is no step"));
    let several = one_case("      - {expect: OK}\n      - {request: {user: a}}\n");
    assert_eq!(several.problems.len(), 2, "{:?}", several.problems);
    let missing = run(Path::new("/nowhere"), Modes::default(), false, |_| Err(Vec::new()));
    assert!(missing.problems[0].what.starts_with("/nowhere: No such file"), "{:?}", missing.problems);
}

/// The message for an unknown key names all keys that are known.
#[test]
fn the_schema_has_the_keys_of_each_mapping() {
    let schema: serde_json::Value = serde_json::from_str(SCHEMA).expect("JSON");
    let step = |step: &str| format!("rules: r\ncases: [{{name: a, steps: [{step}]}}]");
    for (mapping, file) in [
        ("", "no: 1".to_owned()),
        ("/definitions/case", "rules: r\ncases: [{no: 1}]".to_owned()),
        ("/definitions/step", step("{no: 1}")),
        ("/definitions/http", step("{http: {no: 1}}")),
        ("/definitions/expected", step("{request: {user: a}, expect: {no: 1}}")),
    ] {
        let known = schema.pointer(&format!("{mapping}/properties")).and_then(|it| it.as_object());
        let known: Vec<_> = known.expect("an object").keys().map(String::as_str).collect();
        let problem = ran(&file).problems[0].to_string();
        let named = problem.split_once("(expected ").and_then(|(_, rest)| rest.strip_suffix(")"));
        let mut named: Vec<_> = named.unwrap_or(&problem).split(", ").collect();
        named.sort_unstable();
        assert_eq!(named, known, "{mapping}");
    }
}

#[test]
fn problems_have_their_places_in_every_form() {
    let files = [one_case("      - {request: {user: a}}\n")];
    let annotations = github(&files, |at, what| format!("{at:?} {what}"));
    assert!(annotations.ends_with("cases.yaml\", 5, 9)) `expect` is missing"), "{annotations}");
    let xml = junit(&files);
    assert!(xml.contains("<testsuites tests=\"1\" failures=\"1\">"), "{xml}");
    assert!(xml.contains("<failure message=\"") && xml.contains("cases.yaml:5:9: `expect`"), "{xml}");
}

#[test]
fn a_file_among_its_rules_is_refused() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    for (rules, is_among) in [(".", true), ("..", false), ("cases.yaml", false)] {
        let path = folder.path().join("cases.yaml");
        let cases =
            format!("rules: {rules}\ncases: [{{name: a, steps: [{{request: {{a: b}}, expect: OK}}]}}]\n");
        fs::write(&path, cases).expect("the folder is ours");
        let unknown = || Problem { at: None, what: "unknown key `cases`".to_owned() };
        let problems = run(&path, Modes::default(), false, |_| Err(vec![unknown()])).problems;
        assert_eq!(problems.len() == 2, is_among, "{rules}: {problems:?}");
        assert_eq!(problems[0].what.contains("the file lies among its rules"), is_among, "{problems:?}");
    }
}
