//! The sockets, all bound before anything else happens: a port that is taken ends a start at once, not after the
//! rules were loaded.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;

use crate::app::AppError;
use crate::front::connections::Port;
use crate::settings::Settings;

/// The sockets that are open.
pub(super) struct Ports {
    /// Those of decisions, which workers serve.
    pub(super) decisions: Vec<(TcpListener, Port)>,
    /// The metrics port, if there is one.
    pub(super) metrics: Option<TcpListener>,
    /// The debug port, if there is one.
    pub(super) debug: Option<TcpListener>,
}

/// Binds all sockets.
///
/// # Errors
/// The first that cannot be bound; except the debug port, and a metrics port that nobody asked for: those are warned of.
pub(super) async fn listen(settings: &Settings) -> Result<Ports, AppError> {
    let grpc = bind("gRPC", &settings.grpc_host, settings.grpc_port).await?;
    let http = bind("HTTP", &settings.host, settings.port).await?;
    Ok(Ports {
        decisions: vec![(grpc, Port::Grpc), (http, Port::Http)],
        metrics: metrics(settings).await?,
        debug: or_warn(bind("debug", &settings.debug_host, settings.debug_port).await),
    })
}

async fn metrics(settings: &Settings) -> Result<Option<TcpListener>, AppError> {
    if settings.use_prometheus == Some(false) {
        return Ok(None);
    }
    let Some((host, port)) = host_and_port(&settings.prometheus_addr) else {
        let reason = io::Error::new(io::ErrorKind::InvalidInput, "expected host:port or :port");
        return Err(failed("metrics", settings.prometheus_addr.clone(), reason));
    };
    let bound = bind("metrics", host, port).await;
    if settings.use_prometheus.is_none() { Ok(or_warn(bound)) } else { bound.map(Some) }
}

async fn bind(what: &'static str, host: &str, port: u16) -> Result<TcpListener, AppError> {
    TcpListener::bind((host, port)).await.map_err(|reason| failed(what, format!("{host}:{port}"), reason))
}

fn failed(what: &'static str, address: String, source: io::Error) -> AppError {
    AppError::Listen { what, address, source }
}

fn or_warn(bound: Result<TcpListener, AppError>) -> Option<TcpListener> {
    bound.inspect_err(|error| tracing::warn!("{error}; going on without")).ok()
}

/// `host:port`, `[::1]:port` or `:port`; the last is all addresses of both families.
fn host_and_port(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Some((if host.is_empty() { "::" } else { host }, port.parse().ok()?))
}

impl Ports {
    /// A line a port: what it is and where it listens.
    pub(super) fn lines(&self) -> Vec<String> {
        let decisions = self.decisions.iter().map(|(listener, port)| match port {
            Port::Grpc => ("gRPC", listener),
            Port::Http => ("HTTP", listener),
        });
        let pages = [("metrics", &self.metrics), ("debug", &self.debug)];
        let pages = pages.into_iter().filter_map(|(what, listener)| Some((what, listener.as_ref()?)));
        decisions
            .chain(pages)
            .map(|(what, listener)| format!("{what}: listening on {}", place(listener)))
            .collect()
    }

    /// Where a client on this machine reaches the HTTP port.
    pub(super) fn http_address(&self) -> String {
        let http = self.decisions.iter().find(|(_, port)| *port == Port::Http);
        match http.and_then(|(listener, _)| listener.local_addr().ok()) {
            Some(address) if address.ip().is_unspecified() => format!("localhost:{}", address.port()),
            Some(address) => address.to_string(),
            None => "localhost".to_owned(),
        }
    }
}

fn place(listener: &TcpListener) -> String {
    listener.local_addr().as_ref().map_or_else(io::Error::to_string, SocketAddr::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_metrics_are_gos() {
        assert_eq!(host_and_port(":9090"), Some(("::", 9090)));
        assert_eq!(host_and_port("127.0.0.1:1"), Some(("127.0.0.1", 1)));
        assert_eq!(host_and_port("[::1]:1"), Some(("::1", 1)));
        for bad in ["", "9090", "host:", "host:port", "host:65536"] {
            assert_eq!(host_and_port(bad), None, "{bad}");
        }
    }
}
