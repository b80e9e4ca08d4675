//! A world under one seed: time that moves when no task can, tasks, and events in their order.
//!
//! In: tasks and events. Out: the same run for the same seed, on any machine. One thread drives it; the locks are there
//! because the code under test demands that its runtime may be shared between threads.

use std::collections::{BinaryHeap, VecDeque};
use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

/// Nanoseconds since the world began.
pub type Time = u64;

/// A microsecond.
pub const MICRO: Time = 1_000;
/// A millisecond.
pub const MILLI: Time = 1_000_000;
/// A second.
pub const SECOND: Time = 1_000_000_000;

/// How long nodes pause at least where nobody asks anything.
const QUIET_PAUSE: Time = 20 * SECOND;

/// A time during which something was so at a node.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// At this node.
    pub node: usize,
    /// Since when.
    pub from: Time,
    /// Until when.
    pub until: Time,
}

impl Span {
    /// Whether it was so at this node at some time between these.
    pub fn touches(&self, node: usize, from: Time, until: Time) -> bool {
        self.node == node && self.from <= until && self.until >= from
    }
}

/// Everything that is simulated together.
#[derive(Default)]
pub struct World {
    now: AtomicU64,
    /// Until then nobody asks anything.
    quiet_until: AtomicU64,
    events: Mutex<BinaryHeap<Event>>,
    events_made: AtomicU64,
    ready: Mutex<VecDeque<Arc<Running>>>,
    /// All tasks that may still run.
    tasks: Mutex<Vec<Weak<Running>>>,
    /// The worker whose task runs now.
    worker: AtomicUsize,
    /// Groups of tasks that stand still, and what waits there.
    frozen: Mutex<Vec<(usize, Vec<Arc<Running>>)>>,
    /// What happened, if somebody wants to read it.
    story: Option<Mutex<String>>,
}

struct Event {
    at: Time,
    /// Events of one time happen in the order in which they were made.
    order: u64,
    happens: Happens,
}

/// Something that is done at a time.
type Action = Box<dyn FnOnce(&Arc<World>) + Send>;

enum Happens {
    Wake(Waker),
    Do(Action),
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    /// The earliest is the greatest.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// A task that was started.
#[derive(Clone)]
pub struct Handle(Weak<Running>);

struct Running {
    world: Weak<World>,
    /// The node that it belongs to.
    group: usize,
    /// Which worker of the node runs it.
    worker: usize,
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    is_ready: AtomicBool,
    is_aborted: AtomicBool,
}

impl Wake for Running {
    fn wake(self: Arc<Self>) {
        if !self.is_ready.swap(true, Relaxed)
            && let Some(world) = self.world.upgrade()
        {
            lock(&world.ready).push_back(self);
        }
    }
}

impl Running {
    fn poll(self: &Arc<Self>) {
        self.is_ready.store(false, Relaxed);
        let mut future = lock(&self.future);
        let Some(running) = &mut *future else { return };
        let waker = Waker::from(Arc::clone(self));
        let ended = self.is_aborted.load(Relaxed)
            || running.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        let ended = if ended { future.take() } else { None };
        // What it drops may want to wake it.
        drop(future);
        drop(ended);
    }
}

impl Handle {
    /// Ends the task before it runs again.
    pub fn abort(&self) {
        if let Some(task) = self.0.upgrade() {
            task.is_aborted.store(true, Relaxed);
            task.wake();
        }
    }
}

impl World {
    /// A world in which nothing happens yet. `keeps_story`: what happens is written down.
    pub fn new(keeps_story: bool) -> Arc<Self> {
        Arc::new(Self { story: keeps_story.then(Mutex::default), ..Self::default() })
    }

    /// Now.
    #[inline]
    pub fn now(&self) -> Time {
        self.now.load(Relaxed)
    }

    /// Starts a task of a group, on the worker whose task runs now.
    pub fn spawn(self: &Arc<Self>, group: usize, task: impl Future<Output = ()> + Send + 'static) -> Handle {
        self.spawn_on((group, self.worker()), task)
    }

    /// Starts a task of a group, on a worker.
    pub fn spawn_on(
        self: &Arc<Self>,
        (group, worker): (usize, usize),
        task: impl Future<Output = ()> + Send + 'static,
    ) -> Handle {
        let task = Arc::new(Running {
            world: Arc::downgrade(self),
            group,
            worker,
            future: Mutex::new(Some(Box::pin(task))),
            is_ready: AtomicBool::new(true),
            is_aborted: AtomicBool::new(false),
        });
        let handle = Handle(Arc::downgrade(&task));
        let mut tasks = lock(&self.tasks);
        if tasks.len() == tasks.capacity() {
            tasks.retain(|task| task.strong_count() > 0);
        }
        tasks.push(Arc::downgrade(&task));
        // Whoever waits for something is kept by the waker that it left there.
        lock(&self.ready).push_back(task);
        handle
    }

    /// The worker whose task runs now. What happens outside of tasks is the first one's.
    pub fn worker(&self) -> usize {
        self.worker.load(Relaxed)
    }

    /// Nobody asks anything until then, and nothing fails. Nodes look around less often, which saves most of the time that it
    /// would take to simulate hours.
    pub fn be_quiet_until(&self, time: Time) {
        self.quiet_until.store(time, Relaxed);
    }

    /// When a node goes on that pauses until then, or longer where it is quiet.
    pub fn pause_until(&self, time: Time) -> Time {
        time.max((self.now() + QUIET_PAUSE).min(self.quiet_until.load(Relaxed)))
    }

