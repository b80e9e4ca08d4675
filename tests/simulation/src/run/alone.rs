//! The machine of a node without Redis: its clocks, its disk, and what its processes leave there for each other. The program's
//! own `tidegate-state` begins and ends them.
//!
//! In: deaths, at any step of the disk. Out: the counters and the clock of a process that begins. What it found is judged at
//! once: a clean end is found, a kill is never taken for one, and the clock never goes on too early. What may be lost is noted
//! for the oracle: what was admitted since the last checkpoint, and nothing after a clean end.

use std::fmt::{self, Formatter};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tidegate_disk::Disk;
use tidegate_disk::mortal::{Left, MortalFolder};
use tidegate_engine::clock::Clock;
use tidegate_engine::memory::{MemoryOptions, MemoryStore};
use tidegate_engine::rules::Epochs;
use tidegate_engine::time::Timestamp;
use tidegate_operate::resets::{put_in_force, read_file};
use tidegate_redis::runtime::Runtime as _;
use tidegate_serve::service::{Counters, Service};
use tidegate_state::{
    Begun, Checkpoints, Folder, KeySource, Machine, Outcome, ShardName, StartOptions, begin, init,
};

use super::book::Kept;
use super::{Kind, Run};
use crate::node::{Node, world_time};
use crate::oracle::Loss;
use crate::random::Random;
use crate::scenario::{Alone, Layout, Scenario};
use crate::world::{MILLI, Time, lock};

/// How often expired counters are forgotten.
const SWEEP_INTERVAL: Time = 250 * MILLI;

/// The file of resets in STATE_DIR.
const RESETS: &str = "resets";

/// How the next thing that a process writes ends.
#[derive(Clone, Copy)]
pub(super) struct Death {
    /// After so many steps of the disk.
    pub(super) steps: usize,
    /// Its machine dies then, too.
    pub(super) with_machine: bool,
}

/// The secret of keys, as of KEY_SECRET_FILE: what a seed means does not depend on chance.
pub(super) fn secret() -> KeySource {
    KeySource::of_text(b"the secret of a simulated node")
}

/// A machine.
pub(super) struct Home {
    pub(super) alone: Alone,
    /// Its exceptions.
    pub(super) excepted: Kept,
    denies_cold: bool,
    /// There is no history, and nobody has said so yet.
    is_undeclared: bool,
    random: Random,
    /// STATE_DIR.
    pub(super) folder: MortalFolder,
    /// Which boot this is, and since when.
    boot: (u128, Time),
    /// Whether the next process may find a clean end.
    clean: Belief,
    /// Since when hits are in no file, so that a kill loses them.
    unsaved_since: Time,
    /// By how much the wall clock is ahead, and by how much the clock of decisions was in the last life.
    pub(super) wall_ahead: Arc<AtomicU64>,
    clock_ahead: i128,
    /// The same of those by which the counters may have been made that are in a file: the least, and the most.
    saved_ahead: [i128; 2],
    death: Option<Death>,
    life: Option<Life>,
}

/// A process that runs, or ends.
struct Life {
    /// `None`: nothing is kept.
    checkpoints: Option<Checkpoints>,
}

/// Whether a start may find a clean end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Belief {
    Must,
    May,
    MustNot,
}

/// The clocks of a machine, for one process.
struct Clocks {
    node: Node,
    boot: (u128, Time),
    wall_ahead: Time,
}

impl fmt::Debug for Clocks {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "Clocks({:?})", self.boot)
    }
}

impl Machine for Clocks {
    fn monotonic(&self) -> Instant {
        self.node.monotonic()
    }

    fn wall(&self) -> Timestamp {
        self.node.world_time().plus(self.wall_ahead)
    }

    fn since_boot(&self) -> u64 {
        self.node.now() - self.boot.1
    }

    fn boot_id(&self) -> [u8; 16] {
        self.boot.0.to_be_bytes()
    }
}

impl Home {
    /// The machine of a node without Redis.
    pub(super) fn of(scenario: &Scenario) -> Option<Self> {
        let Layout::Alone(alone) = scenario.layout else { return None };
        Some(Self {
            alone,
            excepted: Kept::default(),
            denies_cold: scenario.settings.denies_cold,
            is_undeclared: alone.is_kept && alone.is_declared,
            random: Random::new(scenario.seed),
            folder: MortalFolder::new(&Left::new()),
            boot: (1, 0),
            clean: Belief::MustNot,
            unsaved_since: 0,
            wall_ahead: Arc::default(),
            clock_ahead: 0,
            saved_ahead: [0; 2],
            death: None,
            life: None,
        })
    }

