//! `cargo bench --bench sidecar`: what a limiter adds to a request of a real Envoy.
//!
//! An Envoy with one worker has a core; limiter, Redis and load generator share another. Every contender has an Envoy
//! of its own, and all are measured in turn: without a limiter, with one that allows everything (tonic), with Tidegate
//! by TCP and by a unix socket, with counters in memory and in Redis, and with `envoyproxy/ratelimit` where
//! PEER_RATELIMIT names its binary; with Tidegate's module inside Envoy, and with Envoy's own limiter. The load is h2load's.
//! What a limiter adds is the difference to no limiter. At the end: how often the module asks Redis about a key.
//!
//! Needs Envoy (TIDEGATE_ENVOY; `tests/run` installs one), the module, `h2load`, `redis-server`, `taskset` and `setpriv`.
//! `cargo build --release -p tidegate-envoy && cargo bench --bench sidecar -- --rounds 9 --seconds 5`

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
/// So many that each is asked twice a second, at the higher rate.
const SELDOM: u32 = 2_500;
/// How long leases last, and how often a key is asked in a second, where it is measured how often Redis is.
const LEASES: [&str; 2] = ["100ms", "1s"];
const KEY_RATES: [u32; 8] = [1, 2, 5, 10, 20, 50, 100, 1_000];

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
    /// The folder of `libtidegate.so`
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/target/release"))]
    module: PathBuf,
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
    /// Whether every request has a decision.
    decides: bool,
    /// How many paths it is asked for, and on how many connections. Each connection asks for all of them in turn.
    paths: u32,
    connections: u32,
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
    waits(args, &database, &folder)?;
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
    let asked = limiters.into_iter().map(|(name, limiter)| contender(args, name, limiter, folder));
    let leased = redis_settings(database, "module", "leased", "100ms");
    let strict = redis_settings(database, "strict", "strict", "100ms");
    let inside = [
        ("Envoy's local_ratelimit", Limiter::Local, PATHS),
        ("module", module(args, String::new()), PATHS),
        ("module, Redis", module(args, strict), PATHS),
        ("module, Redis, leased, 1 key", module(args, leased.clone()), 1),
        ("module, Redis, leased, 2,500", module(args, leased), SELDOM),
    ];
    let inside =
        inside.into_iter().map(|(name, limiter, paths)| inside_envoy(args, name, &limiter, paths, folder));
    asked.chain(inside).collect()
}

/// Settings of a module with Redis.
fn redis_settings(database: &Database, prefix: &str, sync: &str, lease: &str) -> String {
    let address = database.address();
    format!(
        "REDIS_URL: \"{address}\", REDIS_SYNC: {sync}, REDIS_LEASE_TIME: {lease}, CACHE_KEY_PREFIX: {prefix}"
    )
}

fn module(args: &Args, settings: String) -> Limiter {
    Limiter::Module(args.module.clone(), settings)
}

/// An Envoy that limits by itself.
fn inside_envoy(
    args: &Args,
    name: &'static str,
    limiter: &Limiter,
    paths: u32,
    folder: &Path,
) -> Result<Contender, String> {
    let envoy = Envoy::start(&args.envoy_core, limiter, folder)?;
    warmed(
        args,
        Contender { name, limiter: None, envoy, decides: true, paths, connections: CONNECTIONS },
        folder,
    )
}

/// How many of the requests wait for Redis, by how often each key is asked.
fn waits(args: &Args, database: &Database, folder: &Path) -> Result<(), String> {
    println!("\nrequests that wait for Redis, by how often a key is asked in a second");
    println!("{:<30} {}", "", KEY_RATES.map(|rate| format!("{rate:>7}")).concat());
    for lease in LEASES {
        let mut shares = String::new();
        for rate in KEY_RATES {
            let limiter = module(args, redis_settings(database, &format!("{lease}-{rate}"), "leased", lease));
            let mut contender = inside_envoy(args, lease, &limiter, RATES[0] / rate, folder)?;
            // On several connections, each key would be asked by all of them at once.
            contender.connections = 1;
            let (asked, waited) = (contender.envoy.asked()?, contender.envoy.waited()?);
            let requests = (f64::from(RATES[0]) * args.seconds) as u32;
            run(args, &contender, Pace::Steady { per_second: RATES[0], requests }, folder)?;
            let (asked, waited) = (contender.envoy.asked()? - asked, contender.envoy.waited()? - waited);
            shares += &format!("{:>6.1}%", waited as f64 * 100.0 / asked as f64);
        }
        println!("{:<30} {shares}", format!("REDIS_LEASE_TIME={lease}"));
    }
    Ok(())
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
    let decides = server.is_some();
    warmed(
        args,
        Contender { name, limiter: server, envoy, decides, paths: PATHS, connections: CONNECTIONS },
        folder,
    )
}

/// Has met every path.
fn warmed(args: &Args, contender: Contender, folder: &Path) -> Result<Contender, String> {
    run(args, &contender, Pace::Steady { per_second: RATES[1], requests: PATHS }, folder)?;
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
    let text: String = (0..contender.paths).map(|path| format!("http://127.0.0.1:{port}/{path}\n")).collect();
    std::fs::write(&paths, text).map_err(|error| error.to_string())?;
    let sends = vec!["--h1".to_owned(), "-i".to_owned(), paths.display().to_string()];
    let load = Load { core: &args.limiter_core, connections: contender.connections, pace, sends };
    let (asked, before) = (contender.envoy.asked()?, cpu());
    let measured = load.run(folder).map_err(|why| format!("{}: {why}", contender.name))?;
    let (asked, after) = (contender.envoy.asked()? - asked, cpu());
    // A limiter that was not asked, or did not answer in time, adds nothing.
    if contender.decides && asked < measured.requests {
        return Err(format!("{}: {} requests, {asked} decisions", contender.name, measured.requests));
    }
    Ok(Run::of(measured, after.0 - before.0, after.1 - before.1))
}
