//! Calls that come together go to Redis together: one command and one script for many, with a reply for each of them.
//!
//! In: calls of one check each, one after the other, for one connection. Out: Redis' reply to each, as if it had come by
//! itself: one that fails does so alone, but for redirects, which are told of the keys of a command together. Calls wait
//! for nobody: what has come when the connection's task has its turn is sent then. In a Cluster only calls for one slot
//! share a command. How long its caller waits is the caller's business; a call that nobody waits for any more is not sent.

use std::sync::Arc;
use std::time::Instant;

use arrayvec::ArrayVec;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use redis::{Cmd, ErrorKind, RedisResult, Value};
use tokio::sync::{Notify, oneshot};

use crate::peer::Peer;
use crate::runtime::{Runtime, Task, Transport};
use crate::script::{Call, FIRST_ARG_BYTES, Purpose};
use crate::state::Shared;
use crate::wire::Wire;

/// Calls of one command: all of them together take Redis a fraction of a millisecond, for which everybody else waits.
const CALLS_MAX: usize = 32;
/// With so many commands under way nothing more is sent. Calls wait here then, where those are forgotten that nobody
/// waits for any more: what a server that hangs is sent has a bound.
const COMMANDS_MAX: usize = 1_024;
/// Bytes of a check that is joined. A longer one carries hits along, and takes as long as many.
const CHECK_BYTES_MAX: usize = 96;

/// The calls of one connection. Dropped, they have no answer.
pub(super) struct Joined<R: Runtime> {
    queue: Arc<Queue>,
    task: R::Task,
}

struct Queue {
    /// `None`: nothing is sent any more.
    waiting: Mutex<Option<Vec<Waiting>>>,
    came: Notify,
}

impl Default for Queue {
    fn default() -> Self {
        Self { waiting: Mutex::new(Some(Vec::new())), came: Notify::new() }
    }
}

/// When a call was sent, and the reply to it.
pub(super) type Sent = (Instant, RedisResult<Value>);

/// A call, and who waits for its reply.
struct Waiting {
    slot: u16,
    key: Vec<u8>,
    first_arg: [u8; FIRST_ARG_BYTES],
    check: ArrayVec<u8, CHECK_BYTES_MAX>,
    reply: oneshot::Sender<Sent>,
}

impl<R: Runtime> Drop for Joined<R> {
    fn drop(&mut self) {
        self.task.abort();
        *self.queue.waiting.lock() = None;
    }
}

/// Whether this is one of those that are joined: not much work.
pub(super) fn joins(call: &Call) -> bool {
    matches!(&*call.args, [check] if check.len() <= CHECK_BYTES_MAX)
}

impl<R: Runtime> Joined<R> {
    /// Carries the calls of this connection, by a task of the calling runtime.
    pub(super) fn new(wire: Arc<Wire<R>>, shared: Arc<Shared<R>>, peer: Arc<Peer<R>>) -> Self {
        let (queue, runtime) = (Arc::<Queue>::default(), shared.runtime.clone());
        let task = runtime.spawn(carry(Arc::clone(&queue), wire, shared, peer));
        Self { queue, task }
    }

    /// The reply to a call for this slot, which does nothing after a time of the server's clock.
    pub(super) async fn ask(&self, runtime: &R, slot: u16, call: &Call, deadline_micros: u64) -> Sent {
        let gone = || (runtime.monotonic(), Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into()));
        let ([key], [check]) = (&*call.keys, &*call.args) else { return gone() };
        let (reply, replied) = oneshot::channel();
        let Ok(check) = ArrayVec::try_from(&**check) else { return gone() };
        let first_arg = call.first_arg(deadline_micros);
        self.queue.push(Waiting { slot, key: key.clone(), first_arg, check, reply });
        replied.await.unwrap_or_else(|_| gone())
    }
}

impl Queue {
    fn push(&self, call: Waiting) {
        let mut queue = self.waiting.lock();
        let Some(waiting) = &mut *queue else { return };
        if waiting.len() == waiting.capacity() {
            waiting.retain(Waiting::is_awaited);
            let as_many = waiting.len().max(1);
            waiting.reserve(as_many);
        }
        waiting.push(call);
        self.came.notify_one();
    }
}

impl Waiting {
    fn is_awaited(&self) -> bool {
        !self.reply.is_closed()
    }
}

/// Sends what comes, and hands out the replies, for ever.
async fn carry<R: Runtime>(
    queue: Arc<Queue>,
    wire: Arc<Wire<R>>,
    shared: Arc<Shared<R>>,
    peer: Arc<Peer<R>>,
) {
    let mut under_way = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            () = queue.came.notified(), if under_way.len() < COMMANDS_MAX => {
                let waiting = queue.waiting.lock().as_mut().map(std::mem::take).unwrap_or_default();
                let sent = |calls| send(&wire.transport, &shared, &peer, calls);
                under_way.extend(commands(waiting).into_iter().map(sent));
            }
            Some(()) = under_way.next() => {}
        }
    }
}

