//! Small drawings of counters: how full one is, and when its hits leave.
//!
//! In: counts. Out: a line of blocks. Nothing here knows requests.

use crate::look::Leaving;
use crate::text::span;
use crate::time::ceil_secs;

/// The width of a bar.
const BAR: u64 = 20;

/// Heights of a column, from nothing to the whole.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// How full a counter is: `███████░░░`. A single hit is visible, and so is room for one.
pub(super) fn bar(counted: u64, capacity: u64) -> String {
    let full = match counted {
        0 => 0,
        counted if counted >= capacity => BAR,
        counted => (u128::from(counted) * u128::from(BAR) / u128::from(capacity))
            .clamp(1, u128::from(BAR) - 1) as u64,
    };
    (0..BAR).map(|place| if place < full { '█' } else { '░' }).collect()
}

/// The hits that leave in each slice of time, the next ones first, and when that is.
pub(super) fn leaving(leaving: &Leaving) -> String {
    let highest = leaving.slices.iter().copied().max().unwrap_or(0).max(1);
    let block = |hits: u64| BLOCKS[(u128::from(hits) * 8).div_ceil(u128::from(highest)) as usize];
    let columns: String = leaving.slices.iter().map(|&hits| block(hits)).collect();
    let (first, last) = leaving.nanos;
    format!(
        "|{columns}| the oldest leave in {}, the newest in {}",
        span(ceil_secs(first)),
        span(ceil_secs(last))
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::SLICES;

    #[test]
    fn a_bar_shows_any_hit_and_any_room() {
        let full = |counted, capacity| bar(counted, capacity).chars().filter(|char| *char == '█').count();
        let counts = [(0, 10), (1, 1_000), (5, 10), (999, 1_000), (10, 10), (12, 10), (0, 0), (3, 0)];
        assert_eq!(counts.map(|(counted, capacity)| full(counted, capacity)), [0, 1, 10, 19, 20, 20, 0, 20]);
    }

    #[test]
    fn columns_are_as_high_as_their_hits_and_none_is_lost() {
        let mut slices = [0; SLICES];
        (slices[0], slices[1], slices[39]) = (1, 100, 800);
        let text = leaving(&Leaving { slices, nanos: (1, 60_000_000_000) });
        assert!(
            text.starts_with("|▁▁ ") && text.contains("█| the oldest leave in 1 s, the newest in 1 min"),
            "{text}"
        );
    }
}
