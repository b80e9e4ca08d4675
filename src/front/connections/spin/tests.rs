//! A worker that spins, on a clock of the test.

use super::*;

const TIME: Duration = Duration::from_micros(50);

/// A thread that others keep from its core for `delayed` in total.
#[derive(Clone, Default)]
struct Thread(std::rc::Rc<Cell<Duration>>);

impl Delay for Thread {
    fn nanos(&self) -> Option<u64> {
        u64::try_from(self.0.get().as_nanos()).ok()
    }
}

/// A worker whose calls come after pauses.
struct Run {
    policy: SpinPolicy<Thread>,
    thread: Thread,
    now: Instant,
    reads: u64,
    spun: Duration,
}

impl Run {
    fn new() -> Self {
        let (thread, now) = (Thread::default(), clock::monotonic());
        let policy = SpinPolicy { rivals: Some(Rivals::new(thread.clone(), now)), ..SpinPolicy::new(TIME) };
        Self { policy, thread, now, reads: 0, spun: Duration::ZERO }
    }

    fn looks_again(&mut self) -> bool {
        self.policy.looks_again(self.now, self.reads)
    }

    /// A call, and then a pause. Returns whether the worker was awake when the pause ended.
    fn call_and_pause(&mut self, pause: Duration) -> bool {
        const LOOK: Duration = Duration::from_micros(1);
        self.reads += 1;
        let end = self.now + pause;
        while self.now < end && self.looks_again() {
            self.now += LOOK;
            self.spun += LOOK;
        }
        let is_awake = self.now >= end;
        self.now = end;
        is_awake
    }

    /// How many of so many calls, each after such a pause, found the worker awake.
    fn awake(&mut self, calls: u32, pause: Duration) -> u32 {
        (0..calls).map(|_| u32::from(self.call_and_pause(pause))).sum()
    }
}

const SOON: Duration = Duration::from_micros(20);
const LATE: Duration = Duration::from_micros(500);

#[test]
fn a_worker_spins_while_calls_come_soon_and_stops_when_they_do_not() {
    let mut run = Run::new();
    assert_eq!(run.awake(1_000, SOON), 1_000);
    let before = run.spun;
    assert_eq!(run.awake(10_000, LATE), 0);
    let vain = (run.spun - before).as_nanos() / TIME.as_nanos();
    assert!(vain < 25, "{vain} pauses in vain of 10,000");
    // It tries again after 1,024 pauses at most, and stays.
    assert!(run.awake(3_000, SOON) > 1_900);
}

#[test]
fn calls_of_which_half_come_soon_are_not_worth_it() {
    let mut run = Run::new();
    let before = run.spun;
    for _ in 0..10_000 {
        run.call_and_pause(SOON);
        run.call_and_pause(LATE);
    }
    let share = (run.spun - before).as_secs_f64() / (10_000.0 * (SOON + LATE).as_secs_f64());
    assert!(share < 0.02, "{share}");
}

#[test]
fn a_worker_that_read_nothing_sleeps() {
    let mut run = Run::new();
    assert!(!run.looks_again(), "a timer woke it");
    run.reads += 1;
    assert!(run.looks_again());
    run.now += TIME;
    assert!(!run.looks_again(), "the time is over");
    assert!(!run.looks_again());
}

#[test]
fn a_worker_whose_core_others_want_sleeps_for_longer_each_time() {
    let mut run = Run::new();
    // Another thread takes every second slice of 3 ms while it is awake, for a minute.
    const SLICE: Duration = Duration::from_millis(3);
    let (begin, mut taken) = (run.now, Duration::ZERO);
    while run.now < begin + Duration::from_secs(60) {
        run.call_and_pause(SOON);
        if run.spun >= taken + SLICE {
            taken = run.spun;
            run.thread.0.set(run.thread.0.get() + SLICE);
            run.now += SLICE;
        }
    }
    assert!(run.spun < Duration::from_millis(100), "{:?} of a minute", run.spun);
    // The others are gone: it spins again, and a while later forgets them.
    run.now += Duration::from_secs(10);
    assert_eq!(run.awake(10_000, SOON), 10_000);
    assert_eq!(run.policy.rivals.map(|rivals| rivals.quiet_next), Some(Rivals::<Thread>::QUIET.0));
}

#[test]
fn threads_that_wake_for_a_moment_are_no_rivals() {
    let mut run = Run::new();
    for _ in 0..100 {
        assert_eq!(run.awake(250, SOON), 250);
        let moment = Duration::from_micros(300);
        run.thread.0.set(run.thread.0.get() + moment);
        run.now += moment;
    }
}

#[test]
fn a_thread_that_does_not_know_its_delay_never_spins() {
    let mut run = Run::new();
    run.policy.rivals = None;
    assert_eq!(run.awake(100, SOON), 0);
    assert_eq!(run.spun, Duration::ZERO);
}

#[test]
fn the_delay_of_this_thread_is_known_and_does_not_shrink() {
    let delay = RunDelay::of_this_thread().expect("Linux says it");
    let before = delay.nanos().expect("a number");
    std::thread::yield_now();
    assert!(delay.nanos().expect("a number") >= before);
}
