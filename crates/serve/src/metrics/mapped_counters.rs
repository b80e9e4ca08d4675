//! The counters of limits, calls and reloads under the names that a mapping gives, instead of the built-in names.
//!
//! Each counter is mapped once, when a scrape first sees it; the resulting family and labels are kept. Counters with
//! the same name and labels become one sample, their sum. A counter that never grew is left out, because
//! `statsd_exporter` would not have received a line of it.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;

use super::Metrics;
use super::counts::Stat;
use super::mapping::{Mapping, Metric, Target};
use super::statsd_counters::StatsdCounter;
use super::striped::Slot;
use super::text::{Page, header};

/// Series that are mapped at a time, and samples that are written at a time.
const BATCH: usize = 512;

/// A mapping, and the counters that it has mapped so far.
pub(super) struct MappedCounters {
    mapping: Mapping,
    /// Families of durations. A counter that maps to one of them is dropped.
    observers: Vec<String>,
    known: Mutex<KnownCounters>,
}

#[derive(Default)]
struct KnownCounters {
    families: Vec<Family>,
    by_name: HashMap<String, usize>,
    /// Mapped counters that do not belong to limits, by their index.
    apart: HashSet<usize>,
    /// Series of limits that are mapped.
    limits: usize,
}

struct Family {
    name: String,
    help: String,
    samples: Vec<Sample>,
    by_labels: HashMap<String, usize>,
}

/// Counters whose sum is one sample.
struct Sample {
    labels: String,
    counters: Vec<(Slot, f64)>,
}

/// The position of a scrape.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    family: usize,
    sample: usize,
    /// The family's header is written.
    begun: bool,
}

impl MappedCounters {
    pub(super) fn new<'f>(mapping: Mapping, observers: impl Iterator<Item = &'f str>) -> Self {
        Self { mapping, observers: observers.map(str::to_owned).collect(), known: Mutex::default() }
    }

    /// The family and labels of durations with this name; `None`: they are not written.
    pub(super) fn observer(mapping: &Mapping, name: &str) -> Option<Target> {
        mapping.target(name, Metric::Observer).filter(|target| !is_ours(&target.family))
    }
}

impl Metrics {
    /// Maps some of the counters that are not mapped yet. `false`: there are no more.
    pub(super) fn map_new(&self, mapped: &MappedCounters, page: &Page) -> bool {
        let mut known = mapped.known.lock();
        for counter in self.statsd_other_counters() {
            if known.apart.insert(counter.index()) {
                known.add(mapped, &counter, page);
            }
        }
        let mut learnt = 0;
        for counter in self.statsd_limit_counters(known.limits).take(BATCH * Stat::ALL.len()) {
            known.add(mapped, &counter, page);
            learnt += 1;
        }
        known.limits += learnt / Stat::ALL.len();
        learnt > 0
    }

    /// Writes some of the mapped counters; `None` when there are no more.
    pub(super) fn write_mapped(
        &self,
        mapped: &MappedCounters,
        page: &mut Page,
        from: Progress,
    ) -> Option<Progress> {
        let known = mapped.known.lock();
        let family = known.families.get(from.family)?;
        let mut begun = from.begun;
        for Sample { labels, counters } in family.samples.iter().skip(from.sample).take(BATCH) {
            let counts = counters.iter().map(|&(slot, scale)| self.striped.sum(slot) as f64 * scale);
            let count: f64 = counts.sum();
            if count > 0.0 {
                if !std::mem::replace(&mut begun, true) {
                    header(page, &family.name, &family.help, "counter");
                }
                page.line(&family.name, labels, count);
            }
        }
        Some(match from.sample + BATCH < family.samples.len() {
            true => Progress { sample: from.sample + BATCH, begun, ..from },
            false => Progress { family: from.family + 1, ..Progress::default() },
        })
    }
}

impl KnownCounters {
    fn add(&mut self, mapped: &MappedCounters, counter: &StatsdCounter<'_>, page: &Page) {
        let target = mapped.mapping.target(&counter.name.to_string(), Metric::Counter);
        let taken = |family: &String| is_ours(family) || mapped.observers.contains(family);
        let Some(target) = target.filter(|target| !taken(&target.family)) else { return };
        let labels = page.labels(target.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let index = match self.by_name.entry(target.family) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                let (name, help) = (new.key().clone(), target.help);
                let by_labels = HashMap::new();
                self.families.push(Family { name, help, samples: Vec::new(), by_labels });
                *new.insert(self.families.len() - 1)
            }
        };
        self.families[index].add(labels, (counter.slot, target.scale));
    }
}

impl Family {
    fn add(&mut self, labels: String, counter: (Slot, f64)) {
        let samples = &mut self.samples;
        let index = *self.by_labels.entry(labels).or_insert_with_key(|labels| {
            samples.push(Sample { labels: labels.clone(), counters: Vec::new() });
            samples.len() - 1
        });
        self.samples[index].counters.push(counter);
    }
}

/// Families that always keep their own names. A mapping cannot write into them.
fn is_ours(family: &str) -> bool {
    family.starts_with("tidegate_") || family.starts_with("process_")
}
