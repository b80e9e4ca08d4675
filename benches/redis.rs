//! `cargo bench --bench redis`: the cost of sharing counters between nodes in Redis.
//!
//! Tidegate has one core; a Redis that the benchmark starts has the other, together with the load generator. Tidegate
//! with Redis is compared with a bare client that calls the same script at the same depth, with its own memory store,
//! and with an echo that decides nothing. All are measured in turn, in several rounds, so that a disturbance of the
//! machine affects all of them. One wrong answer makes the run fail.
//!
//! `cargo bench --bench redis -- --help` shows the options. Linux only, with `redis-server` installed.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads real clocks")]
#![allow(dead_code, reason = "the benchmark of the fronts uses more of what they share")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

#[path = "front/answer_head.rs"]
mod answer_head;
#[path = "redis/bare.rs"]
mod bare;
#[path = "front/client.rs"]
mod client;
#[path = "redis/database.rs"]
mod database;
#[path = "front/echo.rs"]
mod echo;
#[path = "front/frame.rs"]
mod frame;
#[path = "front/hpack.rs"]
mod hpack;
#[path = "front/huffman.rs"]
mod huffman;
#[path = "front/load.rs"]
mod load;
#[path = "front/peer.rs"]
mod peer;
#[path = "front/request.rs"]
mod request;
#[path = "front/request_head.rs"]
mod request_head;
#[path = "front/server.rs"]
mod server;
#[path = "front/socket.rs"]
mod socket;
#[path = "redis/table.rs"]
mod table;

use bare::Bare;
use database::Database;
use echo::Echo;
use load::{Pace, Run, Workload};
use request::{Expected, Keys};
use server::{Server, Setup, Subject};
use table::{Figures, Must, Row};
use tidegate::proto;

const SLIDING: &str = "{unit: hour, requests_per_unit: 1000000, algorithm: sliding_window}";
const FIXED: &str = "{unit: hour, requests_per_unit: 1000000, algorithm: fixed_window}";
/// Every key is asked for more than once, so this limit denies.
const OVER: &str = "{unit: hour, requests_per_unit: 1, algorithm: sliding_window}";
/// With it, counters that were lost count as full. Those of `SLIDING` are exempt, while others are not.
const DENY: &[(&str, &str)] = &[("COLD_START", "deny"), ("COLD_START_MAX_WINDOW", "30m")];
/// Connections, and calls under way on each.
const CROWD: (usize, usize) = (8, 64);
const ALONE: (usize, usize) = (1, 1);
/// A run before each measurement, because leases end while others are measured.
const WARM_UP: Duration = Duration::from_millis(300);

