//! SIGKILL at random moments of a start and of an end, while the counters are read, consumed, written and renamed: what
//! the next process finds is clean and holds every hit, or it is known as lost.
//!
//! TIDEGATE_KILLS: how many, 40 unless set.

use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::grpc;
use crate::harness::tidegate::{Setup, Tidegate};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 1000000}
";
const N: u32 = 1_000_000;

/// What the oracle knows of the folder.
struct Truth {
    /// Hits that count now, and those with which this process began: what is left of them after a kill.
    admitted: u32,
    begun: u32,
    /// How many starts found a clean end, and how many a killed process.
    clean: usize,
    killed: usize,
}

impl Truth {
    /// Asks for one hit, and judges the count in the answer by what the start found.
    fn judge(&mut self, limiter: &Tidegate) {
        let scrape = limiter.scrape();
        let found = |outcome| scrape.sum("tidegate_state_start_total", &[("outcome", outcome)]) == 1.0;
        match (found("clean"), found("unclean")) {
            (true, false) => self.clean += 1,
            (false, true) => (self.killed, self.admitted) = (self.killed + 1, self.begun),
            _ => panic!("neither clean nor killed: {:#?}", limiter.output()),
        }
        self.begun = self.admitted;
        self.admitted += 1;
        let answer = limiter.client().ask(grpc::question("shop", &[&[("user", "alice")]]));
        assert_eq!(answer.statuses[0].limit_remaining, N - self.admitted, "{:#?}", limiter.output());
    }
}

fn kills() -> u32 {
    std::env::var("TIDEGATE_KILLS").map_or(40, |kills| kills.parse().expect("TIDEGATE_KILLS is a number"))
}

/// Sleeps for a random part of this time.
fn sleep_below(time: Duration) {
    let part = (RandomState::new().hash_one(0) >> 32) as u32;
    std::thread::sleep(time.mul_f64(f64::from(part) / f64::from(u32::MAX)));
}

/// Ends a limiter cleanly, and returns how long that took.
fn end(limiter: &mut Tidegate) -> Duration {
    let began = Instant::now();
    limiter.signal(Signal::TERM);
    assert_eq!(limiter.exit_code(), 0, "{:#?}", limiter.output());
    began.elapsed()
}

fn killed_in_its_end(mut limiter: Tidegate, takes: Duration) -> Setup {
    limiter.signal(Signal::TERM);
    sleep_below(takes);
    limiter.kill();
    limiter.into_setup()
}

fn killed_in_its_start(mut limiter: Tidegate, takes: Duration) -> Setup {
    end(&mut limiter);
    let setup = limiter.into_setup();
    let mut process = setup.spawn();
    sleep_below(takes);
    process.kill();
    setup
}

#[test]
fn a_kill_at_any_moment_leaves_all_hits_or_a_known_loss() {
    let mut limiter = Setup::new()
        .rules("shop.yaml", RULES)
        .keeping_counters()
        // Lost counters do not count as full, so that the next count shows what was found.
        .env("COLD_START", "deny")
        .env("COLD_START_MAX_WINDOW", "0s")
        .start();
    limiter.client().ask(grpc::question("shop", &[&[("user", "alice")]]));
    let mut truth = Truth { admitted: 1, begun: 0, clean: 0, killed: 0 };
    let ends = end(&mut limiter);
    let began = Instant::now();
    limiter = limiter.restart();
    let starts = began.elapsed();
    truth.judge(&limiter);
    for round in 0..kills() {
        let setup = if round % 2 == 0 {
            killed_in_its_end(limiter, ends)
        } else {
            // It begins with all of them.
            truth.begun = truth.admitted;
            killed_in_its_start(limiter, starts)
        };
        limiter = setup.start();
        truth.judge(&limiter);
    }
    println!("{} starts found a clean end, {} a killed process", truth.clean, truth.killed);
}
