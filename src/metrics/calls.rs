//! Counters of calls: how many came by which front, how they ended, how long they took.

use super::histogram::{Histogram, RESPONSE_TIME_BOUNDS};
use super::named::{Named, named};
use super::stat_name;
use super::striped::{Slot, Striped, Writer};
use super::text::{Kind, Samples, header};

/// The way by which a request for a decision came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// `ShouldRateLimit` over gRPC.
    Grpc,
    /// `POST /json`.
    Json,
    /// `/check`.
    Check,
}

/// How a request for a decision ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It may pass.
    Ok,
    /// It may not.
    OverLimit,
    /// The request makes no sense.
    InvalidArgument,
    /// The request is too large.
    ResourceExhausted,
    /// No rules are loaded yet, or the process is ending.
    Unavailable,
    /// The shared store did not answer.
    StoreFailure,
    /// It was not answered in time.
    DeadlineExceeded,
    /// It failed by a fault of ours.
    Internal,
}

/// The gRPC methods that are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrpcMethod {
    /// The decision.
    ShouldRateLimit,
    /// The health service's `Check`.
    Check,
}

/// Whose fault an error is, in the words of `envoyproxy/ratelimit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ErrorType {
    Redis,
    Service,
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
}

impl Front {
    const ALL: [Self; 3] = [Self::Grpc, Self::Json, Self::Check];

    const fn name(self) -> &'static str {
        match self {
            Self::Grpc => "grpc",
            Self::Json => "json",
            Self::Check => "check",
        }
    }
}

impl Outcome {
    const ALL: [Self; 8] = [
        Self::Ok,
        Self::OverLimit,
        Self::InvalidArgument,
        Self::ResourceExhausted,
        Self::Unavailable,
        Self::StoreFailure,
        Self::DeadlineExceeded,
        Self::Internal,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::OverLimit => "OVER_LIMIT",
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::Unavailable => "UNAVAILABLE",
            Self::StoreFailure => "STORE_FAILURE",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::Internal => "INTERNAL",
        }
    }

    const fn error_type(self) -> Option<ErrorType> {
        match self {
            Self::Ok | Self::OverLimit => None,
            Self::StoreFailure => Some(ErrorType::Redis),
            _ => Some(ErrorType::Service),
        }
    }
}

impl GrpcMethod {
    pub(super) const ALL: [Self; 2] = [Self::ShouldRateLimit, Self::Check];

    /// Its name, without that of its service.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::ShouldRateLimit => "ShouldRateLimit",
            Self::Check => "Check",
        }
    }
}

impl ErrorType {
    const ALL: [Self; 2] = [Self::Redis, Self::Service];

    const fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis_error",
            Self::Service => "service_error",
        }
    }
}

impl Calls {
    /// The slots that all of them need.
    pub(super) const SLOTS: u32 = (Front::ALL.len() * Outcome::ALL.len() + ErrorType::ALL.len()) as u32
        + GrpcMethod::ALL.len() as u32 * (1 + Histogram::slots(&RESPONSE_TIME_BOUNDS));

    /// All counters at 0; `None` when there is no room for their slots.
    pub(super) fn new(striped: &Striped) -> Option<Self> {
        let method = || {
            let response_time = Histogram::new(striped, &RESPONSE_TIME_BOUNDS)?;
            Some(Method { total: striped.reserve(1)?, response_time })
        };
        Some(Self {
            outcomes: striped.reserve((Front::ALL.len() * Outcome::ALL.len()) as u32)?,
            methods: [method()?, method()?],
            errors: striped.reserve(ErrorType::ALL.len() as u32)?,
        })
    }

    /// Counts a request for a decision.
    pub(super) fn request(&self, writer: &Writer<'_>, front: Front, outcome: Outcome) {
        writer.add(self.outcome(front, outcome), 1);
        if let Some(error) = outcome.error_type() {
            writer.add(self.errors.plus(error as usize), 1);
        }
    }

    /// Counts a gRPC call that took `nanos`.
    pub(super) fn grpc(&self, writer: &Writer<'_>, method: GrpcMethod, nanos: u64) {
        let method = &self.methods[method as usize];
        writer.add(method.total, 1);
        method.response_time.observe(writer, nanos);
    }

    /// The counters that have a name for StatsD.
    pub(super) fn named(&self) -> impl Iterator<Item = Named<'_>> {
        let calls = |method| named(stat_name::Kind::Calls(method), self.methods[method as usize].total);
        let error =
            |error: ErrorType| named(stat_name::Kind::Error(error.name()), self.errors.plus(error as usize));
        GrpcMethod::ALL.map(calls).into_iter().chain(ErrorType::ALL.map(error))
    }

    /// Writes all families.
    pub(super) fn write(&self, out: &mut String, striped: &Striped) {
        self.write_outcomes(out, striped);
        self.write_methods(out, striped);
        let (family, help) =
            ("ratelimit_service_should_rate_limit_error", "Decisions that failed, by cause.");
        let mut samples = Samples::of(out, family, help, Kind::Counter);
        for error in ErrorType::ALL {
            let count = striped.sum(self.errors.plus(error as usize));
            samples.push(&[("err_type", error.name())], count);
        }
    }

    fn write_outcomes(&self, out: &mut String, striped: &Striped) {
        let (family, help) = ("tidegate_requests_total", "Requests for a decision, by front and outcome.");
        let mut samples = Samples::of(out, family, help, Kind::Counter);
        for front in Front::ALL {
            for outcome in Outcome::ALL {
                let count = striped.sum(self.outcome(front, outcome));
                samples.push(&[("front", front.name()), ("code", outcome.name())], count);
            }
        }
    }

    fn write_methods(&self, out: &mut String, striped: &Striped) {
        let mut samples =
            Samples::of(out, "ratelimit_service_total_requests", "gRPC calls, by method.", Kind::Counter);
        for method in GrpcMethod::ALL {
            let count = striped.sum(self.methods[method as usize].total);
            samples.push(&[("grpc_method", method.name())], count);
        }
        let family = "ratelimit_service_response_time_seconds";
        header(out, family, "Time to answer a gRPC call, by method.", "histogram");
        for method in GrpcMethod::ALL {
            let labels = format!("grpc_method=\"{}\",", method.name());
            self.methods[method as usize].response_time.write(out, striped, family, &labels);
        }
    }

    fn outcome(&self, front: Front, outcome: Outcome) -> Slot {
        self.outcomes.plus(front as usize * Outcome::ALL.len() + outcome as usize)
    }
}
