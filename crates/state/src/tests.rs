//! Incomplete or foreign files are refused, wherever they were cut or changed. And every folder that a crash can
//! leave is understood: clean counters are used, and nothing else is taken for them.

mod believed;
mod deaths;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;

use crate::format::{Header, ShardName};
use crate::moment::Moment;
use crate::reader::StateReader;
use crate::start::{Author, header, write_nothing};
use crate::writer::Writing;
use crate::{
    Begun, Checkpoints, Distrust, File, Folder, FolderError, KeySource, Outcome, StartOptions, ThisMachine,
    Totals, begin, init,
};
use tidegate_engine::clock::{Clock, monotonic, wall};
use tidegate_engine::key::Key;
use tidegate_engine::limit::{Algorithm, Limit, Slot};
use tidegate_engine::memory::{MemoryOptions, MemoryStore};
use tidegate_engine::time::{SECOND_NANOS, Timestamp};

const HOUR: u64 = 3_600 * SECOND_NANOS;

fn options() -> StartOptions {
    StartOptions {
        own_secret: None,
        skew: Duration::from_secs(2),
        members: 0,
        grew_from: 0,
        name: ShardName::default(),
        memory: MemoryOptions::new(64 << 20),
        deny_cold: None,
        machine: Arc::new(ThisMachine),
    }
}

fn author() -> Author {
    let secret = KeySource::random().expect("random bytes");
    let machine = Arc::new(ThisMachine);
    Author { secret, members: 0, name: ShardName::default(), lost_since: None, sequence: 1, machine }
}

fn limit() -> Limit {
    Limit::new(Algorithm::SlidingWindow, 10, HOUR)
}

fn take(store: &MemoryStore, clock: &Clock) -> bool {
    !store.take(&limit(), Key(1), 1, clock.now()).over
}

/// So many hits on one counter.
fn store(hits: usize, clock: &Clock) -> Arc<MemoryStore> {
    let store = MemoryStore::new(MemoryOptions::new(64 << 20));
    assert!((0..hits).all(|_| take(&store, clock)));
    Arc::new(store)
}

/// A folder in which a process has begun, and its writer.
fn process(path: &Path, options: &StartOptions) -> (Begun, Checkpoints) {
    let folder = Folder::lock(path).expect("a folder of ours");
    let mut begun = begin(Some(&folder), options).expect("it can begin");
    let store = std::mem::replace(&mut begun.store, MemoryStore::new(options.memory));
    let checkpoints = Checkpoints::new(folder, begun.author.clone(), Arc::new(store), begun.clock);
    (begun, checkpoints)
}

/// The outcome of a start in this folder: what was found, and how many more hits pass of ten.
fn found(path: &Path, options: &StartOptions) -> (Outcome, usize) {
    let folder = Folder::lock(path).expect("a folder of ours");
    let begun = begin(Some(&folder), options).expect("it can begin");
    (begun.outcome, (0..20).filter(|_| take(&begun.store, &begun.clock)).count())
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// A clean end after so many hits.
fn end(path: &Path, hits: usize) {
    let folder = Folder::lock(path).expect("a folder of ours");
    let clock = Clock::start();
    Checkpoints::new(folder, author(), store(hits, &clock), clock).finish().expect("it is written");
}

fn bytes_of(store: &MemoryStore, clock: &Clock) -> Vec<u8> {
    let (mut bytes, header) = (Vec::new(), header(&author(), clock, true));
    let written =
        Writing { header: &header, store, clock, machine: &ThisMachine }.write_to(&mut bytes, |_| Ok(()));
    assert_eq!(written.expect("memory takes all"), store.counters());
    bytes
}

fn read(bytes: &[u8]) -> Result<Totals, Distrust> {
    StateReader::new(bytes, bytes.len() as u64)?.read(|counters| counters.verify())
}

/// Several blocks, of all algorithms.
fn many(clock: &Clock) -> MemoryStore {
    let store = MemoryStore::new(MemoryOptions::new(64 << 20));
    for algorithm in Algorithm::ALL {
        for number in 0..3_000_u128 {
            let key = Key(number.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835));
            let limit = Limit::new(algorithm, 5, HOUR).for_slot(Slot::of(1, 1));
            store.take(&limit, key, 1, clock.now());
        }
    }
    store
}

