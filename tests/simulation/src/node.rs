//! A node: the real shared store on a simulated runtime, with a clock of its own.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use redis::RedisResult;
use tidegate_engine::clock::monotonic;
use tidegate_engine::time::Timestamp;
use tidegate_redis::address::{Access, Address};
use tidegate_redis::runtime::{Runtime, Task};

use crate::network::{Network, Reads, Wire};
use crate::random::Random;
use crate::redis::server::EPOCH_MICROS;
use crate::world::{Handle, MICRO, Time, World};

/// The moment at which every world begins. Only differences mean anything.
static BEGAN: LazyLock<Instant> = LazyLock::new(monotonic);

/// The runtime of one node.
#[derive(Clone)]
pub struct Node {
    world: Arc<World>,
    network: Arc<Network>,
    number: usize,
    clock: NodeClock,
    random: Arc<AtomicU64>,
    /// By how much the wall clock of its machine is ahead.
    wall_ahead: Arc<AtomicU64>,
    /// What its process has read of resets, if it follows them.
    reads: Option<Arc<Reads>>,
}

/// How the clock of a node differs from the world's.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeClock {
    /// It is ahead by so much.
    pub offset: Time,
    /// In a million nanoseconds it goes so many more, or fewer.
    pub drift_ppm: i64,
}

impl NodeClock {
    fn at(self, time: Time) -> Time {
        // A world lasts for days, a millionth of what would be too much.
        let drift = time as i64 * self.drift_ppm / 1_000_000;
        self.offset + time.saturating_add_signed(drift)
    }

    /// How long it takes until this clock has gone on by so much.
    fn takes(self, duration: Time) -> Time {
        let (per_million, million) = (1_000_000_u64.saturating_add_signed(self.drift_ppm), 1_000_000);
        match duration.checked_mul(million) {
            Some(whole) => whole / per_million + 1,
            None => (u128::from(duration) * u128::from(million) / u128::from(per_million) + 1) as Time,
        }
    }
}

impl Node {
    /// A node that has just started.
    pub fn new(
        world: &Arc<World>,
        network: &Arc<Network>,
        number: usize,
        clock: NodeClock,
        seed: u64,
    ) -> Self {
        let (random, wall_ahead) = (Arc::new(AtomicU64::new(seed)), Arc::default());
        Self {
            world: Arc::clone(world),
            network: Arc::clone(network),
            number,
            clock,
            random,
            wall_ahead,
            reads: None,
        }
    }

    /// The same node, on a machine whose wall clock is ahead by so much.
    #[must_use]
    pub fn on_machine(self, wall_ahead: Arc<AtomicU64>) -> Self {
        Self { wall_ahead, ..self }
    }

    /// The same, whose process reads resets from Redis.
    #[must_use]
    pub fn following(self, reads: Reads) -> Self {
        // No other process draws the same numbers: a change that it marks with one has no other mark.
        let own = Random::new(self.random.load(Relaxed)).bits();
        Self { random: Arc::new(AtomicU64::new(own)), reads: Some(Arc::new(reads)), ..self }
    }

    /// The same, for servers that have no resets.
    #[must_use]
    pub fn without_resets(self) -> Self {
        Self { reads: None, ..self }
    }

    /// The time of the world.
    pub fn now(&self) -> Time {
        self.world.now()
    }

    /// The time of the world, as a wall clock shows it that never steps.
    pub fn world_time(&self) -> Timestamp {
        world_time(self.world.now())
    }

    fn reading(&self) -> Duration {
        Duration::from_nanos(self.clock.at(self.world.now()))
    }
}

/// What a wall clock shows at a time of the world.
pub fn world_time(now: Time) -> Timestamp {
    Timestamp::from_nanos(EPOCH_MICROS * MICRO + now)
}

impl Runtime for Node {
    type Transport = Wire;
    type Task = Handle;

    fn monotonic(&self) -> Instant {
        *BEGAN + self.reading()
    }

    fn since_boot(&self) -> Duration {
        self.reading()
    }

    fn wall(&self) -> Timestamp {
        self.world_time().plus(self.wall_ahead.load(Relaxed))
    }

    fn random(&self) -> u64 {
        Random::new(self.random.fetch_add(1, Relaxed)).bits()
    }

    fn worker(&self) -> usize {
        self.world.worker()
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(Time::MAX / 2).min(Time::MAX / 2);
        self.world.until(self.world.pause_until(self.world.now() + self.clock.takes(nanos)))
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Handle {
        self.world.spawn(self.number, task)
    }

    async fn unblock<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        Some(work())
    }

    async fn connect(&self, address: &Address, _: &Access) -> RedisResult<Wire> {
        let Address::Tcp(host, _) = address else { panic!("no socket is in this world") };
        self.network.connect(&self.world, (self.number, self.reads.clone()), host).await
    }
}

impl Task for Handle {
    fn abort(&self) {
        self.abort();
    }
}
