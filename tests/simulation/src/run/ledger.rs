//! What operators wrote to Redis, as they know it: records of counters, and exceptions.
//!
//! In: when each write was sent, and when it was acknowledged. Out: the values that something may have. It has one
//! value at a time: it is that of a write which no acknowledged one followed. A write without an
//! acknowledgement may be done at any time until it can no longer be under way, or never.

use std::collections::BTreeMap;
use std::sync::Mutex;

use smallvec::{SmallVec, smallvec};
use tidegate_records::Record;

use super::records::record;
use crate::scenario::Terms;
use crate::world::{MILLI, Time, lock};

/// Decisions follow a folder that was opened after so long: it is reported with the call that opened it.
const HEARD: Time = MILLI;

/// A counter: its limit, and its number there.
pub(super) type Counter = (usize, u64);

/// A process of a node: the node, and how often it had been started.
pub(super) type Process = (usize, u64);

/// All writes of records, or of something else that has values, by the numbers under which they were begun.
pub(super) struct Ledger<Of = Counter, Value = Option<Terms>>(Mutex<Vec<Write<Of, Value>>>);

/// A write.
struct Write<Of = Counter, Value = Option<Terms>> {
    /// Of these counters; of all if there are none.
    counters: SmallVec<[Of; 2]>,
    /// Through which process.
    process: Option<Process>,
    sent: Time,
    /// When it is surely done, or never will be.
    ends: Time,
    acknowledged: bool,
    /// Its operator waits for an answer.
    waits: bool,
    /// What the record says then: one of these.
    terms: SmallVec<[Value; 1]>,
    /// What it said before, if that had to be so.
    before: Option<Option<Record>>,
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// It is done.
    Yes,
    /// It is not done.
    No,
    /// Nobody knows.
    Perhaps,
    /// It was so already, as far as its node knew.
    Already,
}

impl<Of: PartialEq, Value> Write<Of, Value> {
    fn concerns(&self, counter: Of) -> bool {
        self.counters.is_empty() || self.counters.contains(&counter)
    }

    /// Whether a process knows it that is asked then: at once if it was written through itself, else what was acknowledged
    /// before `heard`.
    fn is_heard(&self, (process, asked, heard): (Option<Process>, Time, Time)) -> bool {
        self.ends < heard || self.process.is_some() && self.process == process && self.ends < asked
    }
}

impl<Of: Copy + Ord, Value: Copy + Default> Default for Ledger<Of, Value> {
    /// No counter has a record.
    fn default() -> Self {
        let ledger = Self(Mutex::default());
        ledger.lost(SmallVec::new(), smallvec![Value::default()], 0);
        ledger
    }
}

impl<Of: Copy + Ord, Value: Copy> Ledger<Of, Value> {
    /// A write is sent now. Without an acknowledgement it may be done until then.
    pub(super) fn begin(
        &self,
        counters: &[Of],
        process: Process,
        terms: Value,
        (sent, ends): (Time, Time),
    ) -> usize {
        let (process, terms) = (Some(process), smallvec![terms]);
        self.add(Write {
            counters: counters.into(),
            process,
            sent,
            ends,
            acknowledged: false,
            waits: true,
            terms,
            before: None,
        })
    }

    fn add(&self, write: Write<Of, Value>) -> usize {
        let mut all = lock(&self.0);
        all.push(write);
        all.len() - 1
    }

    /// What became of a write is known now.
    pub(super) fn end(&self, write: usize, done: Done, now: Time) {
        let mut all = lock(&self.0);
        if done == Done::Yes {
            // A folder takes no change after one that may be done later: so it had not begun with those that failed before.
            let is_over = |it: &&mut Write<Of, Value>| !it.waits && it.ends == Time::MAX;
            all.iter_mut().filter(is_over).for_each(|it| it.terms.clear());
        }
        let write = &mut all[write];
        write.waits = false;
        match done {
            Done::Yes => (write.ends, write.acknowledged) = (now, true),
            Done::Already => write.ends = now,
            Done::No => write.terms.clear(),
            Done::Perhaps => {}
        }
    }

    /// A write without an acknowledgement may be done until then.
    pub(super) fn may_be_done_until(&self, write: usize, ends: Time) {
        lock(&self.0)[write].ends = ends;
    }