#[test]
fn what_was_written_is_read() {
    let clock = Clock::start();
    let store = many(&clock);
    let bytes = bytes_of(&store, &clock);
    let totals = read(&bytes).expect("it is whole");
    assert_eq!((totals.all(), totals.counters), (30_000, [3_000; 10]));
    assert_eq!(totals.bytes, bytes.len() as u64);
    let weighted = 36 * totals.counters[usize::from(Algorithm::SlidingWindowWeighted.number())];
    assert!(weighted <= 40 * 3_000);
}

#[test]
fn a_file_that_was_cut_is_truncated() {
    let clock = Clock::start();
    let (small, large) = (bytes_of(&store(1, &clock), &clock), bytes_of(&many(&clock), &clock));
    let places = (0..large.len()).step_by(997).chain(large.len() - 100..large.len());
    let cut = (0..small.len()).map(|at| &small[..at]).chain(places.map(|at| &large[..at]));
    for bytes in cut {
        let distrust = read(bytes).expect_err("it was cut");
        assert_eq!(distrust.outcome(), Outcome::Truncated, "{} bytes: {distrust}", bytes.len());
    }
}

#[test]
fn a_file_with_any_bit_changed_is_refused() {
    let clock = Clock::start();
    let (small, large) = (bytes_of(&store(3, &clock), &clock), bytes_of(&many(&clock), &clock));
    for at in 0..small.len() * 8 {
        let mut bytes = small.clone();
        bytes[at / 8] ^= 1 << (at % 8);
        assert!(read(&bytes).is_err(), "bit {at} of {}", small.len() * 8);
    }
    for at in (0..large.len()).step_by(1_009) {
        let mut bytes = large.clone();
        bytes[at] ^= 0x10;
        assert!(read(&bytes).is_err(), "byte {at} of {}", large.len());
    }
    let mut longer = small.clone();
    longer.push(0);
    assert_eq!(read(&longer).expect_err("something follows").outcome(), Outcome::Corrupt);
    assert_eq!(read(b"").expect_err("nothing").outcome(), Outcome::Truncated);
    assert_eq!(read(&[b'x'; 4_000]).expect_err("not ours").outcome(), Outcome::Corrupt);
}

#[test]
fn blocks_that_were_swapped_or_left_out_are_refused() {
    let clock = Clock::start();
    let bytes = bytes_of(&many(&clock), &clock);
    let length = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().expect("a frame")) as usize + 24;
    let (first, second) = (length(128), length(128 + length(128)));
    let [header, one, two, rest] =
        [0..128, 128..128 + first, 128 + first..128 + first + second, 128 + first + second..bytes.len()]
            .map(|range| &bytes[range]);
    assert!(read(&[header, one, two, rest].concat()).is_ok());
    for changed in [vec![header, two, one, rest], vec![header, one, rest], vec![header, one, one, rest]] {
        assert_eq!(read(&changed.concat()).expect_err("changed").outcome(), Outcome::Corrupt);
    }
}

#[test]
fn a_newer_version_is_not_taken_for_damage() {
    let clock = Clock::start();
    let mut bytes = bytes_of(&store(1, &clock), &clock);
    bytes[8] = 2;
    assert_eq!(read(&bytes).expect_err("from the future").outcome(), Outcome::NewerVersion);
}

#[test]
fn a_clean_end_is_taken_once() {
    let folder = folder();
    assert_eq!(found(folder.path(), &options()), (Outcome::None, 10));
    end(folder.path(), 4);
    let (begun, checkpoints) = process(folder.path(), &options());
    assert_eq!(begun.outcome, Outcome::Clean);
    checkpoints.mark(begun.outcome).expect("it can be marked");
    drop(checkpoints);
    assert_eq!(found(folder.path(), &options()), (Outcome::Unclean, 6), "it was taken, and the process died");
}

