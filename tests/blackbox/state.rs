//! Counters that survive the process: clean ends, kills, folders that cannot be used, files from elsewhere.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use rustix::process::Signal;

use crate::harness::tidegate::{Setup, Tidegate, binary};
use crate::harness::{eventually_true, grpc, http};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 10}
  - key: second
    rate_limit: {unit: second, requests_per_unit: 3}
  - key: hour
    rate_limit: {unit: hour, requests_per_unit: 10}
";

const DAY: (&str, &str) = ("user", "alice");

/// A limiter with a folder for its counters.
fn setup() -> Setup {
    Setup::new().rules("shop.yaml", RULES).keeping_counters()
}

fn folder(setup: &Setup) -> PathBuf {
    setup.outside().join("state")
}

/// How many of so many hits pass.
fn passed(limiter: &Tidegate, hits: usize, entry: (&str, &str)) -> usize {
    let client = limiter.client();
    let question = || grpc::question("shop", &[&[entry]]);
    (0..hits).filter(|_| client.ask(question()).overall_code == grpc::OK).count()
}

/// Ends it as an orchestrator does.
fn end(limiter: &mut Tidegate) {
    limiter.signal(Signal::TERM);
    assert_eq!(limiter.exit_code(), 0, "{:#?}", limiter.output());
}

/// Waits until one that was begun from now on is written.
fn wait_for_checkpoints(limiter: &Tidegate) {
    let written = || limiter.scrape().sum("tidegate_state_checkpoints_total", &[("outcome", "written")]);
    let before = written();
    eventually_true("two more checkpoints", || written() >= before + 2.0);
}

/// What the start of this limiter found.
fn found(limiter: &Tidegate) -> String {
    let names = [
        "clean",
        "none",
        "unclean",
        "truncated",
        "corrupt",
        "newer_version",
        "other_secret",
        "other_members",
        "other_name",
        "restored",
        "ahead",
    ];
    let scrape = limiter.scrape();
    let is = |name: &&&str| scrape.sum("tidegate_state_start_total", &[("outcome", name)]) == 1.0;
    names.iter().find(is).map(|name| (*name).to_owned()).unwrap_or_default()
}

#[test]
fn twenty_clean_restarts_admit_exactly_n() {
    let mut limiter = setup().start();
    assert_eq!(found(&limiter), "none");
    let mut admitted = passed(&limiter, 1, DAY);
    for _ in 0..20 {
        end(&mut limiter);
        limiter = limiter.restart();
        assert_eq!(found(&limiter), "clean");
        admitted += passed(&limiter, 1, DAY);
    }
    assert_eq!(admitted, 10);
}

/// An oracle over what clients saw: no four admissions surely fell into one window of a limit of three.
#[test]
fn twenty_kills_admit_no_more_than_n_in_any_window() {
    let mut limiter = setup().env("COLD_START", "deny").start();
    let mut admitted = Vec::new();
    for round in 0..20 {
        let client = limiter.client();
        let mut in_round = 0;
        eventually_true("three admissions", || {
            let asked = Instant::now();
            let answer = client.ask(grpc::question("shop", &[&[("second", "alice")]]));
            if answer.overall_code == grpc::OK {
                admitted.push((asked, Instant::now()));
                in_round += 1;
            }
            in_round == 3
        });
        // In the midst of ending, too.
        if round % 2 == 1 {
            limiter.signal(Signal::TERM);
        }
        limiter.kill();
        limiter = limiter.restart();
        assert!(["unclean", "clean"].contains(&found(&limiter).as_str()));
    }
    for four in admitted.windows(4) {
        let (first_asked, last_answered) = (four[0].0, four[3].1);
        assert!((last_answered - first_asked).as_secs_f64() >= 1.0, "four in less than a second");
    }
}

#[test]
fn a_killed_process_is_cold_and_says_for_how_long() {
    let mut limiter = setup().env("COLD_START", "deny").env("COLD_START_MAX_WINDOW", "2h").start();
    assert_eq!(limiter.lines_with("COLD_START_MAX_WINDOW"), 2, "{:#?}", limiter.output());
    assert_eq!(limiter.lines_with("hits of shop.user count longer"), 1, "{:#?}", limiter.output());
    limiter.kill();
    let limiter = limiter.restart();
    assert_eq!(found(&limiter), "unclean");
    assert_eq!((passed(&limiter, 3, ("hour", "alice")), passed(&limiter, 3, DAY)), (0, 3));
    let probe = |path| http::get(limiter.ports().http, path).expect("it answers").status;
    assert_eq!(["/readyz", "/readyz?window=1h", "/readyz?window=3h"].map(probe), [200, 503, 200]);
    assert_eq!(probe("/readyz?window=soon"), 400);
    let cold = limiter.metric("tidegate_cold_seconds");
    assert!((3_600.0..=7_200.0).contains(&cold), "{cold}");
    let body = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"hour","value":"alice"}]}]}"#;
    let explained =
        http::Client::new(limiter.ports().debug).send("POST", "/ask", &[], body).expect("an answer");
    assert!(explained.body.contains("counts as full for 3"), "{}", explained.body);
    assert!(explained.body.contains("COLD_START=deny"), "{}", explained.body);
    // Nor does a clean end in between bring back what was lost.
    let mut limiter = limiter;
    end(&mut limiter);
    let limiter = limiter.restart();
    assert_eq!((found(&limiter).as_str(), passed(&limiter, 3, ("hour", "alice"))), ("clean", 0));
}

