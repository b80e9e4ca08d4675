//! A few threads that may wait for a disk, and a bounded queue in front of them. A simulation passes a queue of its own.
//!
//! In: calls. Out: the result of each. When the pool is dropped, the queued calls are still made, and then the
//! threads end.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// A call that waits for a thread. It returns how its result is handed over.
pub type Job = Box<dyn FnOnce() -> HandOver + Send>;

/// Hands the result of a call over to whoever waits for it.
pub type HandOver = Box<dyn FnOnce() + Send>;

/// Why a call was not made.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// Too many calls are waiting.
    #[error("has too many calls waiting")]
    Full,
    /// The call panicked, or the process ends.
    #[error("failed at this call")]
    Lost,
    /// The system gives no thread.
    #[error("has no thread: {0}")]
    NoThread(#[from] io::Error),
}

/// Where calls wait until they are made.
pub trait Queue: Send + Sync {
    /// Adds a call.
    /// Fails when it will not be made.
    fn add(&self, job: Job) -> Result<(), PoolError>;
}

/// Threads of one kind.
pub struct Pool {
    queue: Box<dyn Queue>,
}

impl Pool {
    /// So many threads, each of which calls `prepare` first, with a queue of so many calls.
    pub fn new(name: &str, threads: usize, queue: usize, prepare: fn()) -> Result<Self, PoolError> {
        let (jobs, queued) = sync_channel(queue);
        let queued = Arc::new(Mutex::new(queued));
        for _ in 0..threads {
            let queued = Arc::clone(&queued);
            let run = move || {
                prepare();
                run(&queued);
            };
            thread::Builder::new().name(name.to_owned()).spawn(run)?;
        }
        Ok(Self::of(jobs))
    }

    /// Those that make the calls of this queue.
    pub fn of(queue: impl Queue + 'static) -> Self {
        Self { queue: Box::new(queue) }
    }

    /// Makes a call on one of the threads. It is made even if nobody waits for it any more.
    pub async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PoolError> {
        self.begin(call)?.await.map_err(|_| PoolError::Lost)
    }

    fn begin<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<oneshot::Receiver<T>, PoolError> {
        let (done, result) = oneshot::channel();
        self.queue.add(Box::new(move || {
            let returned = call();
            Box::new(move || _ = done.send(returned))
        }))?;
        Ok(result)
    }
}

impl Queue for SyncSender<Job> {
    fn add(&self, job: Job) -> Result<(), PoolError> {
        match self.try_send(job) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => Err(PoolError::Full),
            Err(TrySendError::Disconnected(_)) => Err(PoolError::Lost),
        }
    }
}

/// Makes the calls that are queued, until the pool is dropped.
fn run(queued: &Mutex<Receiver<Job>>) {
    loop {
        // The lock is only held while the queue is empty, and to take a call.
        let job = queued.lock().recv();
        let Ok(job) = job else { return };
        // A panic ends the call, and its caller gets an error; the thread goes on.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job()()));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn each_thread_makes_a_call_while_others_make_theirs() {
        let pool = Pool::new("test", 2, 2, || {}).expect("threads");
        let (send, sent) = sync_channel::<()>(1);
        let waits = pool.begin(move || sent.recv_timeout(Duration::from_secs(5)).is_ok());
        let sends = pool.begin(move || send.send(()).is_ok());
        let [waits, sends] = [waits, sends].map(|call| call.expect("there is room for two"));
        assert_eq!((waits.await, sends.await), (Ok(true), Ok(true)));
    }

    #[tokio::test]
    async fn a_queue_that_is_full_refuses_and_a_panic_ends_one_call() {
        let pool = Pool::new("test", 1, 1, || {}).expect("threads");
        let (go, gone) = sync_channel::<()>(0);
        let (began, begun) = sync_channel::<()>(0);
        let first = pool.begin(move || {
            began.send(()).expect("the test waits");
            gone.recv().expect("the test sends");
        });
        begun.recv().expect("the call begins");
        let second = pool.begin(|| 2).expect("there is room for one");
        assert!(matches!(pool.call(|| 3).await, Err(PoolError::Full)));
        go.send(()).expect("the call waits");
        first.expect("it was begun").await.expect("it ended");
        assert_eq!(second.await, Ok(2));
        assert!(matches!(pool.call(|| panic!("on purpose")).await, Err::<(), _>(PoolError::Lost)));
        assert_eq!(pool.call(|| 5).await.ok(), Some(5));
    }
}
