//! A control plane that hands out rules: Python's gRPC and the protocol's numbers (`control_plane.py`), none of the
//! client under test.

use std::ops::Deref;
use std::path::Path;

use serde_json::{Value, json};

use super::process::Process;
use super::programs::python;
use super::{eventually, free_port};

/// A running control plane. Ended when dropped.
pub struct ControlPlane {
    process: Process,
    pub port: u16,
}

impl ControlPlane {
    /// On a port of its own.
    pub fn start() -> Self {
        Self::on(free_port(), &[])
    }

    /// On this port; with the files of a certificate, its key and the authority of clients: with mutual TLS.
    pub fn on(port: u16, tls: &[&Path]) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/blackbox/harness/control_plane.py");
        let mut command = python();
        let process = Process::spawn_with_input(command.arg(script).arg(port.to_string()).args(tls));
        let plane = Self { process, port };
        plane.event(0, "listening");
        plane
    }

    /// Sends a state of the world to the newest stream.
    pub fn send(&mut self, version: &str, nonce: &str, configs: &Value) {
        let state = json!({"send": {"version": version, "nonce": nonce, "configs": configs}});
        self.process.input(&state.to_string());
    }

    /// Ends the newest stream.
    pub fn end_stream(&mut self) {
        self.process.input(&json!({"end": true}).to_string());
    }

    /// The event of this kind at this place among its kind, once it has come.
    pub fn event(&self, index: usize, kind: &str) -> Value {
        eventually(&format!("{kind} {index} of the control plane"), || self.events(kind).get(index).cloned())
    }

    /// All events of a kind so far.
    pub fn events(&self, kind: &str) -> Vec<Value> {
        let event = |line: &String| serde_json::from_str::<Value>(line).ok()?.get(kind).cloned();
        self.process.output().iter().filter_map(event).collect()
    }
}

impl Deref for ControlPlane {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}
