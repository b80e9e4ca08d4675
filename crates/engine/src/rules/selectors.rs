//! Limits of Limitador: which of them a request meets, and the descriptors by which our rules know them.
//!
//! Such a limit is for each request whose first descriptor has its entries, in any order and among others, and one descriptor
//! may meet several limits. A descriptor of ours meets one rule, by entries in an order. So each limit is a rule below an entry
//! of its own, and a request gets a descriptor for each limit that it meets: that entry, then the limit's variables by name.

use std::collections::BTreeSet;

use smallvec::SmallVec;

use crate::request::{DescriptorOptions, Entry, Request};

/// The key of the entry that names a limit.
pub(super) const LIMIT: &str = "limit";

/// Which descriptors a limit is for.
#[derive(Clone, Debug)]
pub(super) struct Selector {
    /// The value of the entry that names the limit. Limits that differ in their variables alone have the same.
    pub(super) name: String,
    /// Keys and their values: each has to be there.
    pub(super) conditions: BTreeSet<(String, String)>,
    /// Keys by whose values hits are counted: each has to be there.
    pub(super) variables: BTreeSet<String>,
}

impl Selector {
    /// Those of a limit for so many seconds. No key or value has a quote inside, so no two limits have the same name and
    /// different conditions.
    pub(super) fn new(
        secs: u64,
        conditions: BTreeSet<(String, String)>,
        variables: BTreeSet<String>,
    ) -> Self {
        let all: Vec<_> = conditions.iter().map(|(key, value)| format!("{key} == \"{value}\"")).collect();
        let name = match all.is_empty() {
            true => format!("{secs}s"),
            false => format!("{secs}s if {}", all.join(" && ")),
        };
        Self { name, conditions, variables }
    }

    /// The entries by which the rule of the limit knows a descriptor. `None`: it does not meet the limit.
    fn of<'s>(&'s self, entries: &[Entry<'s>]) -> Option<SmallVec<[Entry<'s>; 4]>> {
        // Of several entries with one key the last counts: Limitador reads them into a map.
        let found = |key: &str| entries.iter().rev().find(|entry| entry.key == key).map(|entry| entry.value);
        if self.conditions.iter().any(|(key, value)| found(key) != Some(value)) {
            return None;
        }
        let variables = self.variables.iter().map(|key| Some(Entry { key, value: found(key)? }));
        std::iter::once(Some(Entry { key: LIMIT, value: &self.name })).chain(variables).collect()
    }

    /// The entries of a descriptor that meets the limit, for people.
    pub(super) fn example(&self) -> Vec<(String, String)> {
        let variables = self.variables.iter().map(|key| (key.clone(), "x".to_owned()));
        self.conditions.iter().cloned().chain(variables).collect()
    }
}

/// The request that asks about all of these limits that this one meets. `None`: about the same as this one.
pub(super) fn asked<'s, 'r: 's>(selectors: Option<&'s [Selector]>, request: &Request<'r>) -> Request<'s> {
    let mut asked = Request::new(request.domain(), request.hits_addend());
    if let Some(reservation) = request.reservation() {
        asked = asked.with_reservation(*reservation);
    }
    let Some(selectors) = selectors else {
        let descriptors = request.descriptors();
        descriptors.for_each(|it| asked.push(it.entries.iter().copied(), it.options));
        return asked;
    };
    let first = request.descriptors().next();
    let entries = first.map_or(&[][..], |first| first.entries);
    // A limit in the descriptor would replace the one that it meets.
    let options = first.map(|first| DescriptorOptions { limit: None, ..first.options }).unwrap_or_default();
    for entries in selectors.iter().filter_map(|selector| selector.of(entries)) {
        asked.push(entries, options);
    }
    asked
}
