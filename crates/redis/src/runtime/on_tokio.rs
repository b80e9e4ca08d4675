//! The runtime of production: tokio's tasks and timers, the clocks of the machine, sockets with TLS.
//!
//! In: an address and how to log in. Out: a connection of the redis crate, driven by a task of the calling tokio
//! runtime. It knows nothing of topologies, and tries once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisConnectionInfo, RedisResult, Value};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;

use super::bounded::{Bounded, Unanswered};
use super::{Runtime, Task, Transport};
use crate::address::{Access, Address};
use crate::clock;
use tidegate_engine::time::Timestamp;

/// Calls that wait for the connection's task to take them.
const CALLS_QUEUED_MAX: usize = 1_024;

/// The tokio runtime of the calling thread. A worker is a thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tokio;

/// A socket to one server, and the task that drives it.
pub struct TokioTransport {
    connection: MultiplexedConnection,
    unanswered: Unanswered,
    driver: AbortHandle,
}

impl Runtime for Tokio {
    type Transport = TokioTransport;
    type Task = Option<AbortHandle>;

    #[inline]
    fn monotonic(&self) -> Instant {
        clock::monotonic()
    }

    fn since_boot(&self) -> Duration {
        clock::since_boot()
    }

    fn wall(&self) -> Timestamp {
        clock::wall()
    }

    /// 0 on a machine without randomness: then pauses are only longer.
    fn random(&self) -> u64 {
        let mut bytes = [0; 8];
        let _ = getrandom::fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn worker(&self) -> usize {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local!(static WORKER: usize = NEXT.fetch_add(1, Relaxed));
        WORKER.with(|worker| *worker)
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(duration)
    }

    // Smaller than the provided method, which holds the future twice: this future is copied with each request that
    // waits for Redis.
    fn timeout<F: Future + Send>(
        &self,
        budget: Duration,
        future: F,
    ) -> impl Future<Output = Option<F::Output>> + Send {
        tokio::time::timeout(budget, future).map(Result::ok)
    }

    /// Outside of a tokio runtime nothing is started: a lease that is dropped while the runtime ends is not given
    /// back.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Self::Task {
        Some(Handle::try_current().ok()?.spawn(task).abort_handle())
    }

    async fn unblock<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        tokio::task::spawn_blocking(work).await.ok()
    }

    async fn connect(&self, address: &Address, access: &Access) -> RedisResult<TokioTransport> {
        match address {
            Address::Unix(path) => establish(UnixStream::connect(path).await?, access).await,
            Address::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                match &access.tls {
                    None => establish(stream, access).await,
                    Some(tls) => {
                        let name = ServerName::try_from(host.clone()).map_err(std::io::Error::other)?;
                        let stream = TlsConnector::from(Arc::clone(tls)).connect(name, stream).await?;
                        establish(stream, access).await
                    }
                }
            }
        }
    }
}

async fn establish<S>(stream: S, access: &Access) -> RedisResult<TokioTransport>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut info = RedisConnectionInfo::default().set_skip_set_lib_name().set_db(access.database);
    if let Some(user) = &access.login.user {
        info = info.set_username(user);
    }
    if let Some(password) = &access.login.password {
        info = info.set_password(password);
    }
    let config = AsyncConnectionConfig::new()
        .set_response_timeout(None)
        .set_pipeline_buffer_size(CALLS_QUEUED_MAX)
        .set_write_backpressure_boundary(64 << 10);
    let unanswered = Unanswered::default();
    let stream = Bounded::new(stream, unanswered.clone());
    let (connection, driver) = MultiplexedConnection::new_with_config(&info, stream, config).await?;
    Ok(TokioTransport { connection, unanswered, driver: tokio::spawn(driver).abort_handle() })
}

impl Transport for TokioTransport {
    async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let reply = self.connection.clone().send_packed_command(command).await;
        self.unanswered.answered();
        reply
    }

    async fn send_asking(&self, command: &Cmd) -> RedisResult<Value> {
        let mut both = redis::pipe();
        both.cmd("ASKING").add_command(command.clone());
        let replies = self.connection.clone().send_packed_commands(&both, 1, 1).await;
        self.unanswered.answered();
        Ok(replies?.into_iter().next_back().unwrap_or(Value::Nil))
    }

    fn close(&self) {
        self.driver.abort();
    }
}

impl Drop for TokioTransport {
    fn drop(&mut self) {
        self.close();
    }
}

impl Task for Option<AbortHandle> {
    fn abort(&self) {
        if let Some(task) = self {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_differ() {
        assert_ne!(Tokio.random(), Tokio.random());
    }
}