/// A day's budget is not less safe with `deny` than with `allow`, and an hour's is as strict as ever.
#[test]
fn after_a_kill_a_long_window_goes_on_from_the_checkpoint_and_a_short_one_is_cold() {
    let mut limiter = setup().env("COLD_START", "deny").env("STATE_INTERVAL", "50ms").start();
    // The first start is cold too.
    assert_eq!((passed(&limiter, 7, DAY), passed(&limiter, 1, ("hour", "alice"))), (7, 0));
    wait_for_checkpoints(&limiter);
    limiter.kill();
    let mut limiter = limiter.restart();
    assert_eq!(found(&limiter), "unclean");
    assert_eq!(limiter.lines_with("go on from the checkpoint"), 1, "{:#?}", limiter.output());
    assert_eq!((passed(&limiter, 20, DAY), passed(&limiter, 3, ("hour", "alice"))), (3, 0));
    // A checkpoint that was changed is not believed, and the end stays unclean.
    limiter.kill();
    let setup = limiter.into_setup();
    fs::write(folder(&setup).join("checkpoint"), "no counters").expect("ours");
    let limiter = setup.start();
    assert_eq!(found(&limiter), "unclean");
    assert_eq!((passed(&limiter, 20, DAY), passed(&limiter, 3, ("hour", "alice"))), (10, 0));
}

#[test]
fn a_second_process_on_the_folder_ends_before_it_serves() {
    let first = setup().start();
    let second =
        Setup::new().rules("shop.yaml", RULES).env("STATE_DIR", &folder(&first.setup).display().to_string());
    let mut process = second.spawn();
    assert_eq!(process.exit_code(), 1);
    assert_eq!(process.lines_with("another process has"), 1, "{:#?}", process.output());
    assert_eq!(process.lines_with("listening on"), 0);
    assert_eq!(passed(&first, 1, DAY), 1);
}

#[test]
fn a_folder_that_cannot_be_written_to_ends_the_start() {
    for (place, what) in [("/proc/self", "cannot open"), ("/dev/null/state", "cannot make")] {
        let mut process = Setup::new().rules("shop.yaml", RULES).env("STATE_DIR", place).spawn();
        assert_eq!(process.exit_code(), 1);
        assert_eq!(process.lines_with(&format!("STATE_DIR: {what} {place}")), 1, "{:#?}", process.output());
    }
}

#[test]
fn a_disk_that_is_full_loses_the_counters_and_says_so() {
    let mut limiter = setup().file_bytes(64 << 10).start();
    let client = limiter.client();
    for user in 0..2_000 {
        client.ask(grpc::question("shop", &[&[("user", &user.to_string())]]));
    }
    end(&mut limiter);
    assert_eq!(limiter.lines_with("the counters of this process are lost"), 1, "{:#?}", limiter.output());
    let left: Vec<_> = fs::read_dir(folder(&limiter.setup)).expect("ours").flatten().collect();
    assert!(left.iter().all(|file| file.file_name() != "counters.new"), "{left:?}");
    assert_eq!(found(&limiter.restart()), "unclean");
}

/// A pipe that nobody reads, for a disk that hangs.
#[test]
fn a_disk_that_hangs_keeps_no_process_beyond_its_grace() {
    let mut limiter = setup().env("STATE_GRACE", "200ms").start();
    let pipe = folder(&limiter.setup).join("counters.new");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("it runs").success());
    end(&mut limiter);
    assert_eq!(limiter.lines_with("took longer than 200ms (STATE_GRACE)"), 1, "{:#?}", limiter.output());
    assert_eq!(found(&limiter.restart()), "unclean");
}

#[test]
fn a_checkpoint_is_taken_where_a_cold_start_allows() {
    let mut limiter = setup().env("STATE_INTERVAL", "50ms").env("COLD_START", "allow").start();
    assert_eq!(passed(&limiter, 4, DAY), 4);
    wait_for_checkpoints(&limiter);
    limiter.kill();
    let limiter = limiter.restart();
    assert_eq!(found(&limiter), "unclean");
    assert_eq!(limiter.lines_with("its last checkpoint counts: 1 counter"), 1, "{:#?}", limiter.output());
    assert_eq!(passed(&limiter, 20, DAY), 6);
}

