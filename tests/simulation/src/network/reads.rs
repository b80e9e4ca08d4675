//! Whether a server may decide for a process that follows resets: a judge of what is on the wire.
//!
//! In: when the process asks a server for its resets, and when that is answered. Out: whether the server may be asked for a
//! decision now. It may on a connection on which its resets were read, for five times as long as an answer may take since it was
//! asked for them. When an answer takes longer than it may, they are read again first, on every connection.

use std::sync::Mutex;

use crate::world::{MILLI, SECOND, Time, lock};

/// A server decides for so many times as long as an answer may take.
const DECIDES_FOR: Time = 5;
/// Clocks of nodes drift.
const DRIFT: Time = MILLI;

/// What one process has read of the resets of each server.
pub struct Reads {
    /// How long a request waits for Redis: a call that came too early is sent once more.
    timeout: Time,
    servers: Mutex<Vec<Read>>,
}

#[derive(Clone, Copy, Default)]
struct Read {
    /// When those were asked for that were answered last.
    asked: Time,
    /// When an answer was late last, and when that was asked for.
    late: [Time; 2],
}

/// What was read on one connection.
#[derive(Clone, Copy, Default)]
pub(super) struct Line {
    /// When it was opened.
    pub(super) opened: Time,
    /// When resets were read on it last.
    pub(super) read: Option<Time>,
    /// When the last answer came, if it was that of a text of a script, or of waiting for replicas: resets are written so.
    pub(super) wrote: Option<Time>,
}

impl Reads {
    /// Of a process that has read nothing, and whose requests wait so long for Redis.
    pub fn new(servers: usize, timeout: Time) -> Self {
        Self { timeout, servers: Mutex::new(vec![Read::default(); servers]) }
    }

    /// How long an answer may take.
    pub(super) fn answer_max(&self) -> Time {
        self.timeout.max(SECOND)
    }

    /// What was asked for then is answered.
    pub(super) fn answered(&self, server: usize, asked: Time) {
        let own = &mut lock(&self.servers)[server];
        own.asked = own.asked.max(asked);
    }

    /// What was asked for then is not answered in time.
    pub(super) fn late(&self, server: usize, asked: Time) {
        lock(&self.servers)[server].late = [asked + self.answer_max() + DRIFT, asked];
    }

    /// Why the server may not decide now for who asks on this connection.
    pub(super) fn forbids(&self, server: usize, line: Line, now: Time) -> Option<&'static str> {
        let Read { asked, late: [late, late_asked] } = lock(&self.servers)[server];
        let Some(read) = line.read else { return Some("its resets were not read on this connection") };
        // One that was sent before may be sent again.
        let ends = |at: Time| at + self.timeout + DRIFT;
        if now > ends(asked + DECIDES_FOR * self.answer_max()) {
            return Some("its resets were asked for too long ago");
        }
        // It may have been read after that, by a clock that is ahead.
        let stops = line.opened <= late_asked && read + 2 * DRIFT < late && late > 0;
        (stops && now > ends(late)).then_some("it did not show its resets in time")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_decides_after_its_resets_were_read_and_not_for_long() {
        let reads = Reads::new(1, 100 * MILLI);
        let line = |opened, read: Option<Time>| Line {
            opened: opened * SECOND,
            read: read.map(|at| at * SECOND),
            wrote: None,
        };
        let may = |line, at: Time| reads.forbids(0, line, at * MILLI).is_none();
        assert!(!may(line(1, None), 2_000));
        reads.answered(0, 2 * SECOND);
        assert!(may(line(1, Some(2)), 7_100) && !may(line(1, Some(2)), 7_102));
        reads.late(0, 3 * SECOND);
        assert!(may(line(1, Some(2)), 4_100), "what was sent before may be sent again");
        assert!(
            !may(line(1, Some(2)), 4_200) && may(line(1, Some(5)), 5_000) && may(line(4, Some(4)), 4_200)
        );
    }
}
