//! A real Envoy with `examples/envoy/envoy.yaml`, on ports of its own.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use super::process::Process;
use super::tidegate::Tidegate;
use super::{eventually_true, free_port, http};

/// A running Envoy.
pub struct Envoy {
    process: Process,
    /// Where its clients connect.
    pub port: u16,
    admin: u16,
    _folder: TempDir,
}

/// The rules that belong to the example.
pub const EXAMPLE_RULES: &str = include_str!("../../../examples/envoy/rules/edge.yaml");

const EXAMPLE: &str = include_str!("../../../examples/envoy/envoy.yaml");

impl Envoy {
    /// Starts the example as it is in front of this limiter and waits until it serves.
    ///
    /// Changed are its ports; the patience with the limiter, because these tests are not about a machine that is too
    /// busy to answer in 100 ms; and that it trusts one `x-forwarded-for`, so that tests can be many clients.
    pub fn start(limiter: &Tidegate) -> Self {
        let (port, admin, application) = (free_port(), free_port(), free_port());
        let mut config = EXAMPLE.to_owned();
        let mut replace = |old: &str, new: &str| {
            assert!(config.contains(old), "the example has no {old:?}");
            config = config.replace(old, new);
        };
        replace("port_value: 10000 ", &format!("port_value: {port} "));
        replace("port_value: 9901 ", &format!("port_value: {admin} "));
        replace("port_value: 10080 ", &format!("port_value: {application} "));
        replace("port_value: 8081 ", &format!("port_value: {} ", limiter.ports().grpc));
        replace("timeout: 0.1s", "timeout: 10s");
        replace("xff_num_trusted_hops: 0", "xff_num_trusted_hops: 1");

        let folder = tempfile::tempdir().expect("a folder can be made");
        let path = folder.path().join("envoy.yaml");
        fs::write(&path, config).expect("the folder is ours");
        let mut command = Command::new(binary());
        command.arg("-c").arg(path).args([
            "--concurrency",
            "2",
            "--disable-hot-restart",
            "--log-level",
            "warning",
        ]);
        let mut envoy = Self { process: Process::spawn(&mut command), port, admin, _folder: folder };
        eventually_true("Envoy to be ready", || envoy.is_ready());
        envoy
    }

    fn is_ready(&mut self) -> bool {
        if let Some(status) = self.process.ended() {
            panic!("Envoy ended: {status}\n{}", self.process.output().join("\n"));
        }
        http::get(self.admin, "/ready").is_ok_and(|answer| answer.status == 200)
    }

    /// One of its own counters, 0 while it has never been touched.
    pub fn stat(&self, name: &str) -> u64 {
        let page = http::Client::new(self.admin).get("/stats").body;
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value.map_or(0, |value| value.parse().unwrap_or_else(|_| panic!("{name} is no number: {value}")))
    }

    pub fn client(&self) -> http::Client {
        http::Client::new(self.port)
    }
}

/// TIDEGATE_ENVOY, or what `tests/run` installs.
pub fn binary() -> PathBuf {
    let installed = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/.work/envoy"));
    let path = std::env::var_os("TIDEGATE_ENVOY").map_or_else(installed, PathBuf::from);
    assert!(path.exists(), "no Envoy at {}: run tests/run once, it installs one", path.display());
    path
}
