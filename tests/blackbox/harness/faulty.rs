//! A wire between a limiter and its Redis that can be made bad: slow, closing, or saying what nobody said.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// What the wire does to answers.
#[derive(Clone, Copy, Debug)]
pub enum Wire {
    Good,
    /// Each is late by this.
    Slow(Duration),
    /// Every third is lost with its connection.
    Closing,
    /// None is what Redis said.
    Garbage,
}

/// A proxy for TCP. Its threads end with their connections.
pub struct Faulty {
    pub port: u16,
    wire: Arc<AtomicU64>,
}

const CLOSING: u64 = u64::MAX;
const GARBAGE: u64 = u64::MAX - 1;

impl Faulty {
    /// A good wire to this port of loopback.
    pub fn to(port: u16) -> Self {
        let wire = Arc::<AtomicU64>::default();
        let own = Arc::clone(&wire);
        let port = relay(port, move || {
            let (wire, mut answers) = (Arc::clone(&own), 0_u64);
            move |bytes: &mut [u8]| {
                answers += 1;
                match wire.load(Relaxed) {
                    CLOSING => return !answers.is_multiple_of(3),
                    GARBAGE => bytes.fill(b'?'),
                    millis => std::thread::sleep(Duration::from_millis(millis)),
                }
                true
            }
        });
        Self { port, wire }
    }

    /// From now on it is like this.
    pub fn become_(&self, wire: Wire) {
        let number = match wire {
            Wire::Good => 0,
            Wire::Slow(delay) => delay.as_millis() as u64,
            Wire::Closing => CLOSING,
            Wire::Garbage => GARBAGE,
        };
        self.wire.store(number, Relaxed);
    }
}

/// A relay to this port of loopback; returns its own port. For each connection, `change` makes a function. The bytes of
/// the server go through it: it may change them, and end the connection.
pub fn relay<C>(port: u16, change: impl Fn() -> C + Send + 'static) -> u16
where
    C: FnMut(&mut [u8]) -> bool + Send + 'static,
{
    relay_watched(port, |_| (), change)
}

/// The same. `asked` sees the bytes of clients before the server does.
pub fn relay_watched<C>(
    port: u16,
    asked: impl Fn(&[u8]) + Clone + Send + 'static,
    change: impl Fn() -> C + Send + 'static,
) -> u16
where
    C: FnMut(&mut [u8]) -> bool + Send + 'static,
{
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port can be had");
    let own = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // Whoever connects while the server is away finds the connection closed.
            let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
            join(client, server, asked.clone(), change());
        }
    });
    own
}

fn join(
    client: TcpStream,
    server: TcpStream,
    asked: impl Fn(&[u8]) + Send + 'static,
    change: impl FnMut(&mut [u8]) -> bool + Send + 'static,
) {
    // What is asked for is not to wait for more of it.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (Ok(from), Ok(to)) = (client.try_clone(), server.try_clone()) else { return };
    let watch = move |bytes: &mut [u8]| {
        asked(bytes);
        true
    };
    std::thread::spawn(move || pump(from, to, watch));
    std::thread::spawn(move || pump(server, client, change));
}

/// Carries bytes until one side ends, or `change` says so.
fn pump(mut from: TcpStream, mut to: TcpStream, mut change: impl FnMut(&mut [u8]) -> bool) {
    let mut bytes = [0; 16_384];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if !change(&mut bytes[..count]) || to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
