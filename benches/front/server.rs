//! The servers under test: starts them on chosen cores, reads their CPU time and memory, ends them.
//!
//! util-linux's `setpriv` has the kernel end a server when the benchmark ends for any reason, so no server outlives a
//! panic, a Ctrl-C or a kill. `taskset` chooses the cores.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::echo::Echo;
use super::peer::{self, Peer};
use super::request::{Expected, rules_text};
use super::socket;

/// How long a server may take to start listening.
const START_MAX: Duration = Duration::from_secs(10);
/// The file in the scratch folder with a server's output. Errors quote its last lines.
const LOG: &str = "log";
const LOG_LINES: usize = 20;
/// The folder of rules in the scratch folder.
const RULES: &str = "rules";
/// A unit of CPU time in `/proc/<pid>/stat`: USER_HZ is 100 on every architecture that has servers.
const TICK: Duration = Duration::from_millis(10);

/// A server that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Echo(Echo),
    Peer(Peer),
    Tidegate,
    /// Tidegate with its own HTTP/2.
    Lane,
    /// The same with SPIN_TIME=50us.
    Spinning,
    /// The same as another binary, usually an older one.
    Before,
    /// Each of these with TLS.
    TidegateTls,
    LaneTls,
}

impl Subject {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Subject::Echo(Echo::TonicMulti) => "echo, tonic multi-thread",
            Subject::Echo(Echo::TonicCurrent) => "echo, tonic current-thread",
            Subject::Echo(Echo::Hyper) => "echo, hyper current-thread",
            Subject::Echo(Echo::Canned) => "echo, canned frames",
            Subject::Peer(peer) => peer.name(),
            Subject::Tidegate => "tidegate",
            Subject::Lane => "tidegate, lane",
            Subject::Spinning => "tidegate, lane, SPIN_TIME",
            Subject::Before => "tidegate, lane, before",
            Subject::TidegateTls => "tidegate, TLS",
            Subject::LaneTls => "tidegate, lane, TLS",
        }
    }

    /// The gRPC front that Tidegate serves the call with; `None` for other servers.
    pub(crate) fn grpc_front(self) -> Option<&'static str> {
        match self {
            Subject::Echo(_) | Subject::Peer(_) => None,
            Subject::Tidegate | Subject::TidegateTls => Some("tonic"),
            Subject::Lane | Subject::Spinning | Subject::Before | Subject::LaneTls => Some("lane"),
        }
    }

    /// Whether it serves TLS.
    pub(crate) fn is_tls(self) -> bool {
        matches!(self, Subject::TidegateTls | Subject::LaneTls)
    }
}

impl Subject {
    /// Limitador does not say by which limit it decided.
    fn answers(self) -> Expected {
        if self == Subject::Peer(Peer::Limitador) { Expected::BareOk } else { Expected::Ok }
    }
}

/// What differs between the runs of Tidegate.
pub(crate) struct Setup {
    /// The limit of every key.
    pub(crate) rate_limit: String,
    /// Settings.
    pub(crate) variables: Vec<(&'static str, String)>,
    /// A unix socket for gRPC instead of a port.
    pub(crate) socket: Option<PathBuf>,
}

impl Default for Setup {
    /// Counters in memory, and a limit that no key reaches, so that each call is decided and each answer is OK.
    fn default() -> Setup {
        let rate_limit = "{unit: hour, requests_per_unit: 1000000, algorithm: sliding_window}".into();
        Setup { rate_limit, variables: Vec::new(), socket: None }
    }
}

/// A running server.
pub(crate) struct Server {
    pub(crate) subject: Subject,
    pub(crate) address: SocketAddr,
    /// Its answers that count as good.
    pub(crate) answers: Expected,
    /// The address of Tidegate's metrics.
    pub(crate) metrics: SocketAddr,
    process: Child,
    folder: PathBuf,
}

impl Server {
    /// Starts `subject` on `cores` (as `taskset -c` takes them) and waits until it listens. `tidegate` is the binary.
    pub(crate) fn start(subject: Subject, cores: &str, tidegate: &Path) -> Result<Server, String> {
        Self::start_with(subject, cores, tidegate, &Setup::default())
    }

    /// Like `start`, with a setup.
    pub(crate) fn start_with(
        subject: Subject,
        cores: &str,
        tidegate: &Path,
        setup: &Setup,
    ) -> Result<Server, String> {
        let (port, metrics) = (free_port()?, free_port()?);
        let folder = scratch(subject, port).map_err(|error| format!("no scratch folder: {error}"))?;
        let mut command = pinned(cores);
        match subject {
            Subject::Echo(echo) => echo_command(&mut command, echo, port),
            Subject::Peer(peer) => peer::command(&mut command, peer, port, cores, &folder)?,
            Subject::Tidegate
            | Subject::Lane
            | Subject::Spinning
            | Subject::Before
            | Subject::TidegateTls
            | Subject::LaneTls => {
                tidegate_command(&mut command, tidegate, (port, metrics), cores, &folder, setup)?;
            }
        }
        command.envs(subject.grpc_front().map(|front| ("GRPC_FRONT", front)));
        command.envs((subject == Subject::Spinning).then_some(("SPIN_TIME", "50us")));
        command.envs(setup.variables.iter().map(|(name, value)| (name, value)));
        command.envs(setup.socket.iter().map(|path| ("GRPC_UDS", path)));
        if subject.is_tls() {
            command.envs(socket::settings(&folder).map_err(|error| format!("no certificate: {error}"))?);
        }
        let log = File::create(folder.join(LOG)).map_err(|error| format!("no log: {error}"))?;
        let twin = log.try_clone().map_err(|error| error.to_string())?;
        command.stdin(Stdio::null()).stdout(log).stderr(twin);
        let process =
            command.spawn().map_err(|error| format!("setpriv and taskset (util-linux): {error}"))?;
        let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let (address, metrics, answers) = (at(port), at(metrics), subject.answers());
        let mut server = Server { subject, address, answers, metrics, process, folder };
        server.wait_until_it_listens(setup.socket.as_deref())?;
        Ok(server)
    }

