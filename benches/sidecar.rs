//! `cargo bench --bench sidecar`: what a limiter adds to a request of a real Envoy.
//!
//! An Envoy with one worker has a core; limiter, Redis and load generator share another. Every contender has an Envoy
//! of its own, and all are measured in turn: without a limiter, with one that allows everything (tonic), with Tidegate
//! by TCP and by a unix socket, with counters in memory and in Redis, and with `envoyproxy/ratelimit` where
//! PEER_RATELIMIT names its binary. The load is h2load's. What a limiter adds is the difference to no limiter.
//!
//! Needs Envoy (TIDEGATE_ENVOY; `tests/run` installs one), `h2load`, `redis-server`, `taskset` and `setpriv`.
//! `cargo bench --bench sidecar -- --rounds 9 --seconds 5`

#![allow(clippy::disallowed_methods, reason = "a benchmark reads real clocks")]
#![allow(dead_code, reason = "the benchmark of the fronts uses more of what they share")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

#[path = "redis/database.rs"]
mod database;
#[path = "front/echo.rs"]
mod echo;
#[path = "sidecar/envoy.rs"]
mod envoy;
#[path = "front/frame.rs"]
mod frame;
#[path = "front/h2load.rs"]
mod h2load;
#[path = "front/hpack.rs"]
mod hpack;
#[path = "front/huffman.rs"]
mod huffman;
#[path = "front/peer.rs"]
mod peer;
#[path = "front/request.rs"]
mod request;
#[path = "front/server.rs"]
mod server;
#[path = "front/socket.rs"]
mod socket;
#[path = "sidecar/table.rs"]
mod table;

use database::Database;
use echo::Echo;
use envoy::{Envoy, Limiter};
use h2load::{Load, Pace};
use peer::Peer;
use server::{Server, Setup, Subject};
use table::{Row, Run};
use tidegate::proto;

const RATE_LIMIT: &str = "{unit: hour, requests_per_unit: 1000000, algorithm: sliding_window}";
/// Requests a second of the steady runs.
const RATES: [u32; 2] = [1_000, 5_000];
/// Connections to Envoy.
const CONNECTIONS: u32 = 10;
/// Paths, each with a counter of its own.
const PATHS: u32 = 10_000;

