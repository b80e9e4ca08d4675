//! A real Envoy with `examples/envoy/envoy.yaml`, on ports of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::pki::IdentityFiles;
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

const SHARDED: &str = include_str!("../../../examples/sharded/envoy.yaml");

const INSIDE: &str = include_str!("../../../examples/inside/envoy.yaml");

/// Its rules, wherever Envoy runs.
const RULES: (&str, &str) = ("rules: examples", concat!("rules: ", env!("CARGO_MANIFEST_DIR"), "/examples"));

const LIMITER: &str =
    "              - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 8081 } } }\n";

const APPLICATION: &str =
    "              - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 10080 } } }\n";

/// Where Envoy finds limiters, and how it speaks to them.
pub struct Upstream {
    endpoints: String,
    cluster: String,
}

impl Upstream {
    /// The gRPC port of this limiter.
    pub fn at(limiter: &Tidegate) -> Self {
        Self { endpoints: String::new(), cluster: String::new() }.and_at(limiter)
    }

    /// And the gRPC port of this one.
    pub fn and_at(self, limiter: &Tidegate) -> Self {
        let port = limiter.ports().grpc;
        self.endpoint(&format!("socket_address: {{ address: 127.0.0.1, port_value: {port} }}"))
    }

    /// A unix socket.
    pub fn at_socket(path: &Path) -> Self {
        let empty = Self { endpoints: String::new(), cluster: String::new() };
        empty.endpoint(&format!("pipe: {{ path: \"{}\" }}", path.display()))
    }

    fn endpoint(mut self, address: &str) -> Self {
        self.endpoints += &format!("              - endpoint: {{ address: {{ {address} }} }}\n");
        self
    }

    /// With TLS: who is trusted, and who Envoy says it is.
    pub fn tls(self, trusted: &Path, identity: Option<&IdentityFiles>) -> Self {
        let file = |path: &Path| format!("{{ filename: \"{}\" }}", path.display());
        let certificates = identity.map_or_else(String::new, |IdentityFiles { chain, key }| {
            let (chain, key) = (file(chain), file(key));
            format!("tls_certificates: [{{ certificate_chain: {chain}, private_key: {key} }}], ")
        });
        let validation = format!("validation_context: {{ trusted_ca: {} }}", file(trusted));
        let context = format!("common_tls_context: {{ {certificates}{validation} }}, sni: localhost");
        let kind = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";
        self.with(&format!(
            "transport_socket: {{ name: tls, typed_config: {{ \"@type\": {kind}, {context} }} }}"
        ))
    }

    /// With another key of the cluster.
    pub fn with(mut self, line: &str) -> Self {
        self.cluster += &format!("\n      {line}");
        self
    }
}

impl Envoy {
    /// Starts the example as it is in front of this limiter and waits until it serves.
    ///
    /// Changed are its ports; the patience with the limiter, because these tests are not about a machine that is too
    /// busy to connect or to answer in 100 ms; and that it trusts one `x-forwarded-for`, so that tests can be many clients.
    pub fn start(limiter: &Tidegate) -> Self {
        Self::start_changed(&Upstream::at(limiter), &[])
    }

    /// The same, with another way to the limiter.
    pub fn start_with(upstream: &Upstream) -> Self {
        Self::start_changed(upstream, &[])
    }

    /// The same, with an application of the test's own on this port.
    pub fn start_before(upstream: &Upstream, application: u16) -> Self {
        let own = APPLICATION.replace("10080 ", &format!("{application} "));
        Self::start_changed(upstream, &[(APPLICATION, &own)])
    }

    /// The same, with these changes: (what stands there, what shall stand there).
    pub fn start_changed(upstream: &Upstream, changes: &[(&str, &str)]) -> Self {
        let cluster = format!("connect_timeout: 0.25s{}", upstream.cluster);
        let own = [
            (LIMITER, &*upstream.endpoints),
            ("connect_timeout: 0.25s", &cluster),
            ("xff_num_trusted_hops: 0", "xff_num_trusted_hops: 1"),
        ];
        Self::start_example(EXAMPLE, &[changes, &own].concat())
    }

