//! Resets while the limiter runs: one counter, or all counters of the rules below a path, start at zero at once.
//!
//! In: a path to either, and the number of the reset. Out: the same rules in another epoch, at this node and at all
//! that share its Redis. A reset is stored before it is in force: in Redis, or in a file of STATE_DIR; if counters
//! end with the process, it is not stored. It costs the same for one counter as for a hundred million, because it
//! touches none: no request uses their keys any more, and they expire. Numbers only grow, so a reset that arrives
//! again changes nothing.
//!
//! - `text`: paths as files and Redis have them, and the file

mod text;

pub(crate) use self::text::Written;
pub use self::text::{path, path_json, read_file};

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use self::text::write_file;
use crate::bodies::values::{id, read_id};
use crate::line_file::FileError;
use crate::numbers::{latest, next};
use tidegate_disk::{Disk, SystemDisk};
use tidegate_engine::rules::{Epoch, Epochs, Reach, ResetPath};
use tidegate_engine::time::Timestamp;
use tidegate_redis::runtime::{Runtime, Tokio};
use tidegate_redis::{Agreed, ConnectError, Contact, Numbers, Raised, SharedStore};
use tidegate_serve::service::Service;

/// How often a starting node checks whether it has read all resets, and how long it waits for that before it serves.
const FIRST_READ: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));
/// Paths of rules that may have been reset, and as many single counters. A path that is among them may be reset
/// again. A used number cannot be forgotten: the hits that were counted under it would be lost too.
pub const PATHS_MAX: usize = 10_000;
/// Characters of a field that cannot be read, in the log and on the page.
const FIELD_CHARS: usize = 64;

/// All resets, and where they are kept.
pub struct Resets<R: Runtime = Tokio> {
    runtime: R,
    service: Arc<Service<R>>,
    file: Option<PathBuf>,
    /// Held while the file is written, so that of two resets neither is lost.
    one_at_a_time: Mutex<()>,
}

/// A reset that may be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The path.
    pub path: ResetPath,
    /// Its number.
    pub epoch: Epoch,
    /// How many rules have counters below it.
    pub rules: usize,
    /// Whether it is in force already.
    pub is_done: bool,
}

/// Why a reset is not done.
#[derive(Debug, thiserror::Error)]
pub enum ResetError {
    /// No rule's path begins like this.
    #[error(
        "no rule is at or below this path (expected keys, and values or patterns, as the rules have them)"
    )]
    NoRule,
    /// No limit applies to a counter's entries.
    #[error("no limit applies to these entries")]
    NoCounter,
    /// Too many paths of rules were reset.
    #[error("{PATHS_MAX} paths were reset already (expected one of these again, or one above them)")]
    TooManyPaths,
    /// Too many counters were reset, each by itself.
    #[error(
        "{PATHS_MAX} single counters were reset already (expected one of these again, a reset of all counters below a \
         path, or an exception for this one)"
    )]
    TooManyCounters,
    /// A later one of the same path is in force.
    #[error("a later reset of this path is in force: {} (expected a greater id, or none)", id(*.0))]
    Older(Epoch),
    /// Its number is too far in the future.
    #[error("the id is in the future (expected the nanoseconds since 1970 in hex, at most an hour ahead)")]
    Future,
    /// No server stored it.
    #[error("not done, because Redis does not take it: {0}")]
    Redis(ConnectError),
    /// It may or may not be in force.
    #[error(
        "it is not known whether the reset {} is done (send it again with this id): {servers}",
        id(*.epoch)
    )]
    Unknown {
        /// Its number.
        epoch: Epoch,
        /// The servers that did not answer, and why.
        servers: String,
    },
    /// Some servers stored it, and others may not have.
    #[error(
        "the reset {} is in force, and not kept by all servers of Redis (send it again with this id): {servers}",
        id(*.epoch)
    )]
    Incomplete {
        /// Its number.
        epoch: Epoch,
        /// The servers that may not have it, and why.
        servers: String,
    },
    /// It could not be stored.
    #[error("not done, because it cannot be stored: {0}")]
    File(#[from] FileError),
    /// The thread that does it has died.
    #[error("not done, because the thread that does it has died")]
    Thread,
}

