//! What can happen.

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A key came near its limit.
    NearLimit,
    /// A key was denied, for the first time in a window.
    Denied,
    /// A key was denied again and again for a whole window.
    DeniedWholeWindow,
    /// A set of rules was refused.
    ReloadRefused,
    /// The shared store does not answer any more.
    StoreLost,
    /// The shared store answers again.
    StoreBack,
}

/// Some kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kind {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::NearLimit,
        Self::Denied,
        Self::DeniedWholeWindow,
        Self::ReloadRefused,
        Self::StoreLost,
        Self::StoreBack,
    ];

    /// Its name in events, metrics and settings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NearLimit => "near_limit",
            Self::Denied => "denied",
            Self::DeniedWholeWindow => "denied_whole_window",
            Self::ReloadRefused => "reload_refused",
            Self::StoreLost => "store_lost",
            Self::StoreBack => "store_back",
        }
    }
}

impl Kinds {
    /// The error text that lists the words.
    pub const EXPECTED: &str = "a list of events (expected some of near_limit, denied, denied_whole_window, reload_refused, store_lost, store_back, separated by commas)";

    /// Reads names that are separated by commas. There has to be one.
    pub fn parse(text: &str) -> Option<Self> {
        let bit = |name: &str| {
            let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name.trim())?;
            Some(1 << kind as u8)
        };
        text.split(',').try_fold(0, |bits, name| Some(bits | bit(name)?)).map(Self)
    }

    /// Whether this kind is one of them.
    pub const fn has(self, kind: Kind) -> bool {
        self.0 >> kind as u8 & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_named_and_every_name_is_expected() {
        let kinds = Kinds::parse("denied, store_back").expect("good");
        let known: Vec<_> = Kind::ALL.into_iter().filter(|&kind| kinds.has(kind)).collect();
        assert_eq!(known, [Kind::Denied, Kind::StoreBack]);
        for bad in ["", "denied,", "Denied", "denied store_back"] {
            assert_eq!(Kinds::parse(bad), None, "{bad:?}");
        }
        assert!(Kind::ALL.iter().all(|kind| Kinds::EXPECTED.contains(kind.name())));
    }
}
