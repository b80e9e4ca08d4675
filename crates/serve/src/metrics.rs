//! Metrics: counts decisions, calls and reloads, and renders the counts for Prometheus.
//!
//! In: decisions, calls, reloads, and functions that read values of other modules. Out: text, rendered piece by piece.
//! Counting must not limit throughput. So a rule's counters are resolved once, when the rule set is installed
//! ([`Metrics::handles`]), and each worker adds to a stripe of its own, with plain stores, on cache lines that no other
//! thread writes. Rendering reads the stripes without taking a lock that the request path needs.
//!
//! Names that come from requests are bounded in number and in bytes. This module reads no clock and opens no socket.
//!
//! - `counts`: what a descriptor adds to the counters; `series_name`, `series`, `handles`: the names of series, the
//!   table of all series, and the series that a rule counts in
//! - `candidates`: what candidates would have done
//! - `reservations`: reservations and their ends
//! - `calls`, `lane`, `reloads`, `histogram`: everything else that is counted
//! - `statsd_name`, `statsd_counters`, `timers`: counters and durations for StatsD, under its names
//! - `striped`, `chunked`: the memory of the counters
//! - `glance`: a few counts, read often
//! - `families`: values that other parts of the program hold
//! - `text`, `scrape`: the Prometheus text; `mapping`, `mapped_counters`: the same with names that the user maps

mod calls;
mod candidates;
mod reservations;
mod chunked;
mod counts;
mod families;
mod glance;
mod grpc_method;
mod handles;
mod histogram;
mod lane;
mod mapped_counters;
mod mapping;
mod series_name;
mod statsd_counters;
mod reloads;
mod scrape;
mod series;
mod statsd_name;
mod stats;
mod striped;
mod text;
mod timers;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use parking_lot::RwLock;

pub use self::calls::{Front, Outcome};
pub use self::glance::{Answered, LimitCounts, RulesBySeries, WithoutRule};
pub use self::grpc_method::GrpcMethod;
pub use self::handles::RuleHandles;
pub use self::mapping::Mapping;
pub use self::text::{MetricType, Samples};
pub use self::timers::Timed;

use self::calls::{Calls, ResponseTimes};
use self::candidates::Candidates;
use self::counts::{Counts, Stat};
use self::families::WriteFamily;
use self::histogram::{Buckets, DECISION_BOUNDS, Histogram};
use self::lane::Lane;
use self::mapped_counters::MappedCounters;
use self::reloads::Reloads;
use self::reservations::Reservations;
use self::series::{SeriesTable, Source};
use self::series_name::{request_name, rule_name};
use self::striped::{Slot, Striped, Writer, thread_index};
use self::text::Page;
use self::timers::Timers;
use tidegate_engine::decision::{Decision, Limited, Status};
use tidegate_engine::plan::Hits;
use tidegate_engine::request::Request;

/// Unknown domains with a series of their own. A client with a wrong domain sends it often, so a few are enough.
const UNKNOWN_DOMAINS_MAX: usize = 100;

/// Slots that neither series nor histograms need: calls, the lane, and a few single counters.
const FIXED_SLOTS: u32 = Calls::SLOTS + Lane::SLOTS + Reservations::SLOTS + 16;

/// The name of the series for everything without a series of its own.
const OTHER: &str = "other";

/// How metrics are kept.
#[derive(Clone, Debug)]
pub struct MetricsOptions {
    /// Hits beyond this share of a limit count as near the limit.
    pub near_limit_ratio: f32,
    /// Bound on the series of rules, and also on the series named by requests. Beyond it, a series above is used.
    pub max_series: usize,
    /// Threads with a stripe of their own, usually the workers and one more. Others count correctly but slower.
    pub stripes: usize,
    /// Readers that take every single duration (StatsD senders).
    pub timer_readers: usize,
    /// Labels on every sample of a scrape.
    pub constant_labels: Vec<(String, String)>,
    /// The names, in a scrape, of metrics that `envoyproxy/ratelimit` has too.
    pub names: Names,
}

/// The names, in a scrape, of metrics that `envoyproxy/ratelimit` has too.
#[derive(Clone, Debug)]
pub enum Names {
    /// The names that its own mapping gives.
    BuiltIn {
        /// `ratelimit_service_response_time_seconds` holds milliseconds.
        response_time_millis: bool,
    },
    /// The names that this mapping gives.
    Mapped(Mapping),
}

