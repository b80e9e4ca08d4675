//! Which complete files of other processes a start accepts, and what it takes from them.

use super::*;

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
