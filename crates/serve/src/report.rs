//! Lines of reports, and whether the reader of the log can take another one.

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The target of lines that are never left out: reports, such as the problems of a rule set, which their authors bound.
pub const REPORT: &str = "tidegate::report";

/// Whether stderr takes a line at once. A full pipe that nobody reads would block the writer.
pub fn takes_a_line() -> bool {
    let stderr = std::io::stderr();
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&at_once)).is_ok_and(|ready| ready > 0)
}
