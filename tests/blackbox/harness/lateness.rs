//! How late this machine wakes a thread that sleeps. A bound in time may be missed by that much when other tests keep
//! the cores busy, and by no more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const NAP: Duration = Duration::from_millis(1);
/// An answer wakes threads of the client, of the limiter and of servers behind it, one after the other, and each may be
/// about as late as this one.
const WAKINGS: u32 = 10;

/// A thread that sleeps again and again, and looks when it is woken.
pub struct Lateness {
    stop: Arc<AtomicBool>,
    most_nanos: Arc<AtomicU64>,
    sleeper: Option<JoinHandle<()>>,
}

impl Lateness {
    pub fn watch() -> Self {
        let (stop, most_nanos) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stopped, most) = (Arc::clone(&stop), Arc::clone(&most_nanos));
        let sleeper = std::thread::spawn(move || {
            while !stopped.load(Relaxed) {
                let asleep = Instant::now();
                std::thread::sleep(NAP);
                most.fetch_max((asleep.elapsed() - NAP).as_nanos() as u64, Relaxed);
            }
        });
        Self { stop, most_nanos, sleeper: Some(sleeper) }
    }

    /// By how much a bound may be missed of what happened since this watch began.
    pub fn allowance(&self) -> Duration {
        Duration::from_nanos(self.most_nanos.load(Relaxed)) * WAKINGS
    }
}

impl Drop for Lateness {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let _ = self.sleeper.take().map(JoinHandle::join);
    }
}
