//! One connection to one server, with the server's clock.
//!
//! In: calls of a script, each with a deadline. Out: the numbers of a reply, or why there is none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult, Value};
use tokio::sync::Notify;

use crate::address::{Address, Servers};
use crate::call_batches::{CallBatches, Sent, fits_batch};
use crate::connect_error::{ConnectError, VERSION_MIN};
use crate::failure::Failure;
use crate::lost::{Begins, Mark, Marked};
use crate::runtime::{Runtime, Transport};
use crate::script::{self, Call, DataId, Purpose};
use crate::server::Server;
use crate::server_clock::ServerClock;
use crate::state::Shared;
use crate::wire::Wire;

/// How often a new connection asks for the server's time.
const TIMES: usize = 3;
/// After this time a give-back has no effect.
pub(super) const GIVE_BACK_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) struct Connection<R: Runtime> {
    pub(super) wire: Arc<Wire<R>>,
    batches: CallBatches<R>,
    clock: Mutex<ServerClock>,
    /// What all connections to this server share.
    pub(super) server: Arc<Server<R>>,
    /// Since when nothing that was counted is missing.
    pub(super) marked: Arc<Marked>,
    /// Until when the server may decide because its epochs were read, in nanoseconds since the boot. 0: they were not
    /// yet read on this connection.
    epochs_until: AtomicU64,
}

impl<R: Runtime> Connection<R> {
    /// Opens a connection, and asks for the version and the time.
    pub(super) async fn open(
        address: &Address,
        shared: &Arc<Shared<R>>,
        changed: &Arc<Notify>,
    ) -> Result<Arc<Self>, ConnectError> {
        let (budget, runtime) = (shared.connect_timeout(), &shared.runtime);
        let opening = async {
            let transport = runtime.connect(address, &shared.options.access).await?;
            let info: String = ask(&transport, redis::cmd("INFO").arg("server")).await?;
            check_version(&info)?;
            check_mode(&info, address, &shared.options.kind)?;
            let clock = Mutex::new(server_clock(runtime, &transport, shared.options.timeout).await?);
            let server = shared.server(address);
            let wire = Arc::new(Wire::new(address.clone(), transport, Arc::clone(changed)));
            server.add(&wire, shared.next_connection());
            let marked = Arc::<Marked>::default();
            let of_wire = (Arc::clone(&wire), Arc::clone(&server), Arc::clone(&marked));
            let batches = CallBatches::new(of_wire, Arc::clone(shared));
            let epochs_until = AtomicU64::new(0);
            Ok(Arc::new(Self { wire, batches, clock, server, marked, epochs_until }))
        };
        runtime.timeout(budget, opening).await.unwrap_or(Err(ConnectError::Timeout(budget)))
    }

    /// Whether the server may decide: this node knows its epochs, and has read them a short while ago.
    pub(super) fn may_decide(&self, shared: &Shared<R>) -> bool {
        !shared.options.follows_epochs || nanos(shared.runtime.since_boot()) < self.epochs_until.load(Relaxed)
    }

    /// Whether the server's epochs were read on this connection.
    pub(super) fn has_read_epochs(&self) -> bool {
        self.epochs_until.load(Relaxed) > 0
    }

    /// Lets the server decide until this time since the boot. Zero: not before its epochs are read on this connection.
    pub(super) fn let_decide_until(&self, until: Duration) {
        self.epochs_until.store(nanos(until), Relaxed);
    }

    /// The server's data, as it was last read.
    pub(super) fn data(&self) -> Option<Arc<DataId>> {
        self.server.data()
    }

    /// Whether hits that were charged in this data may go back to the server.
    pub(super) fn has_data(&self, data: &DataId) -> bool {
        self.server.may_take_back(data, self.marked.get().as_deref())
    }

    /// Sends any command, and reads its reply.
    pub(super) async fn ask<T: FromRedisValue>(
        &self,
        shared: &Shared<R>,
        command: &Cmd,
    ) -> Result<T, ConnectError> {
        let budget = shared.connect_timeout();
        let (error, is_dropped) =
            match shared.runtime.timeout(budget, ask(&self.wire.transport, command)).await {
                Some(Ok(answer)) => return Ok(answer),
                Some(Err(error)) => (error.clone().into(), error.is_connection_dropped()),
                None => (ConnectError::Timeout(budget), true),
            };
        if is_dropped {
            self.wire.give_up(error.clone());
        }
        Err(error)
    }

    /// Calls a script for a slot of this connection's server. Calls once more when the server does not know the
    /// script, or when the call came too late because the server's clock was not known well enough. The call has no
    /// effect after `until`.
    pub(super) async fn call(
        &self,
        shared: &Shared<R>,
        purpose: Purpose,
        (slot, call): (u16, &Call),
        until: Instant,
    ) -> Result<Vec<i64>, CallError> {
        if !self.marked.lets_decide(shared.options.deny_cold.as_ref()) {
            return Err(Failure::Down.into());
        }
        if purpose != Purpose::Decide || !fits_batch(call) {
            return Box::pin(self.call_alone(shared, purpose, call, until, false)).await;
        }
        for _ in 0..2 {
            let asked = self.batches.ask(&shared.runtime, slot, call, self.time_at(until));
            match self.answer(shared, purpose, until, asked).await {
                Ok(numbers) if numbers.len() == 1 => {}
                Ok(numbers) => return Ok(numbers),
                Err(Refused::NoScript) => return Err(Failure::Refused.into()),
                // The redirect applies to all keys of the command, of which only some may have moved. Nothing was
                // done. A command of its own shows whether this key has moved.
                Err(Refused::Call(CallError { failure: Failure::Moved, .. })) => {
                    return Box::pin(self.call_alone(shared, purpose, call, until, false)).await;
                }
                Err(Refused::Call(error)) => return Err(error),
            }
        }
        Err(Failure::Late.into())
    }