    /// Starts the example of nodes that count by themselves, in front of those with these gRPC ports.
    pub fn start_sharded(nodes: [u16; 3], changes: &[(&str, &str)]) -> Self {
        let own = nodes.map(|node| format!("port_value: {node} "));
        let theirs = ["port_value: 8181 ", "port_value: 8281 ", "port_value: 8381 "];
        let own: Vec<_> = theirs.into_iter().zip(own.iter().map(String::as_str)).collect();
        Self::start_example(SHARDED, &[changes, &own].concat())
    }

    /// Starts a configuration on ports of its own, patiently, with these changes first.
    fn start_example(example: &str, changes: &[(&str, &str)]) -> Self {
        let patient =
            [("connect_timeout: 0.25s", "connect_timeout: 10s"), (" timeout: 0.1s", " timeout: 10s")];
        // The first quote what stands in the example.
        Self::start_config(&changed(example, &[changes, &patient].concat()))
    }

    /// Starts the example of the limiter inside Envoy, with these changes.
    pub fn start_inside(changes: &[(&str, &str)]) -> Self {
        let own = [("xff_num_trusted_hops: 0", "xff_num_trusted_hops: 1"), RULES];
        Self::start_config(&changed(INSIDE, &[changes, &own].concat()))
    }

    /// Starts a configuration with the ports of the examples, on ports of its own.
    pub fn start_config(config: &str) -> Self {
        let mut envoy = Self::spawn_config(config);
        eventually_true("Envoy to be ready", || envoy.is_ready());
        envoy
    }

    /// What Envoy says of the example of the limiter inside it, with these changes, which it must refuse.
    pub fn refuses_inside(changes: &[(&str, &str)]) -> String {
        let mut envoy = Self::spawn_config(&changed(INSIDE, &[changes, &[RULES]].concat()));
        eventually_true("Envoy to end", || envoy.process.ended().is_some());
        envoy.process.output().join("\n")
    }

    fn spawn_config(config: &str) -> Self {
        let (port, admin, application) = (free_port(), free_port(), free_port());
        let own = [("10000", port), ("9901", admin), ("10080", application)]
            .map(|(theirs, own)| (format!("port_value: {theirs} "), format!("port_value: {own} ")));
        let own = own.each_ref().map(|(theirs, own)| (theirs.as_str(), own.as_str()));
        let config = changed(config, &own);

        let folder = tempfile::tempdir().expect("a folder can be made");
        let path = folder.path().join("envoy.yaml");
        fs::write(&path, config).expect("the folder is ours");
        let mut command = Command::new(binary());
        // The module lies beside the tests that were built with it.
        let tests = std::env::current_exe().expect("a test has a path");
        command.env("ENVOY_DYNAMIC_MODULES_SEARCH_PATH", tests.with_file_name(""));
        command.arg("-c").arg(path).args([
            "--concurrency",
            "2",
            "--disable-hot-restart",
            "--log-level",
            "warning",
        ]);
        Self { process: Process::spawn(&mut command), port, admin, _folder: folder }
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

    /// All of its counters of this name's beginning that were touched: what to look at when a call failed.
    pub fn touched(&self, name: &str) -> String {
        let page = http::Client::new(self.admin).get("/stats?usedonly").body;
        page.lines()
            .filter(|line| line.starts_with(name) && !line.ends_with(": 0"))
            .collect::<Vec<_>>()
            .join("\n")
    }

    pub fn client(&self) -> http::Client {
        http::Client::new(self.port)
    }
}

/// A configuration with these changes, one after the other: (what stands there, what shall stand there).
fn changed(config: &str, changes: &[(&str, &str)]) -> String {
    changes.iter().fold(config.to_owned(), |config, (old, new)| {
        assert!(config.contains(old), "the example has no {old:?}");
        config.replace(old, new)
    })
}

/// TIDEGATE_ENVOY, or what `tests/run` installs.
pub fn binary() -> PathBuf {
    let installed = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/.work/envoy"));
    let path = std::env::var_os("TIDEGATE_ENVOY").map_or_else(installed, PathBuf::from);
    assert!(path.exists(), "no Envoy at {}: run tests/run once, it installs one", path.display());
    path
}