/// All metrics of the process.
pub struct Metrics {
    near_limit_ratio: f32,
    striped: Striped,
    limits: SeriesTable,
    /// The counts of limits that have no room for a series.
    limits_other: Slot,
    unknown_domains: SeriesTable,
    unknown_domains_other: Slot,
    /// Known domains: descriptors that matched no rule.
    unmatched: SeriesTable,
    unmatched_other: Slot,
    candidates: Candidates,
    reservations: Reservations,
    denials_not_logged: Slot,
    global_shadow: Slot,
    records_known: Slot,
    decision_time: Histogram,
    calls: Calls,
    lane: Lane,
    reloads: Reloads,
    timers: Box<[Timers]>,
    timers_dropped: Slot,
    registered: RwLock<Vec<Box<WriteFamily>>>,
    mapped: Option<MappedCounters>,
    /// An empty page with the constant labels. Every piece of a scrape starts as a copy of it.
    page: Page,
}

impl Metrics {
    /// All counters at 0.
    pub fn new(options: &MetricsOptions) -> Self {
        let series_slots = SeriesTable::slots_max(options.max_series, options.max_series, Stat::ALL.len())
            + SeriesTable::slots_max(0, UNKNOWN_DOMAINS_MAX, 1)
            + SeriesTable::slots_max(options.max_series, 0, 1)
            + Candidates::slots_max(options.max_series);
        let capacity = u32::try_from(series_slots).unwrap_or(u32::MAX / 2) + FIXED_SLOTS;
        Self::with_capacity(options, capacity).expect("the fixed counters are part of the capacity")
    }

    /// `capacity`: slots, without those of histograms.
    fn with_capacity(options: &MetricsOptions, capacity: u32) -> Option<Self> {
        let response_times = match &options.names {
            Names::BuiltIn { response_time_millis } => ResponseTimes::built_in(*response_time_millis),
            Names::Mapped(mapping) => ResponseTimes::mapped(mapping),
        };
        let mapped = match &options.names {
            Names::BuiltIn { .. } => None,
            Names::Mapped(mapping) => Some(MappedCounters::new(mapping.clone(), response_times.families())),
        };
        let decision_buckets = Buckets::seconds(&DECISION_BOUNDS);
        let histograms = response_times.slots() + decision_buckets.slots();
        let striped = Striped::new(options.stripes, capacity + histograms);
        let limits = SeriesTable::new(options.max_series, options.max_series, Stat::ALL.len() as u32);
        let unknown_domains = SeriesTable::new(0, UNKNOWN_DOMAINS_MAX, 1);
        let unmatched = SeriesTable::new(options.max_series, 0, 1);
        Some(Self {
            near_limit_ratio: options.near_limit_ratio,
            limits_other: limits.enter(&striped, Source::Others, &rule_name(OTHER, [OTHER]))?,
            unknown_domains_other: unknown_domains.enter(&striped, Source::Others, OTHER)?,
            unmatched_other: unmatched.enter(&striped, Source::Others, OTHER)?,
            candidates: Candidates::new(&striped, options.max_series)?,
            reservations: Reservations::new(&striped)?,
            denials_not_logged: striped.reserve(1)?,
            global_shadow: striped.reserve(1)?,
            records_known: striped.reserve(1)?,
            decision_time: Histogram::new(&striped, decision_buckets)?,
            calls: Calls::new(&striped, response_times)?,
            lane: Lane::new(&striped)?,
            reloads: Reloads::new(&striped)?,
            timers: (0..options.timer_readers).map(|_| Timers::new(options.stripes)).collect(),
            timers_dropped: striped.reserve(1)?,
            registered: RwLock::default(),
            mapped,
            page: Page::with_labels(&options.constant_labels),
            limits,
            unknown_domains,
            unmatched,
            striped,
        })
    }

    /// Adds a decision to the counters of its limits. `handles` are those of the rule set that it was made with.
    pub fn observe(&self, handles: &RuleHandles, request: &Request<'_>, decision: &Decision<'_>) {
        let writer = self.striped.writer();
        if decision.shadowed {
            writer.add(self.global_shadow, 1);
        }
        if let Some(reservation) = request.reservation() {
            self.reservations.observe(&writer, reservation.is_commit, decision);
        }
        if !decision.domain_known {
            return self.observe_unknown_domain(&writer, request.domain(), decision.statuses.len());
        }
        let mut unmatched = 0;
        for (status, descriptor) in decision.statuses.iter().zip(request.descriptors()) {
            let Status::Limited(limited) = status else {
                unmatched += u64::from(matches!(status, Status::NoLimit));
                continue;
            };
            let Some(counts) = Counts::of(limited, self.near_limit_ratio) else { continue };
            let first = self.series_of(handles, &limited.origin, request.domain(), descriptor.entries);
            writer.add_each(first, Stat::ALL.map(|stat| counts.get(stat)));
        }
        if unmatched > 0 {
            writer.add(handles.unmatched(request.domain()).unwrap_or(self.unmatched_other), unmatched);
        }
        if decision.rare.is_some() {
            self.candidates.observe(&writer, &handles.candidates, decision);
        }
    }

