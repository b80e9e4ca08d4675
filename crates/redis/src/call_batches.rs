//! Calls that arrive together go to Redis in one command and one script, with one reply for each call.
//!
//! In: calls of one check each, for one connection. Out: the reply to each, as if it had a command of its own. A
//! call that fails does so alone; only a redirect applies to all keys of a command. A call waits for no other: the
//! connection's task sends what has come when it runs. In a Cluster only calls of one slot share a command. Callers
//! apply their own timeouts; a call whose caller has given up is not sent.

use std::sync::Arc;
use std::time::Instant;

use arrayvec::ArrayVec;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use redis::{Cmd, ErrorKind, RedisResult, Value};
use tokio::sync::{Notify, oneshot};

use crate::lost::{Mark, Marked};
use crate::runtime::{Runtime, Task, Transport};
use crate::script::{Call, FIRST_ARG_BYTES, Purpose};
use crate::server::Server;
use crate::state::Shared;
use crate::wire::Wire;

/// Calls of one command. Together they take Redis a fraction of a millisecond, during which other clients wait.
const CALLS_MAX: usize = 32;
/// Commands in flight. When this many are in flight, further calls wait in the queue, which drops those whose callers
/// have given up. So a server that hangs is sent a bounded number of commands.
const COMMANDS_MAX: usize = 1_024;
/// Bytes of a check that may share a command. A longer check has unsynced hits, and takes Redis as long as many
/// calls.
const CHECK_BYTES_MAX: usize = 96;

/// The calls of one connection. Dropping this fails those that wait.
pub(super) struct CallBatches<R: Runtime> {
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

/// Where calls are sent: the connection's wire, its server, and the server's mark.
pub(super) type To<R> = (Arc<Wire<R>>, Arc<Server<R>>, Arc<Marked>);

/// When a call was sent, and the reply to it.
pub(super) type Sent = (Instant, RedisResult<Value>);

/// A call, and the channel for its reply.
struct Waiting {
    slot: u16,
    key: Vec<u8>,
    first_arg: [u8; FIRST_ARG_BYTES],
    check: ArrayVec<u8, CHECK_BYTES_MAX>,
    reply: oneshot::Sender<Sent>,
}

impl<R: Runtime> Drop for CallBatches<R> {
    fn drop(&mut self) {
        self.task.abort();
        *self.queue.waiting.lock() = None;
    }
}

/// Whether the call is small enough to share a command.
pub(super) fn fits_batch(call: &Call) -> bool {
    matches!(&*call.args, [check] if check.len() <= CHECK_BYTES_MAX)
}

impl<R: Runtime> CallBatches<R> {
    /// Starts the task that sends the calls of this connection.
    pub(super) fn new(to: To<R>, shared: Arc<Shared<R>>) -> Self {
        let (queue, runtime) = (Arc::<Queue>::default(), shared.runtime.clone());
        let task = runtime.spawn(run(Arc::clone(&queue), to, shared));
        Self { queue, task }
    }

    /// Sends a call for this slot, and waits for the reply. The call does nothing after `deadline_micros` of the
    /// server's clock.
    pub(super) async fn ask(&self, runtime: &R, slot: u16, call: &Call, deadline_micros: u64) -> Sent {
        let gone = || (runtime.monotonic(), Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into()));
        let (reply, replied) = oneshot::channel();
        let Some(waiting) = Waiting::of(slot, call, deadline_micros, reply) else { return gone() };
        self.queue.push(waiting);
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
    /// `None`: the call is not small enough.
    fn of(slot: u16, call: &Call, deadline_micros: u64, reply: oneshot::Sender<Sent>) -> Option<Self> {
        let checks = call.args_until(deadline_micros);
        let ([key], [check]) = (&*call.keys, &*checks) else { return None };
        let check = ArrayVec::try_from(&**check).ok()?;
        Some(Self { slot, key: key.clone(), first_arg: call.first_arg(deadline_micros), check, reply })
    }

    fn is_awaited(&self) -> bool {
        !self.reply.is_closed()
    }
}

/// Sends calls and hands out replies, for ever.
async fn run<R: Runtime>(queue: Arc<Queue>, to: To<R>, shared: Arc<Shared<R>>) {
    let mut under_way = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            () = queue.came.notified(), if under_way.len() < COMMANDS_MAX => {
                let waiting = queue.waiting.lock().as_mut().map(std::mem::take).unwrap_or_default();
                let sent = |calls| send(&to, &shared, calls);
                under_way.extend(commands(waiting).into_iter().map(sent));
            }
            Some(()) = under_way.next() => {}
        }
    }
}

/// Sorts calls whose callers wait into commands: one slot each, in the order in which they came.
fn commands(mut waiting: Vec<Waiting>) -> Vec<Vec<Waiting>> {
    waiting.retain(Waiting::is_awaited);
    waiting.sort_by_key(|call| call.slot);
    let mut commands: Vec<Vec<Waiting>> = Vec::new();
    for call in waiting {
        let has_room = |calls: &&mut Vec<Waiting>| calls.len() < CALLS_MAX && calls[0].slot == call.slot;
        match commands.last_mut().filter(has_room) {
            Some(calls) => calls.push(call),
            None => commands.push(vec![call]),
        }
    }
    commands
}

