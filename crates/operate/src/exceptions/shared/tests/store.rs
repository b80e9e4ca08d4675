//! A store of exceptions in memory that is cut off, emptied and set back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use super::super::super::redis::{ExceptionStore, PAGE, StoreCall};
use tidegate_redis::ConnectError;

/// What a Redis holds: values, and the stream of ids that changed, each entry with a number of its own.
#[derive(Clone, Default)]
pub(super) struct Held {
    pub(super) values: BTreeMap<String, Vec<u8>>,
    /// The index.
    pub(super) listed: BTreeSet<String>,
    stream: Vec<(u64, String)>,
}

#[derive(Default)]
pub(super) struct Redis {
    pub(super) held: Mutex<Held>,
    pub(super) entries: Mutex<u64>,
}

/// One node's connection to it.
#[derive(Clone, Default)]
pub(super) struct Link {
    redis: Arc<Redis>,
    /// Where it has read the stream up to: so many entries, of which the last has this number.
    position: Arc<Mutex<Option<(usize, u64)>>>,
    pub(super) is_cut: Arc<AtomicBool>,
    /// Whether answers to changes are lost: the change is done.
    pub(super) is_mute: Arc<AtomicBool>,
    /// Whether changes are done and not announced, as a Cluster may leave them.
    pub(super) is_unannounced: Arc<AtomicBool>,
    /// The id whose change is done, and neither announced nor answered.
    pub(super) stuck: Arc<Mutex<Option<String>>>,
    /// Whether it fails after the stream was read: values cannot be had.
    pub(super) has_no_values: Arc<AtomicBool>,
    /// Whether changes are done, and too few replicas have them.
    pub(super) lacks_replicas: Arc<AtomicBool>,
}

impl Link {
    pub(super) fn new(redis: &Arc<Redis>) -> Self {
        Self { redis: Arc::clone(redis), ..Self::default() }
    }

    fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Redis) -> T + Send + 'static,
        is_change: bool,
    ) -> StoreCall<'_, T> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            if self.is_cut.load(Relaxed) {
                return Err(ConnectError::NoConnection);
            }
            let answer = ask(&self.redis);
            tokio::task::yield_now().await;
            match is_change && self.is_mute.load(Relaxed) {
                true => Err(ConnectError::Timeout(Duration::from_secs(1))),
                false => Ok(answer),
            }
        })
    }
}

impl Redis {
    /// Another program wrote this value.
    pub(super) fn has(&self, id: &str, value: &[u8]) {
        let mut held = self.held.lock();
        held.values.insert(id.to_owned(), value.to_vec());
        held.listed.insert(id.to_owned());
    }

    fn exchange(&self, id: &str, before: Option<Vec<u8>>, after: Option<Vec<u8>>) -> bool {
        let mut held = self.held.lock();
        if held.values.get(id) != before.as_ref() {
            return false;
        }
        match after {
            Some(value) => _ = (held.values.insert(id.to_owned(), value), held.listed.insert(id.to_owned())),
            None => _ = (held.values.remove(id), held.listed.remove(id)),
        }
        *self.entries.lock() += 1;
        let entry = *self.entries.lock();
        held.stream.push((entry, id.to_owned()));
        true
    }

    fn changed(&self, position: &mut Option<(usize, u64)>) -> Option<Vec<String>> {
        let stream = &self.held.lock().stream;
        let end = (stream.len(), stream.last().map_or(0, |(entry, _)| *entry));
        let since = position.replace(end)?;
        let is_there = since.0 == 0 || stream.get(since.0 - 1).is_some_and(|(entry, _)| *entry == since.1);
        is_there.then(|| stream[since.0..].iter().map(|(_, id)| id.clone()).collect())
    }
}

impl ExceptionStore for Link {
    fn attach(&self) {}

    fn is_away(&self) -> bool {
        self.is_cut.load(Relaxed)
    }

    fn get<'s>(&'s self, id: &'s str) -> StoreCall<'s, Option<Vec<u8>>> {
        let id = id.to_owned();
        if self.has_no_values.load(Relaxed) {
            return Box::pin(async { Err(ConnectError::NoConnection) });
        }
        self.ask(move |redis| redis.held.lock().values.get(&id).cloned(), false)
    }

    fn exchange<'s>(
        &'s self,
        id: &'s str,
        before: Option<&'s [u8]>,
        after: Option<&'s [u8]>,
    ) -> StoreCall<'s, bool> {
        let (id, before, after) = (id.to_owned(), before.map(<[u8]>::to_vec), after.map(<[u8]>::to_vec));
        let is_stuck = self.stuck.lock().as_ref() == Some(&id);
        if is_stuck || self.is_unannounced.load(Relaxed) {
            self.redis.exchange(&id, before, after);
            self.redis.held.lock().stream.pop();
            return match is_stuck {
                true => Box::pin(std::future::pending()),
                false => Box::pin(async { Err(ConnectError::Unannounced("full".to_owned())) }),
            };
        }
        self.ask(move |redis| redis.exchange(&id, before, after), true)
    }

    fn replicated<'s>(&'s self, _: &'s str) -> StoreCall<'s, ()> {
        if self.lacks_replicas.load(Relaxed) {
            return Box::pin(async { Err(ConnectError::NoConnection) });
        }
        self.ask(|_| (), false)
    }

    fn page<'s>(&'s self, after: Option<&'s str>) -> StoreCall<'s, Vec<(String, Vec<u8>)>> {
        let after = after.map(str::to_owned);
        self.ask(
            move |redis| {
                let held = redis.held.lock();
                let listed = held.listed.iter().filter(|id| after.as_ref().is_none_or(|after| *id > after));
                let both = |id: &String| Some((id.clone(), held.values.get(id)?.clone()));
                listed.filter_map(both).take(PAGE).collect()
            },
            false,
        )
    }

    fn changed(&self) -> StoreCall<'_, Option<Vec<String>>> {
        let position = Arc::clone(&self.position);
        self.ask(move |redis| redis.changed(&mut position.lock()), false)
    }
}
