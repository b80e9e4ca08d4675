//! Users who ask Envoys on and on, and the log of what they were answered. An Envoy may end at any time, or hang.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::admissions::Admissions;
use super::http::Client;
use super::{StopOnDrop, eventually_true};

/// An Envoy that has just ended is tried again after this.
const PAUSE: Duration = Duration::from_millis(5);

/// One connection: where it asks, as whom, and how often.
#[derive(Clone, Debug)]
pub struct User {
    pub port: u16,
    pub name: &'static str,
    /// The time from one request to the next. Zero: as fast as answers come.
    pub every: Duration,
}

/// What users were answered.
#[derive(Default)]
pub struct Log {
    /// With 200.
    pub admitted: Admissions,
    /// With 429.
    pub denied: usize,
    /// With another status.
    pub failed: usize,
    /// Not at all: it may have been admitted.
    pub lost: usize,
}

/// What is known while they ask.
#[derive(Default)]
pub struct Asking {
    admitted: AtomicUsize,
    denied: AtomicUsize,
    ended: AtomicBool,
}

impl Asking {
    /// How many requests were admitted so far.
    pub fn admitted(&self) -> usize {
        self.admitted.load(Relaxed)
    }

    /// Waits until so many more requests are admitted.
    pub fn until_admitted(&self, more: usize) {
        let admitted = self.admitted() + more;
        eventually_true("users to be admitted", || self.admitted() >= admitted);
    }

    /// Waits until so many more requests are admitted or denied.
    pub fn until_decided(&self, more: usize) {
        let decided = || self.admitted() + self.denied.load(Relaxed);
        let enough = decided() + more;
        eventually_true("users to be answered", || decided() >= enough);
    }

    /// Waits until so many more requests are denied.
    pub fn until_denied(&self, more: usize) {
        let denied = self.denied.load(Relaxed) + more;
        eventually_true("users to be denied", || self.denied.load(Relaxed) >= denied);
    }
}

/// So many connections to each port ask as one user, as fast as they are answered.
pub fn busy(ports: &[u16], connections: usize) -> Vec<User> {
    let user = |&port: &u16| User { port, name: "ann", every: Duration::ZERO };
    ports.iter().flat_map(|port| std::iter::repeat_n(user(port), connections)).collect()
}

/// Users ask on and on while `then` runs.
pub fn ask_while(users: &[User], then: impl FnOnce(&Asking)) -> Log {
    let (asking, began) = (Asking::default(), Instant::now());
    std::thread::scope(|scope| {
        let asking = &asking;
        let ask = |user| scope.spawn(move || ask(user, asking, began));
        let users: Vec<_> = users.iter().map(ask).collect();
        let end = StopOnDrop(&asking.ended);
        then(asking);
        drop(end);
        let logs = users.into_iter().map(|user| user.join().expect("it asks"));
        logs.fold(Log::default(), Log::and)
    })
}

fn ask(user: &User, asking: &Asking, began: Instant) -> Log {
    let (mut log, mut client, mut next) = (Log::default(), Client::new(user.port), Instant::now());
    while !asking.ended.load(Relaxed) {
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        next += user.every;
        let asked = began.elapsed().as_micros() as u64;
        let answer = client.send("GET", "/", &[("x-user", user.name)], "");
        let answered = began.elapsed().as_micros() as u64;
        match answer.map(|answer| answer.status) {
            Ok(200) => {
                log.admitted.push(asked, answered);
                asking.admitted.fetch_add(1, Relaxed);
            }
            Ok(429) => {
                log.denied += 1;
                asking.denied.fetch_add(1, Relaxed);
            }
            Ok(_) => log.failed += 1,
            Err(_) => {
                log.lost += 1;
                std::thread::sleep(PAUSE);
            }
        }
    }
    log
}

impl Log {
    fn and(mut self, more: Self) -> Self {
        self.admitted.append(more.admitted);
        self.denied += more.denied;
        self.failed += more.failed;
        self.lost += more.lost;
        self
    }
}
