//! A limiter under attack. At the same time a client calls it, and has to get an answer to every call.
//!
//! One worker serves them all, so that the client cannot be safe on a second thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::tidegate::{Setup, Tidegate};
use super::{eventually_true, grpc};

/// What answers on the gRPC port. Every attack is made on every one of them.
#[derive(Clone, Copy, Debug)]
pub enum Front {
    /// hyper, with tonic beside it.
    Tonic,
    /// Our own HTTP/2.
    Lane,
}

impl Front {
    fn chosen_in(self, setup: Setup) -> Setup {
        match self {
            Self::Tonic => setup.env("GRPC_FRONT", "tonic"),
            Self::Lane => setup.env("GRPC_FRONT", "lane"),
        }
    }

    /// About as many calls as it takes at a time on one connection.
    pub fn calls_at_a_time(self) -> usize {
        match self {
            Self::Tonic => 250,
            Self::Lane => 1_000,
        }
    }

    /// CPU time of one of the client's calls, its part of a connection included, where nobody attacks.
    fn call_cost(self) -> Duration {
        static COSTS: [OnceLock<Duration>; 2] = [const { OnceLock::new() }; 2];
        *COSTS[self as usize].get_or_init(|| {
            let mut siege = Siege::lay(self, Setup::new(), CALLS_A_CONNECTION);
            eventually_true("calls", || siege.client.calls() >= CALLS_MEASURED);
            let (calls, _) = siege.client.stop();
            siege.limiter.cpu_time().saturating_sub(siege.cpu_before)
                / u32::try_from(calls).expect("few calls")
        })
    }
}

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 4000000000}
";

/// Calls that the client makes at least, once an attack is under way and once it is over.
const CALLS_MIN: u64 = 20;
/// After so many calls, the client opens another connection.
pub const CALLS_A_CONNECTION: u64 = 16;
/// For a client that keeps its connection.
pub const ONE_CONNECTION: u64 = u64::MAX;
/// Lines that the limiter may log about an attack.
const LINES_MAX: usize = 200;
/// The time between two calls of the client. Without a pause, its calls would take many times the CPU time of an
/// attack, and the faster front would have more of them.
const PACE: Duration = Duration::from_micros(500);
/// What a call may take, on a machine that other tests keep busy.
const CALL_MAX: Duration = Duration::from_secs(20);

pub const MIB: u64 = 1024 * 1024;
/// A difference of memory that means nothing: an allocator takes and keeps 2 MiB at a time, and a limiter that answers
/// the client sooner has more calls during the attack.
const MEMORY_NOISE: u64 = 8 * MIB;
/// A difference of CPU time that means nothing: how much is read before an attack is recognised depends on when it
/// arrives.
const CPU_NOISE: Duration = Duration::from_millis(100);
/// The same, as a part of what the calls take: during an attack, or other tests, they cost more or less than alone.
const CALLS_NOISE: u32 = 2;
/// Other work on the machine makes the same attack dearer or cheaper. What holds for the cheapest of so many holds.
const TRIES: usize = 5;
/// Calls by which is measured what one takes.
const CALLS_MEASURED: u64 = 1_000;

/// A question that is always answered OK.
pub fn question() -> grpc::RateLimitRequest {
    grpc::question("shop", &[&[("user", "alice")]])
}

/// A limiter, and a client that asks it steadily.
pub struct Siege {
    pub front: Front,
    pub limiter: Tidegate,
    memory_before: u64,
    cpu_before: Duration,
    client: Client,
}

/// What an attack cost a limiter: memory beyond what it had, and CPU time beyond what the client's calls take.
pub struct Cost {
    pub memory: u64,
    pub cpu: Duration,
    pub calls: u64,
    pub cpu_of_calls: Duration,
}

/// Makes this attack on every front, each of which may take no more memory than this for it, and the lane no more than
/// tonic, nor more CPU time.
pub fn attack(memory_max: u64, attack: impl Fn(&Siege)) {
    attack_with(Setup::new, CALLS_A_CONNECTION, memory_max, attack);
}

/// The same, on limiters with settings of their own, and with a client that opens a connection after so many calls.
pub fn attack_with(
    setup: impl Fn() -> Setup,
    calls_a_connection: u64,
    memory_max: u64,
    attack: impl Fn(&Siege),
) {
    let mut least = [Duration::MAX; 2];
    for _ in 0..TRIES {
        let [tonic, lane] = work_beside(&setup, calls_a_connection, memory_max, &attack);
        assert!(
            lane.memory <= tonic.memory + MEMORY_NOISE,
            "it takes {} of the lane, {} of tonic",
            lane.memory,
            tonic.memory
        );
        least = [least[0].min(tonic.cpu), least[1].min(lane.cpu)];
        let noise = CPU_NOISE + (lane.cpu_of_calls + tonic.cpu_of_calls) / CALLS_NOISE;
        if least[1] <= least[0] + noise {
            return;
        }
    }
    panic!("it takes {:?} of the lane, {:?} of tonic", least[1], least[0]);
}

