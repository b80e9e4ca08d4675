//! Records in a run: limits of single counters, wherever they are. A list of this simulation has them (`shelf`), or Redis
//! (`shared_records`), or a folder (`folder_records`).
//!
//! In: changes that operators make, and times at which the store is away. Out: the limits by which a node may decide. To the
//! judge it may decide by what was in force since its client asked, or a little earlier: it hears of a change late. It may
//! fall back on the limit of the rule only where the store, the client or the node itself did not wait.

use std::sync::Arc;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use tidegate_engine::rules::Unit;
use tidegate_engine::unit::Window;
use tidegate_operate::records::RecordStore;
use tidegate_records::Record;
use tidegate_serve::service::{KnownRecords, RecordsOptions, StaleMode};

use super::Run;
use super::decider::Decider;
use super::record_writes::Change;
use crate::node::Node;
use crate::oracle;
use crate::scenario::{Item, Scenario, StoredIn, Terms};
use crate::world::{MILLI, SECOND, Time};

/// LIMITS_TIMEOUT: how long a request waits for records.
pub(super) const RECORDS_TIMEOUT: Time = 100 * MILLI;
/// LIMITS_STALE_MAX: how long what is known holds while the store is away.
pub(super) const STALE_MAX: Time = 300 * MILLI;

/// What a node may know of the record of a descriptor.
pub(super) struct Known {
    /// What its record may say.
    pub(super) may: SmallVec<[Option<Terms>; 1]>,
    /// What it ever said.
    pub(super) ever: SmallVec<[Option<Terms>; 1]>,
    /// The store may not have answered.
    pub(super) is_away: bool,
    /// The store has surely not answered for too long.
    pub(super) is_stale: bool,
}

/// The record that says this.
pub(super) fn record(terms: Terms) -> Record {
    let Terms { requests, window_secs, algorithm, burst, granularity, shadow, is_unlimited } = terms;
    let window = window_secs.map(|secs| Window { unit: Unit::Second, multiplier: secs as u32 });
    let burst = burst.map(u64::from);
    let of_n = Record::of(requests.into());
    Record {
        window,
        algorithm,
        burst,
        granularity_nanos: granularity,
        shadow,
        unlimited: is_unlimited,
        ..of_n
    }
}

/// Records, and their store if that is the program's.
type Records = (Arc<KnownRecords<Node>>, Option<Arc<RecordStore<Node>>>);

impl Run {
    /// The records of a node that starts now, if any limit has some, and their store if that is the program's.
    pub(super) fn records_of(self: &Arc<Self>, node: usize, runtime: &Node, seed: u64) -> Option<Records> {
        let Scenario { limits, stale_mode, record_cache, .. } = &self.scenario;
        if limits.iter().all(|limit| limit.recorded.is_none()) {
            return None;
        }
        let options = RecordsOptions {
            cache_entries: *record_cache,
            timeout: Duration::from_nanos(RECORDS_TIMEOUT),
            stale_mode: *stale_mode,
        };
        if let Some(disk) = &self.record_disk {
            let (records, store) = self.folder_records_of(node, runtime, disk, options);
            return Some((records, Some(store)));
        }
        if self.scenario.shares_records() {
            let (records, store) = self.shared_records_of(runtime, options);
            return Some((records, Some(store)));
        }
        Some((Arc::new(self.shelved_records_of(node, runtime, seed, options)), None))
    }

    /// A record is put into the store, or removed.
    pub(super) fn record(self: &Arc<Self>, counter: (usize, u64), terms: Option<Terms>, heard_within: Time) {
        match self.scenario.stores_records() {
            true => self.send_change(Change { counter, terms, thinks: heard_within }),
            false => self.shelve(counter, terms, heard_within),
        }
    }

    /// The record of a counter now.
    pub(super) fn recorded_now(&self, counter: (usize, u64)) -> Option<Record> {
        match self.scenario.stores_records() {
            true => self.stored_record(counter),
            false => self.shelf.now(counter).map(record),
        }
    }

    /// A node cannot reach the store, for so long.
    pub(super) fn records_are_away(self: &Arc<Self>, node: usize, lasts: Time) {
        if self.scenario.operated_in() != StoredIn::List {
            self.cut_records(node);
        }
        if !self.scenario.shares_records() {
            self.leave_shelf(node, lasts);
        }
    }

    /// How long an answer may take that needs records too.
    pub(super) fn waits_for_records(&self, items: &[Item]) -> Time {
        let limits = &self.scenario.limits;
        let first = |item: &Item| self.scenario.first_limit(item.limit);
        let has_records = items.iter().any(|item| limits[first(item)].recorded.is_some());
        if has_records { RECORDS_TIMEOUT } else { 0 }
    }

    /// Every limit by which a record may have a descriptor decided. `noted`: what its rule says. `is_patient`: the
    /// client waited.
    pub(super) fn recorded_limits(&self, noted: &oracle::Record, is_patient: bool) -> SmallVec<[Decider; 1]> {
        let limit = &self.scenario.limits[noted.limit];
        let is_quota = limit.shape.is_quota || self.scenario.modes.quota && limit.further.is_none();
        let (requests, window) = (noted.requests, noted.window);
        let (algorithm, room) = limit.under(requests, None, None);
        let granularity = noted.granularity;
        let own =
            Decider { requests, room, window, algorithm, granularity, is_shadow: limit.is_shadow, is_quota };
        let first = self.scenario.first_limit(noted.limit);
        if self.scenario.limits[first].recorded.is_none() {
            return smallvec![own];
        }
        let of_first = &oracle::Record { limit: first, ..*noted };
        let Known { may, ever, is_away, is_stale } = match &self.record_disk {
            Some(disk) => self.known_in_folder(of_first, disk),
            None if self.scenario.shares_records() => self.known_records(of_first),
            None => self.shelved_known(of_first),
        };
        // Of a further limit a record changes only whether it denies.
        let under = |by: Decider| match limit.further {
            None => by,
            Some(_) => Decider { is_shadow: by.is_shadow, ..own },
        };
        let by = |terms: Option<Terms>| match terms {
            None => own,
            Some(Terms { is_unlimited: true, .. }) => Decider { is_shadow: true, ..own },
            Some(Terms { requests, window_secs, algorithm, burst, granularity, shadow, .. }) => {
                let rule_window = window;
                let window = window_secs.map_or(window, |secs| secs * SECOND);
                let (algorithm, room) = limit.under(requests, algorithm, burst);
                let granularity = limit.granularity(rule_window, (algorithm, window), granularity);
                let is_shadow = shadow.unwrap_or(limit.is_shadow);
                under(Decider { requests, room, window, algorithm, granularity, is_shadow, ..own })
            }
        };
        let mut may: SmallVec<_> = may.into_iter().map(by).collect();
        // Long into an outage nothing else holds than what its mode says.
        if is_stale && self.scenario.stale_mode != StaleMode::Last {
            may.clear();
        }
        if !is_patient || is_away {
            match self.scenario.stale_mode {
                StaleMode::Rule => may.push(own),
                StaleMode::Deny => may.push(under(Decider { requests: 0, room: 0, is_shadow: false, ..own })),
                StaleMode::Last => may.extend(ever.into_iter().map(by).chain([own])),
            }
        }
        may
    }
}
