//! A counter in the shared store, as its numbers come back: just enough to compute when capacity comes back.
//!
//! In: a few numbers of the counter's state after a check, and the limit. Out: the reset time, by the same functions
//! as for a counter in memory. It changes no state.

use crate::limit::calendar;
use crate::limit::concurrency::RETRY_NANOS;
use crate::limit::counter::Counter;
use crate::limit::fixed_window::FixedWindow;
use crate::limit::gcra::Gcra;
use crate::limit::sliding_window::counts_until;
use crate::limit::sliding_window_weighted::SlidingWindowWeighted;
use crate::limit::{Algorithm, Limit};
use crate::time::Timestamp;

/// What the shared store returns of one counter after a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteCounter {
    /// The counter's latest time.
    pub latest: Timestamp,
    /// The part of its state that is needed, by its algorithm.
    pub state: RemoteState,
}

/// The part of a state that says when capacity comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteState {
    /// Strict algorithms: there is room now.
    Room,
    /// Strict algorithms: these hits never fit.
    Never,
    /// `sliding_log`: capacity comes back when this stamp leaves the window.
    Stamp(Timestamp),
    /// `sliding_window`: capacity comes back when this bucket leaves the window.
    Bucket(u64),
    /// `fixed_window` and `sliding_window_weighted`: the counts of the aligned window of `latest` and of the one
    /// before it.
    Counts {
        /// Of the window of `latest`.
        current: u64,
        /// Of the window before; 0 for `fixed_window`.
        previous: u32,
    },
    /// `calendar`: the count of its period, and when that ends.
    Period {
        /// The count.
        count: u64,
        /// The end.
        end: Timestamp,
    },
    /// `concurrency`: nothing says when a slot is released.
    Slots,
    /// `ban`: when it ends, or ended.
    Banned(Timestamp),
    /// The bucket algorithms: the level, in units. A hit is W (in nanoseconds) units, and a nanosecond drains N. The
    /// part above `burst` is the amount that N drains in its time.
    Level(u128),
}

impl RemoteCounter {
    /// The reset time of the verdict, in nanoseconds. Over: the wait for `hits`. Otherwise: until capacity comes
    /// back.
    pub fn reset_nanos(&self, limit: &Limit, hits: u64, over: bool) -> u64 {
        let Self { latest, state } = *self;
        match state {
            RemoteState::Room => 0,
            RemoteState::Never => limit.window_nanos(),
            RemoteState::Stamp(stamp) => stamp.plus(limit.window_nanos()).nanos_since(latest),
            RemoteState::Bucket(bucket) => counts_until(limit, bucket).nanos_since(latest),
            RemoteState::Counts { current, previous } => match limit.algorithm() {
                Algorithm::FixedWindow => {
                    FixedWindow::from_parts(latest, current).status(limit, hits, over).1
                }
                _ => {
                    let current = u32::try_from(current).unwrap_or(u32::MAX);
                    SlidingWindowWeighted::from_parts(latest, current, previous).status(limit, hits, over).1
                }
            },
            RemoteState::Period { count, end } if over => {
                calendar::wait_nanos(limit, (latest, count, end), hits)
            }
            RemoteState::Period { end, .. } | RemoteState::Banned(end) => end.nanos_since(latest),
            RemoteState::Slots => {
                if over {
                    RETRY_NANOS
                } else {
                    0
                }
            }
            RemoteState::Level(level) => Gcra::from_parts(latest, level, limit).status(limit, hits, over).1,
        }
    }
}