    /// Counts the descriptors at these places, which the deny cache answered.
    pub fn observe_remembered(
        &self,
        handles: &RuleHandles,
        request: &Request<'_>,
        decision: &Decision<'_>,
        remembered: &[usize],
    ) {
        let writer = self.striped.writer();
        let all = decision.statuses.iter().zip(request.descriptors()).enumerate();
        for (_, (status, descriptor)) in all.filter(|(index, _)| remembered.contains(index)) {
            let Status::Limited(Limited { hits: Hits::Take(hits), origin, .. }) = status else { continue };
            let first = self.series_of(handles, origin, request.domain(), descriptor.entries);
            writer.add(first.plus(Stat::OverLimitWithLocalCache as usize), *hits);
        }
    }

    fn observe_unknown_domain(&self, writer: &Writer<'_>, domain: &str, descriptors: usize) {
        let known = request_name(domain, [""; 0])
            .and_then(|name| self.unknown_domains.enter(&self.striped, Source::Requests, &name));
        writer.add(known.unwrap_or(self.unknown_domains_other), descriptors as u64);
    }

    /// Counts denials that were not logged.
    pub fn denials_not_logged(&self, denials: u64) {
        self.striped.writer().add(self.denials_not_logged, denials);
    }

    /// Denials that were not logged so far.
    pub fn denials_not_logged_until_now(&self) -> u64 {
        self.striped.sum(self.denials_not_logged)
    }

    /// Counts this many keys whose records, or absence of records, were known at once.
    pub fn records_known(&self, keys: usize) {
        self.striped.writer().add(self.records_known, keys as u64);
    }

    /// Counts this many decisions, for each of which the engine alone took `nanos`.
    pub fn decisions_took(&self, nanos: u64, decisions: usize) {
        self.decision_time.observe(&self.striped.writer(), nanos, decisions as u64);
    }

    /// Counts this many requests for a decision that came by this front.
    pub fn requests(&self, front: Front, outcome: Outcome, requests: usize) {
        self.calls.requests(&self.striped.writer(), front, outcome, requests as u64);
    }

    /// Counts this many gRPC calls, each of which took `nanos` from its message to its answer.
    pub fn grpc_calls(&self, method: GrpcMethod, nanos: u64, calls: usize) {
        let writer = self.striped.writer();
        self.calls.grpc(&writer, method, nanos, calls as u64);
        for timers in &self.timers {
            for _ in 0..calls {
                if !timers.put(thread_index(), method, nanos) {
                    writer.add(self.timers_dropped, 1);
                }
            }
        }
    }

    /// Takes the durations that this reader has not taken yet.
    pub fn take_timers(&self, reader: usize, each: impl FnMut(Timed)) {
        if let Some(timers) = self.timers.get(reader) {
            timers.take(each);
        }
    }

    /// A connection of the lane was opened.
    pub fn lane_opened(&self) {
        self.lane.opened(&self.striped.writer());
    }

    /// A connection of the lane was closed.
    pub fn lane_closed(&self) {
        self.lane.closed(&self.striped.writer());
    }

    /// This many streams of the lane began or were reset.
    pub fn lane_streams(&self, began: u32, reset_by_client: u32, reset_by_server: u32) {
        self.lane.streams(&self.striped.writer(), began, reset_by_client, reset_by_server);
    }

    /// We ended a connection of the lane with this HTTP/2 error code. `misbehaved`: because of its client.
    pub fn lane_ended(&self, code: u8, misbehaved: bool) {
        self.lane.ended(&self.striped.writer(), code, misbehaved);
    }

    /// A rule set with this hash was installed at this Unix time.
    pub fn config_loaded(&self, hash: Arc<str>, rules: usize, warnings: usize, unix_secs: u64) {
        self.reloads.succeeded(&self.striped.writer(), hash, rules, warnings, unix_secs);
    }

    /// A rule set was refused or could not be read.
    pub fn config_failed(&self) {
        self.reloads.failed(&self.striped.writer());
    }
}
