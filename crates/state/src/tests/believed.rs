//! Which complete files of other processes a start accepts.

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