    /// Does something at a time.
    pub fn at(&self, time: Time, does: impl FnOnce(&Arc<World>) + Send + 'static) {
        self.add(time, Happens::Do(Box::new(does)));
    }

    /// Waits until a time.
    pub fn until(self: &Arc<Self>, time: Time) -> impl Future<Output = ()> + Send + use<> {
        let (world, mut is_set) = (Arc::clone(self), false);
        std::future::poll_fn(move |context| {
            if world.now() >= time {
                return Poll::Ready(());
            }
            if !std::mem::replace(&mut is_set, true) {
                world.add(time, Happens::Wake(context.waker().clone()));
            }
            Poll::Pending
        })
    }

    fn add(&self, at: Time, happens: Happens) {
        let order = self.events_made.fetch_add(1, Relaxed);
        lock(&self.events).push(Event { at: at.max(self.now()), order, happens });
    }

    /// Lets no task of a group run.
    pub fn freeze(&self, group: usize) {
        let mut frozen = lock(&self.frozen);
        if !frozen.iter().any(|(other, _)| *other == group) {
            frozen.push((group, Vec::new()));
        }
    }

    /// Whether tasks of a group may not run.
    pub fn is_frozen(&self, group: usize) -> bool {
        lock(&self.frozen).iter().any(|(other, _)| *other == group)
    }

    /// Lets them run again.
    pub fn thaw(&self, group: usize) {
        let mut frozen = lock(&self.frozen);
        if let Some(place) = frozen.iter().position(|(other, _)| *other == group) {
            let (_, waiting) = frozen.swap_remove(place);
            lock(&self.ready).extend(waiting);
        }
    }

    /// Runs until a time.
    pub fn run_until(self: &Arc<Self>, end: Time) {
        loop {
            while let Some(task) = self.next_ready() {
                self.worker.store(task.worker, Relaxed);
                task.poll();
            }
            self.worker.store(0, Relaxed);
            let event = {
                let mut events = lock(&self.events);
                if events.peek().is_none_or(|event| event.at > end) { None } else { events.pop() }
            };
            let Some(Event { at, happens, .. }) = event else { break };
            self.now.store(at, Relaxed);
            match happens {
                Happens::Wake(waker) => waker.wake(),
                Happens::Do(does) => does(self),
            }
        }
        self.now.store(end, Relaxed);
    }

    fn next_ready(&self) -> Option<Arc<Running>> {
        loop {
            let task = lock(&self.ready).pop_front()?;
            let mut frozen = lock(&self.frozen);
            match frozen.iter_mut().find(|(group, _)| *group == task.group) {
                Some((_, waiting)) => waiting.push(task),
                None => return Some(task),
            }
        }
    }

    /// Ends the tasks of a group, or all of them, where they are.
    pub fn kill(&self, group: Option<usize>) {
        let tasks: Vec<_> = lock(&self.tasks).iter().filter_map(Weak::upgrade).collect();
        for task in tasks.iter().filter(|task| group.is_none_or(|group| task.group == group)) {
            let future = lock(&task.future).take();
            drop(future);
        }
    }

    /// Forgets all that is still to happen: tasks and what they wait for hold each other.
    pub fn end(&self) {
        self.kill(None);
        let (events, ready) =
            (std::mem::take(&mut *lock(&self.events)), std::mem::take(&mut *lock(&self.ready)));
        drop((events, ready));
    }

    /// Writes down what happens, if somebody wants to read it.
    pub fn note(&self, what: impl FnOnce() -> String) {
        if let Some(story) = &self.story {
            let (now, mut story) = (self.now(), lock(story));
            let (seconds, micros) = (now / SECOND, now % SECOND / MICRO);
            let _ = writeln!(story, "{seconds:>3}.{micros:06} {}", what());
        }
    }

    /// What was written down.
    pub fn story(&self) -> String {
        self.story.as_ref().map(|story| lock(story).clone()).unwrap_or_default()
    }
}

/// A lock in a world of one thread.
#[inline]
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_wait_events_happen_in_order_and_frozen_ones_stand_still() {
        let world = World::new(true);
        for (group, name, at) in [(1, "b", 2), (0, "a", 1), (1, "c", 2)] {
            let clock = Arc::clone(&world);
            world.spawn(group, async move {
                clock.until(at * MILLI).await;
                clock.note(|| name.to_owned());
            });
        }
        world.freeze(0);
        world.at(3 * MILLI, |world| world.thaw(0));
        world.run_until(5 * MILLI);
        let names: Vec<_> = world.story().lines().map(|line| line.trim().to_owned()).collect();
        assert_eq!(names, ["0.002000 b", "0.002000 c", "0.003000 a"]);
    }

    #[test]
    fn where_nobody_asks_pauses_are_longer_and_end_in_time() {
        let world = World::new(false);
        world.be_quiet_until(30 * SECOND);
        assert_eq!([1, 25, 40].map(|at| world.pause_until(at * SECOND) / SECOND), [20, 25, 40]);
        world.run_until(15 * SECOND);
        assert_eq!(world.pause_until(16 * SECOND), 30 * SECOND);
        world.run_until(30 * SECOND);
        assert_eq!(world.pause_until(31 * SECOND), 31 * SECOND);
    }

    #[test]
    fn an_aborted_task_ends() {
        let world = World::new(false);
        let (clock, done) = (Arc::clone(&world), Arc::new(AtomicBool::new(false)));
        let set = Arc::clone(&done);
        let task = world.spawn(0, async move {
            clock.until(MILLI).await;
            set.store(true, Relaxed);
        });
        task.abort();
        world.run_until(SECOND);
        assert!(!done.load(Relaxed));
    }
}
