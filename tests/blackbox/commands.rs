//! The commands other than serving: `check`, `ask`, `settings`.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Output};

use crate::harness::grpc;
use crate::harness::tidegate::{Setup, binary};

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

pub fn tidegate(arguments: &[&str], variables: &[(&str, &str)]) -> (i32, String, String) {
    run(binary(), arguments, variables)
}

/// A folder with these files, and its path.
pub fn folder(files: &[(&str, &str)]) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder can be made");
    for (name, text) in files {
        fs::write(folder.path().join(name), text).expect("the folder is ours");
    }
    let path = folder.path().to_str().expect("UTF-8").to_owned();
    (folder, path)
}

/// The examples run with the real proxies in tests of their own.
#[test]
fn init_writes_an_example_once() {
    let (api, client) =
        ((5, &["route=api", "remote_address=10.0.0.1"][..]), (20, &["remote_address=10.0.0.1"][..]));
    for (proxy, from, (most, entries), files) in [
        ("envoy", "envoy", api, &["envoy.yaml", "rules/edge.yaml"][..]),
        ("nginx", "nginx", client, &["nginx.conf", "rules/edge.yaml"]),
        ("compose", "envoy", api, &["compose.yaml", "envoy.yaml", "rules/edge.yaml"]),
    ] {
        let (_folder, path) = folder(&[]);
        let new = format!("{path}/new");
        let (code, text, complaints) = tidegate(&["init", proxy, &new], &[]);
        assert_eq!((code, complaints.as_str()), (0, ""));
        for file in files {
            let [written, example] = [format!("{new}/{file}"), format!("examples/{from}/{file}")];
            assert_eq!(fs::read(&written).expect("it is there"), fs::read(example).expect("ours"));
            assert!(text.contains(&format!("wrote {written}\n")), "{text}");
        }
        let rules = format!("{new}/rules");
        let (code, report, _) = tidegate(&["check", "--strict", &rules], &[]);
        assert_eq!(code, 0, "{report}");
        let shown =
            tidegate(&[&["ask", "--format=json", "--rules", &rules, "edge"], entries].concat(), &[]).1;
        let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        assert_eq!(shown["descriptors"][0]["counter"]["remaining"], most);
        let denied =
            format!("the {}{} within a minute gets 429", most + 1, if most == 5 { "th" } else { "st" });
        assert!(text.contains(&denied), "{text}");
        files.iter().for_each(|file| fs::remove_file(format!("{new}/{file}")).expect("it is there"));
        fs::write(format!("{new}/rules/edge.yaml"), "mine").expect("ours");
        let (code, _, complaints) = tidegate(&["init", proxy, &new], &[]);
        assert_eq!(code, 1);
        assert!(complaints.contains(&format!("{new}/rules/edge.yaml: is there already")), "{complaints}");
        assert!(!fs::exists(format!("{new}/{}", files[0])).expect("ours"), "it wrote half of them");
    }
    let (code, _, complaints) = tidegate(&["init", "squid"], &[]);
    assert!(
        code == 64 && complaints.contains("[possible values: envoy, nginx, compose, helm]"),
        "{complaints}"
    );
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
    assert_eq!(
        lines[1..3],
        ["  5 |     rate_limit: {unit: days, requests_per_unit: 3}", "    |                        ^"]
    );
    assert!(lines[3].starts_with(&format!("{bad}/shop.yaml:6:10: ")), "{text}");
    assert_eq!(
        lines[4..],
        ["  6 |   - key: \"\"", "    |          ^", "bad: files 2, problems 2, warnings 0"]
    );
    let (code, text, _) = tidegate(&["check", "/nowhere"], &[]);
    assert!(code == 1 && text.contains("/nowhere: No such file"), "{text}");
}

/// Runs the program on a terminal, with these variables: what it showed there.
fn on_a_terminal(arguments: &str, variables: &str) -> String {
    let program = binary();
    let command = format!("env -i TERM=xterm {variables} {program} {arguments}");
    let output =
        Command::new("script").args(["-qec", &command, "/dev/null"]).output().expect("script starts");
    String::from_utf8(output.stdout).expect("UTF-8").replace("\r\n", "\n")
}

