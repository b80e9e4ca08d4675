//! Resets while the limiter runs: one counter, or all counters of the rules below a path, begin anew at once.
//!
//! In: a path to either, and the number of the reset. Out: the same rules in another epoch, at this node and at all that share its
//! Redis. A reset is kept before it is in force: in Redis, or in a file of STATE_DIR, or, where counters end with the
//! process, nowhere. It costs the same for one counter as for a hundred million, because it touches none: they are
//! asked by nobody any more and expire. Numbers only grow, so hearing of a reset again changes nothing.
//!
//! - `text`: paths and numbers as people, files and Redis have them
//! - `file`: all resets in a file

mod file;
mod text;

pub use self::file::FileError;
pub use self::text::{counter, id, path, path_json, read_id};

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use crate::service::Service;
use tidegate_engine::rules::{Epoch, Epochs, PathPrefix, Reach};
use tidegate_engine::time::Timestamp;
use tidegate_redis::{ConnectError, Contact, Heard, Numbers, SharedStore};

/// How often Redis is asked for resets of other nodes. A node is to hear of one within half a second: the pause, the call,
/// and what a busy machine adds to both.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// The same until it has answered once.
const FIRST_LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// How long a node that starts waits for its first answer before it serves without.
const FIRST_HEARD_MAX: Duration = Duration::from_secs(1);
/// How often a number is tried that another node raises at the same time.
const TELLS_MAX: usize = 5;
/// Paths of rules that may have been reset, and as many single counters. One that is there already may be reset again.
pub const PATHS_MAX: usize = 10_000;
/// By how much the clock of whoever chooses a number may be ahead of ours. A number of the far future would be the last
/// one of its path.
const AHEAD_NANOS_MAX: u64 = 3_600 * 1_000_000_000;

/// All resets, and where they are kept.
pub struct Resets {
    service: Arc<Service>,
    file: Option<PathBuf>,
    /// One at a time.
    heard: Mutex<Known>,
}

/// What this node has heard of in Redis.
#[derive(Default)]
struct Known {
    /// The state of all numbers; `None`: it has not heard of any.
    state: Option<String>,
    /// The last reset of a counter without an epoch of its own.
    counter: Epoch,
}

/// Where Redis has the number of the last reset of a counter without an epoch of its own. No path is written so.
const COUNTER: &str = "counter";

/// A reset that may be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Below which path.
    pub path: PathPrefix,
    /// Its number.
    pub epoch: Epoch,
    /// How many rules have counters there.
    pub rules: usize,
    /// Whether it is in force already.
    pub is_done: bool,
}

