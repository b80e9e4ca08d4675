//! What was emitted about which key, so that it is emitted once in a window.
//!
//! A table of a fixed size. A key may be in one of a few places. If these are taken, the key that was not updated for
//! longest is forgotten, and its events may be emitted again. Nobody waits for a lock: if one is taken, another
//! thread is updating a key of the same group, and this update is skipped.

use parking_lot::Mutex;

use super::kind::EventKind;
use super::recent;
use tidegate_engine::key::Key;

/// Groups of places, and places in each: 65,536 keys, in 4 MiB.
const GROUPS: usize = 1 << 14;
const PLACES: usize = 4;
/// A thread asks the table about a key at most this often in a window.
const ASKED_IN_WINDOW: u64 = 16;

/// The table. Its memory is allocated at the start, so there is one only if events are on.
pub(super) struct Keys {
    groups: Box<[Mutex<[KeyEvents; PLACES]>]>,
    /// Keeps tables of several processes in one thread apart (in tests).
    salt: u64,
}

/// What may be emitted about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    Near,
    Denied,
    /// Nanoseconds for which it has been denied.
    DeniedWholeWindow(u64),
}

/// What is known of a key. All times are in nanoseconds, and 0 is never.
#[derive(Clone, Copy, Debug, Default)]
struct KeyEvents {
    key: u64,
    heard: u64,
    near_emitted: u64,
    denied_emitted: u64,
    whole_window_emitted: u64,
    /// Since when it has been denied without a long pause, and when it was last denied.
    denied_since: u64,
    denied_last: u64,
}

impl Notice {
    pub(super) const fn kind(self) -> EventKind {
        match self {
            Self::Near => EventKind::NearLimit,
            Self::Denied => EventKind::Denied,
            Self::DeniedWholeWindow(_) => EventKind::DeniedWholeWindow,
        }
    }
}

impl Default for Keys {
    fn default() -> Self {
        let groups: Box<[_]> = (0..GROUPS).map(|_| Mutex::default()).collect();
        let salt = groups.as_ptr() as u64;
        Self { groups, salt }
    }
}

impl Keys {
    /// A key was near its limit at this time.
    pub(super) fn near(&self, key: Key, now: u64, window: u64) -> Option<Notice> {
        self.known(key, now, window, 0, |known| known.near(now, window))
    }

    /// A key was denied at this time.
    pub(super) fn denied(&self, key: Key, now: u64, window: u64) -> Option<Notice> {
        self.known(key, now, window, 1, |known| known.denied(now, window))
    }

    /// Calls `body` with what is known of the key, unless this thread did so a moment ago or another thread is doing
    /// so now.
    fn known(
        &self,
        Key(key): Key,
        now: u64,
        window: u64,
        over: u64,
        body: impl FnOnce(&mut KeyEvents) -> Option<Notice>,
    ) -> Option<Notice> {
        let recent_key = (key >> 64) as u64 ^ self.salt ^ over;
        if !recent::has_to_ask(recent_key, now) {
            return None;
        }
        let mut group = self.groups[key as usize % GROUPS].try_lock()?;
        recent::asked(recent_key, now.saturating_add(window / ASKED_IN_WINDOW));
        let tag = ((key >> 64) as u64).max(1);
        let known = match group.iter().position(|known| known.key == tag) {
            Some(place) => &mut group[place],
            None => {
                let oldest = group.iter_mut().min_by_key(|known| known.heard)?;
                *oldest = KeyEvents { key: tag, ..KeyEvents::default() };
                oldest
            }
        };
        known.heard = now;
        body(known)
    }
}

impl KeyEvents {
    /// Emits once in a window, and not for a key that was denied in that window: that event is more urgent, and came
    /// first.
    fn near(&mut self, now: u64, window: u64) -> Option<Notice> {
        let is_news = is_over(self.near_emitted, now, window) && is_over(self.denied_last, now, window);
        is_news.then(|| {
            self.near_emitted = now;
            Notice::Near
        })
    }

