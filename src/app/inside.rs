//! The limiter inside another process, which has the sockets: one thread of ours in addition to the threads of the
//! host.
//!
//! In: settings by their names, rules, and the host's requests. Out: answers. What this node knows is decided on the
//! thread that asks. Everything else is done on our thread: Redis, files of rules, exceptions, records and resets, as
//! in the program. Configurations with the same settings and rules share one limiter. Counters in memory belong to
//! the process: the next limiter uses the same ones.

mod samples;

use std::cell::RefCell;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use arrayvec::ArrayString;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::runtime::{EnterGuard, Handle};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

pub use self::samples::Sample;
use self::samples::Shown;
pub use crate::front::{PROBLEM_JSON, Reply};
pub use crate::logging::admit;
pub use tidegate_engine::rules::{Actions, ClientRequest, Costs};
pub use tidegate_serve::refusal::{Refusal, RefusalCode};

use super::state::Begun;
use crate::app::reload::Following;
use crate::app::{App, AppError, CONTROL_NICENESS, Essential};
use crate::app::{control, exceptions, first_dead};
use crate::clock::Clock;
use crate::configuration::Configuration;
pub use crate::configuration::{InsideOptions as Options, is_secret};
use crate::front::http::describe;
use crate::front::{ClientAnswer, ClientOptions, Handler};
use tidegate_engine::decision::Decision;
use tidegate_engine::key::KeySecret;
use tidegate_engine::memory::{MemoryOptions, MemoryStore};
use tidegate_engine::request::{Request, RequestBuf};
use tidegate_engine::rules::{Diagnostic, LoadOptions, Rule, SourceFile, load};
use tidegate_operate::debug::{Explain, Form};
use tidegate_serve::metrics::Front;
use tidegate_state::{Author, Outcome, ShardName, StartOptions, ThisMachine};

/// How long a start waits for the first rules of a control plane, and how often it checks.
const RULES_MAX: Duration = Duration::from_secs(5);
const RULES_INTERVAL: Duration = Duration::from_millis(10);

/// The limiters of this process that are in use.
static IN_USE: Mutex<Vec<(Options, Weak<Inside>)>> = Mutex::new(Vec::new());

/// The counters in memory of this process, once there are some, with the bounds of the first limiter.
static COUNTERS: Mutex<Option<Kept>> = Mutex::new(None);

/// Tasks that begin together. More of them begin after these have asked.
const TOGETHER_MAX: usize = 64;

thread_local! {
    /// The request that is checked on this thread of the host. Its memory is reused.
    static QUESTION: RefCell<RequestBuf> = RefCell::default();
}

/// Counters in memory, and what identifies their process.
struct Kept {
    bounds: MemoryOptions,
    store: Arc<MemoryStore>,
    clock: Clock,
    author: Author,
}

/// The most bytes of a rule's name or path in an answer.
pub const RULE_BYTES_MAX: usize = 128;

/// The answer to a request.
pub struct Answer {
    /// What it says to the client.
    pub client: ClientAnswer,
    /// The name or the path of the rule of that limit, cut after [`RULE_BYTES_MAX`] bytes.
    pub rule: Option<ArrayString<RULE_BYTES_MAX>>,
    /// The slots that the request took.
    pub slots: Option<Slots>,
}

/// An answer that is not yet held: see [`Inside::hold`].
pub struct Decided {
    client: ClientAnswer,
    rule: Option<ArrayString<RULE_BYTES_MAX>>,
    /// The question that releases its slots.
    release: Option<Box<RequestBuf>>,
}

/// Slots of calls in flight. They are free again when it is dropped: when the stream of the request has ended, however it
/// ends.
pub struct Slots {
    inside: Arc<Inside>,
    release: Box<RequestBuf>,
}

/// What our thread does for a thread of the host.
type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A limiter without sockets.
pub struct Inside {
    handler: Arc<Handler>,
    runtime: Handle,
    /// Tasks that our thread has not begun yet.
    tasks: UnboundedSender<Task>,
    /// Some counters are shared with others.
    is_shared: bool,
    /// What the host was shown of its metrics.
    shown: Mutex<Shown>,
    shown_at: Mutex<Option<Instant>>,
    /// Ends our thread when it is dropped.
    end: oneshot::Sender<Infallible>,
}

