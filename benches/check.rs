//! `cargo bench --bench check`: `/check` compared with a bare HTTP/1.1 echo on hyper's current-thread runtime, called
//! directly and by a real NGINX with its recipe. Needs `wrk` and `nginx` (Debian's packages), `taskset` and `setpriv`.
//!
//! Servers share one core, the load generator has another. They are measured in turn, in several rounds. It prints
//! medians: requests per second, the 99th percentile, and Tidegate's share of the echo's rate. Every request is decided
//! by one of 1,000,000 counters; an answer other than 2xx makes the run fail.
//!
//! `cargo bench --bench check -- --rounds 9 --seconds 10 --server-core 2 --generator-core 3`

#![allow(clippy::disallowed_methods, reason = "a benchmark reads real clocks")]

use std::convert::Infallible;
use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Parser;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;

/// Limits that no client reaches, for direct requests and for those of the NGINX recipe.
const RULES: &str = "
domain: edge
rate_limits: [{actions: [{remote_address: {}}]}]
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 4000000000}}
  - {key: remote_address, rate_limit: {unit: hour, requests_per_unit: 4000000000}}
";

const RECIPE: &str = include_str!("../examples/nginx/nginx.conf");

/// One of a million users for each request.
const RANDOM_USERS: &str =
    "request = function() return wrk.format(nil, '/check/edge?user=' .. math.random(1000000)) end";

#[derive(Parser)]
struct Args {
    /// Rounds; medians are printed
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 5)]
    seconds: u32,
    /// Connections of the load generator
    #[arg(long, default_value_t = 64)]
    connections: u32,
    #[arg(long, default_value_t = 0)]
    server_core: usize,
    #[arg(long, default_value_t = 1)]
    generator_core: usize,
    /// Serves as the echo, on this port
    #[arg(long, hide = true)]
    echo: Option<u16>,
    /// Added by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match args.echo {
        Some(port) => echo(port).map_err(|error| error.to_string()),
        None => measure(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Answers everything with 204, like a limiter that admits every request.
fn echo(port: u16) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let service = hyper::service::service_fn(async |_: hyper::Request<Incoming>| {
                let mut answer = hyper::Response::new(Empty::<Bytes>::new());
                *answer.status_mut() = hyper::StatusCode::NO_CONTENT;
                Ok::<_, Infallible>(answer)
            });
            let connection = hyper::server::conn::http1::Builder::new();
            tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
        }
    })
}

/// One measurement.
#[derive(Clone, Copy)]
struct Figures {
    per_second: f64,
    p99_millis: f64,
}

fn measure(args: &Args) -> Result<(), String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("check-{}", std::process::id()));
    let users = folder.join("users.lua");
    fs::create_dir_all(folder.join("rules")).map_err(|error| error.to_string())?;
    fs::write(folder.join("rules/edge.yaml"), RULES).map_err(|error| error.to_string())?;
    fs::write(&users, RANDOM_USERS).map_err(|error| error.to_string())?;

    let (echo, tidegate) = (Server::echo(args)?, Server::tidegate(args, &folder)?);
    let by_echo = Server::nginx(args, &folder.join("nginx-echo"), echo.port)?;
    let by_tidegate = Server::nginx(args, &folder.join("nginx-tidegate"), tidegate.port)?;
    compare(args, "asked directly", [echo.port, tidegate.port], Some(&users))?;
    compare(args, "asked by NGINX", [by_echo.port, by_tidegate.port], None)?;
    fs::remove_dir_all(&folder).map_err(|error| error.to_string())
}

