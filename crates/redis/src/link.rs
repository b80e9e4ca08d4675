//! One connection to one server, with what is known of that server's clock.
//!
//! In: calls of a script and the moment until which somebody waits. Out: the numbers of a reply, or why there is none.
//! A link that fails is [`broken`](Link::is_broken) for good: whoever owns it opens another.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult, Value};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::address::{Address, Kind};
use crate::clock::monotonic;
use crate::connect::{Opened, open};
use crate::failure::Failure;
use crate::joined::{Joined, Sent, joins};
use crate::peer::Peer;
use crate::script::{self, Call, Memory, Purpose};
use crate::server_clock::ServerClock;
use crate::state::{SettingNames, Shared};

/// How often a new connection asks for the time.
const TIMES: usize = 3;

/// The oldest version whose scripts and commands are all there.
const VERSION_MIN: u64 = 6;

/// A connection.
pub(super) struct Link {
    pub(super) address: Address,
    opened: Opened,
    joined: Joined,
    clock: Mutex<ServerClock>,
    /// What all connections to this server share.
    peer: Arc<Peer>,
    /// Why calls are not answered here any more.
    broken: OnceLock<String>,
    /// Told when something about the servers has changed.
    changed: Arc<Notify>,
}

/// Why a server cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error("{0}")]
    Redis(#[from] RedisError),
    #[error("sentinel: {0}")]
    Sentinel(RedisError),
    #[error("no answer within {0:?}")]
    Silent(Duration),
    #[error("version {0} is too old (expected {VERSION_MIN}.0 or newer)")]
    TooOld(String),
    #[error("fewer than {0} replicas have what is written to {1}")]
    Unreplicated(u32, Address),
    #[error("{0} is {1}")]
    WrongKind(Address, &'static str, &'static str),
    #[error("{0}")]
    Topology(String),
}

impl LinkError {
    /// The same, where a sentinel was asked.
    pub(super) fn of_a_sentinel(self) -> Self {
        match self {
            Self::Redis(error) => Self::Sentinel(error),
            other => other,
        }
    }

    /// What went wrong, for people: without secrets, naming the setting that can help.
    pub(super) fn told(&self, settings: &SettingNames) -> String {
        let is_refused = |error: &RedisError| {
            error.kind() == ErrorKind::AuthenticationFailed
                || matches!(error.code(), Some("WRONGPASS" | "NOAUTH" | "NOPERM"))
        };
        match self {
            Self::Redis(error) if is_refused(error) => format!("{self} ({})", settings.server),
            Self::Sentinel(error) if is_refused(error) => format!("{self} ({})", settings.sentinel),
            Self::Redis(error) if error.to_string().contains("cluster support disabled") => {
                format!("{self} (expected {}=single)", settings.kind)
            }
            Self::WrongKind(.., expected) => format!("{self} (expected {}={expected})", settings.kind),
            _ => self.to_string(),
        }
    }
}

impl Link {
    /// Opens a connection and asks what has to be known before the first call: the version, the time.
    pub(super) async fn open(
        address: &Address,
        shared: &Arc<Shared>,
        changed: &Arc<Notify>,
    ) -> Result<Arc<Self>, LinkError> {
        let (patience, budget) = (shared.connect_patience(), shared.options.timeout);
        let opening = async {
            let opened = open(address, &shared.options.access).await?;
            let mut connection = opened.connection.clone();
            let info: String = ask(&mut connection, redis::cmd("INFO").arg("server")).await?;
            check_version(&info)?;
            check_mode(&info, address, &shared.options.kind)?;
            let clock = Mutex::new(server_clock(&mut connection, budget).await?);
            let (peer, broken) = (shared.peer(address), OnceLock::new());
            let (address, changed) = (address.clone(), Arc::clone(changed));
            let joined = Joined::new(connection, Arc::clone(shared), Arc::clone(&peer));
            let link = Arc::new(Self { address, opened, joined, clock, peer, broken, changed });
            link.peer.add(&link);
            Ok(link)
        };
        timeout(patience, opening).await.unwrap_or(Err(LinkError::Silent(patience)))
    }

