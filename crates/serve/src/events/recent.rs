//! The keys about which this thread asked the table of keys a moment ago: a key that is denied a million times a
//! second need not be looked up a million times.
//!
//! A small table in the thread, without locks. A place holds the last key that fell on it, so a hot key may ask more
//! often than it has to, and never less.

use std::cell::RefCell;

/// Keys that a thread remembers. All of them take 4 KiB.
const PLACES: usize = 256;

#[derive(Clone, Copy, Default)]
struct RecentKey {
    key: u64,
    /// Until when the table is not asked again.
    until: u64,
}

thread_local! {
    static PLACES_OF_THREAD: RefCell<[RecentKey; PLACES]> = const { RefCell::new([RecentKey { key: 0, until: 0 }; PLACES]) };
}

/// Whether the table has to be asked for this key now, in nanoseconds.
pub(super) fn has_to_ask(key: u64, now: u64) -> bool {
    PLACES_OF_THREAD.with_borrow(|places| {
        let place = places[key as usize % PLACES];
        place.key != key || now >= place.until
    })
}

/// The table was asked for this key, and need not be again until then.
pub(super) fn asked(key: u64, until: u64) {
    PLACES_OF_THREAD.with_borrow_mut(|places| places[key as usize % PLACES] = RecentKey { key, until });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_asks_again_when_its_time_is_over_or_another_took_its_place() {
        let (key, other) = (7, 7 + PLACES as u64);
        assert!(has_to_ask(key, 10));
        asked(key, 20);
        assert!(!has_to_ask(key, 19));
        assert!(has_to_ask(key, 20), "its time is over");
        asked(key, 30);
        assert!(has_to_ask(other, 21));
        asked(other, 31);
        assert!(has_to_ask(key, 22), "the other one took its place");
        assert!(has_to_ask(8, 22) && !has_to_ask(other, 22), "a place of its own");
    }
}
