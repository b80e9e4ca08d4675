//! Other limiters that answer the same call, where the user has them: `PEER_RATELIMIT=/path/to/ratelimit cargo bench
//! --bench front` adds one row to every table.
//!
//! | variable | its binary | how it is started |
//! | --- | --- | --- |
//! | `PEER_RATELIMIT` | the server of `envoyproxy/ratelimit` | with its variables of the environment; asks the Redis at `PEER_REDIS`, `127.0.0.1:6379` by default, which should have a core of its own |
//! | `PEER_LIMITADOR` | `limitador-server` | `limitador-server LIMITS --rls-ip 127.0.0.1 --rls-port PORT … memory` |

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::request::{DOMAIN, KEY};
use super::server::free_port;

tidegate_engine::named! {
    /// Another limiter.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Peer {
        Ratelimit = "envoyproxy/ratelimit, Redis",
        Limitador = "limitador, memory",
    }
}

impl Peer {
    /// The limiters whose binaries the user has named.
    pub(crate) fn named() -> impl Iterator<Item = Peer> {
        Peer::ALL.into_iter().filter(|peer| peer.binary().is_some())
    }

    fn binary(self) -> Option<OsString> {
        env::var_os(match self {
            Peer::Ratelimit => "PEER_RATELIMIT",
            Peer::Limitador => "PEER_LIMITADOR",
        })
    }
}

/// Completes the command that starts `peer` on `port`.
pub(crate) fn command(
    command: &mut Command,
    peer: Peer,
    port: u16,
    cores: &str,
    folder: &Path,
) -> Result<(), String> {
    command.arg(peer.binary().ok_or("nobody has named its binary")?);
    match peer {
        Peer::Ratelimit => ratelimit(command, port, cores, folder),
        Peer::Limitador => limitador(command, port, folder),
    }
}

fn ratelimit(command: &mut Command, port: u16, cores: &str, folder: &Path) -> Result<(), String> {
    let rules = format!(
        "domain: {DOMAIN}\ndescriptors:\n  - key: {KEY}\n    rate_limit: {{unit: hour, requests_per_unit: 1000000}}\n"
    );
    write(&folder.join("ratelimit/config"), "bench.yaml", &rules)?;
    let redis = env::var_os("PEER_REDIS").unwrap_or_else(|| "127.0.0.1:6379".into());
    command
        .env("RUNTIME_ROOT", folder)
        .env("RUNTIME_SUBDIRECTORY", "ratelimit")
        .env("RUNTIME_WATCH_ROOT", "false")
        .env("GRPC_PORT", port.to_string())
        .env("PORT", free_port()?.to_string())
        .env("DEBUG_PORT", free_port()?.to_string())
        .env("GOMAXPROCS", cores.split(',').count().to_string())
        .env("USE_STATSD", "false")
        .env("LOG_LEVEL", "error")
        .env("REDIS_SOCKET_TYPE", "tcp")
        .env("REDIS_URL", redis);
    Ok(())
}

fn limitador(command: &mut Command, port: u16, folder: &Path) -> Result<(), String> {
    let limits = format!(
        "- namespace: {DOMAIN}\n  max_value: 1000000\n  seconds: 3600\n  conditions: []\n  variables: [\"descriptors[0]['{KEY}']\"]\n"
    );
    write(folder, "limits.yaml", &limits)?;
    command
        .arg(folder.join("limits.yaml"))
        .args(["--rls-ip", "127.0.0.1", "--rls-port", &port.to_string()])
        .args(["--http-ip", "127.0.0.1", "--http-port", &free_port()?.to_string(), "memory"]);
    Ok(())
}

fn write(folder: &Path, name: &str, text: &str) -> Result<(), String> {
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(folder.join(name), text));
    written.map_err(|error| format!("{}: {error}", folder.display()))
}
