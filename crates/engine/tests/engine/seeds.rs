//! How long the fuzzers of this crate look for new inputs.

#![allow(clippy::disallowed_methods, reason = "a run of real seconds, as long as its variable says")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::random::Random;

/// New seeds every time, for TIDEGATE_FUZZ_SECS seconds (2 unless it is set).
pub(crate) fn seeds_while_there_is_time() -> impl Iterator<Item = u64> {
    let secs = std::env::var("TIDEGATE_FUZZ_SECS").ok().and_then(|secs| secs.parse().ok());
    let until = Instant::now() + Duration::from_secs(secs.unwrap_or(2));
    let started = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is past 1970");
    let mut random = Random(started.as_nanos() as u64);
    std::iter::from_fn(move || (Instant::now() < until).then(|| random.next()))
}
