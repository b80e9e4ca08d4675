//! The admin token in a file: made, read, changed while the limiter runs, and refused where it could never match.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use crate::harness::eventually_true;
use crate::harness::http::Client;
use crate::harness::tidegate::{Setup, Tidegate, binary};

/// A limiter whose token is in this file.
fn setup() -> (Setup, PathBuf) {
    let setup = Setup::new();
    let file = setup.outside().join("admin-token");
    (setup.env("ADMIN_TOKEN_FILE", &file.display().to_string()), file)
}

/// The status for who bears this.
fn status(limiter: &Tidegate, authorization: &str) -> u16 {
    let headers = [("host", "limiter"), ("authorization", authorization)];
    Client::new(limiter.ports().debug).send("GET", "/admin/audit", &headers, "").expect("an answer").status
}

#[test]
fn a_file_that_is_not_there_is_made_with_a_token_that_nobody_else_can_read() {
    let (setup, file) = setup();
    let limiter = setup.start();
    let written = fs::read_to_string(&file).expect("it was made");
    let token = written.strip_suffix('\n').expect("a line");
    assert!(token.len() == 64 && token.bytes().all(|byte| byte.is_ascii_hexdigit()), "{token:?}");
    assert_eq!(fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o600);
    for scheme in ["Bearer", "bearer"] {
        assert_eq!(status(&limiter, &format!("{scheme} {token}")), 200, "{scheme}");
    }
    assert_eq!(status(&limiter, "Bearer 0"), 403);
    assert!(!limiter.output().join("\n").contains(token), "no log shows it");

    let to = format!("127.0.0.1:{}", limiter.ports().debug);
    let mut command = Command::new(binary());
    command.env_clear().env("ADMIN_TOKEN_FILE", &file).args(["exception", "list", "--to", &to]);
    let done = command.output().expect("it runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));

    let limiter = limiter.restart();
    assert_eq!(fs::read_to_string(&file).expect("it is there"), written, "it is kept");
    assert_eq!(status(&limiter, &format!("Bearer {token}")), 200);
}

#[test]
fn a_new_token_is_in_force_at_once_and_a_bad_one_changes_nothing() {
    let (setup, file) = setup();
    fs::write(&file, "one\n").expect("the folder is ours");
    let limiter = setup.start();
    assert_eq!(status(&limiter, "Bearer one"), 200);
    fs::write(&file, "two").expect("the folder is ours");
    eventually_true("the new token", || status(&limiter, "Bearer two") == 200);
    assert_eq!(status(&limiter, "Bearer one"), 403);
    fs::write(&file, "thr\nee").expect("the folder is ours");
    eventually_true("a line about it", || limiter.lines_with("the token in force stays") > 0);
    assert_eq!(status(&limiter, "Bearer two"), 200);
}

#[test]
fn a_file_that_cannot_be_made_yet_is_waited_for() {
    let (setup, _) = setup();
    let folder = setup.outside().join("secret");
    let file = folder.join("token");
    let limiter = setup.env("ADMIN_TOKEN_FILE", &file.display().to_string()).start();
    assert_eq!(limiter.lines_with("the admin API has no token until the file is there"), 1);
    assert_eq!(status(&limiter, "Bearer one"), 403);
    fs::create_dir(&folder).expect("the folder is ours");
    fs::write(&file, "one").expect("the folder is ours");
    eventually_true("the token", || status(&limiter, "Bearer one") == 200);
}

#[test]
fn a_token_that_could_never_match_is_refused_by_name_and_not_shown() {
    let (setup, file) = setup();
    fs::write(&file, "hunter2\nhunter3").expect("the folder is ours");
    for (setup, name, code) in
        [(setup, "ADMIN_TOKEN_FILE", 1), (Setup::new().env("ADMIN_TOKEN", "hunter2\n"), "ADMIN_TOKEN", 64)]
    {
        let mut limiter = setup.spawn();
        assert_eq!(limiter.exit_code(), code, "{name}");
        let said = limiter.output().join("\n");
        assert!(said.contains(name) && said.contains("control character"), "{said}");
        assert!(!said.contains("hunter"), "{said}");
    }
}