impl Inside {
    /// The limiter with these options, which may be in use already. Returns when its rules are loaded and what other
    /// nodes know is read, or after some seconds without them.
    /// Fails with what is wrong with the settings, the rules, or the files that they name.
    pub fn with(options: &Options) -> Result<Arc<Self>, String> {
        let mut in_use = IN_USE.lock();
        in_use.retain(|(_, inside)| inside.strong_count() > 0);
        let same = in_use.iter().find(|(of, _)| of == options);
        let is_alive = |inside: &Arc<Self>| !inside.end.is_closed();
        if let Some(inside) = same.and_then(|(_, inside)| inside.upgrade()).filter(is_alive) {
            return Ok(inside);
        }
        let inside = Arc::new(Self::start(options.resolve()?)?);
        in_use.push((options.clone(), Arc::downgrade(&inside)));
        Ok(inside)
    }

    /// Starts our thread, and waits until it can decide.
    fn start(configuration: Configuration) -> Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel();
        let (started, start) = mpsc::sync_channel(1);
        let (tasks, came) = unbounded_channel();
        // If they are shared, requests wait for our thread.
        let is_shared = configuration.redis.is_some() || configuration.limits.redis.is_some();
        let body = move || {
            if !is_shared {
                control::lower_priority(CONTROL_NICENESS);
            }
            runtime.spawn(begin_all(came));
            runtime.block_on(async move {
                let mut tasks = Essential::new();
                match App::inside(configuration, &mut tasks).await {
                    Ok((app, rules)) => app.serve_inside(rules, tasks, &started, ended).await,
                    Err(error) => drop(started.send(Err(error.to_string()))),
                }
            });
            // A blocking read of rules must not delay the end.
            runtime.shutdown_background();
        };
        thread::Builder::new().name("tidegate".to_owned()).spawn(body).map_err(|error| error.to_string())?;
        let handler = start.recv().map_err(|_| "the limiter's thread panicked".to_owned())??;
        Ok(Self {
            handler,
            runtime: handle,
            tasks,
            is_shared,
            shown: Mutex::default(),
            shown_at: Mutex::default(),
            end,
        })
    }

    /// Checks whether a request may pass, by these `rate_limits`, or else by those of this domain.
    pub fn check(
        &self,
        domain: &str,
        own: Option<&Actions>,
        request: &impl ClientRequest<Error = Refusal>,
    ) -> Reply<Decided> {
        let bytes_max = self.handler.bounds().request_bytes_max;
        let _entered = self.enter();
        let ask = |rules: &_, question: &mut _| describe(rules, own, request, question, bytes_max);
        QUESTION.with_borrow_mut(|question| {
            question.begin(domain);
            self.handler.check(Front::Inside, question, ask, None, Decided::of)
        })
    }

    /// The answer of a decision, which holds the slots that its request took.
    pub fn hold(self: &Arc<Self>, Decided { client, rule, release }: Decided) -> Answer {
        let slots = release.map(|release| Slots { inside: Arc::clone(self), release });
        Answer { client, rule, slots }
    }

    /// The costs that are charged when the stream of a request has ended, by these `rate_limits`, or else by those of
    /// this domain. `None`: none.
    /// Fails when they cannot be known.
    pub fn costs(
        &self,
        domain: &str,
        own: Option<&Actions>,
        request: &impl ClientRequest<Error = Refusal>,
    ) -> Result<Option<Costs>, Refusal> {
        self.handler.costs(domain, own, request)
    }

    /// Charges the costs of a request whose stream has ended. Returns how many of its costs are unknown: they are not
    /// charged.
    pub fn charge(self: &Arc<Self>, costs: &Costs, request: &impl ClientRequest<Error = Refusal>) -> usize {
        let (mut question, unknown) = costs.known(request);
        if question.entries_of_each().len() == 0 {
            return unknown;
        }
        self.report(&mut question);
        unknown
    }

    /// Asks a question whose answer nobody waits for.
    fn report(self: &Arc<Self>, question: &mut RequestBuf) {
        let _entered = self.enter();
        let reported = self.handler.check(Front::Inside, question, |_, _| Ok(()), None, |_, _, _| ());
        if let Reply::Later(reported) = reported {
            // Keeps our thread alive until it is done.
            let inside = Arc::clone(self);
            self.spawn(async move {
                // A failure is counted.
                let _ = reported.await;
                drop(inside);
            });
        }
    }

    /// Explains the answer to a request in the form of `/json`, and charges nothing. It waits for Redis, so a host that
    /// serves must not call it.
    pub fn explain(&self, question: &[u8], is_json: bool) -> Result<String, Refusal> {
        let form = Form { is_json, is_for_bearer: true };
        self.runtime.block_on(Explain::explain(&*self.handler, question, form))
    }

    /// Whether this domain has `rate_limits`. `None`: no rules have the domain.
    pub fn describes(&self, domain: &str) -> Option<bool> {
        self.handler.describes(domain)
    }

    /// Warns if no rules have this domain, or if there are no `rate_limits` for its requests. `has_own`: there are some elsewhere.
    pub fn warn_of_unknown(&self, domain: &str, has_own: bool) {
        match self.describes(domain) {
            Some(described) if described || has_own => (),
            Some(_) => {
                tracing::warn!("the rules of {domain:?} have no `rate_limits`: its requests are not decided")
            }
            None => tracing::warn!("no rules have the domain {domain:?}: its requests pass"),
        }
    }

    /// Calls `tick` on our thread again and again, until it returns false.
    pub fn every(&self, interval: Duration, mut tick: impl FnMut() -> bool + Send + 'static) {
        self.spawn(async move {
            while tick() {
                tokio::time::sleep(interval).await;
            }
        });
    }

    /// Lets tasks that a decision starts on the host's thread run on ours: hits that go back to the shared store.
    fn enter(&self) -> Option<EnterGuard<'_>> {
        self.is_shared.then(|| self.runtime.enter())
    }

    /// Runs a task on our thread: it waits for an answer that comes later.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        // Our thread has ended: the task is dropped.
        let _ = self.tasks.send(Box::pin(task));
    }
}

