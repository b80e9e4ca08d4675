//! The hooks for pre-commit, run by pre-commit: good rules and cases pass, bad ones stop the commit and say why.

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
    let mut path = Path::new(binary()).parent().expect("it is in a folder").as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
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
