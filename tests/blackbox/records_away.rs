//! A folder of records that cannot be used: each time the log says so clearly, decisions go on by the rules, and the
//! records are used again as soon as the folder can be.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::admin::TOKEN;
use crate::harness::grpc::{OK, question};
use crate::harness::small_disk::SmallDisk;
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{eventually_true, grpc};
use crate::records::{all, get, json, load, put, record, setup};

/// Keys without a record pass three times.
const RULES: &str = "
domain: shop
descriptors:
  - key: tenant
    limits_from: store
    rate_limit: {unit: day, requests_per_unit: 3}
";

/// A limiter with records in this folder.
fn with_records(folder: &Path) -> Setup {
    let setup = Setup::new().rules("shop.yaml", RULES).env("ADMIN_TOKEN", TOKEN);
    setup.env("LIMITS_DIR", &folder.display().to_string()).env("LIMITS_TIMEOUT", "10s")
}

fn passing(client: &grpc::Client, tenant: &str) -> usize {
    let ask = || client.ask(question("shop", &[&[("tenant", tenant)]])).overall_code;
    (0..9).filter(|_| ask() == OK).count()
}

/// It says why in its log, in answers to operators and in metrics, and decides by the rules.
fn goes_by_the_rules(limiter: &Tidegate, why: &str) {
    let said = limiter.lines_with(&format!("records: LIMITS_DIR: {why}"));
    assert!(said >= 1, "{:#?}", limiter.output());
    assert_eq!(limiter.metric("tidegate_limits_up"), 0.0);
    let refused = get(limiter, "acme");
    assert!(refused.status == 503 && refused.body.contains(why), "{refused:?}");
    let refused = put(limiter, &record("acme", 5));
    assert!(refused.status >= 503 && refused.body.contains("LIMITS_DIR: "), "{refused:?}");
    assert_eq!(passing(&limiter.client(), "nobody"), 3);
    assert!(limiter.metric("tidegate_limits_stale_total") >= 9.0);
}

/// Without anybody's doing: the folder is tried again.
fn comes_back(limiter: &Tidegate) {
    eventually_true("the folder", || limiter.metric("tidegate_limits_up") == 1.0);
    assert_eq!(limiter.lines_with("can be used again (LIMITS_DIR)"), 1);
    assert_eq!(json(&get(limiter, "acme")), record("acme", 1));
    assert_eq!(passing(&limiter.client(), "acme"), 1);
}

/// A folder with one record, which nobody has.
fn folder_of_acme(path: &Path) {
    let limiter = with_records(path).start();
    assert_eq!(put(&limiter, &record("acme", 1)).status, 201);
    limiter.into_setup();
}

#[test]
fn a_folder_that_another_process_has_is_taken_when_that_has_ended() {
    let temporary = tempfile::tempdir().expect("a folder for the test");
    let folder = temporary.path().join("limits");
    folder_of_acme(&folder);
    let first = with_records(&folder).start();
    let second = with_records(&folder).start();
    goes_by_the_rules(&second, &format!("another process has {}", folder.display()));
    assert_eq!(passing(&first.client(), "acme"), 1, "the first keeps its records");
    drop(first);
    comes_back(&second);
}

#[test]
fn a_folder_that_can_only_be_read_is_taken_when_it_can_be_written_to() {
    let temporary = tempfile::tempdir().expect("a folder for the test");
    let disk = SmallDisk::at(temporary.path().join("small"));
    let folder = disk.path().join("limits");
    folder_of_acme(&folder);
    disk.remount("ro");
    let limiter = with_records(&folder).start();
    goes_by_the_rules(&limiter, &format!("cannot open {}", folder.display()));
    disk.remount("rw");
    comes_back(&limiter);
}

#[test]
fn a_broken_file_is_reported_and_the_good_one_is_taken() {
    let temporary = tempfile::tempdir().expect("a folder for the test");
    let folder = temporary.path().join("limits");
    folder_of_acme(&folder);
    let file = folder.join("version");
    let whole = fs::read(&file).expect("the store has such a file");
    fs::write(&file, "no version").expect("written");
    let limiter = with_records(&folder).start();
    goes_by_the_rules(&limiter, &format!("{} is broken", folder.display()));
    fs::write(&file, whole).expect("written");
    comes_back(&limiter);
}

#[test]
fn a_full_disk_refuses_changes_and_no_decision_and_goes_on_when_there_is_room() {
    let setup = setup();
    let disk = SmallDisk::at(setup.outside().join("small"));
    let folder = disk.path().join("limits").display().to_string();
    let limiter = setup.env("LIMITS_DIR", &folder).start();
    assert_eq!(put(&limiter, &record("acme", 5)).status, 201);
    let late: Vec<_> = (0..1_000).map(|at| record(&format!("late{at:03}"), at)).collect();
    let lines = late.iter().map(Value::to_string).collect::<Vec<_>>().join("\n");
    let filler = disk.fill();
    for _ in 0..3 {
        let refused = load(&limiter, "json", &lines);
        assert!(refused.status == 507 && refused.body.contains(&folder), "{refused:?}");
        assert_eq!(json(&get(&limiter, "acme")), record("acme", 5));
        let question = grpc::question("shop", &[&[("tenant", "acme")]]);
        assert_eq!(limiter.client().ask(question).overall_code, grpc::OK);
    }
    fs::remove_file(filler).expect("removed");
    assert_eq!(load(&limiter, "json", &lines).status, 200);
    let limiter = limiter.restart();
    assert_eq!(all(&limiter, 10_000), [&[record("acme", 5)], &late[..]].concat());
}
