//! One connection to one server, with what is known of that server's clock.
//!
//! In: calls of a script and the moment until which somebody waits. Out: the numbers of a reply, or why there is none.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult, Value};
use tokio::sync::Notify;

use crate::address::{Address, Kind};
use crate::connect_error::{ConnectError, VERSION_MIN};
use crate::failure::Failure;
use crate::joined::{Joined, Sent, joins};
use crate::peer::Peer;
use crate::runtime::{Runtime, Transport};
use crate::script::{self, Call, Memory, Purpose};
use crate::server_clock::ServerClock;
use crate::state::Shared;
use crate::wire::Wire;

/// How often a new connection asks for the time.
const TIMES: usize = 3;

/// A connection.
pub(super) struct Link<R: Runtime> {
    pub(super) wire: Arc<Wire<R>>,
    joined: Joined<R>,
    clock: Mutex<ServerClock>,
    /// What all connections to this server share.
    peer: Arc<Peer<R>>,
}

impl<R: Runtime> Link<R> {
    /// Opens a connection and asks what has to be known before the first call: the version, the time.
    pub(super) async fn open(
        address: &Address,
        shared: &Arc<Shared<R>>,
        changed: &Arc<Notify>,
    ) -> Result<Arc<Self>, ConnectError> {
        let (patience, runtime) = (shared.connect_patience(), &shared.runtime);
        let opening = async {
            let transport = runtime.connect(address, &shared.options.access).await?;
            let info: String = ask(&transport, redis::cmd("INFO").arg("server")).await?;
            check_version(&info)?;
            check_mode(&info, address, &shared.options.kind)?;
            let clock = Mutex::new(server_clock(runtime, &transport, shared.options.timeout).await?);
            let peer = shared.peer(address);
            let wire = Arc::new(Wire::new(address.clone(), transport, Arc::clone(changed)));
            peer.add(&wire);
            let joined = Joined::new(Arc::clone(&wire), Arc::clone(shared), Arc::clone(&peer));
            Ok(Arc::new(Self { wire, joined, clock, peer }))
        };
        runtime.timeout(patience, opening).await.unwrap_or(Err(ConnectError::Timeout(patience)))
    }

    /// The server's memory, as it was when it was asked last.
    pub(super) fn memory(&self) -> Option<Arc<Memory>> {
        self.peer.memory()
    }

    /// The server's memory is this.
    pub(super) fn remember(&self, memory: Memory) {
        self.peer.remember(memory);
    }

    /// Asks any command, outside of decisions.
    pub(super) async fn ask<T: FromRedisValue>(
        &self,
        shared: &Shared<R>,
        command: &Cmd,
    ) -> Result<T, ConnectError> {
        let patience = shared.connect_patience();
        let (error, is_dropped) =
            match shared.runtime.timeout(patience, ask(&self.wire.transport, command)).await {
                Some(Ok(answer)) => return Ok(answer),
                Some(Err(error)) => (error.clone().into(), error.is_connection_dropped()),
                None => (ConnectError::Timeout(patience), true),
            };
        if is_dropped {
            self.wire.give_up(error.clone());
        }
        Err(error)
    }

    /// Calls a script for a slot that this link's server holds: once more when the server does not know it or found the
    /// call too late by a clock that was known badly. Nothing happens after `until`.
    pub(super) async fn call(
        &self,
        shared: &Shared<R>,
        purpose: Purpose,
        (slot, call): (u16, &Call),
        until: Instant,
    ) -> Result<Vec<i64>, CallError> {
        if purpose != Purpose::Decide || !joins(call) {
            return Box::pin(self.call_alone(shared, purpose, call, until, false)).await;
        }
        for _ in 0..2 {
            let asked = self.joined.ask(&shared.runtime, slot, call, self.time_at(until));
            match self.answer(shared, purpose, until, asked).await {
                Ok(numbers) if numbers.len() == 1 => {}
                Ok(numbers) => return Ok(numbers),
                Err(Refused::NoScript) => return Err(Failure::Refused.into()),
                // Told of several keys, some of which may have moved and others not. Nothing was done: what holds for
                // this one it is told when it asks alone.
                Err(Refused::Call(CallError { failure: Failure::Moved, .. })) => {
                    return Box::pin(self.call_alone(shared, purpose, call, until, false)).await;
                }
                Err(Refused::Call(error)) => return Err(error),
            }
        }
        Err(Failure::Late.into())
    }

