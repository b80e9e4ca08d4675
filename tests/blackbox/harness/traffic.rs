//! Load: clients that send through an Envoy as fast as they are answered, until it has to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::envoy::Envoy;
use super::http::{self, Answer};

/// Rules under which everybody may do a lot, and every request is counted.
pub const RULES: &str = "
domain: edge
descriptors:
  - key: remote_address
    rate_limit: {unit: day, requests_per_unit: 1000000000}
";

const CLIENTS: u32 = 4;

/// Clients that are sending.
pub struct Traffic {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<u32>>,
}

impl Traffic {
    /// Begins to send. Every request has to pass, with an answer that stands this check.
    pub fn begin(envoy: &Envoy, check: fn(&Answer)) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let begin = |client| {
            let (stop, port) = (Arc::clone(&stop), envoy.port);
            std::thread::spawn(move || send(port, client, check, &stop))
        };
        Self { clients: (0..CLIENTS).map(begin).collect(), stop }
    }

    /// Ends. How many requests there were of each client; Envoy counted as many, and none that failed.
    pub fn end(mut self, envoy: &Envoy) -> Vec<u32> {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.clients.drain(..).map(|client| client.join().expect("every request passes"));
        let sent: Vec<u32> = sent.collect();
        let total: u32 = sent.iter().sum();
        println!("{total} requests");
        assert!(total > 100, "a load: {total}");
        let stat = |name: &str| envoy.stat(&format!("cluster.application.ratelimit.{name}"));
        let observed = (stat("ok"), stat("error"));
        assert_eq!(observed, (u64::from(total), 0), "{}", envoy.touched("cluster.tidegate."));
        sent
    }
}

impl Drop for Traffic {
    /// Clients of a test that failed would never end.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The address of a client.
pub fn address(client: u32) -> String {
    format!("203.0.113.{client}")
}

fn send(port: u16, client: u32, check: fn(&Answer), stop: &AtomicBool) -> u32 {
    let mut connection = http::Client::new(port);
    let address = address(client);
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        let answer = connection.send("GET", "/load", &[("x-forwarded-for", &address)], "");
        let answer = answer.expect("Envoy answers");
        assert_eq!(answer.status, 200, "{answer:?}");
        check(&answer);
        sent += 1;
    }
    sent
}
