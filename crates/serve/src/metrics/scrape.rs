//! All metrics as Prometheus text, rendered piece by piece: a scrape of 100,000 series keeps only a small part of its
//! text in memory, and the rendering thread can do other work between two pieces.

use std::sync::Arc;

use prometheus::TextEncoder;
use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use prometheus::proto::{LabelPair, MetricFamily};
use smallvec::SmallVec;

use super::Metrics;
use super::counts::Stat;
use super::mapped_counters::Progress;
use super::series::Series;
use super::series_name::parts;
use super::text::{MetricType, Page, Samples, header};

/// Series in one piece.
const BATCH: usize = 512;

/// The pieces of one scrape, in order. Concatenated they are one exposition.
pub struct Scrape {
    metrics: Arc<Metrics>,
    /// The next piece.
    next: Next,
}

#[derive(Clone, Copy)]
enum Next {
    /// Everything but the families of limits.
    Process,
    /// A family of limits, from this series on.
    Limits {
        stat: usize,
        series: usize,
    },
    /// With a mapping: maps the counters that are new since the last scrape.
    MapNew,
    Mapped(Progress),
}

impl Metrics {
    /// The content type of a scrape.
    pub const CONTENT_TYPE: &'static str = "text/plain; version=0.0.4; charset=utf-8";

    /// Begins to render all metrics.
    pub fn scrape(self: &Arc<Self>) -> Scrape {
        Scrape { metrics: Arc::clone(self), next: Next::Process }
    }

    fn write_process(&self, page: &mut Page) {
        let version = ("version", env!("CARGO_PKG_VERSION"));
        Samples::of(page, "tidegate_build_info", "The running version.", MetricType::Gauge)
            .push(&[version], 1);
        self.reloads.write(page);
        self.calls.write(page, &self.striped);
        self.calls.write_response_times(page, &self.striped);
        self.lane.write(page, &self.striped);
        self.write_unmatched(page);
        self.write_candidates(page);
        self.reservations.write(page, &self.striped);
        if self.mapped.is_none() {
            self.write_common(page);
        }
        header(page, "tidegate_decision_seconds", "Time that the engine took for a decision.", "histogram");
        self.decision_time.write(page, &self.striped, "tidegate_decision_seconds", &[]);
        if !self.timers.is_empty() {
            let (family, help) = (
                "tidegate_statsd_timers_dropped_total",
                "Durations that were dropped because StatsD was too slow.",
            );
            let dropped = self.striped.sum(self.timers_dropped);
            Samples::of(page, family, help, MetricType::Counter).push(&[], dropped);
        }
        self.write_registered(page);
        write_operating_system(page);
    }

    fn write_unmatched(&self, page: &mut Page) {
        let (family, help) = ("tidegate_unmatched_total", "Descriptors that met no rule of their domain.");
        let mut samples = Samples::of(page, family, help, MetricType::Counter);
        for series in self.unmatched.iter() {
            match self.striped.sum(series.first) {
                0 => {}
                count => samples.push(&[("domain", &series.name)], count),
            }
        }
        let (family, help) = (
            "tidegate_denials_not_logged_total",
            "Denials of which no line was logged, at a level that logs some.",
        );
        Samples::of(page, family, help, MetricType::Counter).push(&[], self.denials_not_logged_until_now());
        self.write_records(page);
    }

    /// Metrics of records, if any rule ever had some.
    fn write_records(&self, page: &mut Page) {
        let known = self.striped.sum(self.records_known);
        let (family, help) = (
            "tidegate_limits_known_total",
            "Keys that were looked up without asking the store, with a record or without one.",
        );
        if known > 0 {
            Samples::of(page, family, help, MetricType::Counter).push(&[], known);
        }
    }

    fn write_candidates(&self, page: &mut Page) {
        let (family, help) = (
            "tidegate_candidate_hits_total",
            "Hits of rules with a candidate, by the verdict of the limit in force and that of the candidate.",
        );
        let mut samples = Samples::of(page, family, help, MetricType::Counter);
        for (name, [limit, candidate], count) in self.candidates.counts(&self.striped) {
            push_limit(&mut samples, name, &[("limit", limit), ("candidate", candidate)], count);
        }
    }