/// Makes the limiter do this work while each front serves; neither may take more memory than this. The cost of the work
/// does not depend on the front: it is printed, and not compared.
pub fn work_beside(
    setup: impl Fn() -> Setup,
    calls_a_connection: u64,
    memory_max: u64,
    work: impl Fn(&Siege),
) -> [Cost; 2] {
    let costs = [Front::Tonic, Front::Lane].map(|front| {
        let siege = Siege::lay(front, setup(), calls_a_connection);
        work(&siege);
        siege.lift(memory_max)
    });
    println!("cost of {}", std::thread::current().name().unwrap_or_default());
    for (front, Cost { memory, cpu, calls, cpu_of_calls }) in ["tonic", "lane "].iter().zip(&costs) {
        println!(
            "  {front} {:>6} KiB {:>5} ms of CPU, beside {calls:>5} calls that take {} ms",
            memory / 1_024,
            cpu.as_millis(),
            cpu_of_calls.as_millis()
        );
    }
    costs
}

impl Siege {
    fn lay(front: Front, setup: Setup, calls_a_connection: u64) -> Self {
        let setup = front.chosen_in(setup).rules("shop.yaml", RULES).env("WORKER_THREADS", "1");
        let limiter = setup.start();
        let client = Client::start(limiter.ports().grpc, calls_a_connection);
        client.makes_calls();
        limiter.forget_memory_peak();
        let (memory_before, cpu_before) = (limiter.memory_peak_bytes(), limiter.cpu_time());
        Self { front, limiter, memory_before, cpu_before, client }
    }

    pub fn grpc_port(&self) -> u16 {
        self.limiter.ports().grpc
    }

    /// Waits until the client was served a while.
    pub fn client_is_served(&self) {
        self.client.makes_calls();
    }

    /// The most memory that it had since the attack began, beyond what it had before.
    pub fn memory_taken(&self) -> u64 {
        self.limiter.memory_peak_bytes().saturating_sub(self.memory_before)
    }

    /// Ends the client, of which every call was answered; the limiter lives, was within its bound, and comes to rest.
    fn lift(mut self, memory_max: u64) -> Cost {
        self.client.makes_calls();
        let (calls, slowest) = self.client.stop();
        assert!(slowest < CALL_MAX, "{:?}: a call took {slowest:?}", self.front);
        let (taken, cpu) = (self.memory_taken(), self.limiter.cpu_time().saturating_sub(self.cpu_before));
        let cpu_of_calls = self.front.call_cost() * u32::try_from(calls).expect("few calls");
        assert!(taken <= memory_max, "{:?}: took {taken} bytes, over {memory_max}", self.front);
        let lines = self.limiter.output();
        assert!(lines.len() <= LINES_MAX, "{:?}: {} lines were said of it", self.front, lines.len());
        let panicked = lines.iter().find(|line| line.contains("panicked"));
        assert_eq!(panicked, None, "{:?}", self.front);
        assert!(self.limiter.ended().is_none(), "{:?}: it ended", self.front);
        eventually_true("the limiter to rest", || self.is_at_rest());
        Cost { memory: taken, cpu: cpu.saturating_sub(cpu_of_calls), calls, cpu_of_calls }
    }

    /// Whether it needs less than a fifth of a core.
    fn is_at_rest(&self) -> bool {
        let (before, began) = (self.limiter.cpu_time(), Instant::now());
        std::thread::sleep(Duration::from_millis(100));
        (self.limiter.cpu_time() - before) * 5 < began.elapsed()
    }
}

/// A well-behaved client on a thread of its own.
struct Client {
    stop: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
    asking: Option<JoinHandle<Duration>>,
}

impl Client {
    fn start(port: u16, calls_a_connection: u64) -> Self {
        let (stop, calls) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let asking = std::thread::spawn({
            let (stop, calls) = (Arc::clone(&stop), Arc::clone(&calls));
            move || ask(port, calls_a_connection, &stop, &calls)
        });
        Self { stop, calls, asking: Some(asking) }
    }

    /// Calls that it made.
    fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn makes_calls(&self) {
        let before = self.calls();
        let served = || self.calls() >= before + CALLS_MIN;
        eventually_true("the client's calls", || {
            served() || self.asking.as_ref().is_some_and(JoinHandle::is_finished)
        });
        assert!(served(), "the client was refused");
    }

    /// How many calls it made, and what the slowest of them took.
    fn stop(&mut self) -> (u64, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        let slowest = self.asking.take().expect("stopped once").join().expect("every call is answered");
        (self.calls(), slowest)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Asks until it has to stop; panics when a call is not answered OK. Returns what the slowest call took.
fn ask(port: u16, calls_a_connection: u64, stop: &AtomicBool, calls: &AtomicU64) -> Duration {
    let mut slowest = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        let client = grpc::Client::new(port);
        for _ in 0..calls_a_connection {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let began = Instant::now();
            assert_eq!(client.ask(question()).overall_code, grpc::OK);
            slowest = slowest.max(began.elapsed());
            calls.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(PACE.saturating_sub(began.elapsed()));
        }
    }
    slowest
}
