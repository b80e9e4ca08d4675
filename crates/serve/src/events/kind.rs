//! What can happen.

tidegate_engine::named! {
    /// What happened. Names are those of events, metrics and settings.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum EventKind {
        /// A key came near its limit.
        NearLimit = "near_limit",
        /// A key was denied, for the first time in a window.
        Denied = "denied",
        /// A key was denied again and again for a whole window.
        DeniedWholeWindow = "denied_whole_window",
        /// A ban denied a request of this node for the first time.
        BanBegan = "ban_began",
        /// A ban is over, or was lifted here.
        BanEnded = "ban_ended",
        /// A set of rules was refused.
        ReloadRefused = "reload_refused",
        /// The shared store does not answer any more.
        StoreLost = "store_lost",
        /// The shared store answers again.
        StoreBack = "store_back",
    }
}

/// A set of kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kinds {
    /// The error text that lists the words.
    pub const EXPECTED: &str = "a list of events (expected some of near_limit, denied, denied_whole_window, ban_began, ban_ended, reload_refused, store_lost, store_back, separated by commas)";

    /// Reads names that are separated by commas. There has to be one.
    pub fn parse(text: &str) -> Option<Self> {
        let bit = |name: &str| {
            let kind = EventKind::ALL.into_iter().find(|kind| kind.name() == name.trim())?;
            Some(1 << kind as u8)
        };
        text.split(',').try_fold(0, |bits, name| Some(bits | bit(name)?)).map(Self)
    }

    /// Whether this kind is one of them.
    pub const fn has(self, kind: EventKind) -> bool {
        self.0 >> kind as u8 & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_named_and_every_name_is_expected() {
        let kinds = Kinds::parse("denied, store_back").expect("good");
        let known: Vec<_> = EventKind::ALL.into_iter().filter(|&kind| kinds.has(kind)).collect();
        assert_eq!(known, [EventKind::Denied, EventKind::StoreBack]);
        for bad in ["", "denied,", "Denied", "denied store_back"] {
            assert_eq!(Kinds::parse(bad), None, "{bad:?}");
        }
        assert!(EventKind::ALL.iter().all(|kind| Kinds::EXPECTED.contains(kind.name())));
    }
}
