//! What the shared store needs from the program around it: clocks, timers, randomness, tasks, connections to servers.
//!
//! [`Tokio`] serves production. A simulation passes its own [`Runtime`] and runs many nodes in one thread under one
//! seed. Nothing else in this crate reads a clock, starts a task or opens a socket.

mod bounded;
mod on_tokio;

use std::time::{Duration, Instant};

use redis::{Cmd, RedisResult, Value};

use crate::address::{Access, Address};
pub use on_tokio::{Tokio, TokioTransport};
use tidegate_engine::time::Timestamp;

/// Clocks, timers, randomness, tasks and connections of one node.
pub trait Runtime: Clone + Send + Sync + 'static {
    /// An open connection.
    type Transport: Transport;
    /// A task that was started.
    type Task: Task;

    /// The time since some moment. It never goes back.
    fn monotonic(&self) -> Instant;

    /// The time since the machine started, including the time that it slept: leases end by it, on other nodes too.
    fn since_boot(&self) -> Duration;

    /// The time by the wall clock, which may jump or go back: for what is compared with times that people wrote.
    fn wall(&self) -> Timestamp;

    /// A random number. It need not be secret.
    fn random(&self) -> u64;

    /// The number of the calling worker. It finds its own connections by this number.
    fn worker(&self) -> usize;

    /// Waits for so long.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send;

    /// Waits for a future. `None`: it took longer than the budget.
    fn timeout<F: Future + Send>(
        &self,
        budget: Duration,
        future: F,
    ) -> impl Future<Output = Option<F::Output>> + Send {
        let sleep = self.sleep(budget);
        async move {
            tokio::select! {
                biased;
                output = future => Some(output),
                () = sleep => None,
            }
        }
    }

    /// Runs a task in the background, on the calling worker.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Self::Task;

    /// Does work that takes milliseconds where no task waits for it. `None`: it has panicked.
    fn unblock<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Option<T>> + Send;

    /// Opens a connection, once.
    /// Fails when the server cannot be reached, or refuses the login.
    fn connect(
        &self,
        address: &Address,
        access: &Access,
    ) -> impl Future<Output = RedisResult<Self::Transport>> + Send;
}

/// An open connection to one server. Dropping it closes it.
pub trait Transport: Send + Sync + 'static {
    /// Sends a command. An error of the server is a [`Value::ServerError`].
    /// Fails when the connection ended.
    fn send(&self, command: &Cmd) -> impl Future<Output = RedisResult<Value>> + Send;

    /// Sends `ASKING` and the command, and nothing in between. The server may still be taking the slot over.
    /// Fails when the connection ended.
    fn send_asking(&self, command: &Cmd) -> impl Future<Output = RedisResult<Value>> + Send;

    /// Closes the connection. Commands that wait for a reply fail.
    fn close(&self);
}

/// A task in the background.
pub trait Task: Send + Sync + 'static {
    /// Ends the task at its next wait.
    fn abort(&self);
}