    /// Its process id. `setpriv` and `taskset` replace themselves with the server, so it is the child's.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Its scratch folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of Tidegate's rules.
    pub(crate) fn rules(&self) -> PathBuf {
        self.folder.join(RULES)
    }

    /// User and system time of all its threads since its start.
    pub(crate) fn cpu(&self) -> Duration {
        cpu(self.process.id())
    }

    /// Its resident memory, in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = resident.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kib.unwrap_or(0) * 1024
    }

    /// The error `what`, with the last lines of the server's output.
    pub(crate) fn blame(&self, what: &str) -> String {
        let log = fs::read_to_string(self.folder.join(LOG)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
        format!("{}: {what}\n{last}", self.subject.name())
    }

    fn wait_until_it_listens(&mut self, socket: Option<&Path>) -> Result<(), String> {
        let (start, address) = (Instant::now(), self.address);
        let listens = || match socket {
            Some(path) => UnixStream::connect(path).is_ok(),
            None => TcpStream::connect(address).is_ok(),
        };
        while !listens() {
            let ended = self.process.try_wait().map_err(|error| error.to_string())?;
            if ended.is_some() || start.elapsed() > START_MAX {
                return Err(self.blame("it does not listen"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // neither can fail for a child that was not waited for yet
        let _ = self.process.kill();
        let _ = self.process.wait();
        // if this fails, only a few bytes stay in Cargo's target folder
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Binds this process, which is the load generator, to `cores`.
pub(crate) fn pin_self(cores: &str) -> Result<(), String> {
    let pid = std::process::id().to_string();
    let output = Command::new("taskset").args(["-cp", cores, &pid]).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Err(format!("taskset (util-linux): {error}")),
    }
}

/// A command that starts a child on `cores`, whatever this process is bound to.
pub(crate) fn pinned(cores: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "taskset", "-c", cores]);
    command
}

fn echo_command(command: &mut Command, echo: Echo, port: u16) {
    let name = clap::ValueEnum::to_possible_value(&echo).expect("no echo is skipped");
    let this = std::env::current_exe().expect("this program has a path");
    command.arg(this).args(["--echo", name.get_name(), "--port", &port.to_string()]);
}

fn tidegate_command(
    command: &mut Command,
    binary: &Path,
    (port, metrics): (u16, u16),
    cores: &str,
    folder: &Path,
    setup: &Setup,
) -> Result<(), String> {
    let rules = folder.join(RULES);
    fs::create_dir_all(&rules).map_err(|error| error.to_string())?;
    fs::write(rules.join("bench.yaml"), rules_text(&setup.rate_limit)).map_err(|error| error.to_string())?;
    let loopback = Ipv4Addr::LOCALHOST.to_string();
    command
        .arg(binary)
        .env("CONFIG_PATH", &rules)
        .env("GRPC_HOST", &loopback)
        .env("GRPC_PORT", port.to_string())
        .env("HOST", &loopback)
        .env("PORT", free_port()?.to_string())
        .env("DEBUG_HOST", &loopback)
        .env("DEBUG_PORT", free_port()?.to_string())
        .env("PROMETHEUS_ADDR", format!("{loopback}:{metrics}"))
        .env("WORKER_THREADS", cores.split(',').count().to_string())
        .env("LOG_LEVEL", "warn");
    Ok(())
}

/// Creates a folder for this run in Cargo's target folder.
fn scratch(subject: Subject, port: u16) -> io::Result<PathBuf> {
    let name = format!("front-{}-{port}-{}", std::process::id(), subject.name().replace([',', ' '], "-"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// A free port. If another process takes it before our child does, the child reports that and the run ends.
pub(crate) fn free_port() -> Result<u16, String> {
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    Ok(address.map_err(|error| format!("no free port: {error}"))?.port())
}

/// User and system time of all its threads that have not ended, in nanoseconds: the first number of each `schedstat`.
#[allow(dead_code, reason = "the benchmark of sidecars asks")]
pub(crate) fn cpu_nanos(pid: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = threads.filter_map(|thread| fs::read_to_string(thread.path().join("schedstat")).ok());
    texts.filter_map(|text| text.split(' ').next()?.parse::<u64>().ok()).sum()
}

/// User and system time. Field 2 of `/proc/<pid>/stat`, the name, may contain blanks, so fields are counted from its end.
pub(crate) fn cpu(pid: u32) -> Duration {
    stat_time(&pid.to_string(), 14)
}

/// User and system time of all children of this process that have ended and were waited for.
pub(crate) fn cpu_of_children() -> Duration {
    stat_time("self", 16)
}

/// This field of `/proc/<process>/stat` and the next, which are times.
fn stat_time(process: &str, field: usize) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let fields = after_name.split(' ').skip(field - 3).take(2);
    TICK * fields.filter_map(|field| field.parse::<u32>().ok()).sum()
}