#[test]
fn twenty_restarts_count_every_hit() {
    let folder = folder();
    let mut admitted = 0;
    for round in 0..20 {
        let held = Folder::lock(folder.path()).expect("a folder of ours");
        let begun = begin(Some(&held), &options()).expect("it can begin");
        assert_eq!(begun.outcome, if round == 0 { Outcome::None } else { Outcome::Clean });
        let (author, outcome, clock) = (begun.author, begun.outcome, begun.clock);
        let store = Arc::new(begun.store);
        let checkpoints = Checkpoints::new(held, author, Arc::clone(&store), clock);
        checkpoints.mark(outcome).expect("it can be marked");
        admitted += usize::from(take(&store, &clock));
        checkpoints.finish().expect("it is written");
    }
    assert_eq!(admitted, 10);
}

/// A clean end of a process that lost counters records that: they may still count, even if later processes ended
/// cleanly.
#[test]
fn a_clean_end_does_not_bring_back_what_was_lost_before() {
    let folder = folder();
    let round = || {
        let (begun, checkpoints) = process(folder.path(), &options());
        checkpoints.mark(begun.outcome).expect("it can be marked");
        (begun, checkpoints)
    };
    let (first, checkpoints) = round();
    assert!(first.outcome == Outcome::None && first.author.lost_since.is_some());
    checkpoints.finish().expect("it is written");
    drop(checkpoints);
    let (second, checkpoints) = round();
    assert_eq!((second.outcome, second.author.lost_since), (Outcome::Clean, first.author.lost_since));
    drop(checkpoints);
    let (third, _) = round();
    assert!(third.outcome == Outcome::Unclean && third.author.lost_since > second.author.lost_since);
    let other = self::folder();
    let held = Folder::lock(other.path()).expect("a folder of ours");
    init(&held, None, 0, ShardName::default(), Arc::new(ThisMachine)).expect("there is no history");
    let begun = begin(Some(&held), &options()).expect("it can begin");
    assert_eq!((begun.outcome, begun.author.lost_since), (Outcome::Clean, None));
}

/// What a crash leaves: when it came, which files are there, and what the next start finds.
type Left<'a> = (&'a str, &'a [(&'a str, &'a [u8])], Outcome, usize);

/// A folder as a crash between any two steps leaves it.
#[test]
fn a_crash_at_any_step_is_not_taken_for_a_clean_end() {
    let whole = |hits| {
        let folder = folder();
        end(folder.path(), hits);
        fs::read(folder.path().join("counters")).expect("it was written")
    };
    let (old, new) = (whole(3), whole(5));
    let cut = &new[..new.len() / 2];
    let cases: [Left<'_>; 8] = [
        ("nothing was ever here", &[], Outcome::None, 10),
        ("the first start was not marked yet", &[("checkpoint.new", cut)], Outcome::None, 10),
        ("killed while it served", &[("checkpoint", &old)], Outcome::Unclean, 7),
        ("killed while it wrote", &[("checkpoint", &old), ("counters.new", cut)], Outcome::Unclean, 7),
        ("killed before the name", &[("checkpoint", &old), ("counters.new", &new)], Outcome::Unclean, 7),
        ("ended", &[("checkpoint", &old), ("counters", &new)], Outcome::Clean, 5),
        ("killed before it was marked", &[("counters", &new)], Outcome::Clean, 5),
        ("killed after it was marked", &[("checkpoint", &new)], Outcome::Unclean, 5),
    ];
    for (what, files, outcome, left) in cases {
        let folder = folder();
        files.iter().for_each(|(name, bytes)| fs::write(folder.path().join(name), bytes).expect("ours"));
        assert_eq!(found(folder.path(), &options()), (outcome, left), "{what}");
    }
}

#[test]
fn what_is_not_believed_is_kept_under_another_name_and_at_most_eight_times() {
    let folder = folder();
    for round in 1..=10 {
        fs::write(folder.path().join("counters"), format!("no counters {round}")).expect("ours");
        assert_eq!(found(folder.path(), &options()), (Outcome::Truncated, 10));
        assert!(!folder.path().join("counters").exists());
    }
    let kept = |number| fs::read_to_string(folder.path().join(format!("refused-{number}")));
    assert_eq!(kept(1).expect("kept"), "no counters 1");
    assert_eq!(kept(8).expect("kept"), "no counters 10");
    assert!(kept(9).is_err());
}