/// The calls that somebody waits for, by command: of one slot each, in the order in which they came.
fn commands(mut waiting: Vec<Waiting>) -> Vec<Vec<Waiting>> {
    waiting.retain(Waiting::is_awaited);
    waiting.sort_by_key(|call| call.slot);
    let mut commands: Vec<Vec<Waiting>> = Vec::new();
    for call in waiting {
        let joins = |calls: &&mut Vec<Waiting>| calls.len() < CALLS_MAX && calls[0].slot == call.slot;
        match commands.last_mut().filter(joins) {
            Some(calls) => calls.push(call),
            None => commands.push(vec![call]),
        }
    }
    commands
}

/// Sends these calls in one command, and hands out the replies.
async fn send<R: Runtime>(transport: &R::Transport, shared: &Shared<R>, peer: &Peer<R>, calls: Vec<Waiting>) {
    let purpose = if calls.len() == 1 { Purpose::Decide } else { Purpose::DecideEach };
    let script = shared.script(purpose);
    let mut sent = shared.runtime.monotonic();
    let mut told = reply(transport, &command("EVALSHA", &script.name, &calls)).await;
    if told.as_ref().is_err_and(|error| error.code() == Some("NOSCRIPT")) {
        sent = shared.runtime.monotonic();
        told = reply(transport, &command("EVAL", &script.text, &calls)).await;
    }
    // An answer that nobody waited for shows too that the server is there, if it came while somebody might have.
    let is_answer = told.as_ref().map_or_else(|error| !error.is_connection_dropped(), |_| true);
    if is_answer && shared.runtime.monotonic().saturating_duration_since(sent) <= shared.options.timeout {
        peer.answered();
    }
    let replies = match (told, purpose) {
        (Ok(Value::Array(replies)), Purpose::DecideEach) if replies.len() == calls.len() => {
            replies.into_iter().map(Ok).collect()
        }
        (Ok(reply), Purpose::Decide) => vec![Ok(reply)],
        (Ok(_), _) => vec![Err((ErrorKind::Parse, "this is no reply to several calls").into()); calls.len()],
        (Err(error), _) => vec![Err(error); calls.len()],
    };
    for (call, reply) in calls.into_iter().zip(replies) {
        // Who waits no more does not want it.
        let _ = call.reply.send((sent, reply));
    }
}

async fn reply(transport: &impl Transport, command: &Cmd) -> RedisResult<Value> {
    match transport.send(command).await? {
        Value::ServerError(error) => Err(error.into()),
        reply => Ok(reply),
    }
}

fn command(how: &str, script: &str, calls: &[Waiting]) -> Cmd {
    let mut command = redis::cmd(how);
    command.arg(script).arg(calls.len());
    calls.iter().for_each(|call| _ = command.arg(&call.key));
    calls.iter().for_each(|call| _ = command.arg(&call.first_arg).arg(&*call.check));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls for these slots, and who waits for them.
    fn calls(slots: impl IntoIterator<Item = u16>) -> (Vec<Waiting>, Vec<oneshot::Receiver<Sent>>) {
        let call = |(number, slot): (usize, u16)| {
            let (reply, waits) = oneshot::channel();
            let (key, first_arg) = (number.to_string().into(), [0; FIRST_ARG_BYTES]);
            (Waiting { slot, key, first_arg, check: ArrayVec::new(), reply }, waits)
        };
        slots.into_iter().enumerate().map(call).unzip()
    }

    fn told(commands: &[Vec<Waiting>]) -> Vec<Vec<String>> {
        let key = |call: &Waiting| String::from_utf8_lossy(&call.key).into_owned();
        commands.iter().map(|calls| calls.iter().map(key).collect()).collect()
    }

    #[test]
    fn calls_of_one_slot_share_commands_in_their_order() {
        let (waiting, _waits) = calls([7, 3, 7, 3, 3]);
        assert_eq!(told(&commands(waiting)), [vec!["1", "3", "4"], vec!["0", "2"]]);
    }

    #[test]
    fn a_command_has_a_bound() {
        let (waiting, _waits) = calls(std::iter::repeat_n(0, 2 * CALLS_MAX + 1));
        let lengths: Vec<usize> = commands(waiting).iter().map(Vec::len).collect();
        assert_eq!(lengths, [CALLS_MAX, CALLS_MAX, 1]);
    }

    #[test]
    fn those_that_nobody_waits_for_take_no_room() {
        let queue = Queue::default();
        let (kept, _waits) = calls([0; 5]);
        kept.into_iter().for_each(|call| queue.push(call));
        for _ in 0..10_000 {
            let (given_up, waits) = calls([0]);
            drop(waits);
            given_up.into_iter().for_each(|call| queue.push(call));
        }
        let queue = queue.waiting.lock();
        let waiting = queue.as_ref().expect("it goes on");
        assert!(waiting.len() <= 16, "{}", waiting.len());
        assert_eq!(waiting.iter().filter(|call| call.is_awaited()).count(), 5);
    }

    #[test]
    fn what_nobody_waits_for_is_not_sent() {
        let (waiting, mut waits) = calls([0, 0, 0]);
        drop(waits.remove(1));
        assert_eq!(told(&commands(waiting)), [vec!["0", "2"]]);
    }
}
