//! Calls that come together go to Redis together: one command and one script for many, with a reply for each of them.
//!
//! In: calls of one check each, one after the other, for one connection. Out: Redis' reply to each, as if it had come by
//! itself: one that fails does so alone. Calls wait for nobody: what has come when the connection's task has its turn is
//! sent then. In a Cluster only calls for one slot share a command. How long its caller waits is the caller's business;
//! a call that nobody waits for any more is not sent.

use std::ops::Range;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, RedisResult, Value};
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;

use super::script::{Call, Purpose};
use super::state::Shared;

/// Calls of one command: all of them together take Redis a fraction of a millisecond, for which everybody else waits.
const CALLS_MAX: usize = 32;
/// Bytes of a check that is joined. A longer one carries hits along, and takes as long as many.
const CHECK_BYTES_MAX: usize = 96;

/// The calls of one connection. Dropped, they have no answer.
pub(super) struct Joined {
    queue: Arc<Queue>,
    task: AbortHandle,
}

#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    came: Notify,
}

/// Calls that were not sent yet.
#[derive(Default)]
struct Waiting {
    /// Their keys and arguments, one after the other.
    bytes: Vec<u8>,
    calls: Vec<OneCall>,
}

/// Where a call's key and its two arguments are, and who waits for its reply.
struct OneCall {
    slot: u16,
    key: Range<usize>,
    args: [Range<usize>; 2],
    reply: Reply,
}

type Reply = oneshot::Sender<RedisResult<Value>>;

impl Waiting {
    fn push(&mut self, slot: u16, key: &[u8], args: [&[u8]; 2], reply: Reply) {
        let mut put = |part: &[u8]| {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(part);
            start..start + part.len()
        };
        let (key, args) = (put(key), args.map(put));
        self.calls.push(OneCall { slot, key, args, reply });
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whether this is one of those that are joined: not much work.
pub(super) fn joins(call: &Call) -> bool {
    matches!(&*call.args, [check] if check.len() <= CHECK_BYTES_MAX)
}

impl Joined {
    /// Carries the calls of this connection, by a task of the calling runtime.
    pub(super) fn new(connection: MultiplexedConnection, shared: Arc<Shared>) -> Self {
        let queue = Arc::<Queue>::default();
        let carrying = carry(Arc::clone(&queue), connection, shared);
        Self { queue, task: tokio::spawn(carrying).abort_handle() }
    }

    /// The reply to a call for this slot, which does nothing after a time of the server's clock.
    pub(super) async fn ask(&self, slot: u16, call: &Call, deadline_micros: u64) -> RedisResult<Value> {
        let ([key], [check]) = (&*call.keys, &*call.args) else { return Err(gone()) };
        let (reply, replied) = oneshot::channel();
        let args: [&[u8]; 2] = [&call.first_arg(deadline_micros), check];
        self.queue.waiting.lock().push(slot, key, args, reply);
        self.queue.came.notify_one();
        replied.await.unwrap_or_else(|_| Err(gone()))
    }
}

fn gone() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::BrokenPipe).into()
}

/// Sends what comes, and hands out the replies, for ever.
async fn carry(queue: Arc<Queue>, connection: MultiplexedConnection, shared: Arc<Shared>) {
    let mut under_way = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            () = queue.came.notified() => {
                let waiting = std::mem::take(&mut *queue.waiting.lock());
                let sent = |command| send(connection.clone(), Arc::clone(&shared), command);
                under_way.extend(commands(waiting, &shared).into_iter().map(sent));
            }
            Some(()) = under_way.next() => {}
        }
    }
}

/// One command, and who waits for its replies.
struct Command {
    purpose: Purpose,
    command: Cmd,
    replies: Vec<Reply>,
}

/// The commands for those calls that somebody waits for.
fn commands(Waiting { bytes, mut calls }: Waiting, shared: &Shared) -> Vec<Command> {
    calls.retain(|call| !call.reply.is_closed());
    calls.sort_by_key(|call| call.slot);
    let made: Vec<_> = groups(&calls).map(|calls| (calls.len(), command(&bytes, calls, shared))).collect();
    let mut replies = calls.into_iter().map(|call| call.reply);
    let with_replies = |(count, (purpose, command))| {
        let replies = replies.by_ref().take(count).collect();
        Command { purpose, command, replies }
    };
    made.into_iter().map(with_replies).collect()
}

/// Calls that are in the order of their slots, by command: of one slot each, and not too many.
fn groups(calls: &[OneCall]) -> impl Iterator<Item = &[OneCall]> {
    calls.chunk_by(|one, next| one.slot == next.slot).flat_map(|same| same.chunks(CALLS_MAX))
}

