//! `examples/sharded` with any number of nodes, and with nodes that move: changes of its configuration of Envoy.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::envoy::Envoy;

const SHARDED: &str = include_str!("../../../examples/sharded/envoy.yaml");

/// Where the example's list of nodes begins, which ends the file.
const LIST: &str = "      load_assignment:\n        cluster_name: tidegate\n";

/// Points of each node on the example's ring.
pub const POINTS: u64 = 1024;

/// Envoy with the example's configuration in front of nodes with these gRPC ports.
pub fn start(ports: &[u16]) -> Envoy {
    start_impatient(ports, "10s")
}

/// The same, which waits for an answer for this long.
pub fn start_impatient(ports: &[u16], timeout: &str) -> Envoy {
    let timeout = format!(" timeout: {timeout}");
    let config = with_size(ports.len()).replace(" timeout: 0.1s", &timeout).replace("0.25s", "10s");
    let (front, _) = config.split_once(LIST).expect("the example has a list");
    Envoy::start_config(&format!("{front}{LIST}{}", endpoints(ports, 8)))
}

/// Envoy in front of nodes whose addresses are in a file, which it watches.
pub struct Moving {
    pub envoy: Envoy,
    folder: TempDir,
}

impl Moving {
    pub fn start(ports: &[u16]) -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        write(folder.path(), ports);
        let config =
            with_size(ports.len()).replace(" timeout: 0.1s", " timeout: 10s").replace("0.25s", "10s");
        let (front, _) = config.split_once(LIST).expect("the example has a list");
        let folder_path = folder.path().display();
        let source = format!(
            "path_config_source: {{ path: {folder_path}/nodes.yaml, watched_directory: {{ path: {folder_path} }} }}"
        );
        let config = format!(
            "{front}      type: EDS\n      eds_cluster_config: {{ eds_config: {{ resource_api_version: V3, {source} }} }}\n\
             node: {{ id: tests, cluster: tests }}\n"
        );
        Self { envoy: Envoy::start_config(&config), folder }
    }

    /// The nodes are at these ports now.
    pub fn change(&self, ports: &[u16]) {
        write(self.folder.path(), ports);
    }
}

/// Replaces the file, as Envoy wants it: by a rename.
fn write(folder: &Path, ports: &[u16]) {
    let kind = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
    let list = endpoints(ports, 4);
    let text = format!("resources:\n  - \"@type\": {kind}\n    cluster_name: tidegate\n{list}");
    fs::write(folder.join("nodes.new"), text).expect("ours");
    fs::rename(folder.join("nodes.new"), folder.join("nodes.yaml")).expect("ours");
}

/// The example with a ring of the size that so many nodes have.
fn with_size(nodes: usize) -> String {
    let three = format!("minimum_ring_size: {} ", 3 * POINTS);
    assert!(SHARDED.contains(&three), "the example has {POINTS} points for each node");
    SHARDED.replace(&three, &format!("minimum_ring_size: {} ", nodes as u64 * POINTS))
}

/// The list of nodes, indented.
fn endpoints(ports: &[u16], indent: usize) -> String {
    let indent = " ".repeat(indent);
    let mut text = format!("{indent}endpoints:\n{indent}  - lb_endpoints:\n");
    for (number, port) in ports.iter().enumerate() {
        text += &format!(
            "{indent}      - endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }} }}\n\
             {indent}        metadata: {{ filter_metadata: {{ envoy.lb: {{ hash_key: tidegate-{number} }} }} }}\n"
        );
    }
    text
}
