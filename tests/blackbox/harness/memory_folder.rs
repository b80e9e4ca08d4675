//! Folders for servers that tests start, in memory where that can be had. A sentinel syncs its configuration at each step; on
//! a disk that is busy this takes seconds, after which it trusts no clock for half a minute and lets nobody take over.

use std::path::Path;

use rustix::fs::{StatFs, statfs};
use tempfile::TempDir;

/// Containers often have 64 MiB, which the data of a few servers fill.
const ROOM_MIN: u64 = 1 << 30;

/// A folder that goes with the value: in /dev/shm, if that is memory with much room, else where temporary files are.
pub fn memory_folder() -> TempDir {
    folder_in(Path::new("/dev/shm"))
}

fn folder_in(memory: &Path) -> TempDir {
    let has_room = statfs(memory).is_ok_and(|it| is_tmpfs(&it) && room(&it) >= ROOM_MIN);
    let folder = has_room.then(|| tempfile::tempdir_in(memory).ok()).flatten();
    folder.unwrap_or_else(|| tempfile::tempdir().expect("a folder can be made"))
}

fn is_tmpfs(it: &StatFs) -> bool {
    // TMPFS_MAGIC of Linux; no constant, because the type of the field differs by architecture.
    it.f_type == 0x0102_1994
}

fn room(it: &StatFs) -> u64 {
    it.f_bavail.saturating_mul(u64::try_from(it.f_bsize).unwrap_or(0))
}

#[test]
fn without_such_memory_a_folder_is_on_the_disk() {
    for no_memory in ["/proc", "/nowhere"] {
        let folder = folder_in(Path::new(no_memory));
        assert!(folder.path().starts_with(std::env::temp_dir()), "{folder:?}");
        assert!(std::fs::write(folder.path().join("file"), "x").is_ok());
    }
}
