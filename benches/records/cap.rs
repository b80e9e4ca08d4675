//! A cgroup with little memory, which this process and all that it starts are in. Its page cache counts too.
//!
//! It lies below the cgroup that this process has, so the bounds of that one stay. With the second version of cgroups that
//! needs a cgroup without processes of its own, for instance `systemd-run --scope -p MemoryMax=2G`: a bound that is there
//! already and is no higher will do.

use std::fs;
use std::path::{Path, PathBuf};

/// The cgroup. Dropping it leaves it.
pub(crate) struct Cap {
    folder: PathBuf,
    files: Files,
    /// Where this process was; `None` if it was here.
    before: Option<PathBuf>,
}

/// The names of the files of one version of cgroups.
#[derive(Clone, Copy)]
struct Files {
    limit: &'static str,
    peak: &'static str,
}

const FIRST: Files = Files { limit: "memory.limit_in_bytes", peak: "memory.max_usage_in_bytes" };
const SECOND: Files = Files { limit: "memory.max", peak: "memory.peak" };
const PROCESSES: &str = "cgroup.procs";

impl Cap {
    /// Enters a cgroup with so much memory.
    pub(crate) fn enter(bytes: u64) -> Result<Self, String> {
        let (own, files) = own()?;
        if limit(&own, files).is_some_and(|limit| limit <= bytes) {
            return Ok(Self { folder: own, files, before: None });
        }
        let folder = own.join(format!("tidegate-bench-{}", std::process::id()));
        let no = |what: &str, error: std::io::Error| {
            format!(
                "{what}: {error} (expected root, and leave to make cgroups, or `systemd-run --scope -p MemoryMax={bytes}`)"
            )
        };
        fs::create_dir(&folder).map_err(|error| no("no cgroup", error))?;
        let cap = Self { folder, files, before: Some(own) };
        fs::write(cap.folder.join(files.limit), bytes.to_string())
            .map_err(|error| no("no bound of memory", error))?;
        move_to(&cap.folder).map_err(|error| no("the cgroup cannot be entered", error))?;
        Ok(cap)
    }

    /// The most memory that all in it had at a time, in bytes.
    pub(crate) fn peak_bytes(&self) -> u64 {
        let text = fs::read_to_string(self.folder.join(self.files.peak)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }
}

impl Drop for Cap {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = move_to(before);
            let _ = fs::remove_dir(&self.folder);
        }
    }
}

fn move_to(folder: &Path) -> std::io::Result<()> {
    fs::write(folder.join(PROCESSES), std::process::id().to_string())
}

fn limit(folder: &Path, files: Files) -> Option<u64> {
    fs::read_to_string(folder.join(files.limit)).ok()?.trim().parse().ok()
}

/// The cgroup of this process that counts memory.
fn own() -> Result<(PathBuf, Files), String> {
    let lines = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
    let of =
        |controller: &str| lines.lines().find_map(|line| line.split_once(controller)).map(|(_, path)| path);
    let (root, path, files) = match of(":memory:") {
        Some(path) => ("/sys/fs/cgroup/memory", path, FIRST),
        None => ("/sys/fs/cgroup", of("0::").unwrap_or("/"), SECOND),
    };
    Ok((Path::new(root).join(path.trim_start_matches('/')), files))
}
