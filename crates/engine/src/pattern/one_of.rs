//! Lists of values: which of many contains a value.

use std::collections::HashMap;

/// The values of all lists under one key, each with the target of its list.
#[derive(Clone, Debug)]
pub(super) struct Lists<T>(HashMap<Box<str>, T>);

impl<T: Copy> Lists<T> {
    /// Compiles lists. No value is in two of them.
    pub(super) fn new<'a>(lists: impl IntoIterator<Item = (&'a [Box<str>], T)>) -> Self {
        let pairs =
            |(values, target): (&'a [Box<str>], T)| values.iter().map(move |value| (value.clone(), target));
        Self(lists.into_iter().flat_map(pairs).collect())
    }

    /// The target of the list that contains this value.
    pub(super) fn find(&self, value: &str) -> Option<T> {
        self.0.get(value).copied()
    }
}
