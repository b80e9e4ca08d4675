//! What the process asks of the system: a lower priority for threads that do not decide, and more open files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Lowers the priority of this thread below the workers'. If the system refuses, the thread runs as before.
pub(super) fn lower_priority(niceness: i32) {
    if let Err(error) = rustix::process::nice(niceness) {
        tracing::debug!(%error, "the control thread keeps its priority");
    }
}

/// Raises the limit of open files to what the system allows, and returns it.
pub(super) fn open_files_max() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(error) => {
            tracing::debug!(%error, "the limit of open files stays");
            limit.current
        }
    };
    current.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX))
}
