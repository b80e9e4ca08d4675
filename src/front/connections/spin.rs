//! SPIN_TIME: a worker that has just answered looks for the next call a little longer before it sleeps. A wake-up
//! takes longer than most decisions; but a thread that finds no call has used its core for nothing.
//!
//! In: each moment at which the worker has nothing to do, and whether it has read anything since the last one. Out:
//! whether it looks again now, or sleeps. It learns:
//!
//! - It keeps spinning only while calls do come within SPIN_TIME ([`Habit`]). Otherwise it tries again after a number
//!   of pauses, which doubles with every failed try.
//! - It does not spin while other threads want its core ([`Rivals`]): a spinning thread never sleeps, so all the time
//!   that it was ready and did not run went to others.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::Runtime;

use crate::clock;

thread_local! {
    /// Reads of this thread that brought bytes.
    static READS: Cell<u64> = const { Cell::new(0) };
}

/// Notes a read that brought bytes.
#[inline]
pub(super) fn note_read() {
    READS.set(READS.get().wrapping_add(1));
}

/// Makes the runtime of one worker look again. Its hook is called whenever the worker would sleep.
#[derive(Clone)]
pub(super) struct Spinner(Arc<Inner>);

struct Inner {
    policy: Mutex<SpinPolicy>,
    /// Waking this task keeps the runtime from sleeping: it polls its sockets and comes back.
    waker: Mutex<Option<Waker>>,
}

impl Spinner {
    /// A spinner that spins for this long at a time.
    pub(super) fn new(time: Duration) -> Self {
        Self(Arc::new(Inner { policy: Mutex::new(SpinPolicy::new(time)), waker: Mutex::new(None) }))
    }

    /// What the runtime calls before it sleeps.
    pub(super) fn hook(&self) -> impl Fn() + Send + Sync + 'static {
        let inner = Arc::clone(&self.0);
        move || {
            let looks_again = inner.policy.lock().looks_again(clock::monotonic(), READS.get());
            if let Some(waker) = inner.waker.lock().as_ref().filter(|_| looks_again) {
                waker.wake_by_ref();
            }
        }
    }

    /// Starts the task that the hook wakes, and opens the figures of the calling thread, which is the worker's.
    /// Fails when the system does not say how long threads wait for a core. Then the worker does not spin.
    pub(super) fn start(&self, runtime: &Runtime) -> io::Result<()> {
        self.0.policy.lock().rivals = Some(Rivals::new(RunDelay::of_this_thread()?, clock::monotonic()));
        let task = WakeTask(Arc::clone(&self.0));
        runtime.spawn(std::future::poll_fn(move |context| {
            let mut waker = task.0.waker.lock();
            if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                *waker = Some(context.waker().clone());
            }
            Poll::<()>::Pending
        }));
        Ok(())
    }
}

/// Gives the waker back at the end of the runtime, which would otherwise hold itself.
struct WakeTask(Arc<Inner>);

impl Drop for WakeTask {
    fn drop(&mut self) {
        *self.0.waker.lock() = None;
    }
}

/// What a worker has learnt. `D` measures how long it had to wait for its core.
struct SpinPolicy<D = RunDelay> {
    time: Duration,
    habit: Habit,
    /// `None`: it never spins.
    rivals: Option<Rivals<D>>,
    /// The beginning of the pause in which it spins.
    spins_since: Option<Instant>,
    reads: u64,
}

impl<D: Delay> SpinPolicy<D> {
    fn new(time: Duration) -> Self {
        Self { time, habit: Habit::default(), rivals: None, spins_since: None, reads: 0 }
    }

    /// Whether a worker that has nothing to do now looks again at once. `reads` are all of its reads so far.
    fn looks_again(&mut self, now: Instant, reads: u64) -> bool {
        let has_read = reads != std::mem::replace(&mut self.reads, reads);
        match self.spins_since {
            Some(since) if !has_read && now.saturating_duration_since(since) < self.time => return true,
            Some(_) => self.habit.ended(has_read),
            None => {}
        }
        let was_spinning = self.spins_since.take().is_some();
        let Some(rivals) = &mut self.rivals else { return false };
        // A timer may have woken it.
        if has_read && self.habit.spins() && rivals.allow(now, was_spinning) {
            self.spins_since = Some(now);
        } else if was_spinning {
            rivals.sleeps(now);
        }
        self.spins_since.is_some()
    }
}

/// Whether calls come soon after an answer.
#[derive(Debug)]
struct Habit {
    /// It spins while this is above 0. A pause that ended with a call adds a point, another one takes some away.
    points: u32,
    /// Pauses to sleep through before the next try, and after the next failed try.
    sleeps: u32,
    sleeps_next: u32,
}

impl Habit {
    const POINTS_MAX: u32 = 8;
    /// So most pauses have to end with a call: four of five.
    const POINTS_LOST: u32 = 4;
    const SLEEPS: (u32, u32) = (16, 1_024);

