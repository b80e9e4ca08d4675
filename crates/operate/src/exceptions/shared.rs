//! Exceptions that all nodes with one Redis share.
//!
//! In: changes at this node, and changes of other nodes. Out: the same entries at all nodes within a second, and in
//! Redis. Each node has all of them in memory, so none is missing while Redis is away. A change is made when Redis
//! has it. The greatest number of an id wins everywhere; entries that Redis has lost are written back by each node.
//!
//! - `trouble`: what is wrong, in words
//! - `copy`: the file, for a start without Redis

mod copy;
mod trouble;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::try_join_all;
use parking_lot::Mutex;

use self::trouble::Trouble;
use super::known::KnownException;
use super::pages::Planned;
use super::redis::{ExceptionStore, PAGE};
use super::{Book, Change, ChangeError, WantedChange, audited};
use crate::audit::{Author, DONE};
use crate::numbers::next;
use tidegate_engine::time::Timestamp;
use tidegate_redis::ConnectError;
use tidegate_redis::runtime::Runtime;

/// How often changes of other nodes are read.
const READ_INTERVAL: Duration = Duration::from_millis(200);
/// The longest pause while they cannot be read.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long a change waits for those before it.
const TURN_MAX: Duration = Duration::from_secs(10);
/// How often a starting node checks whether it has read all, and how long it waits for that before it serves.
const FIRST_READ: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(2));
/// After this many reads all ids are compared, about every five minutes: Redis may have evicted some, and some may
/// have ended.
const COMPARE_ALL_EVERY: u32 = 1_500;
/// How often a change is tried if another node changes the same id at the same time.
const TRIES_MAX: usize = 5;
/// Ids that are compared at a time.
const AT_A_TIME: usize = 250;

/// What a book that shares its exceptions has in addition.
pub(super) struct Shared {
    store: Box<dyn ExceptionStore>,
    /// Makes changes one at a time: each is compared with the result of the one before.
    one_at_a_time: tokio::sync::Mutex<()>,
    /// Changes of this node whose announcement it has not read yet. If Redis has lost one since, it is never
    /// announced.
    unread: Mutex<BTreeSet<String>>,
    /// Ids whose value in Redis this node may have set without announcing it: others may not know of it.
    unannounced: Mutex<BTreeSet<String>>,
    /// Whether all ids have to be compared: at the start, and when some of the changes may have been missed.
    compares_all: AtomicBool,
    trouble: Mutex<Trouble>,
    /// Held while a copy is written.
    copying: Mutex<()>,
}

/// Where the value of an id was found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    /// It was asked for, because a change was announced.
    Announced,
    /// It is listed among all.
    Listed,
    /// It was asked for, because it is not listed, or this node may not have announced it.
    Unlisted,
}

impl Shared {
    pub(super) fn new(store: impl ExceptionStore + 'static) -> Self {
        Self {
            store: Box::new(store),
            one_at_a_time: tokio::sync::Mutex::default(),
            unread: Mutex::default(),
            unannounced: Mutex::default(),
            compares_all: AtomicBool::new(true),
            trouble: Mutex::default(),
            copying: Mutex::default(),
        }
    }

    /// Sets or removes the value of an id if it is `before`. Remembers it if that may be done and not announced, also
    /// if nobody waits for the end of this.
    async fn exchange(
        &self,
        id: &str,
        before: Option<&[u8]>,
        after: Option<&[u8]>,
    ) -> Result<bool, ConnectError> {
        let mut exchanging = Exchanging { shared: self, id, may_be_unannounced: true };
        let exchanged = self.store.exchange(id, before, after).await;
        exchanging.may_be_unannounced = exchanged.as_ref().is_err_and(ConnectError::may_be_done);
        exchanged
    }
}

/// A change of a value. Of several at the same time, those that are left are given up when one fails.
struct Exchanging<'s> {
    shared: &'s Shared,
    id: &'s str,
    may_be_unannounced: bool,
}

impl Drop for Exchanging<'_> {
    fn drop(&mut self) {
        if self.may_be_unannounced {
            self.shared.unannounced.lock().insert(self.id.to_owned());
        }
    }
}

/// An agreement. If it fails or is given up, the next one is about all ids, and announces what this one was to announce.
struct Agreeing<'s> {
    shared: &'s Shared,
    unannounced: BTreeSet<String>,
    is_done: bool,
}

impl Drop for Agreeing<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.shared.unannounced.lock().append(&mut self.unannounced);
            self.shared.compares_all.store(true, Relaxed);
        }
    }
}