#[test]
fn problems_are_coloured_on_a_terminal_that_wants_colours() {
    let (_bad, bad) = folder(&[("shop.yaml", BAD)]);
    let shown = on_a_terminal(&format!("check {bad}"), "");
    let place = format!("\u{1b}[1m{bad}/shop.yaml:5:24: \u{1b}[0m`unit` is `days`");
    assert!(shown.contains(&place) && shown.contains("\u{1b}[1;31m^\u{1b}[0m\n"), "{shown:?}");
    let shown = on_a_terminal(&format!("check {bad}"), "NO_COLOR=1");
    assert!(shown.contains("     ^\n") && !shown.contains('\u{1b}'), "{shown:?}");
}

#[test]
fn a_start_shows_the_lines_of_bad_rules_to_a_terminal_only() {
    let (_bad, bad) = folder(&[("shop.yaml", BAD)]);
    let listeners = [
        ("GRPC_HOST", "127.0.0.1"),
        ("HOST", "127.0.0.1"),
        ("DEBUG_HOST", "127.0.0.1"),
        ("GRPC_PORT", "0"),
        ("PORT", "0"),
        ("DEBUG_PORT", "0"),
        ("PROMETHEUS_ADDR", "127.0.0.1:0"),
    ];
    let settings: String = listeners.iter().map(|(name, value)| format!("{name}={value} ")).collect();
    let caret = "\n  \u{1b}[34m5 |\u{1b}[0m     rate_limit: {unit: days, requests_per_unit: 3}\n";
    let shown = on_a_terminal("", &format!("{settings} CONFIG_PATH={bad}"));
    assert!(shown.contains(caret) && shown.contains(" ERROR "), "{shown:?}");
    let json = on_a_terminal("", &format!("{settings} CONFIG_PATH={bad} LOG_FORMAT=json"));
    assert!(json.lines().all(|line| line.starts_with('{')), "{json:?}");
    let (code, _, logged) = tidegate(&[], &[&listeners[..], &[("CONFIG_PATH", bad.as_str())]].concat());
    assert!(code == 1 && logged.contains(" ERROR ") && !logged.contains("requests_per_unit: 3}"), "{logged}");
    let time = |line: &str| line.starts_with("20") && line.contains("Z ");
    assert!(logged.lines().all(time), "a log line is one line: {logged}");
}

