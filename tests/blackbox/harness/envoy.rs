//! A real Envoy with `examples/envoy/envoy.yaml`, on ports of its own.

use std::fs;
use std::ops::{Deref, DerefMut};
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
    launch: Launch,
    /// Where its clients connect.
    pub port: u16,
    admin: u16,
    folder: TempDir,
}

/// Which Envoy is started, and how.
pub struct Launch {
    pub program: PathBuf,
    /// How often another process has taken over. `None`: none can.
    pub epoch: Option<u32>,
    /// The hook of the module in which it panics.
    pub panics_in: &'static str,
    pub log_level: &'static str,
    /// Threads that serve.
    pub workers: u8,
}

impl Default for Launch {
    fn default() -> Self {
        Self { program: binary(), epoch: None, panics_in: "", log_level: "warning", workers: 2 }
    }
}

/// The rules that belong to the example.
pub const EXAMPLE_RULES: &str = include_str!("../../../examples/envoy/rules/edge.yaml");

const EXAMPLE: &str = include_str!("../../../examples/envoy/envoy.yaml");

const SHARDED: &str = include_str!("../../../examples/sharded/envoy.yaml");

const TOKENS: &str = include_str!("../../../examples/tokens/envoy.yaml");

const INSIDE: &str = include_str!("../../../examples/inside/envoy.yaml");

/// Its rules, wherever Envoy runs.
const RULES: (&str, &str) = ("rules: examples", concat!("rules: ", env!("CARGO_MANIFEST_DIR"), "/examples"));

/// Between a bootstrap and the file of its listeners.
const LISTENERS: &str = "\n# listeners.yaml\n";

