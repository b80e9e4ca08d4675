//! Runs each HTTP/2 stream that hyper serves as a task. It ends by itself, or after a long time without progress.
//!
//! If a client does not open the window of a stream, nothing is written, so the socket notices nothing. hyper would
//! keep the answer for as long as the connection lives.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use hyper::rt::Executor;
use tokio::time::Sleep;

use super::socket::WRITE_STALL_TIMEOUT;
use crate::clock;

/// How long a stream may make no progress, because nothing of its answer is taken or none comes. The same as for a
/// socket.
const STALL_TIMEOUT: Duration = WRITE_STALL_TIMEOUT;

/// Runs streams. Resets one without progress for that long.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamTasks;

impl<F: Future + Send + 'static> Executor<F> for StreamTasks {
    fn execute(&self, stream: F) {
        tokio::spawn(while_it_moves(stream));
    }
}

/// Runs a future to its end, or drops it once it was not woken for [`STALL_TIMEOUT`].
async fn while_it_moves(future: impl Future) {
    let mut future = pin!(future);
    // Made only if the future has to wait.
    let mut stalled: Option<Pin<Box<Sleep>>> = None;
    poll_fn(|context| {
        if let Some(stalled) = &mut stalled
            && stalled.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(());
        }
        if future.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        let stalled = stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(STALL_TIMEOUT)));
        stalled.as_mut().reset((clock::timer() + STALL_TIMEOUT).into());
        stalled.as_mut().poll(context)
    })
    .await;
}
