//! How a connection to one server is opened: socket, TLS, login, database.
//!
//! In: an address and what the settings say. Out: a connection of the redis crate, driven by a task of the calling
//! runtime. It knows nothing of topologies, and tries once.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisResult};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;

use crate::address::{Address, Login};

/// Calls that wait for the connection's task to take them.
const CALLS_QUEUED_MAX: usize = 1_024;

/// How to connect to servers of one kind.
#[derive(Clone)]
pub struct Access {
    /// Who we are.
    pub login: Login,
    /// The database.
    pub database: i64,
    /// TLS, if it is wanted.
    pub tls: Option<Arc<rustls::ClientConfig>>,
}

/// An open connection, and the task that drives it: dropped, both end.
pub(super) struct Opened {
    pub(super) connection: MultiplexedConnection,
    driver: AbortHandle,
}

impl Opened {
    /// Ends it, and all calls that wait.
    pub(super) fn end(&self) {
        self.driver.abort();
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.end();
    }
}

/// Opens a connection.
pub(super) async fn open(address: &Address, access: &Access) -> RedisResult<Opened> {
    match address {
        Address::Unix(path) => establish(UnixStream::connect(path).await?, access).await,
        Address::Tcp(host, port) => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            stream.set_nodelay(true)?;
            match &access.tls {
                None => establish(stream, access).await,
                Some(tls) => {
                    let name = ServerName::try_from(host.clone()).map_err(std::io::Error::other)?;
                    establish(TlsConnector::from(Arc::clone(tls)).connect(name, stream).await?, access).await
                }
            }
        }
    }
}

async fn establish<S>(stream: S, access: &Access) -> RedisResult<Opened>
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
    let (connection, driver) = MultiplexedConnection::new_with_config(&info, stream, config).await?;
    Ok(Opened { connection, driver: tokio::spawn(driver).abort_handle() })
}