    /// Until when writes of a counter that have no acknowledgement may be done.
    pub(super) fn under_way_until(&self, counter: Of) -> Time {
        let all = lock(&self.0);
        let open = all.iter().filter(|it| it.concerns(counter) && !it.acknowledged && !it.terms.is_empty());
        open.map(|it| it.ends).max().unwrap_or(0)
    }

    /// All counters that were ever written.
    pub(super) fn counters(&self) -> Vec<Of> {
        let mut counters: Vec<Of> =
            lock(&self.0).iter().flat_map(|write| write.counters.iter().copied()).collect();
        counters.sort_unstable();
        counters.dedup();
        counters
    }

    /// The server has lost what it had. From now on each of these counters, or of all if there are none, has one of these
    /// records.
    pub(super) fn lost(&self, counters: SmallVec<[Of; 2]>, terms: SmallVec<[Value; 1]>, now: Time) {
        self.found(counters, terms, (now, now));
    }

    /// Each of these counters, or of all if there are none, has one of these records from then on. Earlier writes may be done
    /// until it `ends`.
    fn found(&self, counters: SmallVec<[Of; 2]>, terms: SmallVec<[Value; 1]>, (sent, ends): (Time, Time)) {
        self.add(Write {
            counters,
            process: None,
            sent,
            ends,
            acknowledged: true,
            waits: false,
            terms,
            before: None,
        });
    }

    /// What Redis may have for each counter that was ever written, now.
    pub(super) fn all(&self, now: Time) -> BTreeMap<Of, SmallVec<[Value; 1]>> {
        let stored = |counter| (counter, self.stored(counter, (now, now), None));
        self.counters().into_iter().map(stored).collect()
    }

    /// What Redis may have for a counter at some time between these, apart from what one write does.
    pub(super) fn stored(
        &self,
        counter: Of,
        (from, to): (Time, Time),
        apart: Option<usize>,
    ) -> SmallVec<[Value; 1]> {
        self.known(counter, to, apart, |it| it.ends <= from)
    }

    /// What a process may know of a counter that is asked for then and decides at `to`. It knows at once what was written
    /// through itself, and what was acknowledged before `heard` through another one.
    pub(super) fn heard(
        &self,
        counter: Of,
        (process, asked, heard): (Option<Process>, Time, Time),
        to: Time,
    ) -> SmallVec<[Value; 1]> {
        self.known(counter, to, None, |it| it.is_heard((process, asked, heard)))
    }

    /// When the last write was sent that a process knows, as [`heard`](Self::heard) says it. 0: it knows none.
    pub(super) fn last_heard(
        &self,
        counter: Of,
        (process, asked, heard): (Option<Process>, Time, Time),
    ) -> Time {
        let all = lock(&self.0);
        let own = all.iter().filter(|it| it.concerns(counter) && it.acknowledged);
        let known = own.filter(|it| it.is_heard((process, asked, heard)));
        known.map(|it| it.sent).max().unwrap_or(0)
    }

    /// What was ever written for a counter, until then.
    pub(super) fn ever(&self, counter: Of, to: Time) -> SmallVec<[Value; 1]> {
        self.known(counter, to, None, |_| false)
    }

    /// Writes that were sent until then, and which none that `is_known` was sent after.
    fn known(
        &self,
        counter: Of,
        to: Time,
        apart: Option<usize>,
        is_known: impl Fn(&Write<Of, Value>) -> bool,
    ) -> SmallVec<[Value; 1]> {
        let all = lock(&self.0);
        let own = || {
            let all = all.iter().enumerate().filter(|(place, _)| Some(*place) != apart);
            all.map(|(_, write)| write).filter(|write| write.concerns(counter))
        };
        let followed = own().filter(|write| write.acknowledged && is_known(write));
        let least = followed.map(|write| write.sent).max().unwrap_or(0);
        let may = own().filter(|write| write.sent <= to && write.ends >= least);
        may.flat_map(|write| write.terms.iter().copied()).collect()
    }
}

impl Ledger {
    /// A write is done if the record is this one. `terms`: what it says then.
    pub(super) fn begin_exchange(
        &self,
        (counter, before): (Counter, Option<Record>),
        process: Process,
        terms: Option<Terms>,
        times: (Time, Time),
    ) -> usize {
        let write = self.begin(&[counter], process, terms, times);
        lock(&self.0)[write].before = Some(before);
        write
    }

    /// Nobody is there any more who waits.
    pub(super) fn cut(&self, now: Time) {
        let mut all = lock(&self.0);
        all.iter_mut().filter(|it| it.waits).for_each(|it| (it.waits, it.ends) = (false, now));
    }