/// Sends these calls in one command, and hands out the replies.
async fn send<R: Runtime>((wire, server, marked): &To<R>, shared: &Shared<R>, calls: Vec<Waiting>) {
    let (transport, mark) = (&wire.transport, marked.get());
    let command = |how, script| command(how, script, &calls, mark.as_deref());
    let purpose = if calls.len() == 1 { Purpose::Decide } else { Purpose::DecideEach };
    let script = shared.script(purpose);
    let mut sent = shared.runtime.monotonic();
    let mut answer = reply(transport, &command("EVALSHA", &script.name)).await;
    let in_time = |sent| shared.runtime.monotonic().saturating_duration_since(sent) <= shared.options.timeout;
    let is_unknown = answer.as_ref().is_err_and(|error| error.code() == Some("NOSCRIPT"));
    // Callers may not know yet that it is too late, if this node stood still.
    if is_unknown && in_time(sent) && calls.iter().any(Waiting::is_awaited) {
        sent = shared.runtime.monotonic();
        answer = reply(transport, &command("EVAL", &script.text)).await;
    }
    // A reply within the budget shows that the server answers, even if all callers have given up.
    let is_answer = answer.as_ref().map_or_else(|error| !error.is_connection_dropped(), |_| true);
    if is_answer && in_time(sent) {
        server.answered();
    }
    let replies = match (answer, purpose) {
        (Ok(Value::Array(replies)), Purpose::DecideEach) if replies.len() == calls.len() => {
            replies.into_iter().map(Ok).collect()
        }
        (Ok(reply), Purpose::Decide) => vec![Ok(reply)],
        (Ok(_), _) => vec![Err((ErrorKind::Parse, "this is no reply to several calls").into()); calls.len()],
        (Err(error), _) => vec![Err(error); calls.len()],
    };
    for (call, reply) in calls.into_iter().zip(replies) {
        // The caller may have given up.
        let _ = call.reply.send((sent, reply));
    }
}

async fn reply(transport: &impl Transport, command: &Cmd) -> RedisResult<Value> {
    match transport.send(command).await? {
        Value::ServerError(error) => Err(error.into()),
        reply => Ok(reply),
    }
}

fn command(how: &str, script: &str, calls: &[Waiting], mark: Option<&Mark>) -> Cmd {
    let named = mark.and_then(Mark::named);
    let bytes = |call: &Waiting| call.key.len() + FIRST_ARG_BYTES + call.check.len();
    let bytes: usize = calls.iter().map(bytes).sum();
    // Besides the calls there are five arguments. The script is the longest of them.
    let mut command = Cmd::with_capacity(3 * calls.len() + 5, bytes + script.len() + 100);
    command.arg(how).arg(script).arg(calls.len() + named.iter().len());
    calls.iter().for_each(|call| _ = command.arg(&call.key));
    command.arg(named);
    calls.iter().for_each(|call| _ = command.arg(&call.first_arg).arg(&*call.check));
    command.arg(mark.map(|mark| &mark.argument));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls for these slots, and the receivers of their replies.
    fn calls(slots: impl IntoIterator<Item = u16>) -> (Vec<Waiting>, Vec<oneshot::Receiver<Sent>>) {
        let call = |(number, slot): (usize, u16)| {
            let (reply, waits) = oneshot::channel();
            let (key, first_arg) = (number.to_string().into(), [0; FIRST_ARG_BYTES]);
            (Waiting { slot, key, first_arg, check: ArrayVec::new(), reply }, waits)
        };
        slots.into_iter().enumerate().map(call).unzip()
    }

    fn keys(commands: &[Vec<Waiting>]) -> Vec<Vec<String>> {
        let key = |call: &Waiting| String::from_utf8_lossy(&call.key).into_owned();
        commands.iter().map(|calls| calls.iter().map(key).collect()).collect()
    }

    #[test]
    fn calls_of_one_slot_share_commands_in_their_order() {
        let (waiting, _waits) = calls([7, 3, 7, 3, 3]);
        assert_eq!(keys(&commands(waiting)), [vec!["1", "3", "4"], vec!["0", "2"]]);
    }

    #[test]
    fn a_command_has_a_bound() {
        let (waiting, _waits) = calls(std::iter::repeat_n(0, 2 * CALLS_MAX + 1));
        let lengths: Vec<usize> = commands(waiting).iter().map(Vec::len).collect();
        assert_eq!(lengths, [CALLS_MAX, CALLS_MAX, 1]);
    }

    #[test]
    fn calls_that_were_given_up_take_no_room() {
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
    fn a_call_that_was_given_up_is_not_sent() {
        let (waiting, mut waits) = calls([0, 0, 0]);
        drop(waits.remove(1));
        assert_eq!(keys(&commands(waiting)), [vec!["0", "2"]]);
    }
}
