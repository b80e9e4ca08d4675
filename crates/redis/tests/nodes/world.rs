//! A world under one seed: an executor with time of its own, a network, and a Redis that counts fixed windows.

mod epoch_hash;
mod primaries;

use std::collections::BTreeMap;
use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

pub(crate) use self::epoch_hash::{Answers, EpochHash};
pub(crate) use self::primaries::Primaries;
use redis::{Arg, Cmd, RedisResult, Value};
use tidegate_engine::clock::monotonic;
use tidegate_engine::limit::Algorithm;
use tidegate_engine::time::Timestamp;
use tidegate_redis::address::{Access, Address};
use tidegate_redis::runtime::{Runtime, Task, Transport};

/// How long a message takes.
const LATENCY: Duration = Duration::from_millis(1);
/// The clock of Redis when the world begins.
const REDIS_EPOCH: Duration = Duration::from_secs(1_790_000_000);

/// Everything that the nodes share. Time moves when no task can.
#[derive(Default)]
pub(crate) struct World {
    now: Mutex<Duration>,
    timers: Mutex<BTreeMap<(Duration, u64), Waker>>,
    timers_made: AtomicU64,
    tasks: Mutex<Vec<Arc<Spawned>>>,
    redis: Mutex<Redis>,
    /// By host.
    epochs: Mutex<BTreeMap<String, EpochHash>>,
    primaries: Mutex<Primaries>,
}

/// A task, until it has ended.
struct Spawned {
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    is_woken: AtomicBool,
    is_aborted: AtomicBool,
}

impl Wake for Spawned {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Relaxed);
    }
}

impl Spawned {
    fn poll(self: &Arc<Self>) {
        let mut future = self.future.lock().expect("no panic");
        let Some(running) = &mut *future else { return };
        let waker = Waker::from(Arc::clone(self));
        let is_aborted = self.is_aborted.load(Relaxed);
        if is_aborted || running.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            *future = None;
        }
    }
}

impl World {
    /// Redis refuses GET, so no look at it succeeds, though it decides.
    pub(crate) fn refuse_reads(&self, refuses: bool) {
        self.redis.lock().expect("no panic").refuses_reads = refuses;
    }

    /// Redis is one that has no streams and no scripts with effects.
    pub(crate) fn make_old(&self) {
        self.redis.lock().expect("no panic").is_old = true;
    }

    /// Redis refuses decisions, as where a key has another type.
    pub(crate) fn refuse_decisions(&self, refuses: bool) {
        self.redis.lock().expect("no panic").refuses_decisions = refuses;
    }

    /// The key of this user holds a value that is no counter.
    pub(crate) fn refuse_user(&self, user: &str) {
        self.redis.lock().expect("no panic").refused_user = Some(format!("|{user}").into_bytes());
    }

    /// Redis takes so much longer to decide.
    pub(crate) fn delay_decisions(&self, delay: Duration) {
        self.redis.lock().expect("no panic").delay = delay;
    }

    /// Redis knows no script by its name.
    pub(crate) fn forget_scripts(&self) {
        self.redis.lock().expect("no panic").knows_no_script = true;
    }

    /// How often the text of a decision's script was sent.
    pub(crate) fn texts_sent(&self) -> usize {
        self.redis.lock().expect("no panic").scripts_sent
    }

    /// So many replicas have what was written.
    pub(crate) fn set_replicas(&self, replicas: i64) {
        self.redis.lock().expect("no panic").replicas = replicas;
    }

    /// Redis refuses the next so many calls that give back, and so their connections are closed.
    pub(crate) fn refuse_give_backs(&self, calls: usize) {
        self.redis.lock().expect("no panic").give_backs_to_refuse = calls;
    }

    /// Redis does not refuse these calls: they come too late.
    pub(crate) fn let_give_backs_be_late(&self) {
        self.redis.lock().expect("no panic").give_backs_are_late = true;
    }

    /// How many calls that give back it has had.
    pub(crate) fn give_backs(&self) -> usize {
        self.redis.lock().expect("no panic").give_backs
    }

    /// Reads or changes the epochs of a server.
    pub(crate) fn epochs<T>(&self, host: &str, change: impl FnOnce(&mut EpochHash) -> T) -> T {
        change(self.epochs.lock().expect("no panic").entry(host.to_owned()).or_default())
    }