impl<R: Runtime> Book<R> {
    /// Makes a change that holds for all nodes: it is done when Redis has it.
    pub(super) async fn change_everywhere(
        self: &Arc<Self>,
        shared: &Shared,
        wanted: WantedChange,
        author: Author,
        now: Timestamp,
    ) -> Result<Change, ChangeError> {
        let turn = self.runtime.timeout(TURN_MAX, shared.one_at_a_time.lock()).await;
        let _one_at_a_time = turn.ok_or(ChangeError::Busy)?;
        let id = wanted.id().to_owned();
        for _ in 0..TRIES_MAX {
            let theirs = shared.store.get(&id).await.map_err(ChangeError::Redis)?;
            // Another node may have changed it since this one read it.
            let in_redis = theirs.as_deref().and_then(|value| KnownException::of_value(&id, value, now).ok());
            if let Some(entry) = in_redis.clone() {
                self.take(entry, now);
            }
            let Planned { change, before, after } = self.plan_everywhere(&wanted, in_redis, now)?;
            let value = after.value();
            let write = shared.exchange(&id, theirs.as_deref(), Some(&value));
            let written = match change {
                // Redis may have lost it, or too few replicas have it.
                Change::Unchanged => write.await,
                _ => {
                    let (does, what) = audited(&wanted, before.as_deref(), &after);
                    let write = async {
                        let written = write.await;
                        let outcome = match &written {
                            Ok(true) => Ok(DONE.to_owned()),
                            Ok(false) => Err("another node changed it first; trying again".to_owned()),
                            Err(error) => Err(error.to_string()),
                        };
                        (written, outcome)
                    };
                    self.audit.around(&self.runtime, author.clone(), || now, does, what, write).await?
                }
            };
            match written {
                Ok(true) => {
                    self.take(after, now);
                    shared.unread.lock().insert(id.clone());
                    return match shared.store.replicated(&id).await {
                        Ok(()) => Ok(change),
                        Err(error) => Err(ChangeError::NotKnown(error)),
                    };
                }
                Ok(false) => {}
                Err(error) if error.may_be_done() => return Err(ChangeError::NotKnown(error)),
                Err(error) => return Err(ChangeError::Redis(error)),
            }
        }
        Err(ChangeError::Busy)
    }

    /// The effect of a change on an id that has this value in Redis.
    fn plan_everywhere(
        &self,
        wanted: &WantedChange,
        in_redis: Option<KnownException>,
        now: Timestamp,
    ) -> Result<Planned, ChangeError> {
        let mut pages = self.pages.lock();
        let known = [pages.known(wanted.id(), now), in_redis.clone()];
        let last = known.iter().flatten().map(KnownException::number).max().unwrap_or_default();
        let number = next(last, now);
        match (pages.plan(wanted, number, now), in_redis) {
            // There was no room for it at this node.
            (Err(ChangeError::Unknown(id)), Some(KnownException::Made(before))) => {
                let after = KnownException::Ended { id, number };
                Ok(Planned { change: Change::Ended, before: Some(before), after })
            }
            (planned, _) => planned,
        }
    }

    /// Takes an entry from Redis, unless a later one of its id is known. Returns whether there was room.
    fn take(&self, entry: KnownException, now: Timestamp) -> bool {
        let mut pages = self.pages.lock();
        let known = pages.known(entry.id(), now);
        if known.is_some_and(|known| known.number() > entry.number() || known == entry) {
            return true;
        }
        if let KnownException::Made(record) = &entry
            && pages.make_room(record, now).is_err()
        {
            // The entry that it replaces is no longer in force.
            if pages.forget(&record.id).is_some() {
                self.changed(&pages);
            }
            return record.is_over(now);
        }
        pages.put_shared(entry);
        self.changed(&pages);
        true
    }

    fn forget(&self, id: &str) {
        let mut pages = self.pages.lock();
        if pages.forget(id).is_some() {
            self.changed(&pages);
        }
    }

    /// Connects to the shared store, in the background, and reads it, if it answers soon.
    pub async fn read_first(&self) {
        let Some(shared) = &self.shared else { return };
        shared.store.attach();
        let read = async {
            while self.agree(shared, self.runtime.wall()).await.is_err() {
                if shared.store.is_away() {
                    return;
                }
                self.runtime.sleep(FIRST_READ.0).await;
            }
        };
        // If they were not read, the follower reports it.
        let _ = self.runtime.timeout(FIRST_READ.1, read).await;
    }

    /// Puts the changes of other nodes in force, and writes back what Redis has lost, for ever.
    pub async fn follow(self: Arc<Self>) -> Infallible {
        let Some(shared) = &self.shared else { return std::future::pending().await };
        let mut pause = READ_INTERVAL;
        loop {
            for _ in 0..COMPARE_ALL_EVERY {
                let agreed = self.agree(shared, self.runtime.wall()).await;
                pause = if agreed.is_ok() { READ_INTERVAL } else { (pause * 2).min(PAUSE_MAX) };
                shared.note(agreed.err());
                self.runtime.sleep(pause).await;
            }
            shared.compares_all.store(true, Relaxed);
        }
    }