    /// The same in a command of its own, of a server that may be taking the slot over (`asking`).
    pub(super) async fn call_alone(
        &self,
        shared: &Shared<R>,
        purpose: Purpose,
        call: &Call,
        until: Instant,
        asking: bool,
    ) -> Result<Vec<i64>, CallError> {
        let mut by_name = true;
        for _ in 0..3 {
            let command = self.command(shared, purpose, by_name, call, until);
            let asked = async { (shared.runtime.monotonic(), self.send(&command, asking).await) };
            match self.answer(shared, purpose, until, asked).await {
                Err(Refused::NoScript) => by_name = false,
                Ok(numbers) if purpose != Purpose::GiveBack && numbers.len() == 1 => {}
                Ok(numbers) => return Ok(numbers),
                Err(Refused::Call(error)) => return Err(error),
            }
        }
        Err(Failure::Late.into())
    }

    /// Waits until so many replicas have everything that this connection has changed. It is asked after the change was
    /// told, by itself: so one answer serves all that was under way, and nobody waits for replicas in vain.
    pub(super) async fn replicate(&self, shared: &Shared<R>, until: Instant) -> Result<(), Failure> {
        let (replicas, runtime) = (shared.options.wait_replicas, &shared.runtime);
        let left = until.saturating_duration_since(runtime.monotonic());
        // 0 would be without an end, and hold up the whole connection.
        let millis = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1);
        let mut command = redis::cmd("WAIT");
        command.arg(replicas).arg(millis);
        let told = runtime.timeout(left, ask::<u32>(&self.wire.transport, &command)).await;
        if matches!(told, Some(Ok(told)) if told >= replicas) {
            self.peer.replicated();
            return Ok(());
        }
        if !self.wire.is_broken() {
            self.peer.unreplicated(runtime.monotonic(), left, shared.options.timeout);
        }
        Err(Failure::Unreplicated)
    }

    /// Whether the server was given up before: what was missing has to be there again.
    pub(super) fn was_given_up(&self) -> bool {
        self.peer.was_cut()
    }

    /// Waits for the reply to a call, and takes from it what it says of the server.
    async fn answer(
        &self,
        shared: &Shared<R>,
        purpose: Purpose,
        until: Instant,
        asked: impl Future<Output = Sent> + Send,
    ) -> Result<Vec<i64>, Refused> {
        let (runtime, began) = (&shared.runtime, shared.runtime.monotonic());
        let left = until.saturating_duration_since(began);
        if left.is_zero() {
            return Err(Failure::Timeout.into());
        }
        let reply = runtime.timeout(left, asked).await;
        let sent = reply.as_ref().map_or(began, |(sent, _)| *sent);
        shared.stats.round_trips.ended(runtime.monotonic().saturating_duration_since(sent));
        match reply.map(|(_, reply)| reply.and_then(numbers)) {
            Some(Ok(numbers)) => {
                self.peer.answered();
                if let Some(&micros) = numbers.first().filter(|_| purpose != Purpose::GiveBack) {
                    self.clock.lock().note((sent, runtime.monotonic()), micros.unsigned_abs());
                }
                Ok(numbers)
            }
            Some(Err(error)) => Err(self.refused(error)),
            None => {
                if !self.wire.is_broken() {
                    self.peer.unanswered(runtime.monotonic(), left, shared.options.timeout);
                }
                Err(Failure::Timeout.into())
            }
        }
    }

    async fn send(&self, command: &Cmd, asking: bool) -> RedisResult<Value> {
        let transport = &self.wire.transport;
        if asking { transport.send_asking(command).await } else { transport.send(command).await }
    }

    fn command(
        &self,
        shared: &Shared<R>,
        purpose: Purpose,
        by_name: bool,
        call: &Call,
        until: Instant,
    ) -> Cmd {
        let script = shared.script(purpose);
        let mut command = if by_name { redis::cmd("EVALSHA") } else { redis::cmd("EVAL") };
        command.arg(if by_name { &script.name } else { &script.text });
        command.arg(call.keys.len()).arg(&*call.keys);
        command.arg(&call.first_arg(self.time_at(until))).arg(&*call.args);
        command
    }

    /// The server's time at this moment, as far as it is known: never earlier than it is there.
    fn time_at(&self, moment: Instant) -> u64 {
        self.clock.lock().at(moment)
    }

    /// What an error means for the call, and for the link.
    fn refused(&self, error: RedisError) -> Refused {
        let failure = match error.code() {
            Some("NOSCRIPT") => return Refused::NoScript,
            Some(code @ ("MOVED" | "ASK" | "TRYAGAIN")) => {
                let asking = code == "ASK";
                if !asking {
                    self.wire.servers_changed();
                }
                let to = error.redirect_node().map(|(host, _)| host).and_then(Address::tcp);
                return Refused::Call(CallError { failure: Failure::Moved, to: to.map(|to| (to, asking)) });
            }
            Some("READONLY") => Failure::ReadOnly,
            Some("LOADING") => Failure::Loading,
            Some("CLUSTERDOWN" | "MASTERDOWN") => Failure::ClusterDown,
            Some("OOM") => return Failure::Full.into(),
            Some(_) if !error.is_connection_dropped() => return Failure::Refused.into(),
            _ if error.kind() == ErrorKind::Parse => Failure::Garbage,
            _ => Failure::Closed,
        };
        self.wire.give_up(error.into());
        failure.into()
    }
}

