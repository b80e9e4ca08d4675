//! A real Prometheus: it scrapes limiters, evaluates rules, and answers queries.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::process::Process;
use super::{eventually_true, free_port, http};

/// A running Prometheus.
pub struct Prometheus {
    process: Process,
    _folder: TempDir,
    port: u16,
}

/// How often it scrapes and evaluates.
const INTERVAL: &str = "500ms";

impl Prometheus {
    /// Starts one that scrapes these ports of loopback and evaluates these rules.
    pub fn start(targets: &[u16], rules: &Path) -> Self {
        let targets: Vec<_> = targets.iter().map(|port| format!("'127.0.0.1:{port}'")).collect();
        Self::with(&format!(
            "rule_files: ['{}']\n\
             scrape_configs: [{{job_name: tidegate, static_configs: [{{targets: [{}]}}]}}]\n",
            rules.display(),
            targets.join(", ")
        ))
    }

    /// Starts one that scrapes this target through a proxy.
    pub fn start_through(proxy: &str, target: &str) -> Self {
        Self::with(&format!(
            "scrape_configs: [{{job_name: tidegate, proxy_url: '{proxy}', static_configs: [{{targets: ['{target}']}}]}}]\n"
        ))
    }

    fn with(config_text: &str) -> Self {
        let (folder, port) = (tempfile::tempdir().expect("a folder can be made"), free_port());
        let config = folder.path().join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: {INTERVAL}, evaluation_interval: {INTERVAL}}}\n{config_text}"
        );
        fs::write(&config, text).expect("the folder is ours");
        let mut command = Command::new("prometheus");
        command.args([
            format!("--config.file={}", config.display()),
            format!("--storage.tsdb.path={}", folder.path().join("data").display()),
            format!("--web.listen-address=127.0.0.1:{port}"),
            "--log.level=warn".to_owned(),
        ]);
        let mut prometheus = Self { process: Process::spawn(&mut command), _folder: folder, port };
        eventually_true("Prometheus to be ready", || prometheus.is_ready());
        prometheus
    }

    fn is_ready(&mut self) -> bool {
        if let Some(status) = self.process.ended() {
            panic!("Prometheus ended: {status}\n{}", self.process.output().join("\n"));
        }
        http::get(self.port, "/-/ready").is_ok_and(|answer| answer.status == 200)
    }

    /// The values that an expression has now, one for each series.
    pub fn query(&self, expression: &str) -> Vec<f64> {
        let data = self.get(&format!("/api/v1/query?query={}", percent_encoded(expression)));
        let series = data["result"].as_array().expect("a vector");
        let value = |series: &Value| series["value"][1].as_str().and_then(|text| text.parse().ok());
        series.iter().map(|series| value(series).expect("a number")).collect()
    }

    /// All rules, as its API shows them.
    pub fn rules(&self) -> Vec<Value> {
        let groups = self.get("/api/v1/rules")["groups"].as_array().expect("groups").clone();
        groups.iter().flat_map(|group| group["rules"].as_array().expect("rules").clone()).collect()
    }

    fn get(&self, path: &str) -> Value {
        let answer = http::Client::new(self.port).get(path);
        let mut body: Value = serde_json::from_str(&answer.body).expect("JSON");
        assert_eq!(body["status"], "success", "{path}: {}", answer.body);
        body["data"].take()
    }
}

fn percent_encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}