/// Checkpoints without a pause, and a kill in the midst of them or of the end: no file that a start reads is ever half
/// written.
#[test]
fn kills_while_it_writes_leave_nothing_damaged() {
    let mut limiter = setup().env("STATE_INTERVAL", "1ns").start();
    for round in 0..40 {
        let users = |user: usize| format!("{round}-{user}");
        let client = limiter.client();
        (0..50).for_each(|user| drop(client.ask(grpc::question("shop", &[&[("user", &users(user))]]))));
        if round % 2 == 1 {
            limiter.signal(Signal::TERM);
            eventually_true("the end to begin", || limiter.lines_with("draining") == 1);
        }
        limiter.kill();
        limiter = limiter.restart();
        assert!(["unclean", "clean"].contains(&found(&limiter).as_str()), "{:#?}", limiter.output());
        assert_eq!(limiter.lines_with("are not taken"), 0, "{:#?}", limiter.output());
    }
}

#[test]
fn a_secret_in_a_file_stays_there() {
    let setup = setup();
    let secret = setup.outside().join("secret");
    fs::write(&secret, "a secret of many bytes\n").expect("ours");
    let mut limiter = setup.env("KEY_SECRET_FILE", &secret.display().to_string()).start();
    assert_eq!(passed(&limiter, 4, DAY), 4);
    end(&mut limiter);
    let written = fs::read(folder(&limiter.setup).join("counters")).expect("it was written");
    assert_eq!(written[32..48], [0; 16]);
    let mut limiter = limiter.restart();
    assert_eq!((found(&limiter).as_str(), passed(&limiter, 1, DAY)), ("clean", 1));
    end(&mut limiter);
    fs::write(&secret, "another secret of many bytes\n").expect("ours");
    let limiter = limiter.restart();
    assert_eq!((found(&limiter).as_str(), passed(&limiter, 20, DAY)), ("other_secret", 10));
    assert_eq!(limiter.lines_with("kept as"), 1, "{:#?}", limiter.output());
}

/// Makes the state one of another boot.
fn carry_to_another_machine(setup: &Setup) {
    let path = folder(setup).join("counters");
    let mut bytes = fs::read(&path).expect("it was written");
    bytes[48] ^= 1;
    let checksum = crc32fast::hash(&bytes[..124]);
    bytes[124..128].copy_from_slice(&checksum.to_le_bytes());
    fs::write(&path, bytes).expect("ours");
}

#[test]
fn on_the_same_machine_no_wall_clock_matters() {
    let mut limiter = setup().start();
    assert_eq!(passed(&limiter, 4, DAY), 4);
    for off in [-7_200, 100_000] {
        end(&mut limiter);
        limiter = limiter.into_setup().clock_off(off).start();
        assert_eq!((found(&limiter).as_str(), passed(&limiter, 0, DAY)), ("clean", 0), "{off} s");
    }
    assert_eq!(passed(&limiter, 20, DAY), 6);
}

#[test]
fn counters_of_another_machine_count_unless_they_come_from_the_future() {
    for (off, skew, outcome, left) in
        [(0, "2s", "clean", 6), (-30, "2s", "ahead", 10), (-30, "60s", "clean", 6)]
    {
        let mut limiter = setup().env("STATE_SKEW", skew).start();
        assert_eq!(passed(&limiter, 4, DAY), 4);
        end(&mut limiter);
        carry_to_another_machine(&limiter.setup);
        let limiter = limiter.into_setup().clock_off(off).start();
        assert_eq!((found(&limiter).as_str(), passed(&limiter, 20, DAY)), (outcome, left), "{off} s, {skew}");
    }
}

#[test]
fn a_file_that_was_changed_is_not_believed() {
    let mut limiter = setup().start();
    assert_eq!(passed(&limiter, 4, DAY), 4);
    end(&mut limiter);
    let path = folder(&limiter.setup).join("counters");
    let good = fs::read(&path).expect("it was written");
    let mut flipped = good.clone();
    flipped[170] ^= 4;
    for (bytes, outcome) in [(&good[..good.len() - 1], "truncated"), (&flipped, "corrupt"), (&good, "clean")]
    {
        fs::write(&path, bytes).expect("ours");
        limiter = limiter.restart();
        assert_eq!(found(&limiter), outcome);
        limiter.kill();
    }
    assert!(folder(&limiter.setup).join("refused-2").exists());
}