    /// The folder was opened, and has these. What failed before is decided now: each write that nobody acknowledged since it was
    /// opened before is there completely, or not at all. Whoever waits may be answered later.
    /// Fails if no order of writes leads there.
    pub(super) fn opened(&self, found: &BTreeMap<Counter, Option<Record>>, now: Time) -> Result<(), String> {
        let (done, terms) = (self.replayed(found), self.terms_of(found));
        let mut all = lock(&self.0);
        for (place, write) in all.iter_mut().enumerate() {
            match write.waits {
                true => write.sent = now + 1 + place as Time,
                false => write.ends = write.ends.min(now.saturating_sub(1)),
            }
        }
        drop(all);
        for (counter, terms) in terms {
            self.found(smallvec![counter], terms.into_iter().collect(), (now, now + HEARD));
        }
        done
    }

    /// What these say, as it was written.
    fn terms_of(&self, found: &BTreeMap<Counter, Option<Record>>) -> Vec<(Counter, Option<Option<Terms>>)> {
        let of = |(&counter, found): (&Counter, &Option<Record>)| {
            let mut ever = self.ever(counter, Time::MAX).into_iter();
            (counter, ever.find(|terms| terms.map(record) == *found))
        };
        found.iter().map(of).collect()
    }

    /// Whether writes lead to what was found, one after the other: all that were acknowledged, and any others.
    fn replayed(&self, found: &BTreeMap<Counter, Option<Record>>) -> Result<(), String> {
        let all = lock(&self.0);
        let mut may: Vec<BTreeMap<Counter, Option<Record>>> = vec![BTreeMap::new()];
        let mut writes: Vec<_> = all.iter().filter(|it| !it.terms.is_empty()).collect();
        writes.sort_by_key(|it| it.sent);
        for write in writes {
            let is_due = |has: &BTreeMap<Counter, Option<Record>>| {
                let own = write.counters.first().and_then(|counter| has.get(counter).copied()).flatten();
                write.before.is_none_or(|before| before == own)
            };
            let mut after: Vec<_> = may.iter().filter(|has| is_due(has)).cloned().collect();
            for has in &mut after {
                has.extend(write.counters.iter().map(|&counter| (counter, write.terms[0].map(record))));
            }
            if !write.acknowledged {
                after.append(&mut may);
            }
            after.sort_unstable_by_key(|has| format!("{has:?}"));
            after.dedup();
            may = after;
        }
        let is_found = |has: &BTreeMap<Counter, Option<Record>>| {
            found.iter().all(|(counter, found)| has.get(counter).copied().flatten() == *found)
        };
        match may.iter().any(is_found) {
            true => Ok(()),
            false => Err(format!("writes lead to one of {may:?}")),
        }
    }

