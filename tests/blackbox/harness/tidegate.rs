//! A limiter: the binary, started with rules in a folder of its own, on ports of its own.

use std::collections::BTreeMap;
use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use tempfile::TempDir;

use super::metrics::Scrape;
use super::process::Process;
use super::{eventually, free_port, grpc, http};

/// What a limiter is started with.
pub struct Setup {
    folder: TempDir,
    env: BTreeMap<String, String>,
    args: Vec<String>,
    directory: PathBuf,
    program: PathBuf,
    /// What a shell does before it becomes the limiter.
    shell: Option<String>,
    pub ports: Ports,
}

/// The ports of one limiter.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    pub grpc: u16,
    pub http: u16,
    pub debug: u16,
    pub metrics: u16,
}

/// A running limiter.
pub struct Tidegate {
    process: Process,
    pub setup: Setup,
}

impl Setup {
    /// With an empty folder of rules, and leave to start with it. It ends as soon as it should.
    pub fn new() -> Self {
        Self::of(tempfile::tempdir().expect("a folder can be made"))
    }

    /// The same where nobody else writes: a limiter watches all folders above its rules, and wakes with each event.
    pub fn in_a_quiet_place() -> Self {
        let quiet = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        Self::of(quiet.expect("a folder can be made"))
    }

    fn of(folder: TempDir) -> Self {
        let rules = folder.path().join("rules");
        fs::create_dir(&rules).expect("a folder can be made");
        let ports = Ports { grpc: free_port(), http: free_port(), debug: free_port(), metrics: free_port() };
        let directory = folder.path().to_owned();
        let (program, shell) = (binary().into(), None);
        let setup = Self { folder, env: BTreeMap::new(), args: Vec::new(), directory, program, shell, ports };
        setup
            .env("CONFIG_PATH", &rules.display().to_string())
            .env("RULES_MAY_BE_EMPTY", "true")
            .env("GRPC_FRONT", &grpc_front())
            .env("GRPC_HOST", "127.0.0.1")
            .env("GRPC_PORT", &ports.grpc.to_string())
            .env("HOST", "127.0.0.1")
            .env("PORT", &ports.http.to_string())
            .env("DEBUG_HOST", "127.0.0.1")
            .env("DEBUG_PORT", &ports.debug.to_string())
            .env("PROMETHEUS_ADDR", &format!("127.0.0.1:{}", ports.metrics))
            .env("DRAIN_GRACE", "0s")
    }

    /// With a file of rules, without which it would not start.
    pub fn rules(mut self, name: &str, text: &str) -> Self {
        self.write(name, text);
        self.env.remove("RULES_MAY_BE_EMPTY");
        self
    }

    /// With a setting.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    /// With the default of a setting that tests change.
    pub fn default_of(mut self, name: &str) -> Self {
        self.env.remove(name).expect("a setting that was changed");
        self
    }

    /// All of its settings.
    pub fn variables(&self) -> &BTreeMap<String, String> {
        &self.env
    }

    /// With a word on the command line.
    pub fn arg(mut self, word: &str) -> Self {
        self.args.push(word.to_owned());
        self
    }

    /// Started by a shell that lets it hold so many files open.
    pub fn open_files(mut self, count: u32) -> Self {
        self.shell = Some(format!("ulimit -n {count}"));
        self
    }

    /// Started by a shell that lets it write no file longer than this, as on a disk that is full.
    pub fn file_bytes(mut self, bytes: u32) -> Self {
        // In blocks of 512 bytes. The signal would end it before it can say anything.
        self.shell = Some(format!("trap '' XFSZ && ulimit -f {}", bytes / 512));
        self
    }

    /// With a wall clock that is off by so many seconds.
    pub fn clock_off(self, seconds: i64) -> Self {
        self.env("LD_PRELOAD", "/usr/$LIB/faketime/libfaketime.so.1")
            .env("FAKETIME", &format!("{seconds:+}"))
            .env("DONT_FAKE_MONOTONIC", "1")
    }