    /// Writes the metrics that `envoyproxy/ratelimit` has too, under the built-in names; without limits and durations.
    fn write_common(&self, page: &mut Page) {
        self.reloads.write_common(page, &self.striped);
        self.calls.write_common(page, &self.striped);
        let global_shadow = "ratelimit_service_global_shadow_mode";
        Samples::of(
            page,
            global_shadow,
            "Requests that the process's shadow mode let pass.",
            MetricType::Counter,
        )
        .push(&[], self.striped.sum(self.global_shadow));
        let (family, help) =
            ("ratelimit_service_rate_limit_domain_not_found", "Descriptors for a domain without rules.");
        let mut samples = Samples::of(page, family, help, MetricType::Counter);
        for series in self.unknown_domains.iter() {
            match self.striped.sum(series.first) {
                0 => {}
                count => samples.push(&[("domain", &series.name)], count),
            }
        }
    }

    /// Writes a batch of a family's series, from `start` on. `false`: there are no more.
    fn write_limits(&self, page: &mut Page, stat: Stat, start: usize) -> bool {
        let family = format!("ratelimit_service_rate_limit_{}", stat.name());
        let mut samples = match start {
            0 => Samples::of(page, &family, stat.help(), MetricType::Counter),
            _ => Samples::resume(page, &family),
        };
        let mut batch = self.limits.iter_from(start).take(BATCH).peekable();
        let any = batch.peek().is_some();
        for series in batch {
            let count = self.striped.sum(series.first.plus(stat as usize));
            if count > 0 || self.shows_zero(series, stat) {
                push_limit(&mut samples, &series.name, &[], count);
            }
        }
        any
    }

    /// A limit that was never hit is left out, because 100,000 idle rules would make every scrape huge. Once a limit
    /// was hit, the stats that alerts read are written even at 0.
    fn shows_zero(&self, series: &Series, stat: Stat) -> bool {
        !matches!(stat, Stat::ShadowMode | Stat::OverLimitWithLocalCache)
            && self.striped.sum(series.first.plus(Stat::TotalHits as usize)) > 0
    }
}

impl Iterator for Scrape {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let metrics = &self.metrics;
        let mut page = metrics.page.clone();
        self.next = match (self.next, &metrics.mapped) {
            (Next::Process, mapped) => {
                metrics.write_process(&mut page);
                if mapped.is_some() { Next::MapNew } else { Next::Limits { stat: 0, series: 0 } }
            }
            (Next::Limits { stat, series }, _) => {
                let more = metrics.write_limits(&mut page, *Stat::ALL.get(stat)?, series);
                match more {
                    true => Next::Limits { stat, series: series + BATCH },
                    false => Next::Limits { stat: stat + 1, series: 0 },
                }
            }
            (Next::MapNew, Some(mapped)) => match metrics.map_new(mapped, &page) {
                true => Next::MapNew,
                false => Next::Mapped(Progress::default()),
            },
            (Next::Mapped(from), Some(mapped)) => {
                Next::Mapped(metrics.write_mapped(mapped, &mut page, from)?)
            }
            (Next::MapNew | Next::Mapped(_), None) => return None,
        };
        Some(page.text)
    }
}

/// Writes the operating system's figures about the process; nothing where there is no procfs.
fn write_operating_system(page: &mut Page) {
    let mut families = ProcessCollector::for_self().collect();
    for metric in families.iter_mut().flat_map(MetricFamily::mut_metric) {
        let label = |(name, value): (&str, &str)| {
            let mut label = LabelPair::default();
            label.set_name(name.to_owned());
            label.set_value(value.to_owned());
            label
        };
        metric.set_label(page.constant().map(label).collect());
    }
    let _ = TextEncoder::new().encode_utf8(&families, &mut page.text);
}

/// Writes a sample of a limit. `key1` and `key2` are the first two levels of its path; `rule` is the whole path when it
/// has more levels. Empty labels are left out. `further` labels follow.
fn push_limit(samples: &mut Samples<'_>, name: &str, further: &[(&str, &str)], count: u64) {
    let (domain, path) = parts(name);
    let levels: SmallVec<[&str; 8]> = path.collect();
    let text: SmallVec<[&str; 16]> = levels.iter().flat_map(|level| [".", *level]).skip(1).collect();
    let rule = if levels.len() > 2 { text.as_slice() } else { &[] };
    let key = |level: usize| levels.get(level..=level).unwrap_or_default();
    let labels = [("domain", &[domain][..]), ("key1", key(0)), ("key2", key(1)), ("rule", rule)];
    let labels = labels.into_iter().filter(|(_, texts)| !texts.is_empty());
    let further = further.iter().map(|(name, text)| (*name, std::slice::from_ref(text)));
    let labels = labels.chain(further);
    samples.push_parts(labels.map(|(name, texts)| (name, texts.iter().copied())), count);
}