/// The rules that the project hands out are free of what is warned of.
#[test]
fn what_the_repository_ships_passes_a_strict_check() {
    for folder in [
        "config",
        "examples/envoy/rules",
        "examples/nginx/rules",
        "examples/redis/rules",
        "examples/cluster/rules",
    ] {
        let path = format!("{}/{folder}", env!("CARGO_MANIFEST_DIR"));
        let (code, text, _) = tidegate(&["check", "--strict", &path], &[]);
        assert!(code == 0 && text.ends_with("warnings 0\n"), "{text}");
    }
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
    let shown: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((code, &shown["good"], &shown["files"]), (1, &false.into(), &1.into()));
    let first = &shown["findings"][0];
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
    symlink(binary(), &program).expect("the folder is ours");
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
    let shown: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&shown["code"], &shown["hits"]), (&"OVER_LIMIT".into(), &3.into()));
    assert_eq!(shown["descriptors"][0]["counter"]["remaining"], 2);
    assert_eq!(shown["descriptors"][1]["path"][0]["pattern"], "free*");
    assert_eq!(shown["descriptors"][1]["code"], "OK", "shadow mode");
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
fn an_id_that_a_limiter_would_refuse_is_refused_without_one_too() {
    let rules = "domain: shop\ndescriptors: [{key: user, concurrency: {slots: 1, ttl: 1m, id: call}}]\n";
    let (folder, path) = folder(&[("shop.yaml", rules)]);
    let (long, what) = ("x".repeat(129), "descriptor 0: call: an id of 129 bytes is too long (at most 128)");
    let call = format!("call={long}");
    let (code, text, complaints) = tidegate(&["ask", "shop", "user=a", &call, "--rules", &path], &[]);
    assert!(code == 1 && text.is_empty() && complaints.contains(what), "{complaints}");
    let cases = folder.path().join("cases.yaml");
    let step = format!("{{request: {{user: a, call: {long}}}, expect: OK}}");
    let text = format!("rules: shop.yaml\ncases: [{{name: an id, steps: [{step}]}}]\n");
    fs::write(&cases, text).expect("the folder is ours");
    let (code, text, _) = tidegate(&["test", cases.to_str().expect("UTF-8")], &[]);
    assert!(code == 1 && text.contains(&format!("got:      {what}")), "{text}");
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
fn ask_names_some_of_very_many_rules_and_what_is_below_a_path_that_ends_early() {
    let mut rules = "domain: shop\ndescriptors:\n  - key: plan\n    descriptors:\n".to_owned();
    for user in 0..100_000 {
        rules += &format!("      - {{key: u{user}, rate_limit: {{unit: day, requests_per_unit: 3}}}}\n");
    }
    let (_folder, path) = folder(&[("shop.yaml", &rules)]);
    let eight = "u0, u1, u2, u3, u4, u5, u6, u7 and 99,992 more";
    let shown =
        |entries: &[&str]| tidegate(&[&["ask", "--rules", path.as_str(), "shop"], entries].concat(), &[]).1;
    let early = shown(&["plan=free"]);
    let expected = format!("OK: the path ends where no limit is set (below it there is: {eight})\n");
    assert!(early.ends_with(&expected), "{early}");
    let astray = shown(&["plan=free", "user=alice"]);
    assert!(
        astray.ends_with(&format!("no rule for user=alice at this level (there is: {eight})\n")),
        "{astray}"
    );
}

#[test]
fn settings_shows_what_is_in_force_and_the_page_of_all() {
    let variables =
        [("GRPC_PORT", "7"), ("ADMIN_TOKEN", "hunter2"), ("REDIS_URL", "redis://u:hunter2@redis:6379")];
    let (code, text, _) = tidegate(&["--port", "8", "settings"], &variables);
    assert_eq!(code, 0);
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    for line in [
        "PORT=\"8\" (flag)",
        "GRPC_PORT=\"7\" (variable)",
        "DEBUG_PORT=\"6070\" (default)",
        "BACKEND_TYPE=\"redis\" (default)",
        "REDIS_URL=\"redis://…@redis:6379\" (variable)",
        "CONFIG_PATH=\"config\" (default)",
    ] {
        assert!(lines(&text).iter().any(|shown| shown == line), "no {line} in {text}");
    }
    assert!(!text.contains("hunter2"));
    assert_eq!(tidegate(&["settings", "--port", "8"], &variables).1, text, "in either order");
    let (_, changed, _) = tidegate(&["settings", "--changed", "--port=8", "--grpc-host=0.0.0.0"], &variables);
    let expected = lines(&text).into_iter().filter(|line| {
        ["GRPC_PORT=", "PORT=", "ADMIN_TOKEN=", "REDIS_URL="].iter().any(|name| line.starts_with(name))
    });
    assert_eq!(lines(&changed), expected.collect::<Vec<_>>(), "GRPC_HOST is what it is anyway");
    let page = include_str!("../../docs/settings.md");
    let (_, text, _) = tidegate(&["settings", "--markdown"], &variables);
    assert!(text == page, "run: cargo run -- settings --markdown > docs/settings.md");
}

#[test]
fn settings_tells_bad_ones_and_misspelt_variables() {
    let variables = [("GRPC_PORT", "many"), ("REDIS_ULR", "hunter2")];
    let (code, text, complaints) = tidegate(&["settings"], &variables);
    assert!(code == 64 && text.contains("GRPC_PORT=\"many\" (variable)\n"), "{text}");
    let lines: Vec<_> = complaints.lines().collect();
    assert!(lines[0].starts_with("tidegate: warning: REDIS_ULR: has no effect"), "{complaints}");
    assert!(lines[0].ends_with("(closest is REDIS_URL)"), "{complaints}");
    assert!(
        lines.len() == 2 && lines[1].starts_with("tidegate: GRPC_PORT: \"many\" is not a port"),
        "{complaints}"
    );
    assert!(!(text + &complaints).contains("hunter2"));
}

#[test]
fn a_flag_stands_before_a_command_or_behind_it() {
    let (_bad, bad) = folder(&[("shop.yaml", BAD)]);
    let behind = tidegate(&["check", "--config", &bad], &[]);
    assert_eq!(behind.0, 1);
    for before in [&["--config", &bad, "check"][..], &[&bad, "check"]] {
        assert_eq!(tidegate(before, &[]), behind, "{before:?}");
    }
}

#[test]
fn a_path_instead_of_a_command_is_served() {
    let setup = Setup::new().rules("shop.yaml", GOOD).env("CONFIG_PATH", "/nowhere");
    let folder = setup.folder().display().to_string();
    let limiter = setup.arg(&folder).start();
    let answer = limiter.client().ask(grpc::question("shop", &[&[("user", "alice")]]));
    assert_eq!(answer.statuses[0].limit_remaining, 2);
    let (code, _, complaints) = tidegate(&["confg/"], &[]);
    assert!(
        code == 64 && complaints.contains("neither a command nor a file or folder of rules"),
        "{complaints}"
    );
    let (code, _, complaints) = tidegate(&["chekc"], &[]);
    assert!(code == 64 && complaints.contains("closest command is check"), "{complaints}");
}

/// Runs the program with its output going where `redirected` says. Exit code, and what it complained of.
fn with_output(words: &str, redirected: &str) -> (i32, String) {
    let script = format!("\"$0\" {words} {redirected}");
    let (code, _, complaints) = run("/bin/bash", &["-c", &script, binary()], &[("PATH", "/usr/bin:/bin")]);
    (code, complaints)
}

#[test]
fn output_that_cannot_be_written_is_a_failure_and_a_reader_that_goes_is_none() {
    let (_good, path) = folder(&[("shop.yaml", GOOD)]);
    let (check, ask) = (format!("check {path}"), format!("ask shop user=a --rules {path}"));
    for words in [&check, &ask, "settings", "completions zsh", "man", "-h", "--help", "--version"] {
        let (code, complaints) = with_output(words, ">/dev/full");
        assert_eq!(code, 1, "{words}: {complaints}");
        let expected = "tidegate: the output cannot be written: No space left on device (os error 28)\n";
        assert_eq!(complaints, expected, "{words}");
        // Whoever reads is gone before anything is written.
        let (code, complaints) = with_output(words, "> >(:)");
        assert_eq!((code, complaints.as_str()), (0, ""), "{words}");
    }
    for words in ["--grpc-port=many", "--no-such-flag", "nowhere"] {
        assert_eq!(with_output(words, "2>/dev/full").0, 64, "{words}");
    }
}

#[test]
fn completions_and_manual_know_every_flag_and_command() {
    let (code, script, _) = tidegate(&["completions", "bash"], &[]);
    assert!(code == 0 && script.contains("--grpc-port") && script.contains("--changed"));
    let asked = format!(
        "{script}\nCOMP_WORDS=(tidegate --grpc-p); COMP_CWORD=1; _tidegate tidegate --grpc-p tidegate\necho \"${{COMPREPLY[@]}}\""
    );
    // It is longer than an argument may be.
    let (_folder, path) = folder(&[("completions.bash", &asked)]);
    assert_eq!(run("/bin/bash", &[&format!("{path}/completions.bash")], &[]).1, "--grpc-port\n");
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        assert!(tidegate(&["completions", shell], &[]).1.contains("grpc-port"), "{shell}");
    }
    assert_eq!(tidegate(&["completions", "tcsh"], &[]).0, 64);
    let (code, page, _) = tidegate(&["man"], &[]);
    assert!(code == 0 && page.contains("\n.TH tidegate 1") && page.contains("\\-\\-grpc\\-port"), "{page}");
    assert!(page.contains("gRPC: the port [env: GRPC_PORT] [default: 8081]"), "{page}");
    let (code, page, _) = tidegate(&["man", "check"], &[]);
    assert!(code == 0 && page.contains("\n.TH tidegate-check 1") && page.contains("\\-\\-strict"), "{page}");
}

