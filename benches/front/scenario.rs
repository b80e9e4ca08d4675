//! What is measured: how many connections, how many calls at once, which headers, which cores.

use std::time::Duration;

use super::args::Args;
use super::echo::Echo;
use super::load::{Pace, Run};
use super::request::Descriptors;
use super::server::Subject;

/// One section of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Scenario {
    /// 8 connections, 64 calls under way on each
    Batch64,
    /// 8 connections, 8 calls under way on each
    Batch8,
    /// 64 connections, 8 calls under way on each
    Many8,
    /// 8 connections, one call at a time on each
    Batch1,
    /// 16 connections, one call at a time on each
    Sixteen1,
    /// as batch64, each call with a request id and a trace header
    Ids,
    /// as batch64, over TLS
    Tls,
    /// one connection, one call at a time
    Single,
    /// 8 connections, calls at random times, at the rate of `--rate`
    Open,
    /// as batch64, each call with one descriptor as Envoy Gateway makes it
    Gateway1,
    /// as batch64, each call with four descriptors as Envoy Gateway makes them
    Gateway4,
    /// as batch64, each call with eight descriptors as Envoy Gateway makes them
    Gateway8,
    /// as batch1, each call with one descriptor as Envoy Gateway makes it
    FewGateway1,
    /// as batch1, each call with four descriptors as Envoy Gateway makes them
    FewGateway4,
    /// as batch1, each call with eight descriptors as Envoy Gateway makes them
    FewGateway8,
    /// as batch64, the servers on all cores, which they share with the generator
    TwoCores,
}

impl Scenario {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Scenario::Batch64 => "8 connections × 64 streams, closed loop",
            Scenario::Batch8 => "8 connections × 8 streams, closed loop",
            Scenario::Many8 => "64 connections × 8 streams, closed loop",
            Scenario::Batch1 => "8 connections × 1 stream, closed loop",
            Scenario::Sixteen1 => "16 connections × 1 stream, closed loop",
            Scenario::Ids => "8 connections × 64 streams, closed loop, request ids and trace headers",
            Scenario::Tls => "8 connections × 64 streams, closed loop, TLS",
            Scenario::Single => "1 connection × 1 stream, closed loop",
            Scenario::Open => "8 connections, open loop",
            Scenario::Gateway1 => "8 connections × 64 streams, closed loop, 1 descriptor of Envoy Gateway",
            Scenario::Gateway4 => "8 connections × 64 streams, closed loop, 4 descriptors of Envoy Gateway",
            Scenario::Gateway8 => "8 connections × 64 streams, closed loop, 8 descriptors of Envoy Gateway",
            Scenario::FewGateway1 => "8 connections × 1 stream, closed loop, 1 descriptor of Envoy Gateway",
            Scenario::FewGateway4 => "8 connections × 1 stream, closed loop, 4 descriptors of Envoy Gateway",
            Scenario::FewGateway8 => "8 connections × 1 stream, closed loop, 8 descriptors of Envoy Gateway",
            Scenario::TwoCores => {
                "8 connections × 64 streams, closed loop, two cores shared with the generator"
            }
        }
    }

    /// Whether the servers get the generator's cores too.
    pub(crate) fn shares_cores(self) -> bool {
        self == Scenario::TwoCores
    }

    /// Whether a server should have no idle time, so that its rate is its capacity.
    pub(crate) fn saturates(self) -> bool {
        !self.is_of_few_calls() && self != Scenario::Open
    }

    /// Whether there is one call at a time on each connection. Then the generator counts as much as the server, and a
    /// second one measures too.
    pub(crate) fn is_of_few_calls(self) -> bool {
        use Scenario::{Batch1, FewGateway1, FewGateway4, FewGateway8, Single, Sixteen1};
        matches!(self, Batch1 | Sixteen1 | Single | FewGateway1 | FewGateway4 | FewGateway8)
    }

    /// The descriptors of a call.
    pub(crate) fn descriptors(self) -> Descriptors {
        match self {
            Scenario::Gateway1 | Scenario::FewGateway1 => Descriptors::Gateway(1),
            Scenario::Gateway4 | Scenario::FewGateway4 => Descriptors::Gateway(4),
            Scenario::Gateway8 | Scenario::FewGateway8 => Descriptors::Gateway(8),
            _ => Descriptors::Plain,
        }
    }

    /// Whether the scenario measures this subject. A server with one thread is not measured on two cores. Echoes and
    /// peers answer one descriptor.
    pub(crate) fn takes(self, subject: Subject) -> bool {
        let one_thread = matches!(subject, Subject::Echo(echo) if echo != Echo::TonicMulti);
        // It differs only where a worker would sleep.
        let spins_in_vain = subject == Subject::Spinning && !self.is_of_few_calls();
        let answers = self.descriptors() == Descriptors::Plain || subject.grpc_front().is_some();
        (self == Scenario::Tls) == subject.is_tls()
            && !(self.shares_cores() && one_thread)
            && !spins_in_vain
            && answers
    }

    /// `open_rate`: calls per second of the open loop.
    pub(crate) fn run(self, args: &Args, open_rate: f64) -> Run {
        let pace = match self {
            _ if self.is_of_few_calls() => Pace::Closed { streams: 1 },
            Scenario::Batch8 | Scenario::Many8 => Pace::Closed { streams: 8 },
            Scenario::Open => Pace::Open { per_second: open_rate },
            _ => Pace::Closed { streams: 64 },
        };
        let measured = Duration::from_secs_f64(args.seconds);
        Run {
            connections: match self {
                Scenario::Single => 1,
                Scenario::Many8 => 64,
                Scenario::Sixteen1 => 16,
                _ => 8,
            },
            pace,
            ids: self == Scenario::Ids,
            warm_up: measured / 5,
            measured,
            calls_max: u64::MAX,
            sleeps: self.shares_cores(),
        }
    }
}