    /// Reads or changes which processes serve.
    pub(crate) fn primaries<T>(&self, change: impl FnOnce(&mut Primaries) -> T) -> T {
        change(&mut self.primaries.lock().expect("no panic"))
    }

    /// The reply of a server. `None`: it does not answer.
    fn reply(&self, host: &str, command: &Cmd) -> Option<Value> {
        let args: Vec<&[u8]> = command
            .args_iter()
            .map(|arg| if let Arg::Simple(arg) = arg { arg } else { panic!("a cursor") })
            .collect();
        if let Some(reply) = self.primaries(|primaries| primaries.reply(host, &args, self.now())) {
            return Some(reply);
        }
        match args[0] {
            b"EVAL" if !args[3].windows(7).any(|part| part == b":epochs") => {
                Some(self.redis.lock().expect("no panic").reply(&args, REDIS_EPOCH + self.now()))
            }
            b"HGET" | b"HLEN" | b"HGETALL" | b"EVAL" => self.epochs(host, |hash| hash.reply(&args)),
            _ => Some(self.redis.lock().expect("no panic").reply(&args, REDIS_EPOCH + self.now())),
        }
    }

    /// The node that gets this reply stands still before it reads it.
    fn stand_still_after(&self, host: &str, command: &Cmd) {
        if command.args_iter().next() == Some(Arg::Simple(b"HGET")) {
            let stands_still = self.epochs(host, |hash| std::mem::take(&mut hash.stands_still));
            *self.now.lock().expect("no panic") += stands_still;
        }
    }

    pub(crate) fn now(&self) -> Duration {
        *self.now.lock().expect("no panic")
    }

    /// Runs a future to its end, with all tasks that it starts.
    pub(crate) fn run<T: Send + 'static>(
        self: &Arc<Self>,
        main: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let output = Arc::new(Mutex::new(None));
        let end = Arc::clone(&output);
        self.spawn(async move { *end.lock().expect("no panic") = Some(main.await) });
        loop {
            let tasks = self.tasks.lock().expect("no panic").clone();
            let woken: Vec<_> = tasks.iter().filter(|task| task.is_woken.swap(false, Relaxed)).collect();
            woken.iter().for_each(|task| task.poll());
            if let Some(output) = output.lock().expect("no panic").take() {
                return output;
            }
            if woken.is_empty() {
                let timer = self.timers.lock().expect("no panic").pop_first();
                let ((time, _), waker) = timer.expect("a task waits for nothing");
                let mut now = self.now.lock().expect("no panic");
                // It may have stood still since.
                *now = time.max(*now);
                drop(now);
                waker.wake();
            }
        }
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Arc<Spawned> {
        let future = Mutex::new(Some(Box::pin(task) as Pin<Box<_>>));
        let task = Spawned { future, is_woken: AtomicBool::new(true), is_aborted: AtomicBool::new(false) };
        let task = Arc::new(task);
        self.tasks.lock().expect("no panic").push(Arc::clone(&task));
        task
    }

