//! Disturbances: large work and bad clients. A server should answer other clients as fast with them as without them.
//!
//! A disturbance works on the generator's core either before the measurement or in the kernel's idle class, which gets
//! well under a hundredth of the time. Otherwise a generator that waits for its core would look like a slow server.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::client::Client;
use super::frame::{self, flag, kind};
use super::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use super::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use super::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use super::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use super::request::{Descriptors, Keys, RequestMessage};
use super::request_head::RequestHead;
use super::server::Server;

/// Series and rules.
const MANY: usize = 100_000;
const STREAMS: u32 = 10_000;
/// Clients that stall or do not read.
const CLIENTS: usize = 64;
/// Descriptors of one call that creates series.
const DESCRIPTORS: usize = 50;
/// How long a server may take for one disturbance.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The pause between two of the same kind.
const PAUSE: Duration = Duration::from_millis(50);

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A kind of disturbance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Disturbance {
    /// None: shows how much two equal measurements differ on this machine
    Nothing,
    /// 64 clients in the middle of a call
    Stalled,
    /// 64 clients that read no answer
    SlowReaders,
    /// Connections that open 10,000 streams
    ManyStreams,
    /// Reloads of 100,000 rules
    Reloads,
    /// Scrapes of 100,000 series; last, as they stay
    Scrapes,
}

/// A disturbance that goes on until it is ended.
pub(crate) struct Running {
    stop: Arc<AtomicBool>,
    work: JoinHandle<Result<u64, Failure>>,
    _held: Vec<TcpStream>,
}

impl Disturbance {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Scrapes => "scrapes of 100,000 series",
            Self::Reloads => "reloads of 100,000 rules",
            Self::Stalled => "64 clients in the middle of a call",
            Self::SlowReaders => "64 clients that read no answer",
            Self::ManyStreams => "connections that open 10,000 streams",
        }
    }

    /// Prepares the server for it.
    pub(crate) fn prepare(self, server: &Server) -> Result<(), Failure> {
        if self != Self::Scrapes {
            return Ok(());
        }
        let before = reloads(server)?;
        let text = "domain: wide\ndescriptors:\n  - key: id\n    detailed_metric: true\n    rate_limit: {unit: day, \
                    requests_per_unit: 10}\n";
        fs::write(server.rules().join("wide.yaml"), text)?;
        wait_for_reload(server, before)?;
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(make_series(server.address))
    }

    /// Starts it.
    pub(crate) fn begin(self, server: &Server) -> Result<Running, Failure> {
        let held = match self {
            Self::Stalled => clients(server.address, |bytes| bytes.truncate(bytes.len() - 10), 1)?,
            Self::SlowReaders => clients(server.address, |_| (), 1_000)?,
            _ => Vec::new(),
        };
        let stop = Arc::<AtomicBool>::default();
        let (stopped, address, metrics) = (Arc::clone(&stop), server.address, server.metrics);
        let rules = server.rules().join("many.yaml");
        let texts = [1, 2].map(many_rules);
        let streams = many_streams();
        let work = std::thread::spawn(move || {
            enter_idle_class()?;
            let mut done = 0;
            while !stopped.load(Ordering::Relaxed) {
                match self {
                    Self::Scrapes => scrape(metrics)?,
                    Self::Reloads => reload(metrics, &rules, &texts)?,
                    Self::ManyStreams => open_streams(address, &streams)?,
                    Self::Nothing | Self::Stalled | Self::SlowReaders => {}
                }
                done += 1;
                std::thread::sleep(PAUSE);
            }
            Ok(done)
        });
        Ok(Running { stop, work, _held: held })
    }
}

impl Running {
    /// Ends it. Returns how often it was repeated.
    pub(crate) fn end(self) -> Result<u64, Failure> {
        self.stop.store(true, Ordering::Relaxed);
        self.work.join().map_err(|_| "a disturbance panicked")?
    }
}

/// Connections that send `calls` calls, changed by `change`, and then nothing. They never read.
fn clients(address: SocketAddr, change: fn(&mut Vec<u8>), calls: usize) -> io::Result<Vec<TcpStream>> {
    let client = |seed| {
        let mut client = Client::new(false, seed as u64);
        // the server's SETTINGS will allow as many
        client.presume(calls);
        let mut request = RequestMessage::new(Keys::InTurn(0), Descriptors::Plain);
        while client.under_way() < calls && client.ask(&mut request, 0) {}
        change(&mut client.out);
        let mut socket = TcpStream::connect(address)?;
        socket.write_all(&client.out)?;
        Ok(socket)
    };
    (0..CLIENTS).map(client).collect()
}

