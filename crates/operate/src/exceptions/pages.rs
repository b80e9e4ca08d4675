//! The entry of every id that this node knows, and the effect of a change on them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::known::KnownException;
use super::{Authored, Change, ChangeError, EXCEPTIONS_MAX, Lined, PATTERNS_MAX, WantedChange};
use tidegate_engine::time::Timestamp;

/// All that is known.
pub(super) struct Pages {
    records: BTreeMap<String, Page>,
    /// Ids that were ended, with the number of the end, if nodes share exceptions.
    ended: BTreeMap<String, u64>,
    /// Greater than the number of any entry: a new entry gets at least this number.
    next: u64,
    /// How many exceptions have a `*` or a level without a value.
    patterns: usize,
    /// No exception ends by itself before this time. `None`: none does.
    next_end: Option<Timestamp>,
    /// Whether there is a file, which has a line for each exception.
    has_file: bool,
}

/// One exception.
pub(super) struct Page {
    pub(super) record: Arc<Authored>,
    /// Its line in the file; empty without a file. A change writes all lines, and formatting them takes far longer
    /// than writing them.
    line: Arc<str>,
}

/// A change that may be made.
pub(super) struct Planned {
    pub(super) change: Change,
    pub(super) before: Option<Arc<Authored>>,
    /// The entry of the id afterwards.
    pub(super) after: KnownException,
}

impl Pages {
    /// The exceptions of a file, if there is one.
    pub(super) fn new(read: Vec<Lined>, has_file: bool) -> Self {
        let next = read.iter().map(|(record, _)| record.number.saturating_add(1)).max().unwrap_or_default();
        let named = |(record, line): Lined| (record.id.clone(), Page { record: Arc::new(record), line });
        let records = read.into_iter().map(named).collect();
        let (ended, patterns, next_end) = (BTreeMap::new(), 0, None);
        let mut pages = Self { records, ended, next, patterns, next_end, has_file };
        pages.look_at_all();
        pages
    }

    /// Greater than the number of any entry.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// How many exceptions there are.
    pub(super) fn count(&self) -> u64 {
        self.records.len() as u64
    }

    /// All exceptions, by their ids.
    pub(super) fn records(&self) -> impl Iterator<Item = &Arc<Authored>> {
        self.records.values().map(|page| &page.record)
    }

    /// The lines of the file.
    pub(super) fn lines(&self) -> Vec<Arc<str>> {
        self.records.values().map(|page| Arc::clone(&page.line)).collect()
    }

    /// The entry of an id.
    pub(super) fn entry(&self, id: &str) -> Option<KnownException> {
        let made = self.records.get(id).map(|page| KnownException::Made(Arc::clone(&page.record)));
        made.or_else(|| self.ended.get(id).map(|&number| KnownException::Ended { id: id.to_owned(), number }))
    }

    /// The entry of an id that other nodes accept: not one that was made while this node's clock was far ahead.
    pub(super) fn known(&self, id: &str, now: Timestamp) -> Option<KnownException> {
        self.entry(id).filter(|entry| !entry.is_ahead(now))
    }

    /// All ids that have an entry.
    pub(super) fn ids(&self) -> impl Iterator<Item = &String> {
        self.records.keys().chain(self.ended.keys())
    }

    /// The effect that a change would have now. `number` is the number of the entry that it makes.
    /// Fails when it may not be made.
    pub(super) fn plan(
        &mut self,
        wanted: &WantedChange,
        number: u64,
        now: Timestamp,
    ) -> Result<Planned, ChangeError> {
        let before = self.records.get(wanted.id()).map(|page| Arc::clone(&page.record));
        match wanted {
            WantedChange::End { id, .. } => {
                let ended = |number| KnownException::Ended { id: id.clone(), number };
                match (before, self.ended.get(id)) {
                    (before @ Some(_), _) => {
                        Ok(Planned { change: Change::Ended, before, after: ended(number) })
                    }
                    (None, Some(&known)) if known < number => {
                        Ok(Planned { change: Change::Unchanged, before: None, after: ended(known) })
                    }
                    // It was ended while this node's clock was ahead, and others ignore that.
                    (None, Some(_)) => {
                        Ok(Planned { change: Change::Ended, before: None, after: ended(number) })
                    }
                    (None, None) => Err(ChangeError::Unknown(id.clone())),
                }
            }
            WantedChange::Put { record, may_replace } => {
                match &before {
                    Some(before) if before.says_the_same(record) && before.number < number => {
                        let after = KnownException::Made(Arc::clone(before));
                        return Ok(Planned { change: Change::Unchanged, before: None, after });
                    }
                    Some(_) if !may_replace => return Err(ChangeError::Exists(record.id.clone())),
                    _ if record.is_over(now) => return Err(ChangeError::Past),
                    _ => {}
                }
                self.make_room(record, now)?;
                let change = if before.is_some() { Change::Replaced } else { Change::Made };
                let record = Authored { number, made: now, ..Authored::clone(record) };
                Ok(Planned { change, before, after: KnownException::Made(Arc::new(record)) })
            }
        }
    }

