//! An application whose answers wait until the test lets them go. It counts the calls that are in flight.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

#[derive(Clone, Default)]
pub struct Slow(Arc<(Mutex<Calls>, Condvar)>);

#[derive(Default)]
struct Calls {
    /// How many there were so far.
    begun: usize,
    /// How many of these may end. The oldest end first.
    answers: usize,
    running: usize,
    most: usize,
}

impl Slow {
    /// Starts it. Returns its port; it serves as long as the tests run.
    pub fn start(&self) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let slow = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let slow = slow.clone();
                std::thread::spawn(move || slow.serve(stream));
            }
        });
        port
    }

    fn serve(&self, mut stream: TcpStream) -> Option<()> {
        let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
        loop {
            while !lines.next()?.ok()?.is_empty() {}
            let mut calls = self.calls();
            let own = calls.begun;
            calls.begun += 1;
            calls.running += 1;
            calls.most = calls.most.max(calls.running);
            calls = self.0.1.wait_while(calls, |calls| calls.answers <= own).ok()?;
            calls.running -= 1;
            drop(calls);
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()?;
        }
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.0.0.lock().expect("no panic")
    }

    /// How many calls wait for their answers.
    pub fn in_flight(&self) -> usize {
        let calls = self.calls();
        calls.begun.saturating_sub(calls.answers)
    }

    /// The most calls that ran at one time.
    pub fn most(&self) -> usize {
        self.calls().most
    }

    /// Answers so many calls, the oldest first, also those that are still to come.
    pub fn answer(&self, calls: usize) {
        self.calls().answers += calls;
        self.0.1.notify_all();
    }

    /// Answers all calls that are in flight.
    pub fn answer_all(&self) {
        let mut calls = self.calls();
        calls.answers = calls.begun;
        self.0.1.notify_all();
    }
}