    /// What is written next ends so.
    pub(super) fn will_die(&mut self, death: Death) {
        self.death = Some(death);
    }

    /// The wall clock steps. The one of a process that runs has read it.
    pub(super) fn step_wall(&mut self, ahead: Time) {
        self.wall_ahead.store(ahead, Relaxed);
    }

    /// What the wall clock says at a time of the world.
    pub(super) fn wall_at(&self, now: Time) -> Timestamp {
        world_time(now).plus(self.wall_ahead.load(Relaxed))
    }

    /// The process was killed, if there was one.
    pub(super) fn killed(&mut self) {
        self.life = None;
    }

    /// Writes a checkpoint, as far as so many steps go.
    pub(super) fn checkpoint(&mut self, steps: usize, now: Time) {
        let Some(checkpoints) = self.life.as_ref().and_then(|life| life.checkpoints.as_ref()) else { return };
        self.folder.disk(steps);
        let written = checkpoints.write().is_ok();
        self.written(written, now);
    }

    /// All counters are in a file, surely or perhaps.
    fn written(&mut self, surely: bool, now: Time) {
        let ([least, most], own) = (self.saved_ahead, self.clock_ahead);
        self.saved_ahead = if surely { [own; 2] } else { [least.min(own), most.max(own)] };
        if surely {
            self.unsaved_since = now;
        }
    }

    /// These resets are in force, and kept where counters are.
    pub(super) fn reset(&self, service: &Service<Node>, one: &Epochs) {
        let (path, disk) = (self.folder.path().join(RESETS), self.folder.disk(usize::MAX));
        let file = self.alone.is_kept.then_some((&*path, &*disk as &dyn Disk));
        put_in_force(service, file, one).expect("the disk does all steps");
    }

    /// The machine dies, and boots again.
    pub(super) fn lose_power(&mut self, now: Time) {
        let may_be_left: Vec<Left> = self.folder.after_a_crash().into_iter().collect();
        self.folder = MortalFolder::new(&self.random.pick(&may_be_left));
        self.boot = (self.boot.0 + 1, now);
    }

    /// How what is written now ends: after all steps, unless somebody wants it otherwise.
    fn steps(&mut self) -> Death {
        self.death.take().unwrap_or(Death { steps: usize::MAX, with_machine: false })
    }

    fn options(&self, node: &Node) -> StartOptions {
        StartOptions {
            own_secret: Some(secret()),
            skew: Duration::from_nanos(self.alone.skew),
            members: 0,
            grew_from: 0,
            name: ShardName::default(),
            memory: MemoryOptions::new(self.alone.max_bytes).full(self.alone.full),
            deny_cold: self.denies_cold.then(|| Duration::from_nanos(self.alone.cold_max)),
            machine: Arc::new(Clocks {
                node: node.clone(),
                boot: self.boot,
                wall_ahead: self.wall_ahead.load(Relaxed),
            }),
        }
    }
}

impl Run {
    /// A process begins, with what the one before has left. `None`: it dies, or the one before has not ended.
    pub(super) fn begin(&self, home: &mut Home, node: &Node) -> Option<(Counters<Node>, Clock)> {
        if home.life.is_some() {
            return None;
        }
        let (now, Death { steps, with_machine }) = (self.world.now(), home.steps());
        let begun = self.begin_life(home, node, steps);
        if begun.is_none() && with_machine {
            home.lose_power(now);
        }
        begun
    }

    fn begin_life(&self, home: &mut Home, node: &Node, steps: usize) -> Option<(Counters<Node>, Clock)> {
        let now = self.world.now();
        let lock_folder = || Folder::lock_on(home.folder.path(), home.folder.disk(steps));
        let folder = home.alone.is_kept.then(lock_folder).transpose().ok()?;
        let options = home.options(node);
        if let (true, Some(folder)) = (std::mem::take(&mut home.is_undeclared), &folder) {
            let machine = Arc::clone(&options.machine);
            init(folder, options.own_secret, 0, options.name, machine).expect("the disk does all steps");
            home.clean = Belief::Must;
        }
        let begun = begin(folder.as_ref(), &options).ok()?;
        self.world.note(|| format!("a process begins: {}", begun.outcome.name()));
        let clock_ahead = self.judge_start(home, node, &begun);
        let Begun { store, clock, author, outcome, .. } = begun;
        let store = Arc::new(store);
        let checkpoints = folder.map(|folder| Checkpoints::new(folder, author, Arc::clone(&store), clock));
        if let Some(checkpoints) = &checkpoints
            && checkpoints.mark(outcome).is_err()
        {
            home.clean = if outcome == Outcome::Clean { Belief::May } else { Belief::MustNot };
            return None;
        }
        if outcome != Outcome::Clean {
            lock(&self.losses).push(Loss { since: home.unsaved_since, until: now, acknowledged: true });
        }
        let went_back = (home.clock_ahead - clock_ahead).unsigned_abs() as Time;
        self.lag.fetch_add(went_back, Relaxed);
        (home.clean, home.unsaved_since, home.clock_ahead) = (Belief::MustNot, now, clock_ahead);
        home.life = Some(Life { checkpoints });
        Some((Counters::Memory(store), clock))
    }

