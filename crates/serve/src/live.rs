//! The rules in force, as requests read them: always either the old value or the new one, without a lock and without
//! a shared reference count.

use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};
use parking_lot::Mutex;
use tokio::sync::watch;

/// The value in force (the rules, with what belongs to them). An install replaces all of it at once.
pub struct LiveRules<T> {
    current: Arc<ArcSwap<T>>,
    /// Values that were replaced while readers held them.
    retired: Mutex<Vec<Arc<T>>>,
    /// Changes with every install.
    installed: watch::Sender<()>,
}

/// Reads the value in force; each worker has its own. [`load`](Cache::load) costs one comparison while nothing new is
/// installed. A clone of its result may be kept across an await; it does not change when another value is installed.
pub type Reader<T> = Cache<Arc<ArcSwap<T>>, Arc<T>>;

impl<T> LiveRules<T> {
    /// Starts with `value` in force.
    pub fn new(value: T) -> Self {
        let (installed, _) = watch::channel(());
        Self { current: Arc::new(ArcSwap::from_pointee(value)), retired: Mutex::default(), installed }
    }

    /// Changes with every install. A reader holds the value that it loaded last, so its owner loads again when this
    /// changes.
    pub fn installs(&self) -> watch::Receiver<()> {
        self.installed.subscribe()
    }

    /// A new reader.
    pub fn reader(&self) -> Reader<T> {
        Cache::new(Arc::clone(&self.current))
    }

    /// The value in force. A [`Reader`] is cheaper when it is read often.
    pub fn current(&self) -> Arc<T> {
        self.current.load_full()
    }

    /// Puts `value` in force. The old value is kept so that no reader has to free it. Call [`reclaim`](Self::reclaim)
    /// now and then to free it after its last reader.
    pub fn install(&self, value: T) {
        let old = self.current.swap(Arc::new(value));
        self.retired.lock().push(old);
        self.installed.send_replace(());
    }

    /// Frees, on the calling thread, the replaced values that nobody reads any more. Returns the number of those still
    /// read: at most one for each reader that has not loaded since, and those of requests in flight.
    pub fn reclaim(&self) -> usize {
        let mut retired = self.retired.lock();
        // A retired value can only be reached through a clone of its `Arc`, so a count of one stays one.
        let unread = retired.extract_if(.., |value| Arc::strong_count(value) == 1).collect::<Vec<_>>();
        let still_read = retired.len();
        drop(retired);
        drop(unread);
        still_read
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread::ThreadId;

    use super::*;

    /// Counts how often it is freed, and checks on which thread.
    struct Freed<'a>(u32, &'a AtomicUsize, ThreadId);

    impl Drop for Freed<'_> {
        fn drop(&mut self) {
            assert_eq!(std::thread::current().id(), self.2, "freed by a reader");
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_reader_keeps_what_it_started_with_and_sees_the_new_value_next_time() {
        let live = LiveRules::new(1);
        let mut reader = live.reader();
        let held = Arc::clone(reader.load());
        live.install(2);
        assert_eq!((*held, **reader.load(), *live.current()), (1, 2, 2));
        assert_eq!(live.reclaim(), 1, "the first value is still read");
        drop(held);
        assert_eq!(live.reclaim(), 0);
    }

    #[test]
    fn replaced_values_are_freed_by_the_reclaiming_thread_only() {
        let (freed, here) = (AtomicUsize::new(0), std::thread::current().id());
        let installs = 2_000;
        let live = LiveRules::new(Freed(0, &freed, here));
        let done = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut reader = live.reader();
                    let mut last = 0;
                    while done.load(Ordering::SeqCst) == 0 {
                        let value = Arc::clone(reader.load());
                        assert!(value.0 >= last, "never back to an older value");
                        last = value.0;
                    }
                });
            }
            for number in 1..=installs {
                live.install(Freed(number, &freed, here));
                assert!(live.reclaim() <= 2 * 2, "a cached and a held value a reader");
            }
            done.store(1, Ordering::SeqCst);
        });
        assert_eq!(live.reclaim(), 0);
        assert_eq!(freed.load(Ordering::SeqCst), installs as usize);
    }
}
