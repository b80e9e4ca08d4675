//! A process that writes records is killed, again and again, at any moment: everything whose write was acknowledged is
//! there, and of every batch all or nothing.
//!
//! The process is this test itself, started again with a folder. It prints the number of each step that has returned.
//! TIDEGATE_KILLS says how often it is killed.

#![allow(
    clippy::disallowed_methods,
    reason = "the test starts its child with a variable that says what it is"
)]

use std::collections::BTreeMap;
use std::env;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use tidegate_records::{Folder, KeyPrefix, Record, RecordKey};

/// Where the process that is killed writes. Without it, nobody is.
const FOLDER: &str = "TIDEGATE_RECORDS_FOLDER";
/// Its first step.
const FIRST: &str = "TIDEGATE_RECORDS_FIRST";
const KILLS: &str = "TIDEGATE_KILLS";
const KILLS_DEFAULT: u64 = 15;
/// Records of a batch.
const BATCH: u32 = 700;
/// Batches that are read after each kill. All are read at the end.
const LATE: u32 = 30;
/// What the lines with the numbers of steps begin with.
const DONE: &str = "done ";

/// The record that every step replaces.
fn last() -> RecordKey {
    RecordKey::of("kills", [("last", "")]).expect("a key")
}

/// A record of the batch that a step loads.
fn of_batch(step: u32, at: u32) -> RecordKey {
    RecordKey::of("kills", [("batch", &*format!("{step:08}")), ("at", &*format!("{at:08}"))]).expect("a key")
}

/// One step: a batch, the record of the last step, and one record less of the batch before.
fn step(folder: &Folder, step: u32) {
    let batch: Vec<_> = (0..BATCH).map(|at| (of_batch(step, at), Record::of(step.into()))).collect();
    folder.load(&batch).expect("written");
    folder.put(&last(), &Record::of(step.into())).expect("written");
    if step > 0 {
        folder.delete(&of_batch(step - 1, 0)).expect("written");
    }
}

/// The process that is killed.
#[test]
fn writes_until_it_is_killed() {
    let Ok(path) = env::var(FOLDER) else { return };
    let folder = Folder::open(Path::new(&path)).expect("a folder that may be used");
    let first = env::var(FIRST).ok().and_then(|first| first.parse().ok()).expect("a number");
    for number in first.. {
        step(&folder, number);
        println!("{DONE}{number}");
        io::stdout().flush().expect("the test reads");
    }
}

/// Starts the process, and kills it some time after it has said `steps` numbers. Returns the last that it said.
fn killed(path: &Path, first: u32, steps: u32, after: Duration) -> Option<u32> {
    let mut command = Command::new(env::current_exe().expect("this test"));
    command.args(["--exact", "writes_until_it_is_killed", "--nocapture"]).env(FOLDER, path);
    let mut child = command.env(FIRST, first.to_string()).stdout(Stdio::piped()).spawn().expect("it starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    // The first line comes behind the name of the test.
    let numbers = lines.map_while(Result::ok).filter_map(|line| line.split_once(DONE)?.1.trim().parse().ok());
    let mut said = None;
    for number in numbers {
        said = Some(number);
        if number == first + steps {
            thread::sleep(after);
            child.kill().expect("it runs");
        }
    }
    child.wait().expect("it was killed");
    said
}

/// A generator for the moments: the same in every run.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn what_was_acknowledged_is_there_and_batches_are_whole() {
    let kills = env::var(KILLS).ok().and_then(|kills| kills.parse().ok()).unwrap_or(KILLS_DEFAULT);
    let temporary = tempfile::tempdir().expect("a folder for the test");
    let (mut next, mut seed, mut torn) = (0, 0x9e37_79b9_7f4a_7c15, 0);
    for _ in 0..kills {
        let (steps, after) = (random(&mut seed) % 6, Duration::from_micros(random(&mut seed) % 6_000));
        let said = killed(temporary.path(), next, steps as u32, after).expect("it came so far");
        torn += u64::from(check(temporary.path(), said.saturating_sub(LATE), said));
        // The step that was cut short is done again.
        next = said + 1;
    }
    check(temporary.path(), 0, next - 1);
    assert!(torn > 0 || kills < KILLS_DEFAULT, "it was never killed within a step, so nothing was shown");
}

/// Checks what steps from `first` on have left behind, after a process that has said the step `said`. Returns whether a part
/// of the next one is there.
fn check(path: &Path, first: u32, said: u32) -> bool {
    let folder = Folder::open(path).expect("a folder that may be used");
    let before = first.checked_sub(1).map(|step| of_batch(step, BATCH));
    let page = folder.page(&KeyPrefix::everything(), before.as_ref(), usize::MAX).expect("read");
    let all: BTreeMap<_, _> = page.into_iter().collect();
    let beyond = (0..BATCH).filter(|at| all.contains_key(&of_batch(said + 1, *at))).count() as u32;
    assert!(beyond == 0 || beyond == BATCH, "{beyond} records of a batch of {BATCH}");
    let last = all.get(&last()).map(|record| record.requests);
    let is_next = last == Some((said + 1).into()) && beyond == BATCH;
    assert!(last == Some(said.into()) || is_next, "{last:?} after {said}");
    for number in first..=said {
        let has = |at: &u32| all.get(&of_batch(number, *at)) == Some(&Record::of(number.into()));
        assert_eq!((1..BATCH).filter(has).count() as u32, BATCH - 1, "batch {number} of {said}");
        // The step after the last one may have come to its deletion.
        let is_right = if number < said { !has(&0) } else { has(&0) || is_next };
        assert!(is_right, "the first of batch {number} of {said}");
    }
    beyond > 0
}