/// With more nodes, keys move: what a node has counted may be another one's now.
#[test]
fn counters_of_another_number_of_nodes_are_not_taken() {
    let mut limiter = setup().env("SHARD_MEMBERS", "3").env("COLD_START", "deny").start();
    end(&mut limiter);
    limiter = limiter.restart();
    assert_eq!(found(&limiter), "clean");
    end(&mut limiter);
    let limiter = limiter.into_setup().env("SHARD_MEMBERS", "4").start();
    assert_eq!(found(&limiter), "other_members");
    assert_eq!(passed(&limiter, 1, ("hour", "alice")), 0, "it is cold");
}

/// Volumes of two nodes that were swapped: each would miss the counters of its own keys.
#[test]
fn counters_of_another_node_are_not_taken() {
    let mut limiter = setup().env("SHARD_NAME", "tidegate-0").start();
    assert_eq!(passed(&limiter, 4, DAY), 4);
    end(&mut limiter);
    limiter = limiter.restart();
    assert_eq!((found(&limiter).as_str(), passed(&limiter, 1, DAY)), ("clean", 1));
    end(&mut limiter);
    let limiter = limiter.into_setup().env("SHARD_NAME", "tidegate-1").start();
    assert_eq!((found(&limiter).as_str(), passed(&limiter, 20, DAY)), ("other_name", 10));
    assert_eq!(limiter.lines_with("another SHARD_NAME"), 1, "{:#?}", limiter.output());
}

#[test]
fn counters_from_a_backup_are_not_taken_where_starts_are_counted() {
    let setup = setup();
    let (counters, starts) = (folder(&setup).join("counters"), setup.outside().join("starts"));
    let mut limiter = setup.env("STATE_SEQUENCE_FILE", &starts.display().to_string()).start();
    assert_eq!((found(&limiter).as_str(), passed(&limiter, 4, DAY)), ("none", 4));
    end(&mut limiter);
    let backup = fs::read(&counters).expect("it ended");
    limiter = limiter.restart();
    assert_eq!((found(&limiter).as_str(), passed(&limiter, 6, DAY)), ("clean", 6));
    end(&mut limiter);
    fs::write(&counters, backup).expect("ours");
    let mut limiter = limiter.into_setup().env("COLD_START", "deny").start();
    assert_eq!(found(&limiter), "restored");
    assert_eq!(passed(&limiter, 1, ("hour", "alice")), 0, "it is cold");
    assert_eq!(limiter.lines_with("it is from a backup"), 1, "{:#?}", limiter.output());
    end(&mut limiter);
    assert_eq!(found(&limiter.restart()), "clean");
}

/// A ring that grew gave this node no key: its counters count under the new number, and under that alone from then on.
#[test]
fn counters_of_fewer_nodes_are_taken_when_the_ring_grew() {
    let mut limiter = setup().env("SHARD_MEMBERS", "3").start();
    assert_eq!(passed(&limiter, 4, DAY), 4);
    end(&mut limiter);
    let grown = limiter.into_setup().env("SHARD_MEMBERS", "4").env("SHARD_GREW_FROM", "3");
    let mut limiter = grown.start();
    assert_eq!((found(&limiter).as_str(), passed(&limiter, 20, DAY)), ("clean", 6));
    end(&mut limiter);
    let grown = limiter.into_setup().env("SHARD_MEMBERS", "6").env("SHARD_GREW_FROM", "5");
    assert_eq!(found(&grown.start()), "other_members", "neither 5 nor 6 but 4");
}

#[test]
fn the_folder_is_shown_checked_and_begun() {
    let mut limiter = setup().start();
    let path = folder(&limiter.setup).display().to_string();
    let state = |command: &str, path: &str| {
        let mut tidegate = Command::new(binary());
        let output =
            tidegate.args(["state", command, "--state-dir", path]).env_clear().output().expect("it runs");
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&said).into_owned())
    };
    assert_eq!(passed(&limiter, 4, DAY), 4);
    assert!(state("show", &path).1.contains("a checkpoint"), "{}", state("show", &path).1);
    assert!(state("verify", &path).1.contains("not a clean one"));
    assert!(state("init", &path).1.contains("another process has"));
    end(&mut limiter);
    let (code, shown) = state("show", &path);
    assert!(
        code == Some(0) && shown.contains("counters  1 in ") && shown.contains("on this boot"),
        "{shown}"
    );
    assert_eq!(state("verify", &path).1, format!("{path}/counters: good, counters 1\n"));
    let (code, refused) = state("init", &path);
    assert!(code == Some(1) && refused.contains("exists, written by an earlier process"), "{refused}");
    let new = limiter.setup.outside().join("new").display().to_string();
    assert_eq!(state("show", &new).0, Some(1));
    assert_eq!(state("init", &new), (Some(0), format!("{new}: there is no history\n")));
    let limiter = limiter.into_setup().env("STATE_DIR", &new).env("COLD_START", "deny").start();
    assert_eq!((found(&limiter).as_str(), passed(&limiter, 20, ("hour", "alice"))), ("clean", 10));
}
