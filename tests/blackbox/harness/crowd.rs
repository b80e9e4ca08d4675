//! Users who ask through a proxy all the time, on a few connections, and the log of what they were answered.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::admissions::Admissions;
use super::http::Client;
use super::{StopOnDrop, eventually_true};

/// Connections, each with users of its own.
pub const CONNECTIONS: usize = 3;

/// One question and its answer.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub user: usize,
    /// Microseconds since the crowd began.
    pub asked: u64,
    pub answered: u64,
    pub status: u16,
}

/// What steers users while they ask.
pub struct Crowd {
    began: Instant,
    users: usize,
    /// Where they ask.
    port: AtomicU16,
    /// How often a connection went elsewhere.
    moves: AtomicUsize,
    /// How many answers each user wants in all; an error is none.
    wanted: AtomicUsize,
    ended: AtomicBool,
    answers: [AtomicUsize; STATUSES],
    /// Users who got the error that nobody answered.
    unanswered: Mutex<BTreeSet<usize>>,
}

/// Statuses of HTTP.
const STATUSES: usize = 600;

/// What a user is called.
pub fn name(user: usize) -> String {
    format!("user-{user}")
}

/// So many users ask at this port, on and on, while `then` runs. The log of each connection, and what `then` returned.
pub fn ask_while<T>(users: usize, port: u16, then: impl FnOnce(&Crowd) -> T) -> (Vec<Vec<Asked>>, T) {
    let crowd = Crowd {
        began: Instant::now(),
        users,
        port: port.into(),
        moves: 0.into(),
        wanted: usize::MAX.into(),
        ended: false.into(),
        answers: [const { AtomicUsize::new(0) }; STATUSES],
        unanswered: Mutex::default(),
    };
    std::thread::scope(|scope| {
        let crowd = &crowd;
        let threads: Vec<_> =
            (0..CONNECTIONS).map(|connection| scope.spawn(move || crowd.ask(connection))).collect();
        let end = StopOnDrop(&crowd.ended);
        let done = then(crowd);
        drop(end);
        (threads.into_iter().map(|thread| thread.join().expect("it asks")).collect(), done)
    })
}

impl Crowd {
    /// Microseconds since it began.
    pub fn now(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    /// How many answers had this status so far.
    pub fn count(&self, status: u16) -> usize {
        self.answers[usize::from(status)].load(Ordering::Relaxed)
    }

    /// How many users got the error so far that nobody answered.
    pub fn unanswered(&self) -> usize {
        self.unanswered.lock().expect("no user panics").len()
    }

    /// From now on each user asks only until it has had so many answers.
    pub fn want(&self, answers: usize) {
        self.wanted.store(answers, Ordering::Relaxed);
    }

    /// From now on they ask here. Returns when nobody asks elsewhere any more.
    pub fn move_to(&self, port: u16) {
        let moves = self.moves.load(Ordering::Relaxed) + CONNECTIONS;
        self.port.store(port, Ordering::Relaxed);
        eventually_true("everybody to move", || self.moves.load(Ordering::Relaxed) == moves);
    }

    fn ask(&self, connection: usize) -> Vec<Asked> {
        let mut log = Vec::new();
        let mut had = vec![0; self.users];
        let mut port = self.port.load(Ordering::Relaxed);
        let mut client = Client::new(port);
        while !self.ended.load(Ordering::Relaxed) {
            let now_at = self.port.load(Ordering::Relaxed);
            if now_at != port {
                (port, client) = (now_at, Client::new(now_at));
                self.moves.fetch_add(1, Ordering::Relaxed);
            }
            let wanted = self.wanted.load(Ordering::Relaxed);
            let asking: Vec<_> =
                (connection..self.users).step_by(CONNECTIONS).filter(|user| had[*user] < wanted).collect();
            for &user in &asking {
                let asked = self.now();
                let path = format!("/{connection}/{}", log.len());
                let answer = client.send("GET", &path, &[("x-user", &name(user))], "").expect("an answer");
                log.push(Asked { user, asked, answered: self.now(), status: answer.status });
                match answer.status {
                    500 => _ = self.unanswered.lock().expect("no user panics").insert(user),
                    _ => had[user] += 1,
                }
                self.answers[usize::from(answer.status)].fetch_add(1, Ordering::Relaxed);
            }
            if asking.is_empty() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        log
    }
}

/// What each user was admitted.
pub fn admitted(users: usize, log: &[Vec<Asked>]) -> Vec<Admissions> {
    let mut admitted = vec![Admissions::default(); users];
    for entry in log.iter().flatten().filter(|entry| entry.status == 200) {
        admitted[entry.user].push(entry.asked, entry.answered);
    }
    admitted
}