/// The cost of sharing counters in Redis.
#[derive(Parser)]
#[command(bin_name = "cargo bench --bench redis --")]
struct Args {
    /// Rounds, each of which measures everything once; the tables show medians
    #[arg(long, default_value_t = 7)]
    rounds: u64,
    /// How long each measurement takes
    #[arg(long, default_value_t = 0.4)]
    seconds: f64,
    /// Only the tables whose title contains this
    #[arg(long, default_value = "")]
    only: String,
    /// Clients, each with a counter of its own, where counters are cold
    #[arg(long, default_value_t = 10_000)]
    keys: u64,
    /// Clients, where counters are hot or over
    #[arg(long, default_value_t = 1_000)]
    hot_keys: u64,
    /// The core that Tidegate runs on
    #[arg(long, default_value = "1")]
    server_core: String,
    /// The core that Redis and the load generator run on
    #[arg(long, default_value = "0")]
    redis_core: String,
    /// Another binary than the one that was just built
    #[arg(long, default_value = env!("CARGO_BIN_EXE_tidegate"))]
    tidegate: PathBuf,
    /// Be an echo: for the process that the benchmark starts
    #[arg(long, hide = true, requires = "port")]
    echo: Option<Echo>,
    #[arg(long, hide = true)]
    port: Option<u16>,
    /// `cargo bench` passes this; without it (`cargo test --all-targets`) one short round shows that everything works
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let mut args = Args::parse();
    if !args.bench {
        (args.rounds, args.seconds) = (1, 0.1);
    }
    let done = match (args.echo, args.port) {
        (Some(echo), Some(port)) => echo::serve(echo, port).map_err(|error| error.to_string()),
        _ => Database::start(&args.redis_core).and_then(|database| Bench { args, database }.measure()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

struct Bench {
    args: Args,
    database: Database,
}

/// A program that is measured.
enum Contender {
    /// A bare client of the script, on this core.
    Bare(Bare, String),
    Server(Server),
}

/// A row to measure: its name, the contender, the row that it is compared with, the requirement.
type PlannedRow = (&'static str, Contender, usize, Must);

impl Bench {
    fn measure(&self) -> Result<(), String> {
        server::pin_self(&self.args.redis_core)?;
        let Args { keys, hot_keys, .. } = self.args;
        let (ok, over) = (Expected::Ok, Expected::Over);
        self.section("strict, 8 × 64 calls at a time", (CROWD, keys, ok), || self.strict())?;
        self.section("fixed_window, 8 × 64 calls at a time", (CROWD, keys, ok), || self.fixed())?;
        self.section("leased, hot keys under their limit", (CROWD, hot_keys, ok), || self.leased())?;
        self.section("keys that are over their limit", (CROWD, hot_keys, over), || self.over())?;
        self.section("COLD_START=deny, 8 × 64 calls at a time", (CROWD, keys, ok), || self.deny())?;
        self.section("one call at a time", (ALONE, keys, ok), || self.single())
    }

    fn strict(&self) -> Result<Vec<PlannedRow>, String> {
        Ok(vec![
            ("bare client", self.bare(SLIDING, &self.args.redis_core)?, 0, Must::Nothing),
            (
                "bare client, on Tidegate's core",
                self.bare(SLIDING, &self.args.server_core)?,
                0,
                Must::Nothing,
            ),
            ("tidegate", self.shared(Subject::Tidegate, SLIDING, &[])?, 0, Must::Rate(0.9)),
            ("tidegate, lane", self.shared(Subject::Lane, SLIDING, &[])?, 0, Must::Rate(0.9)),
        ])
    }

    fn fixed(&self) -> Result<Vec<PlannedRow>, String> {
        let echo = self.start(Subject::Echo(Echo::TonicMulti), &Setup::default())?;
        Ok(vec![
            ("echo, tonic multi-thread", echo, 0, Must::Nothing),
            ("bare client", self.bare(FIXED, &self.args.redis_core)?, 0, Must::Nothing),
            ("tidegate", self.shared(Subject::Tidegate, FIXED, &[])?, 0, Must::Rate(0.33)),
            ("tidegate, lane", self.shared(Subject::Lane, FIXED, &[])?, 0, Must::Rate(0.33)),
        ])
    }

    fn leased(&self) -> Result<Vec<PlannedRow>, String> {
        let leased: &[_] = &[("REDIS_SYNC", "leased")];
        Ok(vec![
            ("memory", self.in_memory(Subject::Tidegate, SLIDING)?, 0, Must::Nothing),
            ("leased", self.shared(Subject::Tidegate, SLIDING, leased)?, 0, Must::Rate(0.8)),
            ("memory, lane", self.in_memory(Subject::Lane, SLIDING)?, 2, Must::Nothing),
            ("leased, lane", self.shared(Subject::Lane, SLIDING, leased)?, 2, Must::Rate(0.8)),
        ])
    }

    fn over(&self) -> Result<Vec<PlannedRow>, String> {
        let remembers: &[_] = &[("LOCAL_CACHE_SIZE_IN_BYTES", "10000000")];
        Ok(vec![
            ("memory", self.in_memory(Subject::Tidegate, OVER)?, 0, Must::Nothing),
            ("over", self.shared(Subject::Tidegate, OVER, remembers)?, 0, Must::RateAlone(0.9)),
            ("memory, lane", self.in_memory(Subject::Lane, OVER)?, 2, Must::Nothing),
            ("over, lane", self.shared(Subject::Lane, OVER, remembers)?, 2, Must::RateAlone(0.9)),
        ])
    }

    fn deny(&self) -> Result<Vec<PlannedRow>, String> {
        let variables = DENY.iter().map(|&(name, value)| (name, value.to_owned())).collect();
        let setup = Setup { rate_limit: SLIDING.into(), variables, ..Setup::default() };
        Ok(vec![
            ("allow, lane", self.shared(Subject::Lane, SLIDING, &[])?, 0, Must::Nothing),
            ("deny, lane", self.shared(Subject::Lane, SLIDING, DENY)?, 0, Must::Nothing),
            ("memory, allow, lane", self.in_memory(Subject::Lane, SLIDING)?, 2, Must::Nothing),
            ("memory, deny, lane", self.start(Subject::Lane, &setup)?, 2, Must::Nothing),
        ])
    }

    fn single(&self) -> Result<Vec<PlannedRow>, String> {
        Ok(vec![
            (
                "bare client, on Tidegate's core",
                self.bare(SLIDING, &self.args.server_core)?,
                0,
                Must::Nothing,
            ),
            ("tidegate", self.shared(Subject::Tidegate, SLIDING, &[])?, 0, Must::Added(100.0)),
            ("tidegate, lane", self.shared(Subject::Lane, SLIDING, &[])?, 0, Must::Added(100.0)),
            ("memory", self.in_memory(Subject::Tidegate, SLIDING)?, 0, Must::Nothing),
        ])
    }

    fn bare(&self, rate_limit: &str, core: &str) -> Result<Contender, String> {
        Ok(Contender::Bare(Bare::connect(&self.database, rate_limit, self.args.keys)?, core.to_owned()))
    }

    fn in_memory(&self, subject: Subject, rate_limit: &str) -> Result<Contender, String> {
        self.start(subject, &Setup { rate_limit: rate_limit.into(), ..Setup::default() })
    }

    /// Tidegate with its counters in Redis, with a key prefix of their own.
    fn shared(
        &self,
        subject: Subject,
        rate_limit: &str,
        settings: &[(&'static str, &str)],
    ) -> Result<Contender, String> {
        let mut variables = vec![("REDIS_URL", self.database.address())];
        variables.push(("CACHE_KEY_PREFIX", format!("{}:{rate_limit}:", subject.name())));
        variables.extend(settings.iter().map(|&(name, value)| (name, value.to_owned())));
        self.start(subject, &Setup { rate_limit: rate_limit.into(), variables, socket: None })
    }

    fn start(&self, subject: Subject, setup: &Setup) -> Result<Contender, String> {
        let Args { server_core, tidegate, .. } = &self.args;
        Server::start_with(subject, server_core, tidegate, setup).map(Contender::Server)
    }

    fn section(
        &self,
        title: &str,
        (depth, keys, expected): ((usize, usize), u64, Expected),
        plans: impl FnOnce() -> Result<Vec<PlannedRow>, String>,
    ) -> Result<(), String> {
        if !title.contains(&self.args.only) {
            return Ok(());
        }
        let (mut all, mut rows) = (Vec::new(), Vec::new());
        for (name, mut contender, beside, must) in plans()? {
            self.prepare(&mut contender, keys, expected)?;
            all.push(contender);
            rows.push(Row { name, beside, must, rounds: Vec::new() });
        }
        for round in 1..=self.args.rounds {
            for (row, contender) in rows.iter_mut().zip(&mut all) {
                row.rounds.push(self.run(contender, depth, Workload::new(Keys::Random(keys), round))?);
            }
        }
        table::print(title, &rows);
        Ok(())
    }

    /// Sends two requests for every key, so that the steady state is measured.
    fn prepare(&self, contender: &mut Contender, keys: u64, expected: Expected) -> Result<(), String> {
        let Contender::Server(server) = contender else { return Ok(()) };
        server.answers = Expected::Decision;
        for _ in 0..2 {
            let run = Run { calls_max: keys, ..self.timed(CROWD, Duration::from_secs(60)) };
            drive(server, &run, Workload::new(Keys::InTurn(0), 0))?;
        }
        server.answers = expected;
        Ok(())
    }

    fn timed(&self, (connections, streams): (usize, usize), measured: Duration) -> Run {
        Run {
            connections,
            pace: Pace::Closed { streams },
            ids: false,
            warm_up: Duration::ZERO,
            measured,
            calls_max: u64::MAX,
            sleeps: true,
        }
    }

    fn run(
        &self,
        contender: &mut Contender,
        depth: (usize, usize),
        workload: Workload,
    ) -> Result<Figures, String> {
        let measured = Duration::from_secs_f64(self.args.seconds);
        if let Contender::Server(server) = contender {
            drive(server, &self.timed(depth, WARM_UP), Workload { seed: !workload.seed, ..workload })?;
        }
        let before = self.database.work()?;
        match contender {
            Contender::Server(server) => {
                let outcome = drive(server, &self.timed(depth, measured), workload)?;
                Ok(Figures::of(&outcome, self.database.work()?.since(before)))
            }
            Contender::Bare(client, core) => {
                server::pin_self(core)?;
                let outcome = client.drive(depth.0 * depth.1, measured);
                server::pin_self(&self.args.redis_core)?;
                Ok(Figures::of_bare(&outcome?, self.database.work()?.since(before)))
            }
        }
    }
}

fn drive(server: &Server, run: &Run, workload: Workload) -> Result<load::Outcome, String> {
    let outcome = load::drive(server, run, workload).map_err(|why| server.blame(&why))?;
    match &outcome.tally.first_error {
        Some(error) => Err(server.blame(&format!("{} errors, the first: {error}", outcome.tally.errors))),
        None => Ok(outcome),
    }
}