fn command(bytes: &[u8], calls: &[OneCall], shared: &Shared) -> (Purpose, Cmd) {
    let purpose = if calls.len() == 1 { Purpose::Decide } else { Purpose::DecideEach };
    let mut command = redis::cmd("EVALSHA");
    command.arg(&shared.script(purpose).name).arg(calls.len());
    calls.iter().for_each(|call| _ = command.arg(&bytes[call.key.clone()]));
    for call in calls {
        call.args.iter().for_each(|arg| _ = command.arg(&bytes[arg.clone()]));
    }
    (purpose, command)
}

/// Sends a command, and hands out the replies.
async fn send(mut connection: MultiplexedConnection, shared: Arc<Shared>, command: Command) {
    let Command { purpose, command, replies } = command;
    let mut sent = reply(&mut connection, &command).await;
    if sent.as_ref().is_err_and(|error| error.code() == Some("NOSCRIPT")) {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(&shared.script(purpose).text);
        sent = match reply(&mut connection, &load).await {
            Ok(_) => reply(&mut connection, &command).await,
            Err(error) => Err(error),
        };
    }
    for (to, reply) in replies.into_iter().zip(each(sent, purpose)) {
        // Who waits no more does not want it.
        let _ = to.send(reply);
    }
}

/// The reply to each call of a command.
fn each(sent: RedisResult<Value>, purpose: Purpose) -> impl Iterator<Item = RedisResult<Value>> {
    let (replies, rest) = match (sent, purpose) {
        (Ok(Value::Array(replies)), Purpose::DecideEach) => (replies, no_reply()),
        (Ok(reply), Purpose::Decide) => (vec![reply], no_reply()),
        (Ok(_), _) => (Vec::new(), no_reply()),
        (Err(error), _) => (Vec::new(), error),
    };
    replies.into_iter().map(Ok).chain(std::iter::repeat_with(move || Err(rest.clone())))
}

fn no_reply() -> RedisError {
    (ErrorKind::Parse, "this is no reply to so many calls").into()
}

async fn reply(connection: &mut MultiplexedConnection, command: &Cmd) -> RedisResult<Value> {
    match connection.send_packed_command(command).await? {
        Value::ServerError(error) => Err(error.into()),
        reply => Ok(reply),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::RedisOptions;
    use crate::store::redis::address::{Address, Kind};

    /// How many calls there are in each command for calls of these slots, of which nobody waits for the `dropped` one.
    fn counts(slots: impl IntoIterator<Item = u16>, dropped: Option<usize>) -> Vec<usize> {
        let kind = Kind::Single(Address::Tcp("127.0.0.1".to_owned(), 1));
        let shared = Shared::new(RedisOptions::new(kind));
        let (mut waiting, mut waits) = (Waiting::default(), Vec::new());
        for slot in slots {
            let (reply, wait) = oneshot::channel();
            waiting.push(slot, b"key", [b"first", b"check"], reply);
            waits.push(wait);
        }
        dropped.into_iter().for_each(|dropped| drop(waits.remove(dropped)));
        commands(waiting, &shared).iter().map(|command| command.replies.len()).collect()
    }

    #[test]
    fn calls_of_one_slot_share_commands_that_have_a_bound() {
        assert_eq!(counts([7, 3, 7, 3, 3], None), [3, 2]);
        assert_eq!(counts(std::iter::repeat_n(0, 2 * CALLS_MAX + 1), None), [CALLS_MAX, CALLS_MAX, 1]);
    }

    #[test]
    fn what_nobody_waits_for_is_not_sent() {
        assert_eq!(counts([0, 0, 0], Some(1)), [2]);
    }

    #[test]
    fn a_command_without_as_many_replies_answers_all_calls() {
        let told = |sent, purpose| {
            let three = each(sent, purpose).take(3);
            three.map(|reply| reply.ok()).collect::<Vec<_>>()
        };
        let all = Value::Array(vec![Value::Int(1), Value::Int(2)]);
        let two = [Some(Value::Int(1)), Some(Value::Int(2)), None];
        assert_eq!(told(Ok(all), Purpose::DecideEach), two);
        assert_eq!(told(Ok(Value::Okay), Purpose::DecideEach), [None, None, None]);
        assert_eq!(told(Ok(Value::Int(1)), Purpose::Decide), [Some(Value::Int(1)), None, None]);
        assert_eq!(told(Err(gone()), Purpose::DecideEach), [None, None, None]);
    }
}
