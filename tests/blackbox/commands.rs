//! The commands beside serving: `check`, `ask`, `settings`.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Output};

use crate::harness::grpc;
use crate::harness::tidegate::Setup;

const GOOD: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 3, name: per_user}
  - key: plan
    value: free*
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 0}
";

/// Two problems and a warning.
const BAD: &str = "domain: shop
descriptors:
  - key: user
    unit: day
    rate_limit: {unit: days, requests_per_unit: 3}
  - key: \"\"
";

/// Runs the program to its end: exit code, what it wrote, what it complained of.
fn run(program: &str, arguments: &[&str], variables: &[(&str, &str)]) -> (i32, String, String) {
    let output = Command::new(program).args(arguments).env_clear().envs(variables.iter().copied()).output();
    let Output { status, stdout, stderr } = output.expect("it starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (status.code().expect("no signal ended it"), text(stdout), text(stderr))
}

fn tidegate(arguments: &[&str], variables: &[(&str, &str)]) -> (i32, String, String) {
    run(env!("CARGO_BIN_EXE_tidegate"), arguments, variables)
}

/// A folder with these files, and its path.
fn folder(files: &[(&str, &str)]) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder can be made");
    for (name, text) in files {
        fs::write(folder.path().join(name), text).expect("the folder is ours");
    }
    let path = folder.path().to_str().expect("UTF-8").to_owned();
    (folder, path)
}

#[test]
fn check_tells_every_problem_with_its_place() {
    let (_good, good) = folder(&[("shop.yaml", GOOD)]);
    let (_bad, bad) = folder(&[("shop.yaml", BAD)]);
    let (code, text, _) = tidegate(&["check", &good], &[]);
    assert_eq!((code, text.as_str()), (0, "good: files 1, domains 1, limits 2, warnings 0\n"));
    let (code, text, complaints) = tidegate(&["check", &good, &bad], &[]);
    assert_eq!((code, complaints.as_str()), (1, ""));
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with(&format!("{bad}/shop.yaml:5:24: `unit` is `days` (expected ")), "{text}");
    assert!(lines[1].starts_with(&format!("{bad}/shop.yaml:6:10: ")), "{text}");
    assert_eq!(lines[2..], ["bad: files 2, problems 2, warnings 0"]);
    let (code, text, _) = tidegate(&["check", "/nowhere"], &[]);
    assert!(code == 1 && text.contains("/nowhere: No such file"), "{text}");
}

#[test]
fn a_folder_without_rules_is_a_problem() {
    let (_folder, empty) = folder(&[("README.md", GOOD)]);
    let problem = format!(
        "{empty}: no rules are here (expected a file whose name ends in .yaml or .yml, or \
                           RULES_MAY_BE_EMPTY=true)"
    );
    let (code, text, _) = tidegate(&["check", &empty], &[]);
    assert_eq!(code, 1, "{text}");
    assert!(text.lines().any(|line| line == problem) && text.contains("/README.md: skipped"), "{text}");
    assert_eq!(tidegate(&["check", &empty, "--rules-may-be-empty"], &[]).0, 0);
    let (code, text, _) = tidegate(&["check"], &[("CONFIG_PATH", &empty)]);
    assert!(code == 1 && text.contains(&format!("{problem}; CONFIG_PATH names ")), "{text}");
    let (code, _, complaints) = tidegate(&["ask", "shop", "user=a", "--rules", &empty], &[]);
    assert!(code == 1 && complaints.contains(&problem), "{complaints}");
    let (_tree, tree) = folder(&[("README", "nothing\n")]);
    let (code, text, _) = tidegate(&["check", "-config_dir", &tree], &[]);
    assert!(code == 1 && text.contains(&format!("{tree}: no rules are here")), "{text}");
}

#[test]
fn check_tells_warnings_and_strict_ones_are_problems() {
    let (_folder, path) =
        folder(&[("shop.yaml", &GOOD.replace("value: free*", "value: free*\n    unit: day"))]);
    let (code, text, _) = tidegate(&["check", &path], &[]);
    assert!(code == 0 && text.contains("/shop.yaml:8:5: warning: "), "{text}");
    for (arguments, variables) in
        [(&["check", "--strict", &path][..], &[][..]), (&["check", &path], &[("STRICT_RULES", "true")])]
    {
        let (code, text, _) = tidegate(arguments, variables);
        assert!(code == 1 && text.contains("/shop.yaml:8:5: ") && !text.contains("warning: "), "{text}");
    }
}

#[test]
fn check_speaks_json_and_to_workflows() {
    let (_bad, bad) = folder(&[("a,b.yaml", BAD)]);
    let (code, text, _) = tidegate(&["check", "--format", "json", &bad], &[]);
    let told: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((code, &told["good"], &told["files"]), (1, &false.into(), &1.into()));
    let first = &told["findings"][0];
    assert_eq!(first["file"], format!("{bad}/a,b.yaml"));
    assert_eq!(
        (&first["line"], &first["column"], &first["severity"]),
        (&5.into(), &24.into(), &"error".into())
    );
    let (code, text, _) = tidegate(&["check", "--format=github", &bad], &[]);
    assert_eq!(code, 1);
    assert!(
        text.starts_with(&format!("::error file={bad}/a%2Cb.yaml,line=5,col=24::`unit` is `days`")),
        "{text}"
    );
    assert_eq!(text.lines().count(), 2);
}