    /// A counter of which two writes replaced the same record, though nobody wrote that again.
    pub(super) fn replaced_twice(&self) -> Option<Counter> {
        let all = lock(&self.0);
        let says = |it: &Write, said: Option<Record>| it.terms.iter().any(|terms| terms.map(record) == said);
        let mut replaced = Vec::new();
        for write in all.iter().filter(|it| it.acknowledged) {
            let Some(before) = write.before.filter(|&before| !says(write, before)) else { continue };
            let counter = write.counters[0];
            let is_again = |since: Time| {
                all.iter().any(|it| it.concerns(counter) && it.ends >= since && says(it, before))
            };
            if replaced.iter().any(|&(of, since)| of == (counter, before) && !is_again(since)) {
                return Some(counter);
            }
            replaced.push(((counter, before), write.sent));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTER: Counter = (0, 0);

    fn write(ledger: &Ledger, node: usize, requests: u32, times: (Time, Time), done: Done) {
        let write = ledger.begin(&[COUNTER], (node, 1), Some(Terms::of(requests)), (times.0, times.0 + 100));
        ledger.end(write, done, times.1);
    }

    fn numbers(all: &[Option<Terms>]) -> Vec<u32> {
        all.iter().map(|terms| terms.map_or(0, |terms| terms.requests)).collect()
    }

    #[test]
    fn the_last_acknowledged_write_is_stored_and_any_that_is_under_way() {
        let ledger = Ledger::<Counter>::default();
        write(&ledger, 0, 1, (10, 20), Done::Yes);
        write(&ledger, 0, 2, (30, 40), Done::Perhaps);
        write(&ledger, 1, 3, (50, 60), Done::Yes);
        write(&ledger, 1, 4, (61, 62), Done::No);
        let stored = |from, to| numbers(&ledger.stored(COUNTER, (from, to), None));
        assert_eq!(stored(5, 5), [0]);
        assert_eq!(stored(15, 15), [0, 1]);
        assert_eq!(stored(25, 35), [1, 2]);
        assert_eq!(stored(70, 70), [2, 3], "what was sent before may come later");
        write(&ledger, 1, 5, (131, 140), Done::Yes);
        assert_eq!(stored(150, 150), [5]);
        ledger.lost(smallvec![COUNTER], smallvec![None, Some(Terms::of(3))], 160);
        assert_eq!(stored(170, 170), [0, 3]);
        assert_eq!(numbers(&ledger.ever(COUNTER, 55)), [0, 1, 2, 3]);
    }

    #[test]
    fn what_was_so_already_replaces_nothing() {
        let ledger = Ledger::<Counter>::default();
        write(&ledger, 0, 1, (10, 20), Done::Yes);
        write(&ledger, 1, 2, (30, 40), Done::Already);
        let stored = |at| numbers(&ledger.stored(COUNTER, (at, at), None));
        let last = |heard| ledger.last_heard(COUNTER, (None, heard, heard));
        assert_eq!((stored(50), last(50)), (vec![1, 2], 10));
        write(&ledger, 1, 3, (60, 70), Done::Yes);
        assert_eq!((stored(80), last(70), last(80)), (vec![3], 10, 60));
    }

    #[test]
    fn of_two_who_replace_the_same_record_one_does_not() {
        let ledger = Ledger::<Counter>::default();
        let replace = |before: Option<Terms>, requests, at: Time| {
            let (of, times) = ((COUNTER, before.map(record)), (at, at + 100));
            let write = ledger.begin_exchange(of, (0, 1), Some(Terms::of(requests)), times);
            ledger.end(write, Done::Yes, at + 1);
        };
        replace(None, 1, 10);
        replace(Some(Terms::of(1)), 2, 20);
        assert_eq!(ledger.replaced_twice(), None);
        write(&ledger, 1, 1, (25, 26), Done::Perhaps);
        replace(Some(Terms::of(1)), 3, 30);
        assert_eq!(ledger.replaced_twice(), None);
        replace(None, 4, 35);
        assert_eq!(ledger.replaced_twice(), Some(COUNTER));
    }

    #[test]
    fn a_folder_that_is_opened_decides_what_failed_before() {
        let ledger = || {
            let ledger = Ledger::<Counter>::default();
            write(&ledger, 0, 1, (10, 20), Done::Yes);
            let failed = ledger.begin(&[COUNTER, (0, 1)], (0, 1), Some(Terms::of(2)), (30, Time::MAX));
            ledger.end(failed, Done::Perhaps, 40);
            ledger
        };
        let found = |first: u32, second: Option<u32>| {
            let all = [(COUNTER, Some(first)), ((0, 1), second)];
            all.map(|(counter, says)| (counter, says.map(|says| record(Terms::of(says))))).into()
        };
        assert_eq!(ledger().opened(&found(1, None), 50), Ok(()));
        assert!(ledger().opened(&found(2, None), 50).is_err(), "half of a batch");
        assert!(ledger().opened(&found(3, None), 50).is_err(), "nobody wrote it");
        let ledger = ledger();
        assert_eq!(ledger.opened(&found(2, Some(2)), 50), Ok(()));
        let later = 60 + HEARD;
        assert_eq!(numbers(&ledger.stored(COUNTER, (later, later), None)), [2], "it stays so");
        assert!(ledger.opened(&found(1, None), later).is_err(), "it was there before");
    }

    #[test]
    fn a_process_knows_at_once_what_was_written_through_it() {
        let ledger = Ledger::<Counter>::default();
        write(&ledger, 0, 1, (10, 20), Done::Yes);
        let heard = |node, asked| numbers(&ledger.heard(COUNTER, (Some((node, 1)), asked, 5), asked));
        assert_eq!((heard(0, 30), heard(1, 30)), (vec![1], vec![0, 1]));
        assert_eq!(numbers(&ledger.heard(COUNTER, (Some((1, 1)), 30, 25), 30)), [1]);
    }
}