/// Begins tasks, for as long as any can come. Those that have come together begin together, so that what they ask Redis
/// goes there in one command. (Spawned one by one from other threads, each of them would get to its command before the
/// next one began.)
async fn begin_all(mut came: UnboundedReceiver<Task>) {
    let mut together = Vec::new();
    while came.recv_many(&mut together, TOGETHER_MAX).await > 0 {
        together.drain(..).for_each(|task| drop(tokio::spawn(task)));
    }
}

impl Decided {
    fn of(options: ClientOptions, request: &Request<'_>, decision: &Decision<'_>) -> Self {
        let rule = decision.tightest().and_then(|limited| limited.origin.rule());
        let client = ClientAnswer::of(options, request, decision);
        Self { client, rule: rule.map(shown), release: releasing(request, decision) }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        let Self { inside, release } = self;
        inside.report(release);
    }
}

/// Reads `rate_limits` and `normalize_path` that are not in a file of rules. Returns what to warn of, too.
/// Fails with what is wrong with them, and where.
pub fn rate_limits(written: &Value, normalize_path: bool) -> Result<(Actions, Vec<String>), String> {
    // JSON is YAML. What is said of the second line is about a domain that nobody wrote.
    let rest = format!("\"normalize_path\": {normalize_path}, \"domain\": \"own\"");
    let text = format!("{{\"rate_limits\": {written},\n{rest}}}");
    let file = SourceFile { name: "rate_limits".to_owned(), bytes: text.into_bytes(), presumed: false };
    let all = |bad: Vec<Diagnostic>| bad.iter().map(Diagnostic::to_string).collect::<Vec<_>>().join("; ");
    let loaded = load(&[file], &LoadOptions::new(KeySecret::new([0; 16]))).map_err(all)?;
    let warnings = loaded.warnings.iter().filter(|warning| warning.line == 1).map(Diagnostic::to_string);
    match loaded.rules.actions("own") {
        Some(actions) if !actions.is_empty() => Ok((actions.clone(), warnings.collect())),
        _ => Err("rate_limits: expected at least one".to_owned()),
    }
}

