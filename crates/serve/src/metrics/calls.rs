//! Counters of calls: their number by front and outcome, and their durations.

use super::grpc_method::GrpcMethod;
use super::histogram::{Buckets, Histogram, RESPONSE_TIME_BOUNDS};
use super::mapped_counters::MappedCounters;
use super::mapping::{Mapping, Target};
use super::statsd_counters::{StatsdCounter, statsd_counter};
use super::statsd_name::{self, StatsdName};
use super::striped::{Slot, Striped, Writer};
use super::text::{MetricType, Page, Samples, header};

tidegate_engine::named! {
    /// The front that a request for a decision came by.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Front {
        /// `ShouldRateLimit` over gRPC.
        Grpc = "grpc",
        /// `CheckRateLimit` and `Report` of Kuadrant, over gRPC.
        Kuadrant = "kuadrant",
        /// `POST /json`.
        Json = "json",
        /// `/check`.
        Check = "check",
        /// The proxy itself, of which the limiter is a part.
        Inside = "inside",
    }
}

tidegate_engine::named! {
    /// How a request for a decision ended.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Outcome {
        /// It may pass.
        Ok = "OK",
        /// It may not.
        OverLimit = "OVER_LIMIT",
        /// The request makes no sense.
        InvalidArgument = "INVALID_ARGUMENT",
        /// The request is too large.
        ResourceExhausted = "RESOURCE_EXHAUSTED",
        /// No rules are loaded yet, or the process is ending.
        Unavailable = "UNAVAILABLE",
        /// The shared store did not answer.
        StoreFailure = "STORE_FAILURE",
        /// It was not answered in time.
        DeadlineExceeded = "DEADLINE_EXCEEDED",
    }
}

tidegate_engine::named! {
    /// The cause of an error, as `envoyproxy/ratelimit` names it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum ErrorType {
        Redis = "redis_error",
        Service = "service_error",
    }
}

/// The counters of calls.
pub(super) struct Calls {
    outcomes: Slot,
    methods: [Method; GrpcMethod::ALL.len()],
    errors: Slot,
}

struct Method {
    total: Slot,
    response_time: Histogram,
    family: ResponseTimeFamily,
}

/// The family that the durations of a method are written in.
#[derive(Clone, Debug)]
pub(super) enum ResponseTimeFamily {
    /// The family of `envoyproxy/ratelimit`.
    BuiltIn,
    /// The family that a mapping gives; `None`: they are not written.
    Mapped(Option<Target>),
}

/// The family and the buckets for the durations of each method.
#[derive(Clone, Debug)]
pub(super) struct ResponseTimes([(ResponseTimeFamily, Buckets); GrpcMethod::ALL.len()]);

impl Outcome {
    const fn error_type(self) -> Option<ErrorType> {
        match self {
            Self::Ok | Self::OverLimit => None,
            Self::StoreFailure => Some(ErrorType::Redis),
            _ => Some(ErrorType::Service),
        }
    }
}

impl ResponseTimes {
    /// As `envoyproxy/ratelimit` writes them. With `millis`, the same bounds mean milliseconds.
    pub(super) fn built_in(millis: bool) -> Self {
        let seconds = Buckets::seconds(&RESPONSE_TIME_BOUNDS);
        let buckets = if millis { seconds.with_unit(MILLI_NANOS) } else { seconds };
        Self(GrpcMethod::ALL.map(|_| (ResponseTimeFamily::BuiltIn, buckets.clone())))
    }

    /// As a mapping writes them. A mapping takes a duration in milliseconds and scales it.
    pub(super) fn mapped(mapping: &Mapping) -> Self {
        Self(GrpcMethod::ALL.map(|method| {
            let name = StatsdName(statsd_name::StatKind::ResponseTime(method));
            let target = MappedCounters::observer(mapping, &name.to_string());
            let bounds = target.as_ref().and_then(|target| target.buckets.clone()).unwrap_or_default();
            let scale = target.as_ref().map_or(1.0, |target| target.scale);
            (ResponseTimeFamily::Mapped(target), Buckets::in_unit(bounds.into_iter(), MILLI_NANOS / scale))
        }))
    }

    /// The slots that they need.
    pub(super) fn slots(&self) -> u32 {
        self.0.iter().map(|(_, buckets)| buckets.slots()).sum()
    }

    /// The families that a mapping gives them.
    pub(super) fn families(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|(family, _)| match family {
            ResponseTimeFamily::Mapped(Some(target)) => Some(target.family.as_str()),
            _ => None,
        })
    }
}

const MILLI_NANOS: f64 = 1e6;

impl Calls {
    /// The slots that all of them need, without those of response times.
    pub(super) const SLOTS: u32 =
        (Front::ALL.len() * Outcome::ALL.len() + ErrorType::ALL.len() + GrpcMethod::ALL.len()) as u32;