/// It is older than the file: what the next process is killed with is not in it.
#[test]
fn after_a_refused_file_an_earlier_checkpoint_is_not_used() {
    let folder = folder();
    end(folder.path(), 3);
    let file = |name| folder.path().join(name);
    fs::rename(file("counters"), file("checkpoint")).expect("ours");
    fs::write(file("counters"), "no counters").expect("ours");
    let (begun, checkpoints) = process(folder.path(), &options());
    assert_eq!(begun.outcome, Outcome::Truncated);
    checkpoints.mark(begun.outcome).expect("it can be marked");
    drop(checkpoints);
    assert_eq!(found(folder.path(), &options()), (Outcome::Unclean, 10));
}

#[test]
fn a_bad_checkpoint_leaves_the_end_unclean() {
    let folder = folder();
    fs::write(folder.path().join("checkpoint"), "no counters").expect("ours");
    assert_eq!(found(folder.path(), &options()), (Outcome::Unclean, 10));
    assert!(folder.path().join("refused-1").exists());
}

/// After a kill a store is cold, and has the checkpoint: a limit that is exempt continues from it, and one that is
/// not counts as full, whatever the checkpoint contains.
#[test]
fn after_a_kill_limits_that_are_exempt_from_cold_go_on_from_the_checkpoint() {
    let left = |window_max: u64, loses: bool| {
        let folder = folder();
        end(folder.path(), 4);
        let (begun, checkpoints) = process(folder.path(), &options());
        checkpoints.mark(begun.outcome).expect("it can be marked");
        drop(checkpoints);
        if loses {
            fs::write(folder.path().join("checkpoint"), "no counters").expect("ours");
        }
        let folder = Folder::lock(folder.path()).expect("a folder of ours");
        let deny_cold = Some(Duration::from_nanos(window_max));
        let begun = begin(Some(&folder), &StartOptions { deny_cold, ..options() }).expect("it can begin");
        assert_eq!(begun.outcome, Outcome::Unclean);
        (0..20).filter(|_| take(&begun.store, &begun.clock)).count()
    };
    assert_eq!([left(HOUR - 1, false), left(HOUR, false)], [6, 0]);
    assert_eq!([left(HOUR - 1, true), left(HOUR, true)], [10, 0]);
}

/// Four hits, a clean end, a backup; one more, a clean end; and the backup comes back.
#[test]
fn a_backup_is_believed_only_where_starts_are_not_counted() {
    for counts in [false, true] {
        let (folder, elsewhere) = (folder(), folder());
        let file = elsewhere.path().join("starts");
        let file = counts.then_some(file.as_path());
        let lock = || Folder::lock(folder.path()).and_then(|folder| folder.counted_in(file)).expect("ours");
        let process = |hits: usize| {
            let held = lock();
            let begun = begin(Some(&held), &options()).expect("it can begin");
            let (store, clock) = (Arc::new(begun.store), begun.clock);
            let checkpoints = Checkpoints::new(held, begun.author, Arc::clone(&store), clock);
            checkpoints.mark(begun.outcome).expect("it is marked");
            let passed = (0..hits).filter(|_| take(&store, &clock)).count();
            checkpoints.finish().expect("it is written");
            (begun.outcome, passed)
        };
        init(&lock(), None, 0, ShardName::default(), Arc::new(ThisMachine)).expect("there is no history");
        assert_eq!(process(4), (Outcome::Clean, 4));
        let counters = folder.path().join("counters");
        let backup = fs::read(&counters).expect("it ended");
        assert_eq!([process(0), process(1)], [(Outcome::Clean, 0), (Outcome::Clean, 1)]);
        fs::write(&counters, backup).expect("ours");
        let restored = if counts { (Outcome::Restored, 10) } else { (Outcome::Clean, 6) };
        assert_eq!(process(20), restored);
        assert_eq!(process(20), (Outcome::Clean, 0), "the next one goes on from there");
    }
}

