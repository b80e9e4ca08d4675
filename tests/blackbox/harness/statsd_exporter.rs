//! A real `statsd_exporter`: it takes StatsD over TCP and UDP on one port and shows it to Prometheus on another.

use std::path::Path;
use std::process::Command;

use super::metrics::Scrape;
use super::process::Process;
use super::{eventually_true, free_port, http};

/// A running exporter.
pub struct StatsdExporter {
    process: Process,
    /// Where it takes StatsD, over TCP and UDP.
    pub port: u16,
    web: u16,
}

impl StatsdExporter {
    /// Starts one, with a file of mappings or without.
    pub fn start(mapping: Option<&Path>) -> Self {
        Self::start_at(free_port(), mapping)
    }

    /// Starts one that takes StatsD at this port.
    pub fn start_at(port: u16, mapping: Option<&Path>) -> Self {
        let web = free_port();
        let mut command = Command::new("statsd_exporter");
        command.args([
            format!("--statsd.listen-tcp=127.0.0.1:{port}"),
            format!("--statsd.listen-udp=127.0.0.1:{port}"),
            format!("--web.listen-address=127.0.0.1:{web}"),
            "--statsd.event-flush-interval=10ms".to_owned(),
        ]);
        command.args(mapping.map(|path| format!("--statsd.mapping-config={}", path.display())));
        let mut exporter = Self { process: Process::spawn(&mut command), port, web };
        eventually_true("statsd_exporter to be ready", || exporter.is_ready());
        exporter
    }

    fn is_ready(&mut self) -> bool {
        if let Some(status) = self.process.ended() {
            panic!("statsd_exporter ended: {status}\n{}", self.process.output().join("\n"));
        }
        http::get(self.web, "/metrics").is_ok_and(|answer| answer.status == 200)
    }

    /// What it shows.
    pub fn page(&self) -> String {
        http::Client::new(self.web).get("/metrics").body
    }

    pub fn scrape(&self) -> Scrape {
        Scrape::parse(&self.page())
    }
}