    /// Calls are not answered here any more.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.get().is_some()
    }

    /// Why not.
    pub(super) fn broken_by(&self) -> Option<&str> {
        self.broken.get().map(String::as_str)
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
        command: &Cmd,
        patience: Duration,
    ) -> Result<T, LinkError> {
        let mut connection = self.opened.connection.clone();
        let asked = timeout(patience, ask(&mut connection, command)).await;
        let asked = asked.map_or(Err(LinkError::Silent(patience)), |answer| answer.map_err(LinkError::from));
        asked.inspect_err(|error| {
            let lives = matches!(error, LinkError::Redis(error) if !error.is_connection_dropped());
            if !lives {
                self.give_up(&error.to_string());
            }
        })
    }

    /// Calls a script for a slot that this link's server holds: once more when the server does not know it or found the
    /// call too late by a clock that was known badly. Nothing happens after `until`.
    pub(super) async fn call(
        &self,
        shared: &Shared,
        purpose: Purpose,
        (slot, call): (u16, &Call),
        until: Instant,
    ) -> Result<Vec<i64>, CallError> {
        if purpose != Purpose::Decide || !joins(call) {
            return Box::pin(self.call_alone(shared, purpose, call, until, false)).await;
        }
        for _ in 0..2 {
            let asked = self.joined.ask(slot, call, self.time_at(until));
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
        shared: &Shared,
        purpose: Purpose,
        call: &Call,
        until: Instant,
        asking: bool,
    ) -> Result<Vec<i64>, CallError> {
        let mut by_name = true;
        for _ in 0..3 {
            let command = self.command(shared, purpose, by_name, call, until);
            let asked = async { (monotonic(), self.send(&command, asking).await) };
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
    pub(super) async fn replicate(&self, shared: &Shared, until: Instant) -> Result<(), Failure> {
        let (replicas, budget) = (shared.options.wait_replicas, shared.options.timeout);
        let left = until.saturating_duration_since(monotonic());
        // 0 would be without an end, and hold up the whole connection.
        let millis = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1);
        let mut command = redis::cmd("WAIT");
        command.arg(replicas).arg(millis);
        let mut connection = self.opened.connection.clone();
        let told = timeout(left, ask::<u32>(&mut connection, &command)).await;
        if matches!(told, Ok(Ok(told)) if told >= replicas) {
            self.peer.replicated();
            return Ok(());
        }
        if !self.is_broken() {
            self.peer.unreplicated(monotonic(), left, budget);
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
        shared: &Shared,
        purpose: Purpose,
        until: Instant,
        asked: impl Future<Output = Sent>,
    ) -> Result<Vec<i64>, Refused> {
        let began = monotonic();
        let left = until.saturating_duration_since(began);
        if left.is_zero() {
            return Err(Failure::Timeout.into());
        }
        let reply = timeout(left, asked).await;
        let sent = reply.as_ref().map_or(began, |(sent, _)| *sent);
        shared.stats.round_trips.ended(sent);
        match reply.map(|(_, reply)| reply.and_then(numbers)) {
            Ok(Ok(numbers)) => {
                self.peer.answered();
                if let Some(&micros) = numbers.first().filter(|_| purpose != Purpose::GiveBack) {
                    self.clock.lock().note((sent, monotonic()), micros.unsigned_abs());
                }
                Ok(numbers)
            }
            Ok(Err(error)) => Err(self.refused(&error)),
            Err(_) => {
                if !self.is_broken() {
                    self.peer.unanswered(monotonic(), left, shared.options.timeout);
                }
                Err(Failure::Timeout.into())
            }
        }
    }

    async fn send(&self, command: &Cmd, asking: bool) -> RedisResult<Value> {
        let mut connection = self.opened.connection.clone();
        if !asking {
            return connection.send_packed_command(command).await;
        }
        let mut both = redis::pipe();
        both.cmd("ASKING").add_command(command.clone());
        let replies = connection.send_packed_commands(&both, 1, 1).await?;
        Ok(replies.into_iter().next_back().unwrap_or(Value::Nil))
    }

    fn command(&self, shared: &Shared, purpose: Purpose, by_name: bool, call: &Call, until: Instant) -> Cmd {
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
    fn refused(&self, error: &RedisError) -> Refused {
        let failure = match error.code() {
            Some("NOSCRIPT") => return Refused::NoScript,
            Some(code @ ("MOVED" | "ASK" | "TRYAGAIN")) => {
                let asking = code == "ASK";
                if !asking {
                    self.changed.notify_one();
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
        self.give_up(&error.to_string());
        failure.into()
    }

    /// No call is sent here any more. Those that were may still be answered.
    fn give_up(&self, why: &str) {
        if self.broken.set(why.to_owned()).is_ok() {
            tracing::debug!(address = %self.address, why, "connection given up");
            self.changed.notify_one();
        }
    }

    /// The same, and those that wait for an answer have none.
    pub(super) fn cut(&self, why: &str) {
        self.give_up(why);
        self.joined.end();
        self.opened.end();
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

async fn ask<T: FromRedisValue>(
    connection: &mut redis::aio::MultiplexedConnection,
    command: &Cmd,
) -> RedisResult<T> {
    let value = connection.send_packed_command(command).await?.extract_error()?;
    Ok(redis::from_redis_value(value)?)
}

/// Asks the time a few times: the fastest question tells it best. A server that takes longer than a decision may is as
/// good as none.
async fn server_clock(
    connection: &mut redis::aio::MultiplexedConnection,
    budget: Duration,
) -> Result<ServerClock, LinkError> {
    let mut clock: Option<ServerClock> = None;
    for _ in 0..TIMES {
        let sent = monotonic();
        let time = timeout(budget, ask(connection, &redis::cmd("TIME"))).await;
        let (seconds, micros): (u64, u64) = time.map_err(|_| LinkError::Silent(budget))??;
        let micros = seconds * 1_000_000 + micros;
        clock.get_or_insert_with(|| ServerClock::new(sent, micros)).note((sent, monotonic()), micros);
    }
    clock.ok_or(LinkError::Silent(budget))
}

fn numbers(value: Value) -> RedisResult<Vec<i64>> {
    match value.extract_error()? {
        Value::BulkString(reply) => script::numbers(&reply),
        _ => None,
    }
    .ok_or_else(|| (ErrorKind::Parse, "this is no reply to a script").into())
}

fn check_version(info: &str) -> Result<(), LinkError> {
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap_or("").trim();
    let major = version.split('.').next().and_then(|major| major.parse::<u64>().ok());
    match major {
        Some(major) if major < VERSION_MIN => Err(LinkError::TooOld(version.to_owned())),
        _ => Ok(()),
    }
}

/// One server that is part of something larger would refuse the keys that it does not hold, or all of them.
fn check_mode(info: &str, address: &Address, kind: &Kind) -> Result<(), LinkError> {
    let mode = info.lines().find_map(|line| {
        line.strip_prefix("redis_mode:").or_else(|| line.strip_prefix("server_mode:")).map(str::trim)
    });
    match (kind, mode) {
        (Kind::Single(_), Some("cluster")) => {
            Err(LinkError::WrongKind(address.clone(), "a node of a Cluster", "cluster"))
        }
        (Kind::Single(_), Some("sentinel")) => {
            Err(LinkError::WrongKind(address.clone(), "a sentinel", "sentinel"))
        }
        _ => Ok(()),
    }
}