/// The checkpoint has the number of the process that wrote it, and the third start finds that of the first.
#[test]
fn no_start_has_the_number_of_an_earlier_one() {
    let (folder, elsewhere) = (folder(), folder());
    let file = elsewhere.path().join("starts");
    let killed = || {
        let held = Folder::lock(folder.path()).and_then(|folder| folder.counted_in(Some(&file)));
        let held = held.expect("a folder of ours");
        let begun = begin(Some(&held), &options()).expect("it can begin");
        let checkpoints = Checkpoints::new(held, begun.author.clone(), Arc::new(begun.store), begun.clock);
        checkpoints.mark(begun.outcome).expect("it can be marked");
        begun.author.sequence
    };
    assert_eq!([killed(), killed(), killed()], [1, 2, 3]);
}

#[test]
fn what_is_no_number_of_a_start_is_refused() {
    let (folder, elsewhere) = (folder(), folder());
    let file = elsewhere.path().join("starts");
    let counted = |text: &[u8]| {
        fs::write(&file, text).expect("ours");
        Folder::lock(folder.path()).expect("ours").counted_in(Some(&file)).map(|folder| folder.last_start())
    };
    assert_eq!(counted(b"17\n").expect("a number"), 17);
    for text in [b"".as_slice(), b"x", b"-1", b"1 2", b"\xff", b"99999999999999999999", &[b'1'; 4_000]] {
        assert!(counted(text).is_err(), "{text:?}");
    }
    let nowhere = Folder::lock(folder.path()).expect("ours").counted_in(Some(folder.path()));
    assert!(nowhere.is_err_and(|error| error.to_string().starts_with("STATE_SEQUENCE_FILE: cannot read ")));
}

#[test]
fn a_second_process_gets_no_folder() {
    let folder = folder();
    let first = Folder::lock(folder.path()).expect("a folder of ours");
    assert!(matches!(Folder::lock(folder.path()), Err(FolderError::InUse(_))));
    drop(first);
    assert!(Folder::lock(folder.path()).is_ok());
}

#[test]
fn a_secret_in_a_file_goes_before_the_one_in_the_state() {
    let (folder, path) = (folder(), folder().path().to_owned());
    fs::create_dir(&path).expect("ours");
    let file = |name: &str, text: &str| {
        fs::write(path.join(name), text).expect("ours");
        KeySource::of_file(&path.join(name))
    };
    let own = file("own", "0123456789abcdef\n").expect("long enough");
    assert_eq!(file("same", "  0123456789abcdef").expect("long enough"), own);
    assert!(file("short", "0123456789abcde \n").is_err() && KeySource::of_file(&path.join("none")).is_err());
    let write = |secret| {
        let held = Folder::lock(folder.path()).expect("a folder of ours");
        let clock = Clock::start();
        let author = Author { secret, ..author() };
        let checkpoints = Checkpoints::new(held, author, store(4, &clock), clock);
        checkpoints.finish().expect("it is written");
        fs::read(folder.path().join("counters")).expect("it was written")
    };
    let with = |own_secret| StartOptions { own_secret, ..options() };
    let other = file("other", "fedcba9876543210").expect("long enough");
    let bytes = write(own);
    assert!(bytes[32..48] == [0; 16], "the secret stays in its file");
    assert_eq!(found(folder.path(), &with(Some(own))), (Outcome::Clean, 6));
    assert_eq!(found(folder.path(), &with(None)), (Outcome::OtherSecret, 10));
    write(own);
    assert_eq!(found(folder.path(), &with(Some(other))), (Outcome::OtherSecret, 10));
    write(KeySource::random().expect("random bytes"));
    assert_eq!(found(folder.path(), &with(Some(own))), (Outcome::OtherSecret, 10));
    fs::remove_dir_all(&path).expect("ours");
}

#[test]
fn other_members_another_node_and_too_many_counters_are_cold() {
    let folder = folder();
    end(folder.path(), 4);
    let three = StartOptions { members: 3, ..options() };
    assert_eq!(found(folder.path(), &three), (Outcome::OtherMembers, 10));
    end(folder.path(), 4);
    let named = StartOptions { name: ShardName::of(Some("node-1")), ..options() };
    assert_eq!(found(folder.path(), &named), (Outcome::OtherName, 10));
    end(folder.path(), 4);
    let held = Folder::lock(folder.path()).expect("a folder of ours");
    let small = StartOptions { memory: MemoryOptions::new(100), ..options() };
    let begun = begin(Some(&held), &small).expect("it can begin");
    assert_eq!((begun.outcome, begun.store.counters(), begun.store.bytes()), (Outcome::TooLarge, 0, 0));
}