    /// Whether it spins in the pause that begins.
    fn spins(&mut self) -> bool {
        if self.points > 0 || self.sleeps == 0 {
            return true;
        }
        self.sleeps -= 1;
        false
    }

    /// The end of a pause in which it spun.
    fn ended(&mut self, by_call: bool) {
        if by_call {
            self.points = (self.points + 1).min(Self::POINTS_MAX);
            self.sleeps_next =
                if self.points == Self::POINTS_MAX { Self::SLEEPS.0 } else { self.sleeps_next };
            return;
        }
        self.points = self.points.saturating_sub(Self::POINTS_LOST);
        if self.points == 0 {
            self.sleeps = self.sleeps_next;
            self.sleeps_next = (self.sleeps_next * 2).min(Self::SLEEPS.1);
        }
    }
}

impl Default for Habit {
    fn default() -> Self {
        Self { points: 0, sleeps: 0, sleeps_next: Self::SLEEPS.0 }
    }
}

/// How long a thread was ready and did not run, in total.
trait Delay {
    /// `None`: the system does not say.
    fn nanos(&self) -> Option<u64>;
}

/// Whether other threads want the core.
struct Rivals<D> {
    delay: D,
    /// When the thread was last looked at, and its delay then. `None`: it has slept since, and the wake-up delays it
    /// too.
    seen: Option<(Instant, u64)>,
    /// For how long it has spun since the last judgement, and how long it waited for its core in that time.
    spun: Duration,
    delayed: Duration,
    /// It does not spin until then, because others wanted the core.
    quiet_until: Instant,
    quiet_next: Duration,
    /// Judgements in a row that found no rival.
    alone: u32,
}

impl<D: Delay> Rivals<D> {
    /// Between two looks while it spins. A look takes about a microsecond.
    const LOOKS: Duration = Duration::from_millis(1);
    /// The time of one judgement: a thread that wakes for a tenth of a millisecond is no rival, and one that computes
    /// takes a slice of some milliseconds.
    const JUDGED: Duration = Duration::from_millis(10);
    /// Others that took more than this part of the time are rivals. Interrupts and the like take less.
    const PART: u32 = 10;
    /// How long it then sleeps as if it had no SPIN_TIME; this doubles each time.
    const QUIET: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
    /// After so many judgements without a rival that time is the shortest again.
    const ALONE: u32 = 10;

    fn new(delay: D, now: Instant) -> Self {
        let [spun, delayed] = [Duration::ZERO; 2];
        Self { delay, seen: None, spun, delayed, quiet_until: now, quiet_next: Self::QUIET.0, alone: 0 }
    }

    /// Whether it may spin in the pause that begins. `was_spinning`: it did not sleep since the last one.
    fn allow(&mut self, now: Instant, was_spinning: bool) -> bool {
        if now < self.quiet_until {
            return false;
        }
        match self.seen.filter(|_| was_spinning) {
            Some((seen, _)) if now.saturating_duration_since(seen) < Self::LOOKS => true,
            Some(_) => self.look(now),
            None => {
                self.seen = self.delay.nanos().map(|delay| (now, delay));
                self.seen.is_some()
            }
        }
    }

    /// It has spun and goes to sleep.
    fn sleeps(&mut self, now: Instant) {
        self.look(now);
        self.seen = None;
    }

    /// Adds the time since the last look. Returns whether no other thread wants the core, as far as is known.
    fn look(&mut self, now: Instant) -> bool {
        let (Some((seen, before)), Some(delay)) = (self.seen, self.delay.nanos()) else { return false };
        self.seen = Some((now, delay));
        self.spun += now.saturating_duration_since(seen);
        self.delayed += Duration::from_nanos(delay.saturating_sub(before));
        if self.spun < Self::JUDGED {
            return true;
        }
        let (spun, delayed) = (std::mem::take(&mut self.spun), std::mem::take(&mut self.delayed));
        if delayed * Self::PART <= spun {
            self.alone += 1;
            if self.alone >= Self::ALONE {
                self.quiet_next = Self::QUIET.0;
            }
            return true;
        }
        self.alone = 0;
        self.quiet_until = now + self.quiet_next;
        self.quiet_next = (self.quiet_next * 2).min(Self::QUIET.1);
        false
    }
}

/// The delay of the thread that opened it: the second number of its `schedstat`.
struct RunDelay(File);

impl RunDelay {
    fn of_this_thread() -> io::Result<Self> {
        let delay = Self(File::open("/proc/thread-self/schedstat")?);
        let unknown = || io::Error::other("/proc/thread-self/schedstat: its second number is no time");
        delay.nanos().map(|_| delay).ok_or_else(unknown)
    }
}

impl Delay for RunDelay {
    fn nanos(&self) -> Option<u64> {
        let mut text = [0; 64];
        let length = self.0.read_at(&mut text, 0).ok()?;
        std::str::from_utf8(&text[..length]).ok()?.split_whitespace().nth(1)?.parse().ok()
    }
}

#[cfg(test)]
mod tests;