impl Resets {
    /// Resets of `service`, which end with the process.
    pub fn new(service: Arc<Service>) -> Self {
        Self::on(Tokio, service)
    }
}

impl<R: Runtime> Resets<R> {
    /// The same on another runtime than tokio.
    pub fn on(runtime: R, service: Arc<Service<R>>) -> Self {
        Self { runtime, service, file: None, one_at_a_time: Mutex::default() }
    }

    /// With the resets in this file, which need not exist yet. Call it before rules are put in force.
    /// Fails when it cannot be read, or does not contain resets.
    pub fn kept_in(self, path: PathBuf) -> Result<Self, FileError> {
        self.service.begin_epochs(&read_file(&path)?);
        Ok(Self { file: Some(path), ..self })
    }

    /// All resets, by their paths.
    pub fn all(&self) -> Epochs {
        self.service.epochs()
    }

    /// The effect that a reset would have. Without a number it gets the next one.
    /// Fails when it would have no effect, or may not be done.
    pub fn plan(&self, path: ResetPath, epoch: Option<Epoch>, now: Timestamp) -> Result<Wanted, ResetError> {
        let rules = self.service.with_rules(|rules| rules?.rules_below(&path));
        let rules = rules.ok_or(match path.reach {
            Reach::Below => ResetError::NoRule,
            Reach::Counter => ResetError::NoCounter,
        })?;
        let known = self.service.epochs();
        let last = known.of(&path);
        let next = next(last, now);
        let epoch = epoch.unwrap_or(next);
        if epoch > latest(now) && epoch != next {
            return Err(ResetError::Future);
        }
        if epoch < last {
            return Err(ResetError::Older(last));
        }
        if last == 0 && known.count(path.reach) >= PATHS_MAX {
            return Err(match path.reach {
                Reach::Below => ResetError::TooManyPaths,
                Reach::Counter => ResetError::TooManyCounters,
            });
        }
        Ok(Wanted { path, epoch, rules, is_done: epoch == last })
    }

    /// Stores a reset, and puts it in force at this node. A reset that is in force already is stored where it is
    /// missing.
    /// Fails when it cannot be stored at all, or not by all servers. It is in force if one of them stored it.
    pub async fn begin(&self, wanted: &Wanted) -> Result<(), ResetError> {
        let mut one = Epochs::default();
        one.raise(wanted.path.clone(), wanted.epoch);
        let kept = match self.shared() {
            Some(shared) => self.keep(shared, &one, wanted.epoch).await?,
            None => Kept::default(),
        };
        self.begin_kept(wanted, one, kept).await
    }

    /// Puts a reset in force that is stored. First those of others that this node does not know yet: with only its own
    /// reset, it would count in an epoch in which nobody else does.
    async fn begin_kept(
        &self,
        wanted: &Wanted,
        one: Epochs,
        Kept { missing, found }: Kept,
    ) -> Result<(), ResetError> {
        for (numbers, now) in found {
            self.agree(numbers, now).await;
        }
        if !wanted.is_done {
            let _one_at_a_time = self.one_at_a_time.lock().await;
            let (service, file) = (Arc::clone(&self.service), self.file.clone());
            let put =
                move || put_in_force(&service, file.as_deref().map(|path| (path, &SystemDisk as _)), &one);
            self.runtime.unblock(put).await.ok_or(ResetError::Thread)??;
        }
        match missing {
            None => Ok(()),
            Some(servers) => Err(ResetError::Incomplete { epoch: wanted.epoch, servers }),
        }
    }

    /// Stores a reset at all servers of Redis.
    async fn keep(&self, shared: &SharedStore<R>, one: &Epochs, epoch: Epoch) -> Result<Kept, ResetError> {
        let all = || {
            let mut all = self.service.epochs();
            all.merge(one);
            numbers(&all)
        };
        let Raised { kept, refused, mut missing, found } = shared.raise_epochs(&numbers(one), &all).await;
        match refused.iter().map(|(_, number)| read_id(number)).max() {
            Some(Some(later)) => return Err(ResetError::Older(later)),
            Some(None) => return Err(ResetError::Future),
            None => {}
        }
        let servers = (!missing.is_empty()).then(|| shown(&missing));
        match servers {
            Some(servers) if kept == 0 => Err(match missing.iter().any(|(_, why)| why.may_be_done()) {
                true => ResetError::Unknown { epoch, servers },
                false => ResetError::Redis(missing.swap_remove(0).1),
            }),
            missing => Ok(Kept { missing, found }),
        }
    }

