//! A path: a domain and entries, as rules write them. It says for which descriptors or rules something is.

use std::sync::Arc;

use crate::pattern::Matcher;
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
    /// The value, in which `*` matches zero or more characters. `None`: the path has none.
    pub value: Option<String>,
}

impl PathEntry {
    /// Whether it has an exact value.
    pub fn is_exact(&self) -> bool {
        matches!(self.matcher(), Matcher::Exact(_))
    }

    /// The values that it matches, for an exception.
    pub(crate) fn matcher(&self) -> Matcher {
        Matcher::of_exception(self.value.as_deref())
    }

    /// As an entry of a descriptor, with its value as it is written.
    pub(crate) fn entry(&self) -> Option<Entry<'_>> {
        Some(Entry { key: &self.key, value: self.value.as_deref()? })
    }
}
