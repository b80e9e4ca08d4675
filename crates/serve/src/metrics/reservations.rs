//! Counters of reservations, by how they were answered, and of their ends, by what was found.
//!
//! In: a request with a reservation, and its decision. Out: two families with few series.

use super::striped::{Slot, Striped, Writer};
use super::text::{Kind, Page, Samples};
use tidegate_engine::decision::{Code, Decision};
use tidegate_engine::limit::Found;

/// `result` of a reservation.
const RESULTS: [&str; 3] = ["reserved", "denied", "conflict"];
/// `was` of a commit or release.
const ENDS: [&str; 4] = ["open", "expired", "ended", "unknown"];

/// The counters.
pub(super) struct Reservations {
    results: Slot,
    ends: Slot,
}

impl Reservations {
    /// Slots that it needs.
    pub(super) const SLOTS: u32 = (RESULTS.len() + ENDS.len()) as u32;

    /// All at 0; `None` when there is no room for them.
    pub(super) fn new(striped: &Striped) -> Option<Self> {
        let (results, ends) = (striped.reserve(RESULTS.len() as u32)?, striped.reserve(ENDS.len() as u32)?);
        Some(Self { results, ends })
    }

    /// Counts a reservation, or its end.
    #[inline(never)]
    pub(super) fn observe(&self, writer: &Writer<'_>, is_commit: bool, decision: &Decision<'_>) {
        let any = |wanted: fn(Found) -> bool| decision.found().any(|(_, found)| wanted(found));
        let (is_expired, is_ended) =
            (any(|found| matches!(found, Found::Expired(_))), any(|found| found == Found::Ended));
        let (first, place) = match (is_commit, decision.code) {
            (true, _) if any(|found| found == Found::Open) => (self.ends, 0),
            (true, _) if is_expired => (self.ends, 1),
            (true, _) if is_ended => (self.ends, 2),
            (true, _) => (self.ends, 3),
            (false, Code::Ok) => (self.results, 0),
            (false, Code::OverLimit) if is_expired || is_ended || any(|found| found == Found::Other) => {
                (self.results, 2)
            }
            (false, Code::OverLimit) => (self.results, 1),
        };
        writer.add(first.plus(place), 1);
    }

    /// Writes the counters that are not 0.
    pub(super) fn write(&self, page: &mut Page, striped: &Striped) {
        let (family, help) = ("tidegate_reservations_total", "Reservations, by how they were answered.");
        write(page, striped, (family, help), "result", (self.results, &RESULTS));
        let (family, help) =
            ("tidegate_commits_total", "Commits and releases, by what became of the reservation before.");
        write(page, striped, (family, help), "was", (self.ends, &ENDS));
    }
}

fn write(
    page: &mut Page,
    striped: &Striped,
    (family, help): (&'static str, &'static str),
    label: &'static str,
    (first, values): (Slot, &[&'static str]),
) {
    let counts = (0..).zip(values).map(|(place, value)| (*value, striped.sum(first.plus(place))));
    let counts: Vec<_> = counts.filter(|(_, count)| *count > 0).collect();
    if counts.is_empty() {
        return;
    }
    let mut samples = Samples::of(page, family, help, Kind::Counter);
    counts.into_iter().for_each(|(value, count)| samples.push(&[(label, value)], count));
}
