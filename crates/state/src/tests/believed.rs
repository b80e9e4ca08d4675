//! Which complete files of other processes a start accepts, and what it takes from them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use super::*;
use crate::{Machine, StartError};
use tidegate_disk::temporary_name;

/// A node whose ring grew has seen every hit of the keys that it still has; any other change brings it keys of
/// others.
#[test]
fn counters_of_another_number_of_members_count_only_if_the_ring_grew_from_it() {
    for (written, members, grew_from, expected) in [
        (3, 4, 3, (Outcome::Clean, 6)),
        (4, 4, 3, (Outcome::Clean, 6)),
        (0, 0, 0, (Outcome::Clean, 6)),
        (3, 4, 0, (Outcome::OtherMembers, 10)),
        (2, 4, 3, (Outcome::OtherMembers, 10)),
        (0, 4, 0, (Outcome::OtherMembers, 10)),
    ] {
        let folder = folder();
        let (held, clock) = (Folder::lock(folder.path()).expect("a folder of ours"), Clock::start());
        let author = Author { members: written, ..author() };
        let checkpoints = Checkpoints::new(held, author, store(4, &clock), clock);
        assert_eq!(checkpoints.finish().expect("it is written"), 1);
        drop(checkpoints);
        let options = StartOptions { members, grew_from, ..options() };
        assert_eq!(found(folder.path(), &options), expected, "{written}, {members}, {grew_from}");
    }
}

/// The file was made like this, so the checksum of its header does not show it.
#[test]
fn a_secret_that_did_not_make_the_keys_is_damage() {
    let header = header(&author(), &Clock::start(), true);
    assert!(KeySource::of_state(&header, None).is_ok());
    let other = Header { fingerprint: [9; 16], ..header };
    let distrust = KeySource::of_state(&other, None).expect_err("keys of another secret");
    assert_eq!(distrust.outcome(), Outcome::Corrupt);
}

/// The file that counts starts is on a disk of its own.
#[test]
fn a_start_that_cannot_be_counted_leaves_the_counters_for_the_next() {
    let (folder, other) = (folder(), folder());
    end(folder.path(), 4);
    let uncounted = other.path().join("none").join("sequence");
    let held = Folder::lock(folder.path()).expect("a folder of ours");
    let held = held.counted_in(Some(&uncounted)).expect("no start was counted");
    let begun = begin(Some(&held), &options()).expect("it can begin");
    let checkpoints = Checkpoints::new(held, begun.author, Arc::new(begun.store), begun.clock);
    assert!(checkpoints.mark(begun.outcome).is_err(), "there is no such folder");
    drop(checkpoints);
    assert_eq!(found(folder.path(), &options()), (Outcome::Clean, 6));
}

/// By another clock, lost counters would count as full for too long, or not for long enough.
#[test]
fn without_counters_the_clock_goes_on_if_counters_were_lost_by_it() {
    let folder = folder();
    let held = Folder::lock(folder.path()).expect("a folder of ours");
    let secs = |clock: &Clock| clock.now().as_nanos() / SECOND_NANOS;
    let behind = Clock::new(monotonic(), Timestamp::from_secs(secs(&Clock::start()) - 600));
    for (lost_since, expected) in [(None, 0..5), (Some(behind.now()), 595..605)] {
        let author = Author { lost_since, ..author() };
        write_nothing(&held, File::Counters, &author, &behind).expect("it is written");
        let begun = begin(Some(&held), &options()).expect("it can begin");
        let off = secs(&Clock::start()) - secs(&begun.clock);
        assert!(begun.outcome == Outcome::Clean && expected.contains(&off), "{lost_since:?}: {off}");
    }
}

/// The folder of a process that counts its starts in this file.
fn counted(folder: &Path, starts: &Path) -> Folder {
    let held = Folder::lock(folder).expect("a folder of ours");
    held.counted_in(Some(starts)).expect("a number, or no file")
}

