//! `tidegate ask --envoy` with what the admin port of a real Envoy shows: listeners and routes that the bootstrap does not
//! have, because they came from elsewhere, as those of Istio and Envoy Gateway do.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};

use serde_json::Value;

use super::random::Request;
use super::{ask, of_command, of_envoy, text};
use crate::check_descriptors::{envoy_of, take};
use crate::harness::envoy::binary;
use crate::harness::grpc::RateLimitRequest;
use crate::harness::process::Process;
use crate::harness::{eventually_true, free_port, http};

/// What the listener's only route asks about.
const HOST: &str = "            - name: all
              domains: ['*']
              routes:
              - match: {prefix: /}
                route:
                  cluster: application
                  rate_limits:
                  - actions: [{source_cluster: {}}, {destination_cluster: {}}]
                  - actions: [{request_headers: {header_name: foo, descriptor_key: foo}}]
";

/// Clients on this machine are inside.
const INTERNAL: &str =
    "          internal_address_config: {cidr_ranges: [{address_prefix: 127.0.0.0, prefix_len: 8}]}";

/// An Envoy whose listeners and routes are in files of their own, which it reads as it would ask a control plane.
struct Remote {
    folder: tempfile::TempDir,
    port: u16,
    admin: u16,
    process: Process,
}

impl Remote {
    /// With this request type of its filter, this `node`, and `--service-cluster proxy`.
    fn start(limiter: u16, request_type: &str, node: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let (port, admin) = (free_port(), free_port());
        let file = |name: &str| folder.path().join(name);
        let whole = envoy_of(port, limiter, INTERNAL, HOST);
        let whole = whole.replace(
            "domain: edge\n",
            &format!("domain: edge\n              request_type: {request_type}\n"),
        );
        let (head, rest) = whole.split_once("  listeners:\n").expect("listeners");
        let (listeners, clusters) = rest.split_once("  clusters:\n").expect("clusters");
        let routes = format!("            virtual_hosts:\n{HOST}");
        let remote = |name: &str| {
            format!("resource_api_version: V3, path_config_source: {{path: \"{}\"}}", file(name).display())
        };
        let listeners = listeners.replacen(
            &format!("          route_config:\n{routes}"),
            &format!(
                "          rds: {{route_config_name: http.80, config_source: {{{}}}}}\n",
                remote("rds.yaml")
            ),
            1,
        );
        let kind = "  - \"@type\": type.googleapis.com/envoy.config.listener.v3.Listener\n    name: ";
        let listeners = listeners.replace("  - name: edge\n", &format!("{kind}edge\n"));
        let listeners = listeners.replace("  - address: ", &format!("{kind}application\n    address: "));
        let rds = format!(
            "resources:\n- \"@type\": type.googleapis.com/envoy.config.route.v3.RouteConfiguration\n  name: http.80\n  virtual_hosts:\n{HOST}"
        );
        let boot = format!(
            "admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {admin}}}}}}}\n\
             dynamic_resources: {{lds_config: {{{}}}}}\n{}  clusters:\n{clusters}",
            remote("lds.yaml"),
            head.replace("node: {id: test, cluster: edge-nodes}\n", node),
        );
        for (name, content) in
            [("lds.yaml", format!("resources:\n{listeners}")), ("rds.yaml", rds), ("boot.yaml", boot)]
        {
            fs::write(file(name), content).expect("the folder is ours");
        }
        let mut command = Command::new(binary());
        command.arg("-c").arg(file("boot.yaml")).args(["--service-cluster", "proxy"]);
        command.args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]);
        let mut envoy = Self { process: Process::spawn(&mut command), folder, port, admin };
        eventually_true("Envoy to listen", || {
            assert!(envoy.process.ended().is_none(), "Envoy ended:\n{}", envoy.process.output().join("\n"));
            http::connect(envoy.port).is_ok()
        });
        envoy
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// Writes what the admin port shows into a file.
    fn dump(&self) -> std::path::PathBuf {
        let dump = http::Client::new(self.admin).get("/config_dump").body;
        let shown: Value = serde_json::from_str(&dump).expect("JSON");
        assert!(shown["configs"].as_array().is_some_and(|configs| configs.len() > 3), "{dump}");
        fs::write(self.file("dump.json"), dump).expect("the folder is ours");
        self.file("dump.json")
    }
}

fn request(headers: &[(&'static str, &'static str)]) -> Request {
    Request { method: "GET", path: "/cart".to_owned(), from: 2, headers: headers.to_vec() }
}

/// An Envoy's questions, without what it asks about.
fn limiter(runtime: &tokio::runtime::Runtime) -> (u16, Receiver<RateLimitRequest>) {
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    let (sender, taken) = channel();
    runtime.spawn(take(listener, sender));
    (port, taken)
}

#[test]
fn a_config_dump_says_what_came_from_a_control_plane() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a thread can be had");
    let (port, taken) = limiter(&runtime);
    let envoy = Remote::start(port, "both", "node: {id: test, cluster: edge-nodes}\n");
    let dump = envoy.dump();
    let with_name =
        |dump: &Path, request: &Request| of_command(dump, request, &["--service-cluster", "proxy"]);
    for headers in [&[][..], &[("foo", "a")], &[("foo", "a"), ("foo", "b")]] {
        let request = request(headers);
        let (sent, (command, shown)) = (of_envoy(envoy.port, &request, &taken), with_name(&dump, &request));
        assert_eq!(command, sent, "the command is left, Envoy is right: {request:?}\n{shown}");
        let (_, descriptors) = sent.expect("Envoy asks");
        assert_eq!(descriptors[0].0[0], ("source_cluster".to_owned(), "proxy".to_owned()));
    }
    // The bootstrap alone does not have them, and says where they are.
    let output = ask(&envoy.file("boot.yaml"), &request(&[])).arg("--describe").output().expect("it runs");
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(text(&output).contains("(expected a /config_dump)"), "{}", text(&output));
    let whole = fs::read_to_string(&dump).expect("it was written");
    fs::write(&dump, whole.replace("RoutesConfigDump", "OtherConfigDump")).expect("the folder is ours");
    let output = ask(&dump, &request(&[])).arg("--describe").output().expect("it runs");
    assert!(text(&output).contains("the dump has no routes of the name \"http.80\""), "{}", text(&output));
}

#[test]
fn a_filter_that_asks_about_external_requests_only_needs_to_know_which_it_is() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a thread can be had");
    let (port, taken) = limiter(&runtime);
    let envoy = Remote::start(port, "external", "node: {id: test}\n");
    let dump = envoy.dump();
    // With this header, a client of Envoy's own machine is one from outside.
    let (inside, outside) =
        (request(&[("foo", "a")]), request(&[("foo", "a"), ("x-forwarded-for", "203.0.113.7")]));
    for (request, origin) in [(&inside, "--internal"), (&outside, "--external")] {
        let sent = of_envoy(envoy.port, request, &taken);
        let (command, shown) = of_command(&dump, request, &["--service-cluster", "proxy", origin]);
        assert_eq!(command, sent, "{origin}: {shown}");
        assert_eq!(sent.is_some(), origin == "--external");
    }
    for (arguments, missing) in [
        (&["--service-cluster", "proxy"][..], "--external or --internal"),
        (&["--external"], "--service-cluster"),
    ] {
        let output = ask(&dump, &outside).arg("--describe").args(arguments).output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(text(&output).contains(missing), "{missing}: {}", text(&output));
    }
}