#[test]
fn check_takes_what_scripts_for_the_go_program_say() {
    let (_folder, path) =
        folder(&[("a.yaml", GOOD), ("b", &GOOD.replace("user", "tier").replace("plan", "x"))]);
    let (code, text, _) = tidegate(&["check", "-config_dir", &path], &[]);
    assert!(code == 1 && text.contains("MERGE_DOMAIN_CONFIG"), "one domain in two files: {text}");
    let config_dir = format!("-config_dir={path}");
    assert_eq!(tidegate(&["check", &config_dir, "-merge_domain_configs"], &[]).0, 0);
    let (_bin, bin) = folder(&[]);
    let program = format!("{bin}/ratelimit_config_check");
    symlink(env!("CARGO_BIN_EXE_tidegate"), &program).expect("the folder is ours");
    let (code, text, _) = run(&program, &[&config_dir, "-merge_domain_configs=true"], &[]);
    assert!(code == 0 && text.contains("files 2, domains 1, limits 4"), "{text}");
}

#[test]
fn check_looks_where_the_settings_say_and_heeds_no_others() {
    let (_bad, bad) = folder(&[("shop.yaml", BAD)]);
    let (code, ..) = tidegate(&["check"], &[("CONFIG_PATH", &bad), ("GRPC_PORT", "tcp://10.0.0.1:8081")]);
    assert_eq!(code, 1);
    for wrong in [&["check", "--format", "xml"][..], &["chekc"], &["check", "--nonsense"]] {
        assert_eq!(tidegate(wrong, &[]).0, 64, "{wrong:?}");
    }
    assert_eq!(tidegate(&["check"], &[("STRICT_RULES", "maybe")]).0, 64);
    assert_eq!(tidegate(&["check", "--help"], &[]).0, 0);
}

#[test]
fn ask_tells_what_a_running_limiter_counts_and_changes_nothing() {
    let limiter = Setup::new().rules("shop.yaml", GOOD).start();
    limiter.client().ask(grpc::question("shop", &[&[("user", "alice")]]));
    let port = limiter.ports().debug.to_string();
    let variables = [("DEBUG_HOST", "127.0.0.1"), ("DEBUG_PORT", port.as_str())];
    for _ in 0..3 {
        let (code, text, complaints) = tidegate(&["ask", "shop", "user=alice"], &variables);
        assert_eq!((code, complaints.as_str()), (0, ""));
        assert!(text.starts_with("shop: 1 hit would get OK; nothing was counted\n\nuser=alice\n"), "{text}");
        assert!(text.contains("  counter   1 counted, 2 left\n") && text.contains("/shop.yaml:4:"), "{text}");
    }
    let (_, text, _) = tidegate(
        &["ask", "shop", "user=alice", "+", "plan=freemium", "--hits", "3", "--format=json"],
        &variables,
    );
    let told: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&told["code"], &told["hits"]), (&"OVER_LIMIT".into(), &3.into()));
    assert_eq!(told["descriptors"][0]["counter"]["remaining"], 2);
    assert_eq!(told["descriptors"][1]["path"][0]["pattern"], "free*");
    assert_eq!(told["descriptors"][1]["code"], "OK", "shadow mode");
}

#[test]
fn ask_needs_no_limiter_when_it_has_rules() {
    let (_folder, path) = folder(&[("shop.yaml", GOOD)]);
    let (code, text, _) = tidegate(&["ask", "shop", "user=a=b", "--rules", &path], &[]);
    assert!(code == 0 && text.contains("user=a=b\n  path      user (any value)\n"), "{text}");
    assert!(text.contains("0 counted, 3 left"), "{text}");
    let (_bad, bad) = folder(&[("shop.yaml", BAD)]);
    let (code, text, complaints) = tidegate(&["ask", "shop", "user=a", "--rules", &bad], &[]);
    assert!(code == 1 && text.is_empty() && complaints.contains("shop.yaml:5:24"), "{complaints}");
}

#[test]
fn ask_says_why_it_cannot() {
    let nobody = [("DEBUG_HOST", "127.0.0.1"), ("DEBUG_PORT", "1")];
    let (code, _, complaints) = tidegate(&["ask", "shop", "user=alice"], &nobody);
    assert!(code == 1 && complaints.contains("127.0.0.1:1"), "{complaints}");
    for wrong in
        [&["ask", "shop"][..], &["ask"], &["ask", "shop", "alice"], &["ask", "shop", "a=b", "--hits", "0"]]
    {
        let (code, _, complaints) = tidegate(wrong, &nobody);
        assert!(code == 64 && !complaints.is_empty(), "{wrong:?}: {complaints}");
    }
    let limiter = Setup::new().start();
    let port = limiter.ports().debug.to_string();
    let (code, _, complaints) =
        tidegate(&["ask", "", "a=b", "--debug-host=127.0.0.1", "--debug-port", &port], &[]);
    assert!(code == 1 && complaints.contains("rate limit domain must not be empty"), "{complaints}");
}

#[test]
fn settings_shows_what_is_in_force_and_the_page_of_all() {
    let variables = [("GRPC_PORT", "7"), ("ADMIN_TOKEN", "hunter2")];
    let (code, text, _) = tidegate(&["--port", "8", "settings"], &variables);
    assert_eq!(code, 0);
    for line in ["PORT=\"8\" (flag)", "GRPC_PORT=\"7\" (variable)", "DEBUG_PORT=\"6070\" (default)"] {
        assert!(text.lines().any(|told| told == line), "no {line} in {text}");
    }
    assert!(!text.contains("hunter2"));
    let page = include_str!("../../docs/settings.md");
    let (_, text, _) = tidegate(&["settings", "--markdown"], &variables);
    assert!(text == page, "run: cargo run -- settings --markdown > docs/settings.md");
}
