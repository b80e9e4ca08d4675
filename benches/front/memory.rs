//! The memory of a server per connection: while the connection is idle, and while it is as busy as a proxy's.

use std::time::Duration;

use super::args::Args;
use super::load::{self, Pace, Run, Workload};
use super::request::Keys;
use super::server::{self, Subject};
use super::{drive, start};

/// Connections: so many that the server's other memory does not matter, and fewer than its limit of open files.
const CONNECTIONS: usize = 500;
/// Calls under way on each busy one.
const STREAMS: usize = 8;
/// Keys: few, because the memory of counters is not measured.
const KEYS: u64 = 1_000;

/// Measures every server and prints a table.
pub(crate) fn measure(args: &Args) -> Result<(), String> {
    server::pin_self(&args.generator_core)?;
    println!(
        "\nresident memory a connection, {CONNECTIONS} of them, idle and with {STREAMS} calls under way"
    );
    println!("{:<28} {:>10} {:>10}", "server", "idle KiB", "busy KiB");
    for server in
        start(args, &args.server_core, |subject| !matches!(subject, Subject::Peer(_)) && !subject.is_tls())?
    {
        let workload = Workload::new(Keys::Random(KEYS), 1);
        drive(&server, &run(8), workload)?;
        let before = server.resident_bytes();
        let (idle, busy) = load::residence(&server, &run(CONNECTIONS), workload, || server.resident_bytes())?;
        let each = |bytes: u64| bytes.saturating_sub(before) as f64 / 1024.0 / CONNECTIONS as f64;
        println!("{:<28} {:>10.1} {:>10.1}", server.subject.name(), each(idle), each(busy));
    }
    Ok(())
}

fn run(connections: usize) -> Run {
    Run {
        connections,
        pace: Pace::Closed { streams: STREAMS },
        ids: false,
        warm_up: Duration::ZERO,
        measured: Duration::from_millis(500),
        calls_max: u64::MAX,
        sleeps: false,
    }
}