    /// Reads all resets from Redis, if it answers soon: until then its servers decide nothing.
    pub async fn read_first(&self) {
        let Some(shared) = self.shared() else { return };
        let mut contact = shared.main().contact();
        let read = async {
            // A server that cannot be reached now is not waited for: it cannot decide requests either.
            let _ = contact.wait_for(|contact| *contact != Contact::Never(None)).await;
            while !shared.has_read_epochs() {
                self.runtime.sleep(FIRST_READ.0).await;
            }
        };
        tokio::select! {
            never = self.follow() => match never {},
            read = self.runtime.timeout(FIRST_READ.1, read) => if read.is_none() {
                tracing::warn!("resets not read from Redis within {:?}; will retry", FIRST_READ.1);
            },
        }
    }

    /// Puts the resets of other nodes in force, for ever.
    pub async fn follow(&self) -> Infallible {
        match self.shared() {
            Some(shared) => shared.follow_epochs(|numbers, now| self.agree(numbers, now)).await,
            None => std::future::pending().await,
        }
    }

    /// Puts the resets of a server in force, whose time this is, and returns those that it lacks.
    async fn agree(&self, theirs: Numbers, now_micros: u64) -> Option<Agreed> {
        let service = Arc::clone(&self.service);
        let agreeing = move || {
            let now = Timestamp::from_nanos(now_micros.saturating_mul(1_000));
            let Theirs { epochs, left_out } = read_numbers(&theirs, latest(now));
            service.begin_epochs(&epochs);
            Agreed { missing: numbers(&greater(&service.epochs(), &epochs)), trouble: left_out }
        };
        self.runtime.unblock(agreeing).await
    }

    fn shared(&self) -> Option<&Arc<SharedStore<R>>> {
        self.service.counters().shared()
    }
}

/// The result of storing a reset at the servers of Redis.
#[derive(Default)]
struct Kept {
    /// The servers that may not have it.
    missing: Option<String>,
    /// The resets of each of the others, and its time in microseconds since 1970.
    found: Vec<(Numbers, u64)>,
}

/// The resets that `others` lack, or have with a smaller number.
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

/// The resets of a server.
#[derive(Debug, Default)]
struct Theirs {
    epochs: Epochs,
    /// Those that cannot be read, or are too far in the future.
    left_out: Option<String>,
}

/// The resets of a server, up to this number. Other programs may have written there too: fields that are not ours are
/// ignored, and so are numbers of the far future, which would allow no later reset of their paths.
fn read_numbers(numbers: &Numbers, latest: Epoch) -> Theirs {
    let (mut theirs, mut left_out) = (Theirs::default(), Vec::new());
    for (field, number) in numbers {
        let epoch = read_id(number).filter(|&epoch| epoch <= latest);
        let at = || path(&serde_json::from_str(field).ok()?).ok();
        match (epoch, at()) {
            (Some(epoch), Some(at)) => _ = theirs.epochs.raise(at, epoch),
            _ => left_out.push((field, number)),
        }
    }
    theirs.left_out = left_out.first().map(|(field, number)| {
        let (field, count) = (field.chars().take(FIELD_CHARS).collect::<String>(), left_out.len());
        format!(
            "{count} are ignored, because they cannot be read or are more than an hour ahead, such as {field:?} {number:?}"
        )
    });
    theirs
}

/// Puts a reset in force once it is in the file on this disk, if there is one.
/// Fails when it cannot be stored.
pub fn put_in_force<R: Runtime>(
    service: &Service<R>,
    file: Option<(&Path, &(dyn Disk + 'static))>,
    one: &Epochs,
) -> Result<(), FileError> {
    if let Some((path, disk)) = file {
        let mut all = service.epochs();
        all.merge(one);
        write_file(path, disk, &all)?;
    }
    service.begin_epochs(one);
    Ok(())
}

/// Servers, and why they may not have a reset.
fn shown(missing: &[(String, ConnectError)]) -> String {
    missing.iter().map(|(server, why)| format!("{server}: {why}")).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests;
