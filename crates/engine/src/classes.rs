//! Classes of importance: requests of one counter, each of which may use a share of its limit.
//!
//! In: the name of a class. Out: its share. A descriptor names its class by one more entry after those of the rule's
//! path, which is part of no key and no name. A class changes how many hits fit, and never the counter.

use std::fmt;
use std::sync::Arc;

use crate::limit::Share;

/// The classes of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classes {
    /// The key of the entry that names a class.
    pub key: Arc<str>,
    /// The share of each class, the largest first. There is at least one.
    pub shares: Arc<[(Box<str>, Share)]>,
}

impl Classes {
    /// The class of this name, and its share. One that is not known, or not named, is the lowest.
    pub fn of(&self, named: Option<&str>) -> (&str, Share) {
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