    /// All counters at 0; `None` when there is no room for their slots.
    pub(super) fn new(striped: &Striped, ResponseTimes(times): ResponseTimes) -> Option<Self> {
        let method = |(family, buckets)| {
            let response_time = Histogram::new(striped, buckets)?;
            Some(Method { total: striped.reserve(1)?, response_time, family })
        };
        let [first, second] = times;
        Some(Self {
            outcomes: striped.reserve((Front::ALL.len() * Outcome::ALL.len()) as u32)?,
            methods: [method(first)?, method(second)?],
            errors: striped.reserve(ErrorType::ALL.len() as u32)?,
        })
    }

    /// Counts this many requests for a decision.
    pub(super) fn requests(&self, writer: &Writer<'_>, front: Front, outcome: Outcome, requests: u64) {
        writer.add(self.outcome(front, outcome), requests);
        if let Some(error) = outcome.error_type() {
            writer.add(self.errors.plus(error as usize), requests);
        }
    }

    /// Counts this many gRPC calls, each of which took `nanos`.
    pub(super) fn grpc(&self, writer: &Writer<'_>, method: GrpcMethod, nanos: u64, calls: u64) {
        let method = &self.methods[method as usize];
        writer.add(method.total, calls);
        method.response_time.observe(writer, nanos, calls);
    }

    /// The counters that StatsD gets.
    pub(super) fn statsd_counters(&self) -> impl Iterator<Item = StatsdCounter<'_>> {
        let calls = |method| {
            statsd_counter(statsd_name::StatKind::Calls(method), self.methods[method as usize].total)
        };
        let error = |error: ErrorType| {
            statsd_counter(statsd_name::StatKind::Error(error.name()), self.errors.plus(error as usize))
        };
        GrpcMethod::ALL.map(calls).into_iter().chain(ErrorType::ALL.map(error))
    }

    /// Writes the family that `envoyproxy/ratelimit` does not have.
    pub(super) fn write(&self, page: &mut Page, striped: &Striped) {
        let (family, help) = ("tidegate_requests_total", "Requests for a decision, by front and outcome.");
        let mut samples = Samples::of(page, family, help, MetricType::Counter);
        for front in Front::ALL {
            for outcome in Outcome::ALL {
                let count = striped.sum(self.outcome(front, outcome));
                samples.push(&[("front", front.name()), ("code", outcome.name())], count);
            }
        }
    }

    /// Writes the counters that `envoyproxy/ratelimit` has too.
    pub(super) fn write_common(&self, page: &mut Page, striped: &Striped) {
        let (family, help) =
            ("ratelimit_service_should_rate_limit_error", "Decisions that failed, by cause.");
        let mut samples = Samples::of(page, family, help, MetricType::Counter);
        for error in ErrorType::ALL {
            let count = striped.sum(self.errors.plus(error as usize));
            samples.push(&[("err_type", error.name())], count);
        }
        let (family, help) = ("ratelimit_service_total_requests", "gRPC calls, by method.");
        let mut samples = Samples::of(page, family, help, MetricType::Counter);
        for method in GrpcMethod::ALL {
            let count = striped.sum(self.methods[method as usize].total);
            samples.push(&[("grpc_method", method.name())], count);
        }
    }

    /// Writes the durations of calls, in the families chosen at the start.
    pub(super) fn write_response_times(&self, page: &mut Page, striped: &Striped) {
        let mut begun = "";
        for (method, Method { response_time, family, .. }) in GrpcMethod::ALL.into_iter().zip(&self.methods) {
            let mut begin = |page: &mut Page, family, help, kind| {
                if std::mem::replace(&mut begun, family) != family {
                    header(page, family, help, kind);
                }
            };
            match family {
                ResponseTimeFamily::BuiltIn => {
                    let family = "ratelimit_service_response_time_seconds";
                    begin(page, family, "Time to answer a gRPC call, by method.", "histogram");
                    response_time.write(page, striped, family, &[("grpc_method", method.name())]);
                }
                ResponseTimeFamily::Mapped(Some(target)) if response_time.count(striped) > 0 => {
                    let labels = target.labels.iter().map(|(name, value)| (name.as_str(), value.as_str()));
                    let labels: Vec<_> = labels.collect();
                    let kind = if target.buckets.is_some() { "histogram" } else { "summary" };
                    begin(page, &target.family, &target.help, kind);
                    match target.buckets {
                        Some(_) => response_time.write(page, striped, &target.family, &labels),
                        None => response_time.write_sum(page, striped, &target.family, &labels),
                    }
                }
                ResponseTimeFamily::Mapped(_) => {}
            }
        }
    }

    /// The counter of requests by this front with this outcome.
    pub(super) fn outcome(&self, front: Front, outcome: Outcome) -> Slot {
        self.outcomes.plus(front as usize * Outcome::ALL.len() + outcome as usize)
    }
}
