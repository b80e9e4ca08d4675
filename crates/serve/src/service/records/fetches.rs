//! Fetches in flight: one for each key, however many requests wait for it.
//!
//! In: keys that are not cached. Out: the store's answer for each key, to all who wait. A fetch that began before its
//! key changed is dropped from the table: those who wait for it already get its answer, new requests do not, and it
//! is not cached.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use futures_util::FutureExt;
use futures_util::future::{FusedFuture, Shared};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::NoAnswer;
use tidegate_engine::key::Key;
use tidegate_engine::keyed::KeyMap;
use tidegate_engine::overlay::Record;

/// Fetches in flight at a time: as many as one connection to Redis queues.
const FETCHES_MAX: usize = 1_024;

type Answer = Result<Option<Record>, NoAnswer>;

/// Fetches in flight.
#[derive(Debug)]
pub(super) struct Fetches {
    under_way: Arc<Mutex<KeyMap<Flight>>>,
    room: Arc<Semaphore>,
    next: AtomicU64,
}

/// A fetch, for those who wait for it.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    number: u64,
    /// Wakes waiting tasks in the order in which they came: a channel that wakes them in any order would make runs of
    /// the simulation differ.
    answer: Shared<oneshot::Receiver<Answer>>,
}

/// A fetch, for the task that runs it. Dropping it ends the fetch without an answer.
#[derive(Debug)]
pub(super) struct Landing {
    name: Key,
    number: u64,
    /// `None`: it was sent.
    answer: Option<oneshot::Sender<Answer>>,
    under_way: Arc<Mutex<KeyMap<Flight>>>,
    _room: OwnedSemaphorePermit,
}

impl Default for Fetches {
    fn default() -> Self {
        Self {
            under_way: Arc::default(),
            room: Arc::new(Semaphore::new(FETCHES_MAX)),
            next: AtomicU64::new(0),
        }
    }
}

impl Fetches {
    /// The fetch of this key: the one in flight, or a new one that `begin` runs. `None`: there are too many.
    pub(super) fn join(&self, name: Key, begin: impl FnOnce(Landing)) -> Option<Flight> {
        let mut under_way = self.under_way.lock();
        if let Some(flight) = under_way.get(&name) {
            return Some(flight.clone());
        }
        let room = Arc::clone(&self.room).try_acquire_owned().ok()?;
        let (answer, receiver) = oneshot::channel();
        let flight = Flight { number: self.next.fetch_add(1, Relaxed), answer: receiver.shared() };
        under_way.insert(name, flight.clone());
        drop(under_way);
        begin(Landing {
            name,
            number: flight.number,
            answer: Some(answer),
            under_way: Arc::clone(&self.under_way),
            _room: room,
        });
        Some(flight)
    }

    /// Ends a fetch with this answer. `keep` gets the answer if the key has not changed since.
    pub(super) fn land(&self, mut landing: Landing, answer: Answer, keep: impl FnOnce(Key, Option<Record>)) {
        let mut under_way = self.under_way.lock();
        if under_way.get(&landing.name).is_some_and(|flight| flight.number == landing.number) {
            under_way.remove(&landing.name);
            if let Ok(known) = answer {
                keep(landing.name, known);
            }
        }
        drop(under_way);
        // Perhaps nobody waits for it any more.
        let _ = landing.answer.take().map(|waiting| waiting.send(answer));
    }

    /// The key has changed: the fetch in flight is not kept. `forget` removes the cached record.
    pub(super) fn forget(&self, name: Key, forget: impl FnOnce()) {
        let mut under_way = self.under_way.lock();
        under_way.remove(&name);
        forget();
    }

    /// Any key may have changed: no fetch in flight is kept.
    pub(super) fn forget_all(&self) {
        self.under_way.lock().clear();
    }
}

impl Flight {
    /// Waits for the answer until the time is over. After that, only an answer that is already there counts.
    pub(super) async fn landed(self, time_is_over: Pin<&mut impl FusedFuture<Output = ()>>) -> Answer {
        let time_is_over = async {
            if !time_is_over.is_terminated() {
                time_is_over.await;
            }
        };
        tokio::select! {
            biased;
            answer = self.answer => answer.unwrap_or(Err(NoAnswer)),
            () = time_is_over => Err(NoAnswer),
        }
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        let mut under_way = self.under_way.lock();
        if under_way.get(&self.name).is_some_and(|flight| flight.number == self.number) {
            under_way.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_fetch_that_a_change_overtook_leaves_the_next_one_in_flight() {
        let (fetches, name) = (Fetches::default(), Key(7));
        let begin = || {
            let mut begun = None;
            fetches.join(name, |landing| begun = Some(landing)).expect("there is room");
            begun
        };
        let first = begin().expect("none is in flight");
        fetches.forget(name, || {});
        let second = begin().expect("what the first one brings may be old");
        fetches.land(first, Ok(None), |_, _| panic!("it is not kept"));
        assert!(begin().is_none(), "the second one is in flight");
        let mut kept = None;
        fetches.land(second, Ok(None), |name, _| kept = Some(name));
        assert_eq!(kept, Some(name));
        assert!(begin().is_some());
    }

    /// A change between the two would be forgotten before the older record is kept.
    #[test]
    fn an_answer_is_kept_before_a_change_of_its_key_can_be_noted() {
        let (fetches, mut begun) = (Fetches::default(), None);
        fetches.join(Key(7), |landing| begun = Some(landing)).expect("there is room");
        let (landing, mut changes_wait) = (begun.expect("none is in flight"), None);
        fetches.land(landing, Ok(None), |_, _| changes_wait = Some(fetches.under_way.try_lock().is_none()));
        assert_eq!(changes_wait, Some(true));
    }

    #[test]
    fn a_fetch_for_which_there_was_no_room_begins_once_there_is() {
        let (fetches, mut landings, another) = (Fetches::default(), Vec::new(), Key(FETCHES_MAX as u128));
        for name in 0..FETCHES_MAX {
            fetches.join(Key(name as u128), |landing| landings.push(landing)).expect("there is room");
        }
        assert!(fetches.join(another, |_| panic!("there are too many")).is_none());
        landings.pop();
        let mut begun = None;
        fetches.join(another, |landing| begun = Some(landing)).expect("one has ended");
        assert!(begun.is_some());
    }
}