    /// Like [`call`](Self::call), in a command of its own. `asking`: the server may still be taking the slot over.
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

    /// Has the server give hits back. Returns whether it says that this is done.
    pub(super) async fn give_back(&self, shared: &Shared<R>, call: &Call) -> bool {
        shared.stats.given_back.fetch_add(1, Relaxed);
        let until = shared.runtime.monotonic() + GIVE_BACK_TIMEOUT;
        let reply = self.call_alone(shared, Purpose::GiveBack, call, until, false).await;
        // A call that came too late has done nothing, and is answered with the time alone.
        reply.is_ok_and(|numbers| numbers.len() > 1)
    }

    /// Waits until enough replicas have everything that this connection has changed. `WAIT` is sent after the reply
    /// to the change, in a command of its own. So one answer covers all changes before it, and requests that change
    /// nothing do not wait for replicas.
    pub(super) async fn replicate(&self, shared: &Shared<R>, until: Instant) -> Result<(), Failure> {
        let (replicas, runtime) = (shared.options.wait_replicas, &shared.runtime);
        let left = until.saturating_duration_since(runtime.monotonic());
        // 0 would wait for ever, and block the whole connection.
        let millis = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1);
        let mut command = redis::cmd("WAIT");
        command.arg(replicas).arg(millis);
        let acknowledged = runtime.timeout(left, ask::<u32>(&self.wire.transport, &command)).await;
        if matches!(acknowledged, Some(Ok(count)) if count >= replicas) {
            self.server.replicated();
            return Ok(());
        }
        if !self.wire.is_broken() {
            self.server.unreplicated(runtime.monotonic(), left, shared.options.timeout);
        }
        Err(Failure::Unreplicated)
    }

    /// Whether the server was given up before. Its replicas have to acknowledge again before it is used.
    pub(super) fn was_given_up(&self) -> bool {
        self.server.was_cut()
    }

    /// Waits for the reply to a call. Notes the server's time, and whether the server answers.
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
                self.server.answered();
                if let Some(&micros) = numbers.first().filter(|_| purpose != Purpose::GiveBack) {
                    self.clock.lock().note((sent, runtime.monotonic()), micros.unsigned_abs());
                    self.note_mark(shared, &numbers);
                }
                Ok(numbers)
            }
            Some(Err(error)) => Err(self.refused(error)),
            None => {
                if !self.wire.is_broken() {
                    self.server.unanswered(runtime.monotonic(), left, shared.options.timeout);
                }
                Err(Failure::Timeout.into())
            }
        }
    }

    /// Notes since when the server's data is complete: the end of a reply.
    fn note_mark(&self, shared: &Shared<R>, numbers: &[i64]) {
        let (Some(deny), Some(begins)) = (&shared.options.deny_cold, Begins::of_reply(numbers)) else {
            return;
        };
        if let Some(begins) = self.marked.answered(begins, deny) {
            shared.begins(&self.wire.address, begins);
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
        let mark = self.marked.get().filter(|_| purpose != Purpose::GiveBack);
        let named = mark.as_deref().and_then(Mark::named);
        command.arg(call.keys.len() + named.iter().len()).arg(&*call.keys).arg(named);
        let deadline_micros = self.time_at(until);
        command.arg(&call.first_arg(deadline_micros));
        match purpose {
            Purpose::GiveBack => command.arg(&*call.args),
            _ => command.arg(&*call.args_until(deadline_micros)),
        };
        command.arg(mark.as_deref().map(|mark| &mark.argument));
        command
    }

    /// The server's time now. It is never earlier than the real one.
    pub(super) fn time_at(&self, moment: Instant) -> u64 {
        self.clock.lock().at(moment)
    }

    /// Which error the call gets, and what happens to the connection.
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
    /// The server to ask instead, and whether it needs `ASKING`.
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

/// Asks for the time a few times, because the fastest reply is the most exact. A server that needs longer for it than
/// a decision may take is refused.
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

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn numbers(value: Value) -> RedisResult<Vec<i64>> {
    match value.extract_error()? {
        Value::BulkString(reply) => script::numbers(&reply),
        _ => None,
    }
    .ok_or_else(|| (ErrorKind::Parse, "not a reply of one of our scripts").into())
}

fn check_version(info: &str) -> Result<(), ConnectError> {
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap_or("").trim();
    let major = version.split('.').next().and_then(|major| major.parse::<u64>().ok());
    match major {
        Some(major) if major < VERSION_MIN => Err(ConnectError::TooOld(version.to_owned())),
        _ => Ok(()),
    }
}

/// A node of a Cluster would refuse keys of other nodes, and a sentinel all keys.
fn check_mode(info: &str, address: &Address, kind: &Servers) -> Result<(), ConnectError> {
    let mode = info.lines().find_map(|line| {
        line.strip_prefix("redis_mode:").or_else(|| line.strip_prefix("server_mode:")).map(str::trim)
    });
    let (found, expected) = match (kind, mode) {
        (Servers::Single(_), Some("cluster")) => ("a node of a Cluster", "cluster"),
        (Servers::Single(_), Some("sentinel")) => ("a sentinel", "sentinel"),
        _ => return Ok(()),
    };
    Err(ConnectError::WrongKind { found: format!("{address} is {found}"), expected })
}
