//! What the black-box tests stand on: a limiter, an Envoy, clients, and waiting with a deadline.

pub mod access_log;
pub mod admissions;
pub mod application;
pub mod browser;
pub mod control_plane;
pub mod crowd;
pub mod envoy;
pub mod faulty;
pub mod grpc;
pub mod h2;
pub mod http;
pub mod inside;
pub mod lateness;
pub mod load;
pub mod memory_folder;
pub mod metrics;
pub mod mount;
pub mod pki;
pub mod process;
pub mod programs;
pub mod prometheus;
pub mod proxy;
pub mod recorder;
pub mod redis;
pub mod ring;
pub mod round_trips;
pub mod siege;
pub mod slow;
pub mod small_disk;
pub mod statsd_exporter;
pub mod tidegate;
pub mod tls;
pub mod traffic;
pub mod users;
pub mod webhook;

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Beyond this, something hangs: whatever is waited for takes well under a second on an idle machine, and a few seconds on a
/// slow one that is busy.
const DEADLINE: Duration = Duration::from_secs(60);

/// Waits until the probe answers, and returns what it found. Panics at the deadline.
pub fn eventually<T>(what: &str, probe: impl FnMut() -> Option<T>) -> T {
    eventually_within(DEADLINE, what, probe)
}

/// The same with a deadline of its own, for what others than the limiter take long for.
pub fn eventually_within<T>(deadline: Duration, what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(started.elapsed() < deadline, "waited {deadline:?} for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the condition holds.
pub fn eventually_true(what: &str, mut condition: impl FnMut() -> bool) {
    eventually(what, || condition().then_some(()));
}

/// A loopback port that nobody listens on.
///
/// Taken in turn from a range below the one that systems give to outgoing connections, so that neither another test
/// nor a client's socket takes it before the server does.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = (std::process::id() % 100) as u16 * 100;
    loop {
        let port = 20_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Held by a test that keeps all cores busy, so that two of them do not starve each other into their deadlines.
pub fn whole_machine() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stops threads on every way out, a failed assertion included: else they would never end.
pub struct StopOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
