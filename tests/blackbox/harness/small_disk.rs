//! A small disk of its own, which can be full, or for reading only.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::programs::succeed;

/// 24 MiB.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts one at this path.
    pub fn at(path: PathBuf) -> Self {
        fs::create_dir_all(&path).expect("made");
        succeed(Command::new("mount").args(["-t", "tmpfs", "-o", "size=24m", "tmpfs"]).arg(&path));
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// From now on it can be written to, or only read.
    pub fn remount(&self, how: &str) {
        succeed(Command::new("mount").args(["-o", &format!("remount,{how}")]).arg(&self.0));
    }

    /// A file that takes all the room that is left.
    pub fn fill(&self) -> PathBuf {
        let path = self.0.join("filler");
        let mut file = File::create(&path).expect("made");
        while file.write_all(&[0; 4_096]).is_ok() {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The limiter may still have files open there.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