/// Why one call has no answer.
enum Refused {
    NoScript,
    Call(CallError),
}

/// Why a call has no answer here.
pub(super) struct CallError {
    pub(super) failure: Failure,
    /// Who would answer, and whether it has to be asked as one that is only taking over.
    pub(super) to: Option<(Address, bool)>,
}

impl From<Failure> for CallError {
    fn from(failure: Failure) -> Self {
        Self { failure, to: None }
    }
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self::Call(failure.into())
    }
}

/// Sends a command, and reads its reply.
pub(super) async fn ask<T: FromRedisValue>(transport: &impl Transport, command: &Cmd) -> RedisResult<T> {
    let value = transport.send(command).await?.extract_error()?;
    Ok(redis::from_redis_value(value)?)
}

/// Asks the time a few times: the fastest question tells it best. A server that takes longer than a decision may is as
/// good as none.
async fn server_clock<R: Runtime>(
    runtime: &R,
    transport: &R::Transport,
    budget: Duration,
) -> Result<ServerClock, ConnectError> {
    let mut clock: Option<ServerClock> = None;
    for _ in 0..TIMES {
        let sent = runtime.monotonic();
        let time = runtime.timeout(budget, ask(transport, &redis::cmd("TIME"))).await;
        let (seconds, micros): (u64, u64) = time.ok_or(ConnectError::Timeout(budget))??;
        let micros = seconds * 1_000_000 + micros;
        clock.get_or_insert_with(|| ServerClock::new(sent, micros)).note((sent, runtime.monotonic()), micros);
    }
    clock.ok_or(ConnectError::Timeout(budget))
}

fn numbers(value: Value) -> RedisResult<Vec<i64>> {
    match value.extract_error()? {
        Value::BulkString(reply) => script::numbers(&reply),
        _ => None,
    }
    .ok_or_else(|| (ErrorKind::Parse, "this is no reply to a script").into())
}

fn check_version(info: &str) -> Result<(), ConnectError> {
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap_or("").trim();
    let major = version.split('.').next().and_then(|major| major.parse::<u64>().ok());
    match major {
        Some(major) if major < VERSION_MIN => Err(ConnectError::TooOld(version.to_owned())),
        _ => Ok(()),
    }
}

/// One server that is part of something larger would refuse the keys that it does not hold, or all of them.
fn check_mode(info: &str, address: &Address, kind: &Kind) -> Result<(), ConnectError> {
    let mode = info.lines().find_map(|line| {
        line.strip_prefix("redis_mode:").or_else(|| line.strip_prefix("server_mode:")).map(str::trim)
    });
    let (found, expected) = match (kind, mode) {
        (Kind::Single(_), Some("cluster")) => ("a node of a Cluster", "cluster"),
        (Kind::Single(_), Some("sentinel")) => ("a sentinel", "sentinel"),
        _ => return Ok(()),
    };
    Err(ConnectError::WrongKind { found: format!("{address} is {found}"), expected })
}
