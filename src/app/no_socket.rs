//! Why a socket cannot be bound, and what to do about it: the settings of each port.

use std::io;

/// A socket that cannot be bound, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot listen on {address}: {source}; {}", names.what, self.remedy())]
pub struct NoSocket {
    pub(super) names: &'static Names,
    /// Where it should be.
    pub(super) address: String,
    /// Whether it is a unix socket.
    pub(super) is_unix: bool,
    pub(super) source: io::Error,
}

/// A port, and the settings that name it.
#[derive(Debug)]
pub(super) struct Names {
    what: &'static str,
    host: &'static str,
    port: &'static str,
    /// The setting that names a unix socket instead, if the port can have one.
    socket: &'static str,
}

pub(super) const GRPC: Names =
    Names { what: "gRPC", host: "GRPC_HOST", port: "GRPC_PORT", socket: "GRPC_UDS" };
pub(super) const HTTP: Names = Names { what: "HTTP", host: "HOST", port: "PORT", socket: "HTTP_UDS" };
pub(super) const DEBUG: Names = Names { what: "debug", host: "DEBUG_HOST", port: "DEBUG_PORT", socket: "" };
pub(super) const METRICS: Names =
    Names { what: "metrics", host: "PROMETHEUS_ADDR", port: "PROMETHEUS_ADDR", socket: "" };

impl NoSocket {
    fn remedy(&self) -> String {
        let Names { host, port, socket, .. } = self.names;
        match self.source.kind() {
            io::ErrorKind::AddrInUse if self.is_unix => {
                format!(
                    "it is no socket, or somebody listens on it: end that, or set {socket} to another path"
                )
            }
            _ if self.is_unix => {
                format!("set {socket} to a path in a folder that is there and may be written to")
            }
            io::ErrorKind::AddrInUse => {
                format!("something else listens there: end that, or set {port} to another port")
            }
            io::ErrorKind::PermissionDenied => {
                format!("ports below 1024 take a privilege: set {port} to a higher one")
            }
            io::ErrorKind::AddrNotAvailable => format!("set {host} to an address of this machine"),
            _ => format!("set {host} to an address, and {port} to a port, of this machine"),
        }
    }
}