    /// Emits once in a window: that it was denied, or that it was denied for all of it. A pause of half a window ends
    /// that time.
    fn denied(&mut self, now: u64, window: u64) -> Option<Notice> {
        if is_over(self.denied_last, now, window / 2) {
            self.denied_since = now;
        }
        self.denied_last = now;
        let lasted = now.saturating_sub(self.denied_since);
        if lasted >= window && is_over(self.whole_window_emitted, now, window) {
            (self.whole_window_emitted, self.denied_emitted) = (now, now);
            return Some(Notice::DeniedWholeWindow(lasted));
        }
        is_over(self.denied_emitted, now, window).then(|| {
            self.denied_emitted = now;
            Notice::Denied
        })
    }
}

/// Whether this long has passed since then, or it never was.
fn is_over(then: u64, now: u64, long: u64) -> bool {
    then == 0 || now.saturating_sub(then) >= long
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 1_600;

    /// A key that falls into this group.
    fn key(group: u128, number: u128) -> Key {
        Key(number << 64 | group)
    }

    #[test]
    fn a_key_has_one_event_in_a_window() {
        let keys = Keys::default();
        let near = |now| keys.near(key(1, 1), now, WINDOW);
        assert_eq!([near(1), near(2), near(1_600)], [Some(Notice::Near), None, None]);
        assert_eq!(near(1_701), Some(Notice::Near), "in the next window, when this thread asks again");
        assert_eq!(keys.near(key(1, 2), 1_702, WINDOW), Some(Notice::Near), "another key");
        assert_eq!(keys.denied(key(1, 1), 1_800, WINDOW), Some(Notice::Denied), "another kind");
        assert_eq!(keys.denied(key(1, 1), 1_901, WINDOW), None);
        assert_eq!([near(3_350), near(3_450)], [None, None], "it was denied within a window");
        assert_eq!(near(3_560), Some(Notice::Near));
    }

    #[test]
    fn a_key_that_is_denied_all_the_time_has_an_event_of_its_own() {
        let keys = Keys::default();
        let notices: Vec<_> = (0..=40)
            .filter_map(|step| Some((step, keys.denied(key(2, 1), 1 + step * 100, WINDOW)?)))
            .collect();
        assert_eq!(
            notices,
            [
                (0, Notice::Denied),
                (16, Notice::DeniedWholeWindow(1_600)),
                (32, Notice::DeniedWholeWindow(3_200))
            ]
        );
    }

    #[test]
    fn a_pause_of_half_a_window_begins_anew() {
        let keys = Keys::default();
        // Denied for 10 steps, then admitted for 8, which is half of a window.
        let is_denied = |step: u64| step % 18 < 10;
        let notices: Vec<_> = (0..72)
            .filter(|&step| is_denied(step))
            .filter_map(|step| Some((step, keys.denied(key(3, 1), 1 + step * 100, WINDOW)?)))
            .collect();
        assert!(notices.iter().all(|(_, notice)| *notice == Notice::Denied), "{notices:?}");
        assert_eq!(notices.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [0, 18, 36, 54]);
    }

    #[test]
    fn keys_that_have_no_place_push_out_those_not_heard_of_for_longest() {
        let keys = Keys::default();
        let denied = |number, now| keys.denied(key(4, number), now, WINDOW).is_some();
        for number in 1..=5 {
            assert!(denied(number, number as u64), "{number}");
        }
        let hidden = |number| keys.groups[4].lock().iter().all(|known| known.key != number);
        assert!(hidden(1) && !hidden(2) && !hidden(5));
        assert!(denied(1, 300), "emitted again, because it was forgotten");
        assert!(!denied(5, 400));
    }

    #[test]
    fn nobody_waits() {
        let keys = Keys::default();
        let held = keys.groups[5].lock();
        assert_eq!(keys.denied(key(5, 1), 1, WINDOW), None);
        drop(held);
        assert_eq!(keys.denied(key(5, 1), 2, WINDOW), Some(Notice::Denied));
    }

    #[test]
    fn the_clock_may_differ_between_threads() {
        let keys = Keys::default();
        assert_eq!(keys.denied(key(6, 1), u64::MAX, WINDOW), Some(Notice::Denied));
        let earlier = std::thread::scope(|scope| {
            scope.spawn(|| keys.denied(key(6, 1), 5, WINDOW)).join().expect("it does not panic")
        });
        assert_eq!(earlier, None);
    }
}
