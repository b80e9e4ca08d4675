//! Classes of importance: requests of one counter, each of which may use a share of its limit.
//!
//! In: the entries of a descriptor that met a rule. Out: its class. It is named by one more entry after those of the
//! rule's path, which is part of no key and no name. A class changes how many hits fit, and never the counter.

use std::fmt;
use std::sync::Arc;

use crate::limit::Share;
use crate::request::Entry;

/// The classes of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classes {
    /// The key of the entry that names a class.
    pub key: Arc<str>,
    /// The share of each class, the largest first. There is at least one.
    pub shares: Arc<[(Box<str>, Share)]>,
    /// How many entries come before the one that names the class.
    pub level: usize,
}

impl Classes {
    /// The class of a descriptor, and its share. A class that is not known, or not named, is the lowest.
    pub fn class_of(&self, entries: &[Entry<'_>]) -> (&str, Share) {
        let named = entries.get(self.level).map(|entry| entry.value);
        let known = self.shares.iter().find(|(name, _)| named == Some(&**name));
        known.or(self.shares.last()).map_or(("", Share::FULL), |(name, share)| (name, *share))
    }
}

/// `priority: critical 1, batch 0.6`.
impl fmt::Display for Classes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: ", self.key)?;
        for (place, (name, share)) in self.shares.iter().enumerate() {
            write!(out, "{}{name} {share}", if place > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}
