//! Counters of reservations, by how they were answered, and of their ends, by what was found.
//!
//! In: a request with a reservation, and its decision. Out: two families with few series.

use super::striped::{Slot, Striped, Writer};
use super::text::{MetricType, Page, Samples};
use tidegate_engine::decision::{Decision, EndedAs, ReserveResult};

/// The counters.
pub(super) struct Reservations {
    results: Slot,
    ends: Slot,
}

impl Reservations {
    /// Slots that it needs.
    pub(super) const SLOTS: u32 = (ReserveResult::ALL.len() + EndedAs::ALL.len()) as u32;

    /// All at 0; `None` when there is no room for them.
    pub(super) fn new(striped: &Striped) -> Option<Self> {
        let results = striped.reserve(ReserveResult::ALL.len() as u32)?;
        let ends = striped.reserve(EndedAs::ALL.len() as u32)?;
        Some(Self { results, ends })
    }

    /// Counts a reservation, or its end.
    #[inline(never)]
    pub(super) fn observe(&self, writer: &Writer<'_>, is_commit: bool, decision: &Decision<'_>) {
        let (first, place) = match is_commit {
            true => (self.ends, decision.ended_as() as usize),
            false => (self.results, decision.reserve_result() as usize),
        };
        writer.add(first.plus(place), 1);
    }

    /// Writes the counters that are not 0.
    pub(super) fn write(&self, page: &mut Page, striped: &Striped) {
        let (family, help) = ("tidegate_reservations_total", "Reservations, by how they were answered.");
        let results = counts(striped, self.results, ReserveResult::ALL.map(ReserveResult::name));
        write(page, family, help, "result", &results);
        let (family, help) =
            ("tidegate_commits_total", "Commits and releases, by what became of the reservation before.");
        write(page, family, help, "was", &counts(striped, self.ends, EndedAs::ALL.map(EndedAs::name)));
    }
}

/// The counts that are not 0 of these values, the first of which has this slot.
fn counts<const VALUES: usize>(
    striped: &Striped,
    first: Slot,
    values: [&'static str; VALUES],
) -> Vec<(&'static str, u64)> {
    let counts = (0..).zip(values).map(|(place, value)| (value, striped.sum(first.plus(place))));
    counts.filter(|(_, count)| *count > 0).collect()
}

fn write(
    page: &mut Page,
    family: &'static str,
    help: &'static str,
    label: &'static str,
    counts: &[(&'static str, u64)],
) {
    if counts.is_empty() {
        return;
    }
    let mut samples = Samples::of(page, family, help, MetricType::Counter);
    counts.iter().for_each(|&(value, count)| samples.push(&[(label, value)], count));
}