/// A line of a log in the combined format.
fn logged(address: &str, second: u32) -> String {
    format!("{address} - - [17/May/2015:10:05:{second:02} +0000] \"GET /cart HTTP/1.1\" 200 5 \"-\" \"-\"\n")
}

#[test]
fn replay_shows_what_rules_would_have_done() {
    let rules = |requests: u32| {
        format!(
            "domain: shop\ndescriptors:\n  - key: remote_address\n    rate_limit: {{unit: minute, requests_per_unit: {requests}}}\n"
        )
    };
    let log: String =
        (0..6).map(|second| logged("10.0.0.1", second)).chain([logged("10.0.0.2", 9)]).collect();
    let (_folder, path) = folder(&[("two.yaml", &rules(2)), ("five.yaml", &rules(5)), ("access.log", &log)]);
    let file = |name: &str| format!("{path}/{name}");
    let (two, five, log, page) = (file("two.yaml"), file("five.yaml"), file("access.log"), file("page.html"));
    let map = "remote_address=$remote_addr";
    let base = ["replay", "--rules", &two, "--map", map];
    let (code, text, complaints) = tidegate(&[&base[..], &["--html", &page, &log]].concat(), &[]);
    assert_eq!((code, complaints.as_str()), (0, ""), "no progress but on a terminal");
    assert!(text.contains("requests 7, admitted 3, denied 4 (57.143 %)"), "{text}");
    assert!(text.contains("keys 2, denied at least once 1 (50.000 %)"), "{text}");
    assert!(fs::read_to_string(page).expect("it was written").contains("remote_address=10.0.0.1"));
    let compared = [
        "--against",
        &five,
        "--fail-if",
        "newly_denied > 2",
        "--fail-if",
        "denied > 90 %",
        "--report",
        "json",
    ];
    let (code, text, complaints) = tidegate(&[&base[..], &compared, &[&log]].concat(), &[]);
    assert_eq!((code, complaints.as_str()), (2, "tidegate: newly_denied > 2: 3\n"));
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&report["newly_denied"], &report["against"]["denied_keys"]), (&3.into(), &1.into()));
    let shadow = [&base[..], &["--shadow-mode", &log]].concat();
    assert!(tidegate(&shadow, &[]).1.contains("denied 0 (0.000 %)"));
    let bad = |more: &[&str]| tidegate(&[&base[..], more].concat(), &[]);
    let (code, _, complaint) = bad(&["--fail-if", "denials > 0", &log]);
    assert!(code == 64 && complaint.contains("no condition"), "{complaint}");
    let (code, _, complaint) = bad(&["--format", "$time_local $status", &log]);
    assert!(
        code == 1 && complaint.starts_with("tidegate: --map: the log has no `$remote_addr`"),
        "{complaint}"
    );
    let (code, _, complaint) = bad(&["/nowhere"]);
    assert!(code == 1 && complaint.starts_with("tidegate: /nowhere: No such file"), "{complaint}");
}