    /// Replaces the entry of its id. An ended one leaves nothing.
    pub(super) fn put(&mut self, entry: KnownException) {
        self.next = self.next.max(entry.number().saturating_add(1));
        self.forget(entry.id());
        if let KnownException::Made(record) = entry {
            let line = if self.has_file { record.line() } else { Arc::default() };
            self.patterns += usize::from(!record.exception.is_exact());
            self.next_end = [self.next_end, record.until].into_iter().flatten().min();
            self.records.insert(record.id.clone(), Page { record, line });
        }
    }

    /// Like [`put`](Self::put), for exceptions that nodes share: an ended one is remembered.
    pub(super) fn put_shared(&mut self, entry: KnownException) {
        let ended = match &entry {
            KnownException::Ended { id, number } => Some((id.clone(), *number)),
            KnownException::Made(_) => None,
        };
        self.put(entry);
        let Some((id, number)) = ended else { return };
        if self.ended.len() >= EXCEPTIONS_MAX {
            self.forget_oldest_ends();
        }
        self.ended.insert(id, number);
    }

    /// A tenth of them at a time, because finding them means to look at all.
    fn forget_oldest_ends(&mut self) {
        let mut numbers: Vec<u64> = self.ended.values().copied().collect();
        let (_, &mut last, _) = numbers.select_nth_unstable(EXCEPTIONS_MAX / 10);
        self.ended.retain(|_, number| *number > last);
    }

    /// Numbers all exceptions by the time at which they were made: a number of this node alone means nothing to
    /// others.
    pub(super) fn number_by_time(&mut self) {
        for page in self.records.values_mut() {
            let number = page.record.number.max(page.record.made.as_nanos());
            page.record = Arc::new(Authored { number, ..Authored::clone(&page.record) });
            if self.has_file {
                page.line = page.record.line();
            }
        }
    }

    /// Forgets an id. Returns the exception that was there.
    pub(super) fn forget(&mut self, id: &str) -> Option<Page> {
        self.ended.remove(id);
        let page = self.records.remove(id)?;
        self.patterns -= usize::from(!page.record.exception.is_exact());
        Some(page)
    }

    /// Puts back what [`forget`](Self::forget) took.
    pub(super) fn put_back(&mut self, id: &str, page: Option<Page>) {
        self.forget(id);
        self.records.extend(page.map(|page| (id.to_owned(), page)));
        self.look_at_all();
    }

    fn look_at_all(&mut self) {
        self.patterns = self.records().filter(|record| !record.exception.is_exact()).count();
        self.next_end = self.records().filter_map(|record| record.until).min();
    }

    /// Makes room for this exception, if necessary by removing those that have ended by themselves.
    /// Fails when there is no room.
    pub(super) fn make_room(&mut self, record: &Authored, now: Timestamp) -> Result<(), ChangeError> {
        if self.check_room(record).is_err() && self.next_end.is_some_and(|end| end <= now) {
            self.records.retain(|_, other| !other.record.is_over(now));
            self.look_at_all();
        }
        self.check_room(record)
    }

    fn check_room(&self, record: &Authored) -> Result<(), ChangeError> {
        let before = self.records.get(&record.id).map(|page| &page.record.exception);
        if self.records.len() - usize::from(before.is_some()) >= EXCEPTIONS_MAX {
            return Err(ChangeError::Full);
        }
        let others = self.patterns - usize::from(before.is_some_and(|before| !before.is_exact()));
        if !record.exception.is_exact() && others >= PATTERNS_MAX {
            return Err(ChangeError::FullOfPatterns);
        }
        Ok(())
    }
}