/// Puts the calling thread into the kernel's idle class.
fn enter_idle_class() -> Result<(), Failure> {
    let thread = fs::read_link("/proc/thread-self")?;
    let id = thread.file_name().ok_or("/proc/thread-self names no thread")?;
    let done = Command::new("chrt").args(["--idle", "--pid", "0"]).arg(id).status()?;
    if done.success() { Ok(()) } else { Err("chrt fails".into()) }
}

/// Puts the other of the two texts in force.
fn reload(metrics: SocketAddr, rules: &Path, texts: &[String; 2]) -> Result<(), Failure> {
    let before = reloads_at(metrics)?;
    let is_first = fs::read_to_string(rules).is_ok_and(|text| text == texts[0]);
    let text = &texts[usize::from(is_first)];
    let next = rules.with_extension("next");
    fs::write(&next, text)?;
    fs::rename(&next, rules)?;
    wait_until(|| Ok(reloads_at(metrics)? > before))
}

/// The first bytes of a connection, and the heads of all calls.
fn many_streams() -> Vec<u8> {
    let mut bytes = frame::PREFACE.to_vec();
    frame::put(&mut bytes, kind::SETTINGS, 0, 0, &[]);
    let mut head = RequestHead::new(false);
    for stream in (1..2 * STREAMS).step_by(2) {
        frame::put_with(&mut bytes, kind::HEADERS, flag::END_HEADERS, stream, |out| head.put(&mut || 0, out));
    }
    bytes
}

/// Opens the streams, and reads until the server closes the connection.
fn open_streams(address: SocketAddr, bytes: &[u8]) -> io::Result<()> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    // both fail when the server has closed it first
    let _ = socket.write_all(bytes);
    let _ = socket.read_to_end(&mut Vec::new());
    Ok(())
}

async fn make_series(address: SocketAddr) -> Result<(), Failure> {
    let mut client = RateLimitServiceClient::connect(format!("http://{address}")).await?;
    for first in (0..MANY).step_by(DESCRIPTORS) {
        let entry = |id| Entry { key: "id".into(), value: format!("{id:06}") };
        let descriptor = |id| RateLimitDescriptor { entries: vec![entry(id)], ..Default::default() };
        let descriptors = (first..first + DESCRIPTORS).map(descriptor).collect();
        let request = RateLimitRequest { domain: "wide".into(), descriptors, hits_addend: 0 };
        client.should_rate_limit(request).await?;
    }
    Ok(())
}

/// Rules with this limit.
fn many_rules(requests_per_unit: u32) -> String {
    let mut text = String::from("domain: many\ndescriptors:\n");
    for at in 0..MANY {
        text += &format!(
            "  - {{key: id, value: v{at}, rate_limit: {{unit: day, requests_per_unit: \
             {requests_per_unit}}}}}\n"
        );
    }
    text
}

fn reloads(server: &Server) -> Result<u64, Failure> {
    reloads_at(server.metrics)
}

/// The number of reloads that succeeded.
fn reloads_at(metrics: SocketAddr) -> Result<u64, Failure> {
    let page = page(metrics)?;
    let value = page.lines().find_map(|line| line.strip_prefix("ratelimit_service_config_load_success "));
    Ok(value.ok_or("the page does not count reloads")?.parse()?)
}

fn wait_for_reload(server: &Server, before: u64) -> Result<(), Failure> {
    wait_until(|| Ok(reloads(server)? > before))
}

fn wait_until(mut holds: impl FnMut() -> Result<bool, Failure>) -> Result<(), Failure> {
    let start = Instant::now();
    while !holds()? {
        if start.elapsed() > TIMEOUT {
            return Err("rules that do not come into force".into());
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// The page of metrics, with its HTTP head.
fn page(metrics: SocketAddr) -> io::Result<String> {
    let mut page = String::new();
    ask_for_page(metrics)?.read_to_string(&mut page)?;
    Ok(page)
}

/// Reads the page of metrics and drops it.
fn scrape(metrics: SocketAddr) -> io::Result<()> {
    let mut socket = ask_for_page(metrics)?;
    let mut scratch = vec![0; 1 << 20];
    while socket.read(&mut scratch)? > 0 {}
    Ok(())
}

fn ask_for_page(metrics: SocketAddr) -> io::Result<TcpStream> {
    let mut socket = TcpStream::connect(metrics)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    Ok(socket)
}
