//! Load: clients that send through an Envoy as fast as they are answered, until told to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::envoy::Envoy;
use super::http;

const CLIENTS: u32 = 4;

/// Clients that are sending.
pub struct Traffic {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<u32>>,
}

impl Traffic {
    /// Begins to send. Every request has to pass.
    pub fn begin(envoy: &Envoy) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let begin = |client| {
            let (stop, port) = (Arc::clone(&stop), envoy.port);
            std::thread::spawn(move || send(port, client, &stop))
        };
        Self { clients: (0..CLIENTS).map(begin).collect(), stop }
    }

    /// Ends. How many requests there were.
    pub fn end(mut self) -> u32 {
        self.stop.store(true, Ordering::Relaxed);
        self.clients.drain(..).map(|client| client.join().expect("every request passes")).sum()
    }
}

impl Drop for Traffic {
    /// Clients of a test that failed would never end.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn send(port: u16, client: u32, stop: &AtomicBool) -> u32 {
    let mut connection = http::Client::new(port);
    let address = format!("203.0.113.{client}");
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        let answer = connection.send("GET", "/load", &[("x-forwarded-for", &address)], "");
        assert_eq!(answer.expect("Envoy answers").status, 200);
        sent += 1;
    }
    sent
}