#[test]
fn test_runs_cases_and_reports_what_failed() {
    let rules =
        "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {unit: minute, requests_per_unit: 2}\n";
    let cases = |times: u32| {
        format!(
            "rules: rules.yaml\ncases:\n  - name: two a minute\n    steps:\n      - {{every: 1s x {times}, request: {{user: alice}}, expect: OK}}\n"
        )
    };
    let (_folder, path) = folder(&[("rules.yaml", rules), ("good.yml", &cases(2)), ("bad.yml", &cases(3))]);
    let (good, bad) = (format!("{path}/good.yml"), format!("{path}/bad.yml"));
    let (code, text, complaints) = tidegate(&["test", &good], &[]);
    assert_eq!(
        (code, text.as_str(), complaints.as_str()),
        (0, "good: files 1, cases 1, requests 2, failed 0\n", "")
    );
    let (code, text, _) = tidegate(&["test", &good, &bad], &[]);
    assert!(
        code == 1 && text.starts_with(&format!("{bad}:5:9: two a minute failed at 2s, request 3 of 3\n")),
        "{text}"
    );
    assert!(text.ends_with("bad: files 2, cases 2, requests 5, failed 1\n"), "{text}");
    let (code, text, _) = tidegate(&["test", "--format", "github", &bad], &[]);
    assert!(
        code == 1 && text.starts_with(&format!("::error file={bad},line=5,col=9::two a minute at 2s")),
        "{text}"
    );
    let (code, text, _) = tidegate(&["test", "--shadow-mode", "--format", "json", &bad], &[]);
    assert!(code == 0 && text.contains("\"good\":true"), "{text}");
    let (code, text, _) = tidegate(&["test", "/nowhere"], &[]);
    assert!(code == 1 && text.contains("/nowhere: No such file"), "{text}");
}
