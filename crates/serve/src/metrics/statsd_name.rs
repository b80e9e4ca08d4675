//! StatsD names: the dotted names that `envoyproxy/ratelimit` gives its counters and timers. Built only when written.

use std::fmt::{self, Display, Formatter};

use super::counts::Stat;
use super::grpc_method::GrpcMethod;
use super::series_name::parts;

/// The name of a counter or a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatsdName<'a>(pub(super) StatKind<'a>);

/// The counter or timer that a name belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatKind<'a> {
    /// A stat of the series with this identity.
    Limit(&'a str, Stat),
    /// Descriptors for this domain, which has no rules.
    UnknownDomain(&'a str),
    Calls(GrpcMethod),
    /// Durations of calls of this method.
    ResponseTime(GrpcMethod),
    /// Decisions that failed with this type of error.
    Error(&'static str),
    /// This event of the service.
    Service(&'static str),
}

impl Display for StatsdName<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            StatKind::Limit(series, stat) => {
                let (domain, path) = parts(series);
                write!(out, "ratelimit.service.rate_limit.{domain}.")?;
                path.into_iter().try_for_each(|level| write!(out, "{level}."))?;
                out.write_str(stat.name())
            }
            StatKind::UnknownDomain(domain) => {
                write!(out, "ratelimit.service.rate_limit.{domain}.domain_not_found")
            }
            StatKind::Calls(method) => write!(out, "ratelimit_server.{}.total_requests", method.name()),
            StatKind::ResponseTime(method) => write!(out, "ratelimit_server.{}.response_time", method.name()),
            StatKind::Error(error) => write!(out, "ratelimit.service.call.should_rate_limit.{error}"),
            StatKind::Service(event) => write!(out, "ratelimit.service.{event}"),
        }
    }
}