    /// Started in this directory.
    pub fn directory(mut self, directory: &str) -> Self {
        self.directory = directory.into();
        self
    }

    /// Under another name: a link to the binary.
    pub fn program(mut self, link: &Path) -> Self {
        self.program = link.to_owned();
        self
    }

    /// The folder of rules.
    pub fn folder(&self) -> PathBuf {
        self.folder.path().join("rules")
    }

    /// The folder around it, on the same file system. Nobody watches this one.
    pub fn outside(&self) -> &Path {
        self.folder.path()
    }

    /// With a folder `state` [outside](Self::outside) for its counters.
    pub fn keeping_counters(self) -> Self {
        let folder = self.outside().join("state").display().to_string();
        self.env("STATE_DIR", &folder)
    }

    /// Writes a file of rules in place.
    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.folder().join(name), text).expect("the folder is ours");
    }

    /// Starts the binary and does not wait.
    pub fn spawn(&self) -> Process {
        let mut command =
            Command::new(if self.shell.is_some() { Path::new("/bin/sh") } else { &self.program });
        if let Some(first) = &self.shell {
            command.args(["-c", &format!("{first} && exec \"$0\" \"$@\"")]).arg(&self.program);
        }
        // Only what a test sets: the settings of the shell that runs the tests stay outside.
        command.args(&self.args).env_clear().envs(&self.env).current_dir(&self.directory);
        Process::spawn(&mut command)
    }

    /// Starts the binary and waits until it is ready.
    pub fn start(self) -> Tidegate {
        Tidegate::of(self.spawn(), self)
    }
}

/// The program that Cargo built with these tests: with assertions and overflow checks.
pub const CHECKED_BINARY: &str = env!("CARGO_BIN_EXE_tidegate");

/// The program under test: TIDEGATE_TEST_BINARY, or the checked one. The shipped one behaves differently where code asks for
/// debug assertions, as clap does.
pub fn binary() -> &'static str {
    static BINARY: LazyLock<String> =
        LazyLock::new(|| std::env::var("TIDEGATE_TEST_BINARY").unwrap_or_else(|_| CHECKED_BINARY.to_owned()));
    &BINARY
}

/// Which server serves the gRPC port. `tests/run` runs the modules about the port on both.
pub fn grpc_front() -> String {
    std::env::var("TIDEGATE_TEST_FRONT").unwrap_or_else(|_| "lane".to_owned())
}

impl Tidegate {
    /// One that was spawned, once it is ready.
    pub fn of(process: Process, setup: Setup) -> Self {
        let mut tidegate = Self { process, setup };
        eventually("the limiter to be ready", || tidegate.probe_ready());
        tidegate
    }

    /// Ready yet? Panics if it has ended instead.
    fn probe_ready(&mut self) -> Option<()> {
        if let Some(status) = self.process.ended() {
            panic!("the limiter ended: {status}\n{}", self.process.output().join("\n"));
        }
        let answer = match self.setup.env.get("HTTP_UDS") {
            Some(socket) => http::get_unix(Path::new(socket), "/readyz"),
            None => http::get(self.setup.ports.http, "/readyz"),
        };
        let answer = answer.ok()?;
        (answer.status == 200).then_some(())
    }

    /// Starts it again, as it was started, after its end.
    pub fn restart(self) -> Self {
        self.into_setup().start()
    }

    /// What it was started with, after its end.
    pub fn into_setup(self) -> Setup {
        let Self { process, setup } = self;
        drop(process);
        setup
    }

    pub fn ports(&self) -> Ports {
        self.setup.ports
    }

    pub fn client(&self) -> grpc::Client {
        grpc::Client::new(self.setup.ports.grpc)
    }

    pub fn scrape(&self) -> Scrape {
        Scrape::parse(&http::Client::new(self.setup.ports.metrics).get("/metrics").body)
    }

    /// The value of a metric without labels.
    pub fn metric(&self, name: &str) -> f64 {
        self.scrape().sum(name, &[])
    }
}

impl Deref for Tidegate {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Tidegate {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}