/// A state from a machine whose clocks are this far from ours, written so long ago.
fn from_elsewhere(folder: &Path, wall_off: i64) {
    let clock = Clock::start();
    let here = header(&author(), &clock, true);
    let off = |time: Timestamp| {
        let nanos = time.as_nanos().saturating_add_signed(wall_off * SECOND_NANOS as i64);
        Timestamp::from_nanos(nanos)
    };
    let there = Clock::new(monotonic(), off(clock.now()));
    let moment = Moment { boot_id: [7; 16], boot_nanos: 1, clock: there.now(), wall: off(here.moment.wall) };
    let header = Header { moment, ..here };
    let store = store(10, &there);
    let held = Folder::lock(folder).expect("a folder of ours");
    let writing = Writing { header: &header, store: &store, clock: &there, machine: &ThisMachine };
    held.write(File::Counters, &writing, |_| Ok(())).expect("it is written");
}

#[test]
fn hits_of_another_machine_count_longer_never_shorter() {
    let skew = 2 * SECOND_NANOS;
    for wall_off in [-600, -2, 0, 2] {
        let folder = folder();
        from_elsewhere(folder.path(), wall_off);
        let held = Folder::lock(folder.path()).expect("a folder of ours");
        let begun = begin(Some(&held), &options()).expect("it can begin");
        assert_eq!(begun.outcome, Outcome::Clean, "{wall_off} s");
        // A process that begins comes after the last hit. Beyond that, its clock is behind by what clocks may differ.
        let wall = wall().as_nanos();
        let behind = wall.saturating_sub(begun.clock.now().as_nanos());
        assert!(wall_off > -3 || behind >= skew - SECOND_NANOS / 10, "{behind} ns behind");
        let verdict = begun.store.take(&limit(), Key(1), 1, begun.clock.now());
        let age = wall_off.min(0).unsigned_abs() * SECOND_NANOS;
        assert!(verdict.over && verdict.reset_nanos >= HOUR - age, "{wall_off} s: {verdict:?}");
    }
    let folder = folder();
    from_elsewhere(folder.path(), 10);
    assert_eq!(found(folder.path(), &options()), (Outcome::Ahead, 10));
}

#[test]
fn a_state_without_counters_is_clean_and_sets_no_clock() {
    let folder = folder();
    let held = Folder::lock(folder.path()).expect("a folder of ours");
    write_nothing(&held, File::Counters, &author(), &Clock::start()).expect("it is written");
    drop(held);
    assert_eq!(found(folder.path(), &options()), (Outcome::Clean, 10));
}

#[test]
fn checkpoints_are_written_while_it_serves() {
    let folder = folder();
    let (begun, _) = process(folder.path(), &options());
    let held = Folder::lock(folder.path()).expect("a folder of ours");
    let checkpoints = Checkpoints::new(held, begun.author, store(4, &begun.clock), begun.clock);
    checkpoints.mark(begun.outcome).expect("it can be marked");
    checkpoints.start(Duration::from_millis(1), || ()).expect("a thread");
    while checkpoints.totals().written < 3 {
        std::thread::yield_now();
    }
    let killed = fs::read(folder.path().join("checkpoint")).expect("it was written");
    assert_eq!(read(&killed).expect("whole").all(), 1);
    checkpoints.finish().expect("it is written");
    drop(checkpoints);
    assert_eq!(found(folder.path(), &options()), (Outcome::Clean, 6));
    fs::remove_file(folder.path().join("counters")).expect("ours");
    assert_eq!(found(folder.path(), &options()), (Outcome::Unclean, 6));
}

#[test]
fn a_checkpoint_that_cannot_be_written_is_counted() {
    let folder = folder();
    let (_, checkpoints) = process(folder.path(), &options());
    fs::remove_dir_all(folder.path()).expect("ours");
    checkpoints.start(Duration::from_millis(1), || ()).expect("a thread");
    while checkpoints.totals().failed < 2 {
        std::thread::yield_now();
    }
    assert_eq!(checkpoints.totals().written, 0);
}
