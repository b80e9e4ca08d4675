//! Decides when to read the files, and when a reading is delivered. Pure: the time is an argument.
//!
//! In: events, and a fingerprint of every reading. Out: when to read next, and whether to deliver a reading. Contents
//! are delivered when they differ from the last delivered ones and have stayed the same for a moment. So a burst of
//! events gives one delivery, and a half-written file gives none.

use std::time::Duration;

/// How long to wait for further events before reading, and how long contents must stay the same.
const QUIET: Duration = Duration::from_millis(100);

/// How long a failure must last. Replacing a folder by hand, or from a version control system, takes a while.
const FAILING: Duration = Duration::from_secs(1);

/// Events never delay reading for longer than this.
const BURST_MAX: Duration = Duration::from_secs(1);

/// Contents that keep changing, or a file that stays open for writing, are delivered after this time.
const UNSTABLE_MAX: Duration = Duration::from_secs(10);

/// How often contents are compared without an event: some filesystems send none.
const COMPARE: Duration = Duration::from_secs(30);

/// A hash of a reading: equal fingerprints mean equal contents, or equal failures. An empty folder counts as a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fingerprint {
    Read(u128),
    Failed(u128),
}

/// The state between two readings. Times are by any clock that never goes backwards.
#[derive(Debug)]
pub(super) struct Debounce {
    delivered: Option<Fingerprint>,
    next: Duration,
    pending: Option<Pending>,
}

/// A change that is not delivered yet.
#[derive(Debug)]
struct Pending {
    since: Duration,
    /// The last reading, and the time since which readings have equalled it.
    candidate: Option<(Fingerprint, Duration)>,
}

impl Debounce {
    /// The first reading is due at once. `delivered` is the last reading that the receiver has.
    pub(super) fn new(delivered: Option<Fingerprint>, now: Duration) -> Self {
        Self { delivered, next: now, pending: None }
    }

    /// When to read next.
    pub(super) fn next(&self) -> Duration {
        self.next
    }

    pub(super) fn event(&mut self, now: Duration) {
        let pending = self.pending.get_or_insert(Pending { since: now, candidate: None });
        if pending.candidate.is_none() {
            self.next = (now + QUIET).min(pending.since + BURST_MAX);
        }
    }

    /// Takes a reading; `writing`: one of its files is still open for writing. `true`: deliver it.
    pub(super) fn read(&mut self, now: Duration, reading: Fingerprint, writing: bool) -> bool {
        if self.delivered == Some(reading) {
            self.rest(now);
            return false;
        }
        let pending = self.pending.get_or_insert(Pending { since: now, candidate: None });
        let same_since = match pending.candidate {
            Some((candidate, since)) if candidate == reading => since,
            _ => now,
        };
        pending.candidate = Some((reading, same_since));
        let stable = !writing && now - same_since >= reading.stands_still_after();
        if stable || now - pending.since >= UNSTABLE_MAX {
            self.delivered(now, reading);
            return true;
        }
        self.next = now + QUIET;
        false
    }

    /// This reading was delivered.
    pub(super) fn delivered(&mut self, now: Duration, reading: Fingerprint) {
        self.delivered = Some(reading);
        self.rest(now);
    }

    fn rest(&mut self, now: Duration) {
        self.pending = None;
        self.next = now + COMPARE;
    }
}

impl Fingerprint {
    const fn stands_still_after(self) -> Duration {
        match self {
            Self::Read(_) => QUIET,
            Self::Failed(_) => FAILING,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Fingerprint = Fingerprint::Read(0);
    const NEW: Fingerprint = Fingerprint::Read(1);

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Plays events at their times over contents that are a function of time, until `end`. Returns the deliveries.
    fn play(
        events: &[u64],
        contents: impl Fn(u64) -> Fingerprint,
        writing: impl Fn(u64) -> bool,
        end: u64,
    ) -> Vec<(u64, Fingerprint)> {
        let mut debounce = Debounce::new(Some(OLD), ms(0));
        assert!(!debounce.read(ms(0), OLD, false));
        let mut delivered = Vec::new();
        for now in 0..=end {
            if events.contains(&now) {
                debounce.event(ms(now));
            }
            if debounce.next() <= ms(now) && debounce.read(ms(now), contents(now), writing(now)) {
                delivered.push((now, contents(now)));
            }
        }
        delivered
    }

    fn never(_: u64) -> bool {
        false
    }

    #[test]
    fn a_change_is_delivered_once_it_stood_still() {
        let delivered = play(&[1000], |now| if now < 1000 { OLD } else { NEW }, never, 60_000);
        assert_eq!(delivered, [(1200, NEW)]);
    }

    #[test]
    fn a_burst_is_one_change_and_is_not_put_off_for_ever() {
        let events: Vec<u64> = (1000..5000).step_by(50).collect();
        let delivered = play(&events, |now| if now < 1000 { OLD } else { NEW }, never, 60_000);
        assert_eq!(delivered, [(2100, NEW)]);
    }

    #[test]
    fn a_file_caught_half_written_is_not_delivered() {
        let half = Fingerprint::Read(2);
        let contents = |now| match now {
            ..1000 => OLD,
            1000..1180 => half,
            _ => NEW,
        };
        assert_eq!(play(&[1000, 1180], contents, never, 60_000), [(1300, NEW)]);
    }

    #[test]
    fn a_file_that_is_open_for_writing_is_waited_for_within_a_bound() {
        let contents = |now| if now < 1000 { OLD } else { NEW };
        assert_eq!(play(&[1000], contents, |now| now < 4000, 60_000), [(4000, NEW)]);
        assert_eq!(play(&[1000], contents, |_| true, 60_000), [(11_000, NEW)]);
    }

    #[test]
    fn contents_that_never_stand_still_are_delivered_after_a_bound() {
        let contents = |now| if now < 1000 { OLD } else { Fingerprint::Read(u128::from(now)) };
        let events: Vec<u64> = (1000..20_000).step_by(10).collect();
        let delivered = play(&events, contents, never, 20_000);
        assert_eq!(delivered.first().map(|&(at, _)| at), Some(11_000));
    }

    #[test]
    fn a_failure_that_passes_is_not_delivered() {
        let contents = |now| match now {
            ..1000 => OLD,
            1000..1900 => Fingerprint::Failed(7),
            _ => NEW,
        };
        assert_eq!(play(&[1000, 1900], contents, never, 60_000), [(2000, NEW)]);
        let back = |now| if (1000..1900).contains(&now) { Fingerprint::Failed(7) } else { OLD };
        assert_eq!(play(&[1000, 1900], back, never, 60_000), []);
    }

    #[test]
    fn a_failure_that_lasts_is_delivered_once_and_so_is_its_end() {
        let failed = Fingerprint::Failed(7);
        let contents = |now| if (1000..5000).contains(&now) { failed } else { OLD };
        assert_eq!(play(&[1000, 5000], contents, never, 60_000), [(2100, failed), (5200, OLD)]);
    }

    #[test]
    fn a_change_without_an_event_is_found_by_comparing() {
        let delivered = play(&[], |now| if now < 1000 { OLD } else { NEW }, never, 60_000);
        assert_eq!(delivered, [(30_100, NEW)]);
    }

    #[test]
    fn events_without_a_change_deliver_nothing() {
        assert_eq!(play(&[10, 500, 501, 9000], |_| OLD, never, 60_000), []);
    }
}
