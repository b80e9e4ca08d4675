//! A node: the engine's memory store on a machine with a clock of its own, and the state that it leaves.
//!
//! It begins as the program does (`state/moment.rs` there): with the counters of the process before, under a clock that
//! goes on STATE_SKEW behind on another machine; or cold; or as if nobody had asked before.

use tidegate_engine::limit::Limit;
use tidegate_engine::memory::{Cold, Encoded, ExportPlace, Exported, MemoryOptions, MemoryStore};
use tidegate_engine::time::{SECOND_NANOS, Timestamp};

use super::users::Users;

/// Far from the beginning of time, so that clocks may be behind.
const EPOCH_NANOS: u64 = 1_000_000 * SECOND_NANOS;

/// By how much two wall clocks may differ, as STATE_SKEW says; and by how much they do here.
const SKEW_NANOS: i64 = 2 * SECOND_NANOS as i64;

/// Room for all counters.
const BYTES_MAX: u64 = 4 << 30;

/// How a node begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// With the counters that it has left.
    Kept,
    /// Without counters, and with COLD_START=deny.
    Cold,
    /// Without counters, as COLD_START=allow begins.
    Empty,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Admitted,
    /// Over the limit; `is_cold`: because the counter was lost.
    Denied {
        is_cold: bool,
    },
    /// Nobody answered.
    Away,
}

/// A node that serves, or is away.
pub struct Node {
    serving: Option<Serving>,
    left: Option<Left>,
}

struct Serving {
    store: MemoryStore,
    /// What the clock of decisions shows at the simulation's time 0.
    clock_nanos: i64,
    /// By how much the machine's wall clock is ahead of the true time.
    wall_nanos: i64,
}

/// What a clean end writes.
struct Left {
    counters: Vec<(Exported, Vec<u8>)>,
    copied_at: Timestamp,
    /// By the wall clock of its machine.
    wall_nanos: i64,
}

impl Node {
    /// One that has not begun.
    pub fn away() -> Self {
        Self { serving: None, left: None }
    }

    /// Begins at this true time, on a machine whose wall clock is ahead by so much.
    pub fn begin(&mut self, begin: Begin, limit: &Limit, at: u64, wall_nanos: i64) {
        let left = self.left.take().filter(|_| begin == Begin::Kept);
        let wall_now = at as i64 + wall_nanos;
        let clock = match &left {
            None => EPOCH_NANOS as i64 + wall_now,
            Some(left) => {
                let copied_at = left.copied_at.as_nanos() as i64;
                (copied_at + wall_now - left.wall_nanos - SKEW_NANOS).max(copied_at)
            }
        };
        let clock_nanos = clock - at as i64;
        let mut store = MemoryStore::new(MemoryOptions::new(BYTES_MAX));
        if begin == Begin::Cold {
            store = store.cold(Cold::since(Timestamp::from_nanos(clock as u64), limit.window_nanos()));
        }
        for (exported, bytes) in left.iter().flat_map(|left| &left.counters) {
            let copied_at = left.as_ref().map_or(Timestamp::from_nanos(0), |left| left.copied_at);
            let Exported { algorithm, counters } = *exported;
            store.import(&Encoded { algorithm, counters, bytes, copied_at }).expect("what it has written");
        }
        self.serving = Some(Serving { store, clock_nanos, wall_nanos });
    }

    /// Ends and writes its counters.
    pub fn stop(&mut self, at: u64) {
        let Some(serving) = self.serving.take() else { return };
        let copied_at = serving.now(at);
        let (mut place, mut counters) = (ExportPlace::default(), Vec::new());
        loop {
            let mut bytes = Vec::new();
            match serving.store.export(&mut place, copied_at, &mut bytes) {
                Some(exported) => counters.push((exported, bytes)),
                None => break,
            }
        }
        self.left = Some(Left { counters, copied_at, wall_nanos: at as i64 + serving.wall_nanos });
    }

    /// Ends without writing anything.
    pub fn kill(&mut self) {
        self.serving = None;
        self.left = None;
    }

    /// Decides on one request.
    pub fn decide(&self, users: &Users, user: usize, limit: &Limit, at: u64) -> Answer {
        let Some(serving) = &self.serving else { return Answer::Away };
        let now = serving.now(at);
        if !serving.store.take(limit, users.key(user), 1, now).over {
            return Answer::Admitted;
        }
        Answer::Denied { is_cold: serving.store.coldness().nanos_left_of(limit, now) > 0 }
    }

    /// Forgets what has expired.
    pub fn sweep(&self, at: u64) {
        let Some(serving) = &self.serving else { return };
        while !serving.store.sweep(serving.now(at)).round_done {}
    }
}

impl Serving {
    fn now(&self, at: u64) -> Timestamp {
        Timestamp::from_nanos((at as i64 + self.clock_nanos) as u64)
    }
}
