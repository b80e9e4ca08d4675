//! Binds all sockets before anything else happens, so that a port in use ends the start at once and not after rules
//! were loaded.

use std::io;

use rustix::io::Errno;

use crate::app::AppError;
use crate::app::no_socket::{DEBUG, GRPC, HTTP, METRICS, Names, NoSocket};
use crate::app::tls::{PortTls, PortsTls};
use crate::configuration::{Endpoint, HostPort, Listeners};
use crate::front::connections::{Listener, Port};

/// The open sockets.
pub(super) struct Ports {
    /// Of the decision ports, which workers serve.
    pub(super) decisions: Vec<(Listener, Port)>,
    /// The metrics port, if there is one.
    pub(super) metrics: Option<Listener>,
    /// The debug port, if there is one.
    pub(super) debug: Option<Listener>,
}

/// Binds all sockets.
/// Fails with all sockets that cannot be bound. The debug port, and a metrics port that is only a default, cause a
/// warning.
pub(super) async fn listen(listeners: &Listeners, tls: &PortsTls) -> Result<Ports, AppError> {
    let mut failed = Vec::new();
    let mut noted = |bound: Result<Listener, NoSocket>| bound.map_err(|error| failed.push(error)).ok();
    let grpc = noted(socket_or_port(&GRPC, &listeners.grpc).await);
    let http = noted(socket_or_port(&HTTP, &listeners.http).await);
    let metrics = match &listeners.metrics {
        Some(address) if listeners.metrics_required => noted(bind(&METRICS, address).await),
        Some(address) => or_warn(bind(&METRICS, address).await),
        None => None,
    };
    let handshakes = |tls: &Option<PortTls>| tls.as_ref().map(PortTls::handshakes);
    let debug = or_warn(bind(&DEBUG, &listeners.debug).await);
    let debug = debug.map(|listener| listener.with_tls(handshakes(&tls.debug)));
    let (Some(grpc), Some(http), []) = (grpc, http, failed.as_slice()) else {
        return Err(AppError::Listen(failed));
    };
    let decisions = vec![
        (grpc.with_tls(handshakes(&tls.grpc)), Port::Grpc),
        (http.with_tls(handshakes(&tls.http)), Port::Http),
    ];
    Ok(Ports { decisions, metrics, debug })
}

async fn socket_or_port(names: &'static Names, endpoint: &Endpoint) -> Result<Listener, NoSocket> {
    let path = match endpoint {
        Endpoint::Unix(path) => path,
        Endpoint::Tcp(address) => return bind(names, address).await,
    };
    let no_socket = |source| NoSocket { names, address: path.display().to_string(), is_unix: true, source };
    Listener::unix(path).await.map_err(no_socket)
}

async fn bind(names: &'static Names, HostPort { host, port }: &HostPort) -> Result<Listener, NoSocket> {
    let no_socket = |source| NoSocket { names, address: format!("{host}:{port}"), is_unix: false, source };
    bind_any_family(host, |host| Listener::tcp(host, *port)).await.map_err(no_socket)
}

/// Binds `host`. All addresses (`::`, or no host in Go's form) means both families, or the one that the machine has.
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

/// A kernel without IPv6 returns the first error, a machine or container that has IPv6 disabled the second.
fn is_without_ipv6(error: &io::Error) -> bool {
    let reasons = [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL];
    reasons.iter().any(|reason| error.raw_os_error() == Some(reason.raw_os_error()))
}

fn or_warn(bound: Result<Listener, NoSocket>) -> Option<Listener> {
    bound.inspect_err(|error| tracing::warn!("{error}; the process starts without this port")).ok()
}

impl Ports {
    /// One line per port: what it is and where it listens.
    pub(super) fn lines(&self) -> Vec<String> {
        let decisions = self.decisions.iter().map(|(listener, port)| match port {
            Port::Grpc => ("gRPC", listener),
            Port::Http => ("HTTP", listener),
        });
        let pages = [("metrics", &self.metrics), ("debug", &self.debug)];
        let pages = pages.into_iter().filter_map(|(what, listener)| Some((what, listener.as_ref()?)));
        decisions.chain(pages).map(|(what, listener)| format!("{what}: listening on {listener}")).collect()
    }

    /// The address that curl on this machine needs to reach the HTTP port.
    pub(super) fn http_address(&self) -> String {
        let http = self.decisions.iter().find(|(_, port)| *port == Port::Http);
        http.map_or_else(|| "localhost".to_owned(), |(listener, _)| curl_address(listener))
    }
}

fn curl_address(listener: &Listener) -> String {
    // It is unknown here whether this machine trusts the certificate.
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

    /// Binds `host` on a machine where binding `refused` fails with `reason`. Returns the address that was bound.
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