/// A process that is killed before its first checkpoint leaves that of the process before it.
#[test]
fn a_checkpoint_from_before_the_last_start_is_taken() {
    let (folder, other) = (folder(), folder());
    let starts = other.path().join("starts");
    let started = |hits: usize| {
        let held = counted(folder.path(), &starts);
        let begun = begin(Some(&held), &options()).expect("it can begin");
        let (store, clock) = (Arc::new(begun.store), begun.clock);
        let checkpoints = Checkpoints::new(held, begun.author, Arc::clone(&store), clock);
        checkpoints.mark(begun.outcome).expect("it can be marked");
        let passed = (0..hits).filter(|_| take(&store, &clock)).count();
        if passed > 0 {
            checkpoints.write().expect("it is written");
        }
        passed
    };
    assert_eq!([started(4), started(0), started(20)], [4, 0, 6]);
}

/// Somebody declares that there is no history, where processes were started before.
#[test]
fn a_declared_beginning_is_no_earlier_than_the_last_start() {
    let (folder, other) = (folder(), folder());
    let starts = other.path().join("starts");
    fs::write(&starts, "5").expect("ours");
    let held = counted(folder.path(), &starts);
    init(&held, None, 0, ShardName::default(), Arc::new(ThisMachine)).expect("there is no history");
    let begun = begin(Some(&held), &options()).expect("it can begin");
    assert_eq!((begun.outcome, begun.author.sequence), (Outcome::Clean, 6));
}

/// There are counters, or a checkpoint alone, which a process leaves that was killed.
#[test]
fn no_beginning_is_declared_where_there_is_a_history() {
    let (ended, killed) = (folder(), folder());
    end(ended.path(), 3);
    let (begun, checkpoints) = process(killed.path(), &options());
    checkpoints.mark(begun.outcome).expect("it can be marked");
    drop(checkpoints);
    for folder in [ended, killed] {
        let held = Folder::lock(folder.path()).expect("a folder of ours");
        let declared = init(&held, None, 0, ShardName::default(), Arc::new(ThisMachine));
        assert!(matches!(declared, Err(StartError::History(_))), "{declared:?}");
    }
}

/// A process that was killed while it wrote has left them.
#[test]
fn halves_of_files_are_removed_at_the_start() {
    let folder = folder();
    let held = Folder::lock(folder.path()).expect("a folder of ours");
    let halves = File::ALL.map(|file| temporary_name(&held.file(file)));
    halves.iter().for_each(|half| fs::write(half, b"half").expect("ours"));
    drop(held);
    Folder::lock(folder.path()).expect("a folder of ours");
    assert!(halves.iter().all(|half| !half.exists()));
}

/// Somebody has removed the file in which starts are counted: the counters have the number of the last start too.
#[test]
fn starts_go_on_from_the_number_in_the_counters() {
    let (folder, other) = (folder(), folder());
    let starts = other.path().join("starts");
    let ended = || {
        let held = counted(folder.path(), &starts);
        let begun = begin(Some(&held), &options()).expect("it can begin");
        let sequence = begun.author.sequence;
        let checkpoints = Checkpoints::new(held, begun.author, Arc::new(begun.store), begun.clock);
        checkpoints.mark(begun.outcome).expect("it can be marked");
        checkpoints.finish().expect("it is written");
        sequence
    };
    assert_eq!([ended(), ended()], [1, 2]);
    fs::remove_file(&starts).expect("ours");
    assert_eq!([ended(), ended()], [3, 4]);
    assert_eq!(fs::read_to_string(&starts).expect("ours"), "4\n");
}

/// A machine on which somebody decides whenever it reads its clock: also between two counters that are copied.
#[derive(Debug)]
struct Busy {
    store: Arc<MemoryStore>,
    clock: Clock,
}

impl Busy {
    /// Counters of several blocks, of one algorithm, and a few of another.
    fn decide(&self, at: Instant) {
        for (algorithm, counters) in [(Algorithm::SlidingWindow, 3_000), (Algorithm::FixedWindow, 3)] {
            for number in 0..counters {
                let key = Key(u128::MAX / 3_001 * number);
                self.store.take(&Limit::new(algorithm, 1_000_000, HOUR), key, 1, self.clock.at(at));
            }
        }
    }
}

impl Machine for Busy {
    fn monotonic(&self) -> Instant {
        let now = ThisMachine.monotonic();
        self.decide(now);
        now
    }