/// What a limiter adds to a request of Envoy.
#[derive(Parser)]
#[command(bin_name = "cargo bench --bench sidecar --")]
struct Args {
    /// Rounds, each of which measures every contender once at each rate
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// The core of Envoy
    #[arg(long, default_value = "0")]
    envoy_core: String,
    /// The core of the limiter, of Redis and of the load generator
    #[arg(long, default_value = "1")]
    limiter_core: String,
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
        (args.rounds, args.seconds) = (1, 0.2);
    }
    let done = match (args.echo, args.port) {
        (Some(echo), Some(port)) => echo::serve(echo, port).map_err(|error| error.to_string()),
        _ => measure(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// A limiter, unless there is none, and the Envoy that asks it.
struct Contender {
    name: &'static str,
    limiter: Option<Server>,
    envoy: Envoy,
}

fn measure(args: &Args) -> Result<(), String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("sidecar-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let database = Database::start(&args.limiter_core)?;
    let contenders = contenders(args, &database, &folder)?;
    let full = Pace::Full { seconds: args.seconds };
    let steady = |per_second| Pace::Steady {
        per_second,
        requests: ((f64::from(per_second) * args.seconds) as u32).max(CONNECTIONS),
    };
    for (title, pace) in [
        ("1,000 requests a second".to_owned(), steady(RATES[0])),
        ("5,000 requests a second".to_owned(), steady(RATES[1])),
        ("as fast as answers come".to_owned(), full),
    ] {
        let mut rows: Vec<Row> = contenders.iter().map(|contender| Row::new(contender.name)).collect();
        for _ in 0..args.rounds {
            for (row, contender) in rows.iter_mut().zip(&contenders) {
                row.rounds.push(run(args, contender, pace, &folder)?);
            }
        }
        table::print(&title, &rows);
    }
    drop(contenders);
    std::fs::remove_dir_all(&folder).map_err(|error| error.to_string())
}

/// All contenders, warm: each has met every path.
fn contenders(args: &Args, database: &Database, folder: &Path) -> Result<Vec<Contender>, String> {
    let redis = |settings: &[(&'static str, &str)]| {
        let mut variables = vec![("REDIS_URL", database.address())];
        variables.extend(settings.iter().map(|&(name, value)| (name, value.to_owned())));
        variables.push(("CACHE_KEY_PREFIX", format!("{}:", variables.len())));
        Setup { variables, ..setup() }
    };
    let socket = Setup { socket: Some(folder.join("tidegate.sock")), ..setup() };
    let mut limiters = vec![
        ("no limiter", None),
        ("allows everything (tonic)", Some((Subject::Echo(Echo::TonicCurrent), setup()))),
        ("Tidegate", Some((Subject::Lane, setup()))),
        ("Tidegate, unix socket", Some((Subject::Lane, socket))),
        ("Tidegate, Redis", Some((Subject::Lane, redis(&[])))),
        ("Tidegate, Redis, leased", Some((Subject::Lane, redis(&[("REDIS_SYNC", "leased")])))),
    ];
    if Peer::named().any(|peer| peer == Peer::Ratelimit) {
        limiters.push(("envoyproxy/ratelimit, Redis", Some((Subject::Peer(Peer::Ratelimit), redis(&[])))));
    }
    limiters.into_iter().map(|(name, limiter)| contender(args, name, limiter, folder)).collect()
}

fn setup() -> Setup {
    Setup { rate_limit: RATE_LIMIT.into(), ..Setup::default() }
}

fn contender(
    args: &Args,
    name: &'static str,
    limiter: Option<(Subject, Setup)>,
    folder: &Path,
) -> Result<Contender, String> {
    let (server, asked) = match limiter {
        None => (None, Limiter::None),
        Some((subject, setup)) => {
            let server = Server::start_with(subject, &args.limiter_core, &args.tidegate, &setup)?;
            let asked = match setup.socket {
                Some(path) => Limiter::Socket(path),
                None => Limiter::Port(server.address.port()),
            };
            (Some(server), asked)
        }
    };
    let envoy = Envoy::start(&args.envoy_core, &asked, folder)?;
    let contender = Contender { name, limiter: server, envoy };
    run(args, &contender, Pace::Steady { per_second: 5_000, requests: PATHS }, folder)?;
    Ok(contender)
}

/// One run of one contender.
fn run(args: &Args, contender: &Contender, pace: Pace, folder: &Path) -> Result<Run, String> {
    let cpu = || {
        let limiter = contender.limiter.as_ref().map_or(0, |server| server::cpu_nanos(server.id()));
        (server::cpu_nanos(contender.envoy.id()), limiter)
    };
    let paths = folder.join("paths");
    let port = contender.envoy.port;
    let text: String = (0..PATHS).map(|path| format!("http://127.0.0.1:{port}/{path}\n")).collect();
    std::fs::write(&paths, text).map_err(|error| error.to_string())?;
    let sends = vec!["--h1".to_owned(), "-i".to_owned(), paths.display().to_string()];
    let load = Load { core: &args.limiter_core, connections: CONNECTIONS, pace, sends };
    let (asked, before) = (contender.envoy.asked()?, cpu());
    let measured = load.run(folder).map_err(|why| format!("{}: {why}", contender.name))?;
    let (asked, after) = (contender.envoy.asked()? - asked, cpu());
    // A limiter that was not asked, or did not answer in time, adds nothing.
    if contender.limiter.is_some() && asked < measured.requests {
        return Err(format!("{}: {} requests, {asked} decisions", contender.name, measured.requests));
    }
    Ok(Run::of(measured, after.0 - before.0, after.1 - before.1))
}
