//! Going through all counters that have a name for StatsD.

use super::Metrics;
use super::counts::Stat;
use super::series::Series;
use super::stat_name::{Kind, StatName};
use super::striped::Slot;

/// A counter with its name. It keeps its [`index`](Self::index) for the life of the process.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    /// Its name.
    pub name: StatName<'a>,
    pub(super) slot: Slot,
}

impl Named<'_> {
    /// Its own number: small, as far as there are few counters.
    pub fn index(&self) -> usize {
        self.slot.index()
    }
}

impl Metrics {
    /// All counters that have a name for StatsD.
    pub fn named(&self) -> impl Iterator<Item = Named<'_>> {
        self.named_apart().chain(self.named_limits(0))
    }

    /// What was counted until about now.
    pub fn count(&self, counter: &Named<'_>) -> u64 {
        self.striped.sum(counter.slot)
    }

    /// Those that are not of limits.
    pub(super) fn named_apart(&self) -> impl Iterator<Item = Named<'_>> {
        let (loads, errors) = self.reloads.counters();
        let events = [
            ("config_load_success", loads),
            ("config_load_error", errors),
            ("global_shadow_mode", self.global_shadow),
        ];
        let events = events.into_iter().map(|(event, slot)| named(Kind::Service(event), slot));
        events.chain(self.calls.named()).chain(self.unknown_domains.iter().map(unknown))
    }

    /// Those of the series of limits, all but the first `start`.
    pub(super) fn named_limits(&self, start: usize) -> impl Iterator<Item = Named<'_>> {
        self.limits.iter_from(start).flat_map(|series| {
            let of_stat = |stat| named(Kind::Limit(&series.name, stat), series.first.plus(stat as usize));
            Stat::ALL.into_iter().map(of_stat)
        })
    }
}

fn unknown(series: &Series) -> Named<'_> {
    named(Kind::UnknownDomain(&series.name), series.first)
}

pub(super) fn named(kind: Kind<'_>, slot: Slot) -> Named<'_> {
    Named { name: StatName(kind), slot }
}
