//! The limiter inside a real Envoy: `examples/inside` with rules, settings and fields of a test's own.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::envoy::{self, Envoy};

/// Each user has a limit.
const RULES: &str = "domain: edge
rate_limits: [{actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]}]
descriptors: [{key: user, rate_limit: LIMIT}]
";

/// Rules with this limit for each `x-user`.
pub fn rules(limit: &str) -> String {
    RULES.replace("LIMIT", limit)
}

/// The filter in a configuration, which may be left out, or stand there twice.
pub fn filter(config: &str) -> &str {
    let filter = &config[config.find("- name: tidegate").expect("a filter")..];
    &filter[..filter.find("- name: envoy.filters.http.router").expect("the next one")]
}

/// What Envoys with the limiter inside are started with.
pub struct Inside {
    folder: TempDir,
    settings: Vec<String>,
    fields: Vec<String>,
}

impl Inside {
    /// With these rules of the domain `edge`.
    pub fn new(rules: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let inside = Self { folder, settings: Vec::new(), fields: vec!["headers: always".to_owned()] };
        inside.write(rules);
        inside
    }

    /// With a setting.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push(format!("{name}: \"{value}\""));
        self
    }

    /// With another field.
    pub fn field(mut self, field: &str) -> Self {
        self.fields.push(field.to_owned());
        self
    }

    /// The folder of rules.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Other rules, for all Envoys that were started with this.
    pub fn write(&self, rules: &str) {
        fs::write(self.folder().join("edge.yaml"), rules).expect("the folder is ours");
    }

    /// The configuration of an Envoy.
    pub fn config(&self) -> String {
        let settings = format!("settings: {{ {} }}", self.settings.join(", "));
        let fields = [&self.fields[..], &[settings]].concat().join("\n                          ");
        let rules = format!("rules: {}", self.folder().display());
        envoy::inside(&[("headers: always", &fields), ("rules: examples/inside/rules", &rules)])
    }

    pub fn start(&self) -> Envoy {
        Envoy::start_config(&self.config())
    }
}