/// The question that releases the slots that a request took. `None`: it took none.
fn releasing(request: &Request<'_>, decision: &Decision<'_>) -> Option<Box<RequestBuf>> {
    let mut slots = decision.slots().peekable();
    slots.peek()?;
    let mut question = Box::new(RequestBuf::new(request.domain()));
    for (place, rule, slot) in slots {
        let (Some(descriptor), Some(key)) = (request.descriptors().nth(place), &rule.call_id) else {
            continue;
        };
        rule.own_entries(descriptor.entries).iter().for_each(|entry| question.push(entry.key, entry.value));
        question.push(key, &slot.to_string());
        question.close();
    }
    question.release();
    Some(question)
}

/// The name or the path of a rule. It is written for every request, so it allocates nothing.
fn shown(rule: &Rule) -> ArrayString<RULE_BYTES_MAX> {
    let mut text = ArrayString::new();
    // What does not fit is left out.
    if rule.name.is_empty() {
        let _ = rule.write_path(&mut text);
    } else {
        let _ = rule.name.chars().try_for_each(|char| text.try_push(char));
    }
    text
}

/// What the process starts or continues with.
fn begin(bounds: MemoryOptions) -> Result<Begun, AppError> {
    let mut counters = COUNTERS.lock();
    let kept = match &*counters {
        Some(kept) if kept.bounds != bounds => return Err(AppError::OtherBounds),
        Some(kept) => kept,
        None => {
            let options = StartOptions {
                own_secret: None,
                skew: Duration::ZERO,
                members: 0,
                grew_from: 0,
                name: ShardName::of(None),
                memory: bounds,
                deny_cold: None,
                machine: Arc::new(ThisMachine),
            };
            let begun = tidegate_state::begin(None, &options)?;
            counters.insert(Kept {
                bounds,
                store: Arc::new(begun.store),
                clock: begun.clock,
                author: begun.author,
            })
        }
    };
    let Kept { store, clock, author, .. } = kept;
    Ok(Begun {
        folder: None,
        store: Arc::clone(store),
        clock: *clock,
        author: author.clone(),
        outcome: Outcome::None,
    })
}

impl App {
    /// Continues with the counters of this process, and opens the rest.
    async fn inside(
        configuration: Configuration,
        tasks: &mut Essential,
    ) -> Result<(Self, Following), AppError> {
        let begun = begin(configuration.memory)?;
        let (app, rules) = Self::open(configuration, begun, None).await?;
        match &app.configuration.redis {
            Some(redis) => tracing::info!("store: Redis, {} (REDIS_SYNC)", redis.failover.sync.name()),
            None => tracing::info!("store: memory, each process has its own N"),
        }
        if let Some(path) = &app.configuration.admin.exceptions_followed {
            exceptions::follow_file(tasks, path, &app.exceptions)?;
            app.exceptions.install(&app.service);
        }
        Ok((app, rules))
    }

    /// Waits a while for the first rules of a control plane: until then requests are not decided.
    async fn await_rules(&self) {
        let first = async {
            while self.service.snapshot().is_err() {
                tokio::time::sleep(RULES_INTERVAL).await;
            }
        };
        if tokio::time::timeout(RULES_MAX, first).await.is_err() {
            tracing::warn!("no rules received within {RULES_MAX:?}: requests are not decided until then");
        }
    }