    async fn sleep(&self, duration: Duration) {
        let timer = (self.now().saturating_add(duration), self.timers_made.fetch_add(1, Relaxed));
        poll_fn(|context| {
            if self.now() >= timer.0 {
                return Poll::Ready(());
            }
            self.timers.lock().expect("no panic").insert(timer, context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// One node: its clock is ahead by `offset`.
#[derive(Clone)]
pub(crate) struct Node {
    world: Arc<World>,
    began: Instant,
    offset: Duration,
    random: Arc<AtomicU64>,
    is_online: Arc<AtomicBool>,
    worker: Arc<AtomicUsize>,
}

impl Node {
    pub(crate) fn new(world: &Arc<World>, seed: u64, offset: Duration) -> Self {
        let (random, is_online) = (Arc::new(AtomicU64::new(seed)), Arc::new(AtomicBool::new(true)));
        Self {
            world: Arc::clone(world),
            began: monotonic(),
            offset,
            random,
            is_online,
            worker: Arc::default(),
        }
    }

    /// What runs from here on is of this worker.
    pub(crate) fn set_worker(&self, worker: usize) {
        self.worker.store(worker, Relaxed);
    }

    pub(crate) fn set_online(&self, is_online: bool) {
        self.is_online.store(is_online, Relaxed);
    }
}

impl Runtime for Node {
    type Transport = Wire;
    type Task = Handle;

    fn monotonic(&self) -> Instant {
        self.began + self.since_boot()
    }

    fn since_boot(&self) -> Duration {
        self.offset + self.world.now()
    }

    fn wall(&self) -> Timestamp {
        Timestamp::from_nanos(u64::try_from(self.since_boot().as_nanos()).expect("a short time"))
    }

    fn random(&self) -> u64 {
        let step = |state: u64| Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        self.random.fetch_update(Relaxed, Relaxed, step).expect("it always steps") >> 32
    }

    fn worker(&self) -> usize {
        self.worker.load(Relaxed)
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send {
        self.world.sleep(duration)
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Handle {
        Handle(self.world.spawn(task))
    }

    async fn unblock<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        Some(work())
    }

    async fn connect(&self, address: &Address, _: &Access) -> RedisResult<Wire> {
        let Address::Tcp(host, _) = address else { panic!("a socket") };
        let (restarts, slowness) =
            self.world.primaries(|primaries| (primaries.restarts, primaries.slowness(host)));
        let wire =
            Wire { node: self.clone(), host: host.clone(), restarts, is_closed: AtomicBool::new(false) };
        self.world.sleep(slowness).await;
        wire.travel().await?;
        Ok(wire)
    }
}

/// A task that can be aborted.
pub(crate) struct Handle(Arc<Spawned>);

impl Task for Handle {
    fn abort(&self) {
        self.0.is_aborted.store(true, Relaxed);
        self.0.is_woken.store(true, Relaxed);
    }
}

/// A connection of a node. While the node is offline, messages are lost.
pub(crate) struct Wire {
    node: Node,
    host: String,
    /// How often servers had been restarted when it was opened.
    restarts: u64,
    is_closed: AtomicBool,
}

impl Wire {
    async fn travel(&self) -> RedisResult<()> {
        self.node.world.sleep(LATENCY).await;
        if !self.node.is_online.load(Relaxed) {
            pending::<()>().await;
        }
        let (is_of_before, is_silent) =
            self.node.world.primaries(|primaries| (primaries.restarts > self.restarts, primaries.is_silent));
        if is_of_before && is_silent {
            pending::<()>().await;
        }
        match self.is_closed.load(Relaxed) || is_of_before {
            true => Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into()),
            false => Ok(()),
        }
    }
}

impl Transport for Wire {
    async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        self.travel().await?;
        let world = &self.node.world;
        let Some(reply) = world.reply(&self.host, command) else { return pending().await };
        if command.args_iter().next() == Some(Arg::Simple(b"EVALSHA")) {
            let delay = world.redis.lock().expect("no panic").delay;
            world.sleep(delay).await;
        }
        self.travel().await?;
        world.stand_still_after(&self.host, command);
        Ok(reply)
    }

    async fn send_asking(&self, command: &Cmd) -> RedisResult<Value> {
        self.send(command).await
    }

    fn close(&self) {
        self.is_closed.store(true, Relaxed);
    }
}

/// A Redis that knows one script: fixed windows that never end. What is given back, it counts.
#[derive(Default)]
struct Redis {
    texts: BTreeMap<Vec<u8>, Vec<u8>>,
    hits: BTreeMap<Vec<u8>, u64>,
    is_old: bool,
    refuses_reads: bool,
    refuses_decisions: bool,
    refused_user: Option<Vec<u8>>,
    knows_no_script: bool,
    scripts_sent: usize,
    delay: Duration,
    replicas: i64,
    give_backs: usize,
    give_backs_to_refuse: usize,
    give_backs_are_late: bool,
}

impl Redis {
    fn reply(&mut self, args: &[&[u8]], now: Duration) -> Value {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        match *args {
            [b"INFO", ..] if self.is_old => text("redis_version:4.0.14\r\nredis_mode:standalone\r\n"),
            [b"INFO", ..] => text("redis_version:7.0.0\r\nredis_mode:standalone\r\n"),
            [b"TIME"] => {
                Value::Array(vec![text(&now.as_secs().to_string()), text(&now.subsec_micros().to_string())])
            }
            [b"PING"] => Value::SimpleString("PONG".to_owned()),
            [b"CONFIG", ..] => Value::Array(vec![text("maxmemory-policy"), text("noeviction")]),
            [b"EXPIRE", key, _] => Value::Int(self.texts.contains_key(key).into()),
            [b"WAIT", ..] => Value::Int(self.replicas),
            [b"GET", _] if self.refuses_reads => loading(),
            [b"GET", key] => self.texts.get(key).map_or(Value::Nil, |text| Value::BulkString(text.clone())),
            [b"SET", key, value, b"NX", ..] => {
                self.texts.entry(key.to_vec()).or_insert_with(|| value.to_vec());
                Value::Okay
            }
            [b"EVALSHA", ..] if self.knows_no_script => no_script(),
            [b"EVAL", _, b"1", key, _, check] => {
                self.scripts_sent += 1;
                self.decide(&[key], &[check], now)
            }
            [b"EVALSHA", ..] if self.refuses_decisions => wrong_type(),
            [b"EVALSHA", _, b"1", key, _, check] => self.decide(&[key], &[check], now),
            // The keys of a counter and of the data.
            [b"EVALSHA", _, b"2", _, data, ..] if data.ends_with(b":generation") => {
                self.give_backs += 1;
                match self.give_backs_to_refuse.checked_sub(1) {
                    Some(left) => {
                        self.give_backs_to_refuse = left;
                        if self.give_backs_are_late { numbers(&[now.as_micros() as u64]) } else { loading() }
                    }
                    None => numbers(&[now.as_micros() as u64, 1]),
                }
            }
            // Several counters in one call: their keys, the deadline, and their checks.
            [b"EVALSHA", _, b"2" | b"3" | b"4", ref rest @ ..] => {
                let (keys, checks) = rest.split_at(rest.len() / 2);
                self.decide(keys, &checks[1..], now)
            }
            _ => panic!(
                "unknown command {:?}",
                args.iter().map(|arg| String::from_utf8_lossy(arg)).collect::<Vec<_>>()
            ),
        }
    }

    /// The reply to checks of these counters: nothing is done if one of them is none.
    fn decide(&mut self, keys: &[&[u8]], checks: &[&[u8]], now: Duration) -> Value {
        let is_refused = |key: &&[u8]| self.refused_user.as_ref().is_some_and(|user| key.ends_with(user));
        if keys.iter().any(is_refused) {
            return wrong_type();
        }
        let now = now.as_micros() as u64;
        let answers = keys.iter().zip(checks).flat_map(|(key, check)| self.answer(key, check, now));
        numbers(&[now].into_iter().chain(answers).collect::<Vec<_>>())
    }

    /// The numbers of an answer: `src/script.rs` says what they mean, and where a check has its own.
    fn answer(&mut self, key: &[u8], check: &[u8], now: u64) -> Vec<u64> {
        let double = |at: usize| f64::from_le_bytes(check[at..at + 8].try_into().expect("8 bytes")) as u64;
        let (limit, hits) = (double(6), double(39));
        let is_ban = check[4] == Algorithm::Ban.number();
        // The names of a slot, the lengths of bans, or a lease that is asked for, come before what is unsynced.
        let asks_lease = check[5] & 16 != 0;
        let has_detail = check[4] == Algorithm::Concurrency.number() || is_ban || asks_lease;
        let detail = if has_detail { 16 } else { 0 };
        let unsynced = (47 + detail..check.len()).step_by(16).map(|at| double(at + 8)).sum::<u64>();
        let count = self.hits.entry(key.to_vec()).or_default();
        *count += unsynced;
        let (before, over) = (*count, if is_ban { *count >= limit } else { *count + hits > limit });
        *count += if over { 0 } else { hits };
        let (left, charged) = (limit.saturating_sub(*count), *count - before);
        let lease = if asks_lease { &[double(47), *count][..] } else { &[] };
        // A ban ends in a hundred seconds, as long as it is asked for.
        let state = if is_ban { u64::from(over) * (now + 100_000_000) } else { *count };
        [&[over.into(), before, left, charged, now, hits, state, 0], lease].concat()
    }
}

fn numbers(numbers: &[u64]) -> Value {
    Value::BulkString(numbers.iter().flat_map(|&number| (number as f64).to_le_bytes()).collect())
}

fn wrong_type() -> Value {
    error(b"-WRONGTYPE no counter stands there\r\n")
}

fn no_script() -> Value {
    error(b"-NOSCRIPT No matching script\r\n")
}

fn loading() -> Value {
    error(b"-LOADING it takes a while\r\n")
}

fn error(reply: &[u8]) -> Value {
    redis::parse_redis_value(reply).expect("an error")
}