    /// The resets that a process begins with: where they are kept, those that were acknowledged.
    pub(super) fn kept_resets(&self, home: &Home, acknowledged: &Epochs) -> Epochs {
        if !home.alone.is_kept {
            return Epochs::default();
        }
        let kept = read_file(&home.folder.path().join(RESETS)).unwrap_or_default();
        if acknowledged.iter().any(|(path, epoch)| kept.of(path) != epoch) {
            self.wrong(Kind::WrongStart, "a process begins without a reset that was acknowledged".to_owned());
        }
        kept
    }

    /// Judges what a process begins with. Returns by how much its clock is ahead.
    fn judge_start(&self, home: &Home, node: &Node, begun: &Begun) -> i128 {
        let is_clean = begun.outcome == Outcome::Clean;
        let is_expected = match home.clean {
            Belief::Must => is_clean,
            Belief::May => true,
            Belief::MustNot => !is_clean,
        };
        if !is_expected || !matches!(begun.outcome, Outcome::Clean | Outcome::Unclean | Outcome::None) {
            let what = format!("a process found {:?}, where a clean end was {:?}", begun.outcome, home.clean);
            self.wrong(Kind::WrongStart, what);
        }
        let nanos = |time: Timestamp| i128::from(time.as_nanos());
        let ahead = nanos(begun.clock.at(node.monotonic())) - nanos(node.world_time());
        // It goes on where it was, or after a boot that much behind: never ahead.
        let goes_on = begun.taken.as_ref().is_some_and(|(totals, _)| totals.all() > 0);
        let (back_max, [least, most]) = (2 * i128::from(home.alone.skew), home.saved_ahead);
        if goes_on && !(least - back_max..=most).contains(&ahead) {
            let what = format!("a clock was {least} to {most} ns ahead, and goes on {ahead} ns ahead");
            self.wrong(Kind::WrongStart, what);
        }
        ahead
    }

    /// Forgets expired counters and writes checkpoints, as long as this process of the node lives.
    pub(super) fn keep(
        self: &Arc<Self>,
        (number, starts): (usize, u64),
        store: Arc<MemoryStore>,
        clock: Clock,
        node: &Node,
    ) {
        let (run, node) = (Arc::clone(self), node.clone());
        self.world.spawn_on((number, 0), async move {
            loop {
                run.world.until(run.world.now() + SWEEP_INTERVAL).await;
                if !run.lives(number, starts) {
                    break;
                }
                while !store.sweep(clock.at(node.monotonic())).round_done {}
            }
        });
        let Layout::Alone(Alone { interval: Some(interval), .. }) = self.scenario.layout else { return };
        let run = Arc::clone(self);
        self.world.spawn_on((number, 0), async move {
            loop {
                run.world.until(run.world.now() + interval).await;
                if !run.lives(number, starts) {
                    break;
                }
                let now = run.world.now();
                let home = &mut lock(&run.nodes)[number].home;
                home.iter_mut().for_each(|home| home.checkpoint(usize::MAX, now));
            }
        });
    }

    fn lives(&self, number: usize, starts: u64) -> bool {
        let nodes = lock(&self.nodes);
        let of_life = |state: &super::State| state.starts == starts && state.service.is_some();
        nodes.get(number).is_some_and(of_life)
    }

    /// The last worker of a process has ended: its counters are written.
    pub(super) fn end_life(&self, number: usize) {
        let now = self.world.now();
        let mut nodes = lock(&self.nodes);
        let Some(home) = nodes.get_mut(number).and_then(|state| state.home.as_mut()) else { return };
        let Some(Life { checkpoints }) = home.life.take() else { return };
        let Death { steps, with_machine } = home.steps();
        if let Some(checkpoints) = checkpoints {
            home.folder.disk(steps);
            home.clean = match checkpoints.finish() {
                Ok(_) => Belief::Must,
                Err(_) => Belief::May,
            };
            home.written(home.clean == Belief::Must, now);
            self.world.note(|| format!("a process ends: a clean end {:?} be found", home.clean));
        }
        if with_machine {
            home.lose_power(now);
        }
    }
}