/// Why a reset is not done.
#[derive(Debug, thiserror::Error)]
pub enum ResetError {
    /// No rule's path begins so.
    #[error(
        "no rule is at or below this path (expected keys, and values or patterns, as the rules have them)"
    )]
    NoRule,
    /// No limit applies to a counter's entries.
    #[error("no limit applies to these entries")]
    NoCounter,
    /// There are too many.
    #[error("{PATHS_MAX} paths were reset already (expected one of these again, or one above them)")]
    Full,
    /// A later one of the same path is in force.
    #[error("a later reset of this path is in force: {} (expected a greater id, or none)", id(*.0))]
    Older(Epoch),
    /// The number is of the future.
    #[error("the id is of the future (expected the nanoseconds since 1970 in hex, at most an hour ahead)")]
    Future,
    /// It could not be kept.
    #[error("not done, because Redis does not take it: {0}")]
    Redis(#[from] ConnectError),
    /// A counter was reset, and other nodes may not know.
    #[error(
        "the counter is reset, and nodes that remember it as full may not know (expected to be sent again): {0}"
    )]
    Untold(ConnectError),
    /// It could not be kept.
    #[error("not done, because it cannot be kept: {0}")]
    File(#[from] FileError),
    /// The thread that does it is gone.
    #[error("not done: {0}")]
    Thread(#[from] tokio::task::JoinError),
}

impl Resets {
    /// Resets of `service`, which begin with the process.
    pub fn new(service: Arc<Service>) -> Self {
        Self { service, file: None, heard: Mutex::default() }
    }

    /// With those in this file, which need not be there yet. To be called before rules are put in force.
    ///
    /// # Errors
    /// When it cannot be read, or does not hold resets.
    pub fn kept_in(self, path: PathBuf) -> Result<Self, FileError> {
        self.service.begin_epochs(&file::read(&path)?);
        Ok(Self { file: Some(path), ..self })
    }

    /// All resets, by their paths.
    pub fn all(&self) -> Epochs {
        self.service.epochs()
    }

    /// What a reset would do. Without a number it gets the next one.
    ///
    /// # Errors
    /// When it would do nothing, or may not be done.
    pub async fn plan(
        &self,
        path: PathPrefix,
        epoch: Option<Epoch>,
        now: Timestamp,
    ) -> Result<Wanted, ResetError> {
        let rules = self.service.with_rules(|rules| rules?.rules_below(&path));
        let rules = rules.ok_or(match path.reach {
            Reach::Below => ResetError::NoRule,
            Reach::Counter => ResetError::NoCounter,
        })?;
        self.look().await?;
        let (known, now) = (self.service.epochs(), now.as_nanos());
        let last = known.of(&path);
        let epoch = epoch.unwrap_or_else(|| now.max(last + 1));
        if epoch > now.saturating_add(AHEAD_NANOS_MAX) && epoch != last + 1 {
            return Err(ResetError::Future);
        }
        if epoch < last {
            return Err(ResetError::Older(last));
        }
        if last == 0 && known.count(path.reach) >= PATHS_MAX {
            return Err(ResetError::Full);
        }
        Ok(Wanted { path, epoch, rules, is_done: epoch == last })
    }

    /// Keeps a reset, and puts it in force at this node.
    ///
    /// # Errors
    /// When it cannot be kept. Then it is not in force here; other nodes may hear of it nevertheless if Redis did not
    /// answer.
    pub async fn begin(&self, wanted: &Wanted) -> Result<(), ResetError> {
        let mut one = Epochs::default();
        one.raise(wanted.path.clone(), wanted.epoch);
        if let Some(shared) = self.shared() {
            shared.raise_epochs(&numbers(&one)).await?;
        }
        // Held for as long as the file is written, so that none of two is lost.
        let _one_at_a_time = self.heard.lock().await;
        let (service, file) = (Arc::clone(&self.service), self.file.clone());
        let begun = move || {
            if let Some(path) = file {
                let mut all = service.epochs();
                all.merge(&one);
                file::write(&path, &all)?;
            }
            service.begin_epochs(&one);
            Ok(())
        };
        tokio::task::spawn_blocking(begun).await?
    }

    /// Tells all nodes that some counter was reset that has no epoch of its own, so that none of them denies from memory
    /// what Redis would admit.
    ///
    /// # Errors
    /// When Redis does not take it.
    pub async fn tell_of_counter(&self, now: Timestamp) -> Result<(), ResetError> {
        let Some(shared) = self.shared() else { return Ok(()) };
        let untold = |error| match error {
            ResetError::Redis(error) => ResetError::Untold(error),
            other => other,
        };
        // Another node may have told of one meanwhile, with a clock that is ahead.
        for _ in 0..TELLS_MAX {
            self.look().await.map_err(untold)?;
            let number = now.as_nanos().max(self.heard.lock().await.counter + 1);
            let told = shared.raise_epochs(&vec![(COUNTER.to_owned(), id(number))]).await;
            if told.map_err(ResetError::Untold)? {
                break;
            }
        }
        Ok(())
    }

    /// Hears of all resets that Redis knows, if it answers soon. A node that served before would decide by the counters of
    /// before a reset.
    pub async fn hear_first(&self) {
        let Some(shared) = self.shared() else { return };
        let mut contact = shared.main().contact();
        let heard = async {
            // Whoever cannot be reached now is not waited for: requests are not held up by Redis either.
            let reached = contact.wait_for(|contact| *contact != Contact::Never(None)).await;
            if !matches!(reached.as_deref(), Ok(Contact::Up)) {
                return;
            }
            while self.look().await.is_err() {
                tokio::time::sleep(FIRST_LOOK_INTERVAL).await;
            }
        };
        if tokio::time::timeout(FIRST_HEARD_MAX, heard).await.is_err() {
            tracing::warn!(
                "Redis has not told of resets within {FIRST_HEARD_MAX:?}: they are heard of later"
            );
        }
    }

    /// Hears of other nodes' resets, for ever.
    pub async fn follow(self: Arc<Self>) -> Infallible {
        let (mut pause, mut is_told) = (FIRST_LOOK_INTERVAL, false);
        loop {
            match self.look().await {
                Ok(()) => (pause, is_told) = (LOOK_INTERVAL, false),
                // Whether it answers at all is logged elsewhere.
                Err(ResetError::Redis(ConnectError::NoConnection)) => {}
                Err(error) if !std::mem::replace(&mut is_told, true) => {
                    tracing::warn!("resets of other nodes are not heard of: {error}");
                }
                Err(_) => {}
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Hears of resets in Redis, if counters live there, and writes those that it has lost.
    async fn look(&self) -> Result<(), ResetError> {
        let Some(shared) = self.shared() else { return Ok(()) };
        let mut known = self.heard.lock().await;
        let Some(Heard { state, mut numbers }) = shared.epochs(known.state.as_deref()).await? else {
            return Ok(());
        };
        let counters =
            numbers.extract_if(.., |(field, _)| field == COUNTER).filter_map(|(_, it)| read_id(&it));
        let counter = counters.max().unwrap_or_default();
        if counter > known.counter {
            known.counter = counter;
            shared.clear_deny_cache();
        }
        let theirs = read_numbers(&numbers);
        let lost = self::numbers(&greater(&self.service.epochs(), &theirs));
        if !lost.is_empty() {
            shared.raise_epochs(&lost).await?;
        }
        let service = Arc::clone(&self.service);
        tokio::task::spawn_blocking(move || service.begin_epochs(&theirs)).await?;
        known.state = Some(state);
        Ok(())
    }

    fn shared(&self) -> Option<&Arc<SharedStore>> {
        self.service.counters().shared()
    }
}

/// Those that `others` do not have, or not so late.
fn greater(own: &Epochs, others: &Epochs) -> Epochs {
    let mut greater = Epochs::default();
    for (path, epoch) in own.iter().filter(|(path, epoch)| *epoch > others.of(path)) {
        greater.raise(path.clone(), epoch);
    }
    greater
}

/// As Redis has them.
fn numbers(epochs: &Epochs) -> Numbers {
    epochs.iter().map(|(at, epoch)| (path_json(at).to_string(), id(epoch))).collect()
}

/// What Redis has. Others may have written there too: what is none of ours is left out.
fn read_numbers(numbers: &Numbers) -> Epochs {
    let mut epochs = Epochs::default();
    for (field, number) in numbers {
        let read = serde_json::from_str(field).ok().and_then(|value| path(&value).ok());
        match read.zip(read_id(number)) {
            Some((at, epoch)) => _ = epochs.raise(at, epoch),
            None => tracing::warn!("redis: a reset that cannot be read is left out: {field:?} {number:?}"),
        }
    }
    epochs
}

#[cfg(test)]
mod tests;
