//! The sockets, all bound before anything else happens: a port that is taken ends a start at once, not after the
//! rules were loaded.

use std::io;

use rustix::io::Errno;

use crate::app::AppError;
use crate::app::tls::{PortTls, PortsTls};
use crate::front::connections::{Listener, Port};
use crate::settings::Settings;
use crate::settings::value::{FilePath, HostPort};

/// The sockets that are open.
pub(super) struct Ports {
    /// Those of decisions, which workers serve.
    pub(super) decisions: Vec<(Listener, Port)>,
    /// The metrics port, if there is one.
    pub(super) metrics: Option<Listener>,
    /// The debug port, if there is one.
    pub(super) debug: Option<Listener>,
}

/// Binds all sockets.
///
/// # Errors
/// The first that cannot be bound; except the debug port, and a metrics port that nobody asked for: those are warned of.
pub(super) async fn listen(settings: &Settings, tls: &PortsTls) -> Result<Ports, AppError> {
    let grpc =
        socket_or_port("gRPC", settings.grpc_uds.as_ref(), &settings.grpc_host, settings.grpc_port).await?;
    let http = socket_or_port("HTTP", settings.http_uds.as_ref(), &settings.host, settings.port).await?;
    let handshakes = |tls: &Option<PortTls>| tls.as_ref().map(PortTls::handshakes);
    Ok(Ports {
        decisions: vec![
            (grpc.with_tls(handshakes(&tls.grpc)), Port::Grpc),
            (http.with_tls(handshakes(&tls.http)), Port::Http),
        ],
        metrics: metrics(settings).await?,
        debug: or_warn(bind("debug", &settings.debug_host, settings.debug_port).await),
    })
}

async fn metrics(settings: &Settings) -> Result<Option<Listener>, AppError> {
    if settings.use_prometheus == Some(false) || settings.disable_stats {
        return Ok(None);
    }
    let HostPort { host, port } = &settings.prometheus_addr;
    let bound = bind("metrics", host, *port).await;
    if settings.use_prometheus.is_none() { Ok(or_warn(bound)) } else { bound.map(Some) }
}

/// A unix socket if there is a path, else a TCP port.
async fn socket_or_port(
    what: &'static str,
    path: Option<&FilePath>,
    host: &str,
    port: u16,
) -> Result<Listener, AppError> {
    match path {
        Some(FilePath(path)) => {
            let bound = Listener::unix(path).await;
            bound.map_err(|reason| failed(what, path.display().to_string(), reason))
        }
        None => bind(what, host, port).await,
    }
}

async fn bind(what: &'static str, host: &str, port: u16) -> Result<Listener, AppError> {
    let bound = bind_any_family(host, |host| Listener::tcp(host, port)).await;
    bound.map_err(|reason| failed(what, format!("{host}:{port}"), reason))
}

/// All addresses (`::`, or no host as Go has it) are those of both families, or of the one that the machine has.
async fn bind_any_family<'a, T, Bound>(host: &'a str, bind: impl Fn(&'a str) -> Bound) -> io::Result<T>
where
    Bound: Future<Output = io::Result<T>>,
{
    let host = if host.is_empty() { "::" } else { host };
    match bind(host).await {
        Err(error) if host == "::" && is_without_ipv6(&error) => bind("0.0.0.0").await,
        bound => bound,
    }
}

/// A kernel without IPv6 says the one, a machine (or a container) on which it is disabled the other.
fn is_without_ipv6(error: &io::Error) -> bool {
    let reasons = [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL];
    reasons.iter().any(|reason| error.raw_os_error() == Some(reason.raw_os_error()))
}

fn failed(what: &'static str, address: String, source: io::Error) -> AppError {
    AppError::Listen { what, address, source }
}

fn or_warn(bound: Result<Listener, AppError>) -> Option<Listener> {
    bound.inspect_err(|error| tracing::warn!("{error}; going on without")).ok()
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
        decisions.chain(pages).map(|(what, listener)| format!("{what}: listening on {listener}")).collect()
    }

    /// What a client on this machine says to curl to reach the HTTP port.
    pub(super) fn http_address(&self) -> String {
        let http = self.decisions.iter().find(|(_, port)| *port == Port::Http);
        http.map_or_else(|| "localhost".to_owned(), |(listener, _)| curl_address(listener))
    }
}

fn curl_address(listener: &Listener) -> String {
    // Whether this machine trusts the certificate is not known here.
    let scheme = if listener.has_tls() { "-k https://" } else { "" };
    match (listener.path(), listener.address()) {
        (Some(path), _) => format!("--unix-socket '{}' {scheme}localhost", path.display()),
        (None, Some(address)) if address.ip().is_unspecified() => {
            format!("{scheme}localhost:{}", address.port())
        }
        (None, Some(address)) => format!("{scheme}{address}"),
        (None, None) => format!("{scheme}localhost"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Binds `host` on a machine on which `refused` fails with `reason`. What was bound in the end.
    async fn bound(host: &str, refused: &str, reason: Errno) -> io::Result<String> {
        bind_any_family(host, |host| {
            let bound = if host == refused { Err(reason.into()) } else { Ok(host.to_owned()) };
            std::future::ready(bound)
        })
        .await
    }

    #[tokio::test]
    async fn without_ipv6_all_addresses_are_those_of_ipv4() {
        for host in ["", "::"] {
            for reason in [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL] {
                assert_eq!(bound(host, "::", reason).await.expect("IPv4"), "0.0.0.0");
            }
            assert_eq!(bound(host, "none", Errno::ADDRINUSE).await.expect("both"), "::");
            assert!(bound(host, "::", Errno::ADDRINUSE).await.is_err(), "a port that is taken is taken");
        }
        assert!(bound("::1", "::1", Errno::ADDRNOTAVAIL).await.is_err(), "a host that is named is meant");
    }
}