    /// Reads what has changed in Redis, and writes back what it has lost.
    async fn agree(&self, shared: &Shared, now: Timestamp) -> Result<(), ConnectError> {
        let unannounced = std::mem::take(&mut *shared.unannounced.lock());
        let mut agreeing = Agreeing { shared, unannounced, is_done: false };
        // Changes that were announced before the stream is read are in it, unless Redis has lost them.
        let unread = std::mem::take(&mut *shared.unread.lock());
        self.agree_on_these(shared, agreeing.unannounced.clone(), Found::Unlisted, now).await?;
        self.agree_on_changed(shared, unread, now).await?;
        agreeing.is_done = true;
        shared.trouble.lock().is_read = true;
        Ok(())
    }

    async fn agree_on_changed(
        &self,
        shared: &Shared,
        mut ids: BTreeSet<String>,
        now: Timestamp,
    ) -> Result<(), ConnectError> {
        match shared.store.changed().await? {
            Some(changed) if !shared.compares_all.load(Relaxed) => {
                ids.extend(changed);
                self.agree_on_these(shared, ids, Found::Announced, now).await
            }
            _ => {
                self.agree_on_all(shared, now).await?;
                shared.compares_all.store(false, Relaxed);
                Ok(())
            }
        }
    }

    async fn agree_on_all(&self, shared: &Shared, now: Timestamp) -> Result<(), ConnectError> {
        let mut rest: BTreeSet<String> = self.pages.lock().ids().cloned().collect();
        let mut left_out: BTreeSet<String> = shared.trouble.lock().left_out.keys().cloned().collect();
        let mut last = None::<String>;
        loop {
            let page = shared.store.page(last.as_deref()).await?;
            for part in page.chunks(AT_A_TIME) {
                let agreed =
                    part.iter().map(|(id, value)| self.agree_on(shared, id, Some(value), Found::Listed, now));
                try_join_all(agreed).await?;
                // This thread serves scrapes.
                tokio::task::yield_now().await;
            }
            page.iter().for_each(|(id, _)| _ = (rest.remove(id), left_out.remove(id)));
            let is_last = page.len() < PAGE;
            last = page.into_iter().next_back().map(|(id, _)| id);
            if is_last {
                break;
            }
        }
        left_out.iter().for_each(|id| shared.leave_out(id, None));
        self.agree_on_these(shared, rest, Found::Unlisted, now).await
    }

    /// Compares ids whose values it reads first.
    async fn agree_on_these(
        &self,
        shared: &Shared,
        ids: BTreeSet<String>,
        found: Found,
        now: Timestamp,
    ) -> Result<(), ConnectError> {
        let ids: Vec<String> = ids.into_iter().collect();
        for part in ids.chunks(AT_A_TIME) {
            let values = try_join_all(part.iter().map(|id| shared.store.get(id))).await?;
            let both = part.iter().zip(&values);
            try_join_all(both.map(|(id, value)| self.agree_on(shared, id, value.as_deref(), found, now)))
                .await?;
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Takes the value of an id from Redis, or writes back this node's entry. A value that is not in the list of all
    /// ids is written once more, so that it gets there.
    async fn agree_on(
        &self,
        shared: &Shared,
        id: &str,
        value: Option<&[u8]>,
        found: Found,
        now: Timestamp,
    ) -> Result<(), ConnectError> {
        let theirs = match value.map(|value| KnownException::of_value(id, value, now)).transpose() {
            Ok(theirs) => theirs,
            // Another program wrote it, or a later version of this one, which knows more.
            Err(problem) => {
                shared.leave_out(id, Some(problem.to_string()));
                return Ok(());
            }
        };
        shared.leave_out(id, None);
        let ours = self.pages.lock().known(id, now);
        let is_ours_later = match (&ours, &theirs) {
            (Some(ours), Some(theirs)) => ours.number() > theirs.number(),
            (Some(_), None) => true,
            (None, _) => false,
        };
        let Some(latest) = (if is_ours_later { ours } else { theirs }) else { return Ok(()) };
        if latest.is_forgotten(now) {
            self.forget(id);
            // Not at once when it is announced: a node whose clock is behind would write its own entry back each
            // time.
            if value.is_some() && found != Found::Announced {
                shared.exchange(id, value, None).await?;
            }
        } else if is_ours_later {
            // If another node was faster, its entry is announced.
            if value.is_some() || !latest.may_be_forgotten(now) {
                shared.exchange(id, value, Some(&latest.value())).await?;
            }
        } else {
            if found == Found::Unlisted {
                shared.exchange(id, value, value).await?;
            }
            if !self.take(latest, now) {
                shared.leave_out(id, Some("there are too many exceptions".to_owned()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
