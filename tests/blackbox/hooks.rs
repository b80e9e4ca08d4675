//! The hooks for pre-commit, run by pre-commit, and the steps of the action for GitHub, run by bash: good rules and cases pass,
//! bad ones stop the commit or the job and say why.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::programs::{python, run, succeed};
use crate::harness::tidegate::binary;

const RULES: &str = "domain: shop
descriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 1}}]
";
const CASES: &str = "rules: config
cases:
  - name: a user has one request
    steps:
      - {request: {user: a}, expect: OK}
      - {request: {user: a}, expect: OVER_LIMIT}
";

fn git(folder: &Path, arguments: &[&str]) -> String {
    let identity = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"];
    succeed(Command::new("git").current_dir(folder).args(identity).args(arguments))
}

/// A repository with these files, committed.
fn repository(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder can be made");
    git(folder.path(), &["init", "--quiet"]);
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("it is in the folder")).expect("ours");
        fs::write(path, text).expect("ours");
    }
    git(folder.path(), &["add", "."]);
    git(folder.path(), &["commit", "--quiet", "--message", "first"]);
    folder
}

/// The PATH, with the program under test first.
fn path() -> OsString {
    let mut path = Path::new(binary()).parent().expect("it is in a folder").as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    path
}

#[test]
fn pre_commit_stops_a_commit_with_bad_rules_or_cases() {
    let hooks = repository(&[(".pre-commit-hooks.yaml", include_str!("../../.pre-commit-hooks.yaml"))]);
    let config = format!(
        "repos: [{{repo: '{}', rev: {}, hooks: [{{id: tidegate-check, args: [config]}}, {{id: tidegate-test, args: \
         [cases.yaml]}}]}}]",
        hooks.path().display(),
        git(hooks.path(), &["rev-parse", "HEAD"]).trim(),
    );
    let user = repository(&[
        (".pre-commit-config.yaml", &config),
        ("config/shop.yaml", RULES),
        ("cases.yaml", CASES),
    ]);
    let home = tempfile::tempdir().expect("a folder can be made");
    let path = path();
    let commit = || {
        let mut command = python();
        command.args(["-m", "pre_commit", "run", "--all-files"]).current_dir(user.path());
        let (output, said) = run(command.env("PRE_COMMIT_HOME", home.path()).env("PATH", &path));
        (output.status.success(), said)
    };
    let (is_good, said) = commit();
    assert!(is_good && said.matches("Passed").count() == 2, "{said}");

    let rules = user.path().join("config/shop.yaml");
    fs::write(&rules, RULES.replace("requests_per_unit: 1", "requests_per_unit: 2")).expect("ours");
    let (is_good, said) = commit();
    assert!(!is_good && said.contains("got:      OK, rule shop.user"), "{said}");

    fs::write(&rules, RULES.replace("minute", "minutes")).expect("ours");
    let (is_good, said) = commit();
    assert!(!is_good && said.contains("config/shop.yaml:2:") && said.contains("minutes"), "{said}");
}

/// What the steps of the action say, until one of them fails, and whether none did. Their scripts are run as a runner does: by
/// `bash -e -o pipefail`, with the inputs in the variables that the step names.
fn act(folder: &Path, inputs: &[(&str, &str)]) -> (bool, String) {
    let read = "import json, sys, yaml; print(json.dumps(yaml.safe_load(sys.stdin)['runs']['steps']))";
    let action = fs::File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/action.yml")).expect("it is there");
    let steps = succeed(python().args(["-c", read]).stdin(action));
    let steps: Vec<serde_json::Value> = serde_json::from_str(&steps).expect("python writes it");
    let input = |name: &str| inputs.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value);
    let mut everything = String::new();
    for step in steps {
        let condition = step["if"].as_str().map(|text| text.strip_prefix("inputs.").expect("an input"));
        if condition
            .is_some_and(|text| input(text.strip_suffix(" != ''").expect("whether it is there")).is_empty())
        {
            continue;
        }
        assert_eq!(step["shell"], "bash");
        let mut command = Command::new("bash");
        command.args([
            "--noprofile",
            "--norc",
            "-e",
            "-o",
            "pipefail",
            "-c",
            step["run"].as_str().expect("a script"),
        ]);
        for (name, value) in step["env"].as_object().into_iter().flatten() {
            let value = value.as_str().and_then(|text| text.strip_prefix("${{ inputs.")?.strip_suffix(" }}"));
            command.env(name, input(value.expect("an input")));
        }
        let (output, said) = run(command.current_dir(folder).env("PATH", path()));
        everything += &said;
        if !output.status.success() {
            return (false, everything);
        }
    }
    (true, everything)
}

#[test]
fn the_action_annotates_the_lines_of_bad_rules_and_cases() {
    let user = repository(&[("config/shop.yaml", RULES), ("my cases.yaml", CASES), ("other.yaml", CASES)]);
    let all = [("rules", "config\n"), ("cases", "my cases.yaml\nother.yaml\n")];
    let (is_good, said) = act(user.path(), &all);
    assert!(is_good && !said.contains("::error"), "{said}");

    let rules = user.path().join("config/shop.yaml");
    fs::write(&rules, RULES.replace("requests_per_unit: 1", "requests_per_unit: 2")).expect("ours");
    let (is_good, said) = act(user.path(), &all);
    assert!(!is_good, "{said}");
    for name in ["my cases.yaml", "other.yaml"] {
        assert!(said.contains(&format!("::error file={name},line=6")), "{name}: {said}");
    }
    let (is_good, said) = act(user.path(), &all[..1]);
    assert!(is_good, "no cases were named: {said}");

    fs::write(&rules, RULES.replace("minute", "minutes")).expect("ours");
    let (is_good, said) = act(user.path(), &all);
    assert!(!is_good && said.contains("::error file=config/shop.yaml,line=2"), "{said}");
}
