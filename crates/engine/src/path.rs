//! A path: a domain and entries, as rules write them. It says which descriptors, or which rules, something is for.

use std::sync::Arc;

use crate::request::Entry;

/// A domain and entries from the top.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path {
    /// The domain.
    pub domain: Arc<str>,
    /// The entries.
    pub entries: Vec<PathEntry>,
}

/// One entry of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathEntry {
    /// The key.
    pub key: String,
    /// The value, in which `*` stands for zero or more characters. `None`: the path says none.
    pub value: Option<String>,
}

impl PathEntry {
    /// Whether it names one value.
    pub fn is_exact(&self) -> bool {
        self.value.as_ref().is_some_and(|value| !value.contains('*'))
    }

    /// As a descriptor has it, with its value as it is written.
    pub(crate) fn entry(&self) -> Option<Entry<'_>> {
        Some(Entry { key: &self.key, value: self.value.as_deref()? })
    }
}
