//! The readers of a thread: for each service that it serves, a reader of the rules in force.
//!
//! A shared reference count would bounce between cores with every request.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use arrayvec::ArrayVec;

use super::Loaded;
use crate::live::{LiveRules, Reader};

/// How many readers a thread keeps. Inside another process several services share its threads.
const READERS_MAX: usize = 8;

/// A reader, and what it reads.
struct ThreadReader {
    live: Weak<LiveRules<Option<Loaded>>>,
    reader: Reader<Option<Loaded>>,
}

thread_local! {
    static READERS: RefCell<ArrayVec<ThreadReader, READERS_MAX>> = const { RefCell::new(ArrayVec::new_const()) };
}

/// Calls `body` with the value in force, from this thread's reader. `body` must not call this again.
pub(super) fn with_reader<T>(
    live: &Arc<LiveRules<Option<Loaded>>>,
    body: impl FnOnce(&Arc<Option<Loaded>>) -> T,
) -> T {
    READERS.with_borrow_mut(|readers| {
        let own = readers.iter().position(|it| it.live.as_ptr() == Arc::as_ptr(live));
        let own = own.unwrap_or_else(|| {
            // The readers of services that are gone.
            readers.retain(|it| it.live.strong_count() > 0);
            if readers.is_full() {
                readers.remove(0);
            }
            readers.push(ThreadReader { live: Arc::downgrade(live), reader: live.reader() });
            readers.len() - 1
        });
        body(readers[own].reader.load())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether this thread has a reader of it.
    fn is_read(live: &Arc<LiveRules<Option<Loaded>>>) -> bool {
        Arc::weak_count(live) > 0
    }

    fn read(live: &Arc<LiveRules<Option<Loaded>>>) {
        with_reader(live, |loaded| assert!(loaded.is_none()));
    }

    #[test]
    fn services_that_share_a_thread_keep_their_readers() {
        let services: Vec<_> = (0..READERS_MAX + 1).map(|_| Arc::new(LiveRules::new(None))).collect();
        services[..READERS_MAX].iter().for_each(read);
        assert!(services[..READERS_MAX].iter().all(is_read));
        read(&services[READERS_MAX]);
        assert!(!is_read(&services[0]) && services[1..].iter().all(is_read), "the oldest made room");
    }

    #[test]
    fn those_of_services_that_are_gone_make_room_first() {
        let mut services: Vec<_> = (0..READERS_MAX).map(|_| Arc::new(LiveRules::new(None))).collect();
        services.iter().for_each(read);
        services.remove(3);
        let another = Arc::new(LiveRules::new(None));
        read(&another);
        assert!(is_read(&another) && services.iter().all(is_read));
    }
}