/// Measures an echo and Tidegate in turn.
fn compare(args: &Args, what: &str, ports: [u16; 2], script: Option<&Path>) -> Result<(), String> {
    let mut figures = [Vec::new(), Vec::new()];
    for _ in 0..args.rounds {
        for (figures, port) in figures.iter_mut().zip(ports) {
            figures.push(load(args, port, script)?);
        }
    }
    let [echo, tidegate] = figures.map(|figures| Figures {
        per_second: median(figures.iter().map(|it| it.per_second)),
        p99_millis: median(figures.iter().map(|it| it.p99_millis)),
    });
    println!("{what}:");
    for (name, Figures { per_second, p99_millis }) in [("hyper echo", echo), ("tidegate", tidegate)] {
        println!("  {name:<12} {per_second:>9.0} requests/s   p99 {p99_millis:.3} ms");
    }
    let (speed, wait) = (tidegate.per_second / echo.per_second, tidegate.p99_millis / echo.p99_millis);
    println!("  tidegate / echo: {speed:.3} of the requests, {wait:.3} of the p99");
    Ok(())
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn load(args: &Args, port: u16, script: Option<&Path>) -> Result<Figures, String> {
    let mut command = Command::new("taskset");
    command.args(["-c", &args.generator_core.to_string(), "wrk", "--latency", "-t1"]);
    command.args([format!("-c{}", args.connections), format!("-d{}s", args.seconds)]);
    if let Some(script) = script {
        command.arg("-s").arg(script);
    }
    let output = command.arg(format!("http://127.0.0.1:{port}/things")).output();
    let output = output.map_err(|error| format!("wrk (apt-get install wrk): {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() || text.contains("Non-2xx") || text.contains("Socket errors") {
        return Err(format!("not every request passed:\n{text}{}", String::from_utf8_lossy(&output.stderr)));
    }
    let word = |label: &str| text.lines().find_map(|line| line.trim().strip_prefix(label)).map(str::trim);
    let per_second = word("Requests/sec:").and_then(|word| word.parse().ok());
    let p99_millis = word("99%").and_then(millis);
    match (per_second, p99_millis) {
        (Some(per_second), Some(p99_millis)) => Ok(Figures { per_second, p99_millis }),
        _ => Err(format!("wrk says something else:\n{text}")),
    }
}

/// `1.23ms`, `456.00us`, `1.2s`.
fn millis(text: &str) -> Option<f64> {
    let units = [("us", 0.001), ("ms", 1.0), ("s", 1000.0)];
    units.iter().find_map(|(unit, factor)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * factor))
}

/// A server on the servers' core. The kernel ends it when this program ends for any reason.
struct Server {
    process: Child,
    port: u16,
}

impl Server {
    fn echo(args: &Args) -> Result<Self, String> {
        let (mut command, port) = (pinned(args), free_port()?);
        let this = std::env::current_exe().map_err(|error| error.to_string())?;
        command.arg(this).args(["--echo", &port.to_string()]);
        Self::start(command, port)
    }

    fn tidegate(args: &Args, folder: &Path) -> Result<Self, String> {
        let (mut command, port) = (pinned(args), free_port()?);
        command.arg(env!("CARGO_BIN_EXE_tidegate")).env("CONFIG_PATH", folder.join("rules"));
        command.env("PORT", port.to_string()).env("GRPC_PORT", free_port()?.to_string());
        command.env("DEBUG_PORT", free_port()?.to_string()).env("WORKER_THREADS", "1");
        command.env("PROMETHEUS_ADDR", format!("127.0.0.1:{}", free_port()?)).env("LOG_LEVEL", "warn");
        command.envs(["HOST", "GRPC_HOST", "DEBUG_HOST"].map(|host| (host, "127.0.0.1")));
        Self::start(command, port)
    }

    /// The recipe, in front of the limiter at this port.
    fn nginx(args: &Args, folder: &Path, limiter: u16) -> Result<Self, String> {
        let (mut command, port) = (pinned(args), free_port()?);
        let recipe = RECIPE
            .replace("127.0.0.1:8080", &format!("127.0.0.1:{limiter}"))
            .replace(":10000", &format!(":{port}"))
            .replace(":10080", &format!(":{}", free_port()?));
        fs::create_dir_all(folder).map_err(|error| error.to_string())?;
        fs::write(folder.join("nginx.conf"), recipe).map_err(|error| error.to_string())?;
        let how = "daemon off; master_process off; pid nginx.pid;";
        command.args(["/usr/sbin/nginx", "-p", ".", "-c", "nginx.conf", "-g", how]).current_dir(folder);
        Self::start(command, port)
    }

    fn start(mut command: Command, port: u16) -> Result<Self, String> {
        let process = command.stdin(Stdio::null()).spawn();
        let mut server = Self { process: process.map_err(|error| format!("{command:?}: {error}"))?, port };
        let began = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            let ended = server.process.try_wait().map_err(|error| error.to_string())?;
            if ended.is_some() || began.elapsed() > Duration::from_secs(10) {
                return Err(format!("{command:?} does not listen"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Neither can fail for a child that was not waited for yet.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn pinned(args: &Args) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "taskset", "-c", &args.server_core.to_string()]);
    command
}

fn free_port() -> Result<u16, String> {
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    Ok(address.map_err(|error| format!("no free port: {error}"))?.port())
}
