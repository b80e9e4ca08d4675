//! Iterates over the counters that StatsD gets: those that have a StatsD name.

use super::Metrics;
use super::counts::Stat;
use super::series::Series;
use super::statsd_name::{StatKind, StatsdName};
use super::striped::Slot;

/// A counter with its StatsD name. Its [`index`](Self::index) stays the same for the life of the process.
#[derive(Clone, Copy, Debug)]
pub struct StatsdCounter<'a> {
    /// Its name.
    pub name: StatsdName<'a>,
    pub(super) slot: Slot,
}

impl StatsdCounter<'_> {
    /// A number of its own. The fewer counters there are, the smaller are the numbers.
    pub fn index(&self) -> usize {
        self.slot.index()
    }
}

impl Metrics {
    /// All counters that StatsD gets.
    pub fn statsd_counters(&self) -> impl Iterator<Item = StatsdCounter<'_>> {
        self.statsd_other_counters().chain(self.statsd_limit_counters(0))
    }

    /// The count up to about now.
    pub fn count(&self, counter: &StatsdCounter<'_>) -> u64 {
        self.striped.sum(counter.slot)
    }

    /// Those that do not belong to limits.
    pub(super) fn statsd_other_counters(&self) -> impl Iterator<Item = StatsdCounter<'_>> {
        let (loads, errors) = self.reloads.counters();
        let events = [
            ("config_load_success", loads),
            ("config_load_error", errors),
            ("global_shadow_mode", self.global_shadow),
        ];
        let events = events.into_iter().map(|(event, slot)| statsd_counter(StatKind::Service(event), slot));
        events.chain(self.calls.statsd_counters()).chain(self.unknown_domains.iter().map(unknown))
    }

    /// The counters of the series of limits, without the first `start` series.
    pub(super) fn statsd_limit_counters(&self, start: usize) -> impl Iterator<Item = StatsdCounter<'_>> {
        self.limits.iter_from(start).flat_map(|series| {
            let of_stat =
                |stat| statsd_counter(StatKind::Limit(&series.name, stat), series.first.plus(stat as usize));
            Stat::ALL.into_iter().map(of_stat)
        })
    }
}

fn unknown(series: &Series) -> StatsdCounter<'_> {
    statsd_counter(StatKind::UnknownDomain(&series.name), series.first)
}

pub(super) fn statsd_counter(kind: StatKind<'_>, slot: Slot) -> StatsdCounter<'_> {
    StatsdCounter { name: StatsdName(kind), slot }
}