    /// Runs everything but decisions, until the host drops the limiter. Then leased hits go back to the shared store.
    /// `started` gets the handler once what other nodes know is read.
    async fn serve_inside(
        mut self,
        rules: Following,
        mut tasks: Essential,
        started: &mpsc::SyncSender<Result<Arc<Handler>, String>>,
        ended: oneshot::Receiver<Infallible>,
    ) {
        rules.keep(&mut tasks);
        let service = Arc::clone(&self.service);
        let serving = async {
            tokio::join!(self.read_first(), self.await_rules());
            self.keep(&mut tasks);
            let _ = started.send(Ok(self.handler()));
            // The host goes on when a task ends: requests then get the fallback.
            let dead = async {
                loop {
                    // Not within the macro, which does not evaluate its arguments while such lines are not logged.
                    let why = first_dead(&mut tasks).await;
                    tracing::error!("{why}");
                }
            };
            tokio::select! {
                _ = ended => {}
                () = dead => {}
            }
        };
        service.work(serving).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::sync::Notify;

    use super::*;

    fn limiter_that_cannot_reach_redis() -> Arc<Inside> {
        let settings = [("REDIS_URL", "127.0.0.1:1"), ("REDIS_TIMEOUT", "10ms")];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let rules = Some("domain: d".to_owned());
        Inside::with(&Options { settings, rules }).expect("it starts")
    }

    /// Hits that go back to Redis are sent by a task, wherever they are found.
    #[test]
    fn what_a_hosts_thread_starts_while_it_decides_runs_on_ours() {
        let inside = limiter_that_cannot_reach_redis();
        let _entered = inside.enter();
        let (ran, where_it_runs) = mpsc::channel();
        Handle::current().spawn(async move { ran.send(thread::current().name().map(str::to_owned)) });
        let name = where_it_runs.recv().expect("it runs");
        assert_eq!(name.as_deref(), Some("tidegate"));
    }

    /// Each update of a filter's configuration makes a limiter.
    #[test]
    fn a_limiter_that_nobody_uses_is_freed() {
        let in_memory = || {
            let options = Options { settings: [].into(), rules: Some("domain: freed".to_owned()) };
            Inside::with(&options).expect("it starts")
        };
        for limiter in [in_memory, limiter_that_cannot_reach_redis] {
            let service = Arc::downgrade(limiter().handler.service());
            let is_freed = || {
                thread::sleep(Duration::from_millis(1));
                service.strong_count() == 0
            };
            assert!((0..30_000).any(|_| is_freed()), "it is still there");
        }
    }

    /// The domain, which is ours, is not spoken of.
    #[test]
    fn rate_limits_of_a_route_may_be_warned_of() {
        let warnings = |test: Value, normalize_path| {
            let tested = json!({"name": ":path", "string_match": test});
            let action = json!({"header_value_match": {"descriptor_value": "a", "headers": [tested]}});
            rate_limits(&json!([{"actions": [action]}]), normalize_path).expect("good").1
        };
        assert_eq!(warnings(json!({"prefix": "/a/"}), true), [""; 0]);
        assert_eq!(warnings(json!({"prefix": "/a/../"}), false), [""; 0]);
        let warned = warnings(json!({"prefix": "/a/../"}), true);
        assert!(warned.len() == 1 && warned[0].contains("no `:path` in its normal form has"), "{warned:?}");
    }

    /// What sends to Redis is woken by the first that asks, and then finds what the others ask too.
    #[test]
    fn tasks_that_come_together_begin_before_what_they_wake() {
        let inside = limiter_that_cannot_reach_redis();
        let ((note, noted), (release, is_released)) = (mpsc::channel(), mpsc::channel::<()>());
        let asked = Arc::new(Notify::new());
        let (asking, sent) = (Arc::clone(&asked), note.clone());
        inside.spawn(async move {
            asking.notified().await;
            let _ = sent.send("sent");
        });
        // Until then our thread does nothing else.
        inside.spawn(async move {
            let _ = is_released.recv();
        });
        for name in ["one asks", "another asks"] {
            let (asked, note) = (Arc::clone(&asked), note.clone());
            inside.spawn(async move {
                asked.notify_one();
                let _ = note.send(name);
            });
        }
        drop((release, note));
        assert_eq!(noted.iter().collect::<Vec<_>>(), ["one asks", "another asks", "sent"]);
    }
}