    fn wall(&self) -> Timestamp {
        ThisMachine.wall()
    }

    fn since_boot(&self) -> u64 {
        ThisMachine.since_boot()
    }

    fn boot_id(&self) -> [u8; 16] {
        ThisMachine.boot_id()
    }
}

#[test]
fn counters_that_are_used_while_they_are_copied_are_not_later_than_their_block() {
    let clock = Clock::start();
    let store = Arc::new(MemoryStore::new(MemoryOptions::new(1 << 20)));
    let machine = Busy { store: Arc::clone(&store), clock };
    machine.decide(monotonic());
    let (mut bytes, header) = (Vec::new(), header(&author(), &clock, true));
    let writing = Writing { header: &header, store: &store, clock: &clock, machine: &machine };
    assert_eq!(writing.write_to(&mut bytes, |_| Ok(())).expect("memory takes all"), store.counters());
    assert_eq!(read(&bytes).expect("it is whole").all(), 3_003);
}

#[test]
fn counters_of_a_node_with_a_name_are_not_those_of_one_without() {
    let folder = folder();
    let (held, clock) = (Folder::lock(folder.path()).expect("a folder of ours"), Clock::start());
    let author = Author { name: ShardName::of(Some("node-1")), ..author() };
    let checkpoints = Checkpoints::new(held, author, store(4, &clock), clock);
    assert_eq!(checkpoints.finish().expect("it is written"), 1);
    drop(checkpoints);
    assert_eq!(found(folder.path(), &options()), (Outcome::OtherName, 10));
}

/// A machine that stands still for a second before each reading of a clock.
#[derive(Debug)]
struct Halting {
    began: Instant,
    secs: AtomicU64,
    boot_id: u8,
}

impl Halting {
    fn next(&self) -> u64 {
        self.secs.fetch_add(1, Relaxed) + 1
    }
}

impl Machine for Halting {
    fn monotonic(&self) -> Instant {
        self.began + Duration::from_secs(self.next())
    }

    fn wall(&self) -> Timestamp {
        Timestamp::from_secs(1_800_000_000 + self.next())
    }

    fn since_boot(&self) -> u64 {
        self.next() * SECOND_NANOS
    }

    fn boot_id(&self) -> [u8; 16] {
        [self.boot_id; 16]
    }
}

/// On the same boot, and on another one whose wall clock is right. A clock that is ahead would forget hits too early.
#[test]
fn a_clock_goes_on_and_is_never_ahead_however_long_readings_take() {
    for boot_id in [1, 2] {
        let folder = folder();
        let first = Halting { began: monotonic(), secs: AtomicU64::new(0), boot_id: 1 };
        let clock = Clock::new(first.began, Timestamp::from_secs(1_800_000_000));
        let secs = |machine: &Halting| AtomicU64::new(machine.secs.load(Relaxed));
        let next = |before: &Halting, boot_id| Arc::new(Halting { secs: secs(before), boot_id, ..*before });
        let writer = next(&first, 1);
        let author = Author { machine: Arc::clone(&writer) as Arc<dyn Machine>, ..author() };
        let at_once = Timestamp::from_secs(1_800_000_000);
        let store = MemoryStore::new(MemoryOptions::new(64 << 20));
        assert!(!store.take(&limit(), Key(1), 1, at_once).over);
        let held = Folder::lock(folder.path()).expect("a folder of ours");
        Checkpoints::new(held, author, Arc::new(store), clock).finish().expect("it is written");
        let reader = next(&writer, boot_id);
        let machine = Arc::clone(&reader) as Arc<dyn Machine>;
        let options = StartOptions { machine, skew: Duration::ZERO, ..options() };
        let held = Folder::lock(folder.path()).expect("a folder of ours");
        let begun = begin(Some(&held), &options).expect("it can begin");
        assert_eq!(begun.outcome, Outcome::Clean);
        let now = first.began + Duration::from_secs(reader.secs.load(Relaxed));
        let behind = clock.at(now).as_nanos() as i64 - begun.clock.at(now).as_nanos() as i64;
        let readings = 10 * SECOND_NANOS as i64;
        assert!((0..=readings).contains(&behind), "boot {boot_id}: {behind} ns behind");
    }
}
