//! A limiter with records: starts it, changes its records, and asks it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::Args;
use super::client::Tally;
use super::load::{self, Pace, Run, Workload};
use super::request::{DOMAIN, KEY, Keys};
use super::server::{Server, Setup, Subject, free_port};

/// Long enough for a run that ends by the number of its calls.
const FOR_EVER: Duration = Duration::from_secs(3_600);
/// How long it may take until it answers.
const START_MAX: Duration = Duration::from_secs(120);
const TOKEN: &str = "a-token-of-the-benchmark";

/// A running limiter.
pub(crate) struct Limiter {
    pub(crate) server: Server,
    debug: u16,
    tidegate: PathBuf,
}

/// What it is started with.
pub(crate) struct With<'a> {
    /// The limit of every key.
    pub(crate) rate_limit: &'a str,
    /// Where its files are.
    pub(crate) folder: &'a Path,
    /// Whether it keeps records there.
    pub(crate) has_records: bool,
    /// More settings.
    pub(crate) variables: Vec<(&'static str, String)>,
}

impl Limiter {
    pub(crate) fn start(args: &Args, with: With<'_>) -> Result<Self, String> {
        let debug = free_port()?;
        let path = |name: &str| with.folder.join(name).display().to_string();
        let mut variables = vec![
            ("DEBUG_PORT", debug.to_string()),
            ("ADMIN_TOKEN", TOKEN.to_owned()),
            ("AUDIT_LOG", path("audit")),
        ];
        variables.extend(with.has_records.then(|| ("LIMITS_DIR", path("limits"))));
        variables.extend(with.variables);
        let setup = Setup { rate_limit: with.rate_limit.to_owned(), variables, socket: None };
        let server = Server::start_with(Subject::Lane, &args.server_core, &args.tidegate, &setup)?;
        Ok(Self { server, debug, tidegate: args.tidegate.clone() })
    }

    /// Waits until it has answered a call: it listens before it has read what it needs.
    pub(crate) fn answered(&self) -> Result<(), String> {
        let began = Instant::now();
        loop {
            match self.ask(Keys::InTurn(0), 1) {
                Err(why) if began.elapsed() > START_MAX => return Err(why),
                Err(_) => {}
                Ok(_) => return Ok(()),
            }
        }
    }

    /// Waits until its background work has ended, as long as may be expected.
    pub(crate) fn settled(&self) {
        let (began, mut cpu) = (Instant::now(), Duration::MAX);
        while cpu != self.server.cpu() && began.elapsed() < START_MAX {
            cpu = self.server.cpu();
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    /// One call at a time on one connection, so many calls.
    pub(crate) fn ask(&self, keys: Keys, calls: u64) -> Result<Tally, String> {
        self.ask_at_a_time(keys, calls, 1)
    }

    /// The same with so many calls under way.
    pub(crate) fn ask_at_a_time(&self, keys: Keys, calls: u64, streams: usize) -> Result<Tally, String> {
        let run = Run {
            connections: 1,
            pace: Pace::Closed { streams },
            ids: false,
            warm_up: Duration::ZERO,
            measured: FOR_EVER,
            calls_max: calls,
            sleeps: false,
        };
        let tally = load::drive(&self.server, &run, Workload::new(keys, 1))?.tally;
        match tally.errors {
            0 => Ok(tally),
            errors => Err(self.server.blame(&format!("{errors} errors: {:?}", tally.first_error))),
        }
    }

    /// Loads a file of records as people do. Returns how long it took.
    pub(crate) fn load(&self, file: &Path) -> Result<Duration, String> {
        let (began, to) = (Instant::now(), format!("127.0.0.1:{}", self.debug));
        let mut command = Command::new(&self.tidegate);
        command.args(["limit", "load", "--who", "bench", "--why", "bench", "--to", &to]).arg(file);
        let output = command.env("ADMIN_TOKEN", TOKEN).output().map_err(|error| error.to_string())?;
        match output.status.success() {
            true => Ok(began.elapsed()),
            false => Err(self.server.blame(&String::from_utf8_lossy(&output.stderr))),
        }
    }

    /// Changes the record of a key.
    pub(crate) fn put(&self, value: &str, requests: u64) -> Result<(), String> {
        let body = format!(
            "{{\"domain\":\"{DOMAIN}\",\"entries\":[{{\"key\":\"{KEY}\",\"value\":\"{value}\"}}],\
             \"requests_per_unit\":{requests},\"who\":\"bench\",\"why\":\"bench\"}}"
        );
        let head = format!(
            "PUT /admin/records HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        let answer = exchange(self.debug, &head)?;
        if answer.starts_with("HTTP/1.1 20") { Ok(()) } else { Err(answer) }
    }

    /// The value of a metric without labels; 0 if it is not there yet.
    pub(crate) fn metric(&self, name: &str) -> Result<f64, String> {
        let page = exchange(
            self.server.metrics.port(),
            "GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        )?;
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        Ok(value.unwrap_or(0.0))
    }
}

fn exchange(port: u16, request: &str) -> Result<String, String> {
    let exchange = || {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| answer)
    };
    exchange().map_err(|error: std::io::Error| error.to_string())
}
