//! The command line of the benchmark.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use super::disturbance::Disturbance;
use super::echo::Echo;
use super::peer::Peer;
use super::scenario::Scenario;
use super::server::Subject;

/// How fast Tidegate answers over gRPC, compared with echoes of the same call that decide nothing.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo bench --bench front --")]
pub(crate) struct Args {
    /// One short round with few keys: shows that everything works; too short for figures
    #[arg(long)]
    quick: bool,
    /// Measure rates and latencies, of these scenarios only [default: everything]
    #[arg(long = "scenario", value_enum, value_delimiter = ',')]
    scenarios: Vec<Scenario>,
    /// Measure what large work and bad clients cost other clients
    #[arg(long)]
    starvation: bool,
    /// Beside these only [default: everything]
    #[arg(long, value_enum, value_delimiter = ',')]
    beside: Vec<Disturbance>,
    /// Count system calls per call; needs `strace`
    #[arg(long)]
    syscalls: bool,
    /// Measure the memory of a connection, idle and busy
    #[arg(long)]
    memory: bool,
    /// Calls per second of the open loop [default: half of the first echo's highest rate]
    #[arg(long)]
    pub(crate) rate: Option<f64>,
    /// Echoes to measure in addition to tonic-multi, which is always there
    #[arg(long = "echo-floors", value_enum, value_delimiter = ',', default_value = "tonic-current,hyper")]
    echoes: Vec<Echo>,
    /// Leave Tidegate out
    #[arg(long)]
    echoes_only: bool,
    /// Rounds, each of which measures every server once; the table shows medians
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
    /// How long each measurement takes
    #[arg(long, default_value_t = 0.8)]
    pub(crate) seconds: f64,
    /// Different keys; each has a counter of its own
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) keys: u64,
    /// The core that servers run on
    #[arg(long, default_value = "1")]
    pub(crate) server_core: String,
    /// The core that the load generator runs on
    #[arg(long, default_value = "0")]
    pub(crate) generator_core: String,
    /// Another binary than the one that was just built
    #[arg(long)]
    tidegate: Option<PathBuf>,
    /// An older binary, measured too in every round
    #[arg(long)]
    before: Option<PathBuf>,
    /// Be an echo: for the processes that the benchmark starts
    #[arg(long, hide = true, requires = "port")]
    pub(crate) echo: Option<Echo>,
    #[arg(long, hide = true)]
    pub(crate) port: Option<u16>,
    /// `cargo bench` passes this; without it (`cargo test --all-targets`) a run is quick, as with `--quick`
    #[arg(long, hide = true)]
    bench: bool,
}

impl Args {
    /// The command line of this process.
    pub(crate) fn of_process() -> Args {
        let mut args = Args::parse();
        if args.is_quick() {
            args.rounds = 1;
            args.seconds = args.seconds.min(0.25);
            args.keys = args.keys.min(50_000);
        }
        args
    }

    /// Whether the user chose what to measure. Otherwise everything is measured.
    fn chooses(&self) -> bool {
        !self.scenarios.is_empty() || self.starvation || self.syscalls || self.memory
    }

    pub(crate) fn scenarios(&self) -> Vec<Scenario> {
        if self.chooses() { self.scenarios.clone() } else { Scenario::value_variants().to_vec() }
    }

    pub(crate) fn starvation(&self) -> bool {
        self.starvation || !self.chooses()
    }

    pub(crate) fn disturbances(&self) -> &[Disturbance] {
        if self.beside.is_empty() { Disturbance::value_variants() } else { &self.beside }
    }

    pub(crate) fn syscalls(&self) -> bool {
        self.syscalls || !self.chooses()
    }

    pub(crate) fn memory(&self) -> bool {
        self.memory || !self.chooses()
    }

    /// Whether this run only shows that everything works, without figures.
    pub(crate) fn is_quick(&self) -> bool {
        self.quick || !self.bench
    }

    /// The subjects to measure. The others are compared with the first.
    pub(crate) fn subjects(&self) -> Vec<Subject> {
        let mut subjects = vec![Subject::Echo(Echo::TonicMulti)];
        let others = self.echoes.iter().filter(|&&echo| echo != Echo::TonicMulti);
        subjects.extend(others.map(|&echo| Subject::Echo(echo)));
        subjects.extend(Peer::named().map(Subject::Peer));
        if !self.echoes_only {
            subjects.extend([Subject::Tidegate, Subject::Lane, Subject::Spinning]);
            subjects.extend(self.before.is_some().then_some(Subject::Before));
            subjects.extend([Subject::TidegateTls, Subject::LaneTls]);
        }
        subjects
    }

    /// The path of Tidegate's binary for this subject.
    pub(crate) fn tidegate(&self, subject: Subject) -> Option<PathBuf> {
        let chosen = if subject == Subject::Before { &self.before } else { &self.tidegate };
        chosen.clone().or(option_env!("CARGO_BIN_EXE_tidegate").map(PathBuf::from))
    }

    pub(crate) fn all_cores(&self) -> String {
        format!("{},{}", self.generator_core, self.server_core)
    }
}