const LISTENERS_APART: &str = "node: { id: test, cluster: test }
dynamic_resources: { lds_config: { path_config_source: { path: ./listeners.yaml } } }
";

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
        Self::start_before_changed(upstream, application, &[])
    }

    /// The same, with these changes too.
    pub fn start_before_changed(upstream: &Upstream, application: u16, changes: &[(&str, &str)]) -> Self {
        let own = APPLICATION.replace("10080 ", &format!("{application} "));
        Self::start_changed(upstream, &[&[(APPLICATION, &*own)], changes].concat())
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

    /// Starts the example of a gateway for language models, with the model on this port.
    pub fn start_tokens(limiter: &Tidegate, model: u16) -> Self {
        let (model, limiter) =
            (format!("port_value: {model} "), format!("port_value: {} ", limiter.ports().grpc));
        Self::start_example(TOKENS, &[("port_value: 10080 ", &model), ("port_value: 8081 ", &limiter)])
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
        Self::start_config(&inside(changes))
    }

    /// Starts a configuration with the ports of the examples, on ports of its own.
    pub fn start_config(config: &str) -> Self {
        Self::launch(Launch::default(), config)
    }

    /// The same, launched like this.
    pub fn launch(launch: Launch, config: &str) -> Self {
        let mut envoy = Self::spawn(launch, config);
        eventually_true("Envoy to be ready", || envoy.is_ready());
        envoy
    }

    /// What Envoy says of the example of the limiter inside it, with these changes, which it must refuse.
    pub fn refuses_inside(changes: &[(&str, &str)]) -> String {
        Self::refuses(Launch::default(), &inside(changes))
    }

    /// What Envoy says of a configuration with which it must not start.
    pub fn refuses(launch: Launch, config: &str) -> String {
        let mut envoy = Self::spawn(launch, config);
        assert_eq!(envoy.exit_code(), 1);
        envoy.output()
    }

    fn spawn(launch: Launch, config: &str) -> Self {
        let (port, admin, application) = (free_port(), free_port(), free_port());
        let own = [("10000", port), ("9901", admin)]
            .map(|(theirs, own)| (format!("port_value: {theirs} "), format!("port_value: {own} ")));
        let own = own.each_ref().map(|(theirs, own)| (theirs.as_str(), own.as_str()));
        // Not every example has an application of its own.
        let config =
            changed(config, &own).replace("port_value: 10080 ", &format!("port_value: {application} "));

        let folder = tempfile::tempdir().expect("a folder can be made");
        let (bootstrap, listeners) = config.split_once(LISTENERS).unwrap_or((&config, ""));
        for (name, text) in [("envoy.yaml", bootstrap), ("listeners.yaml", listeners)] {
            fs::write(folder.path().join(name), text).expect("the folder is ours");
        }
        let process = launch.spawn(folder.path(), admin);
        Self { process, launch, port, admin, folder }
    }

    /// Starts it again, after its end.
    pub fn restart(&mut self) {
        self.process = self.launch.spawn(self.folder.path(), self.admin);
        eventually_true("Envoy to be ready", || self.is_ready());
    }

    /// Starts a process that takes over, and waits for the end of the one before.
    pub fn hot_restart(&mut self) {
        self.launch.epoch = self.launch.epoch.map(|epoch| epoch + 1);
        let next = self.launch.spawn(self.folder.path(), self.admin);
        let mut before = std::mem::replace(&mut self.process, next);
        eventually_true("the one before to end", || before.ended().is_some());
        eventually_true("Envoy to be ready", || self.is_ready());
    }

    /// Changes its listeners, which stand [apart](listeners_apart), and waits until it has them.
    pub fn change_listeners(&self, change: (&str, &str)) {
        self.offer_listeners(change, "update_success");
    }

    /// The same, with listeners that it must refuse.
    pub fn refuses_listeners(&self, change: (&str, &str)) {
        self.offer_listeners(change, "update_rejected");
    }

    fn offer_listeners(&self, change: (&str, &str), outcome: &str) {
        let updates = || self.stat(&format!("listener_manager.lds.{outcome}"));
        let (file, before) = (self.folder.path().join("listeners.yaml"), updates());
        let listeners = changed(&fs::read_to_string(&file).expect("it was written"), &[change]);
        let next = self.folder.path().join("next.yaml");
        fs::write(&next, listeners).expect("the folder is ours");
        fs::rename(next, file).expect("both are there");
        eventually_true(outcome, || updates() > before);
    }

    fn is_ready(&mut self) -> bool {
        if let Some(status) = self.process.ended() {
            panic!("Envoy ended: {status}\n{}", self.output());
        }
        http::get(self.admin, "/ready").is_ok_and(|answer| answer.status == 200)
    }

    /// What it has logged.
    pub fn output(&self) -> String {
        self.process.output().join("\n")
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

    /// Its statistics, as Prometheus reads them.
    pub fn prometheus(&self) -> String {
        http::Client::new(self.admin).get("/stats/prometheus?usedonly").body
    }

    pub fn client(&self) -> http::Client {
        http::Client::new(self.port)
    }
}

impl Deref for Envoy {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Envoy {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

impl Launch {
    /// Starts it with the configuration in this folder.
    fn spawn(&self, folder: &Path, id: u16) -> Process {
        let mut command = Command::new(&self.program);
        // The module is in the folder of the tests that were built with it.
        let tests = std::env::current_exe().expect("a test has a path");
        command.env("ENVOY_DYNAMIC_MODULES_SEARCH_PATH", tests.with_file_name(""));
        command.env("TIDEGATE_PANICS_IN", self.panics_in).current_dir(folder);
        command.args(["-c", "envoy.yaml", "--log-level", self.log_level]);
        command.args(["--concurrency", &self.workers.to_string()]);
        match self.epoch {
            None => command.arg("--disable-hot-restart"),
            Some(epoch) => command
                .args(["--base-id", &id.to_string(), "--restart-epoch", &epoch.to_string()])
                .args(["--drain-time-s", "1", "--parent-shutdown-time-s", "2"]),
        };
        Process::spawn(&mut command)
    }
}

/// The example of the limiter inside Envoy, with these changes. It trusts one `x-forwarded-for`.
pub fn inside(changes: &[(&str, &str)]) -> String {
    let trusting = ("xff_num_trusted_hops: 0", "xff_num_trusted_hops: 1");
    changed(INSIDE, &[changes, &[trusting]].concat()).replace(RULES.0, RULES.1)
}

/// The same configuration, with its listeners in a file that Envoy watches.
pub fn listeners_apart(config: &str) -> String {
    let (before, rest) = config.split_once("  listeners:\n").expect("it has listeners");
    let (listeners, clusters) = rest.split_once("  clusters:\n").expect("clusters come last");
    let listener = "\n    - \"@type\": type.googleapis.com/envoy.config.listener.v3.Listener\n      name: ";
    let listeners = format!("resources:\n{listeners}").replace("\n    - name: ", listener);
    format!("{LISTENERS_APART}{before}  clusters:\n{clusters}{LISTENERS}{listeners}")
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
