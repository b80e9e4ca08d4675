//! Numbers of changes: the nanoseconds since 1970, so that of two changes at two nodes the later one has the greater
//! number. It wins at all nodes.

use tidegate_engine::time::Timestamp;

/// Clocks of nodes differ by less.
const SKEW_NANOS: u64 = 3_600 * 1_000_000_000;

/// The number of a change now, if `last` is the greatest number before it.
pub(crate) fn next(last: u64, now: Timestamp) -> u64 {
    now.as_nanos().max(last.saturating_add(1))
}

/// The greatest number that another node may choose now. Greater ones are ignored: no later change could replace theirs.
pub(crate) fn latest(now: Timestamp) -> u64 {
    now.as_nanos().saturating_add(SKEW_NANOS)
}
