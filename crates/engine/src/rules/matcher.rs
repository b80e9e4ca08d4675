//! Which values a node matches. Made once, when the node is checked.

/// The values of entries that a node matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ValueMatcher {
    /// Every value, each of them with a counter of its own.
    Any,
    /// This value alone.
    Exact(String),
    /// Every value that matches this text, in which each `*` stands for zero or more characters.
    Wildcard(String),
}

impl ValueMatcher {
    /// The `value` of a node, if it has one.
    pub(super) fn new(value: Option<&str>) -> Self {
        match value {
            None => Self::Any,
            Some(value) if value.contains('*') => Self::Wildcard(value.to_owned()),
            Some(value) => Self::Exact(value.to_owned()),
        }
    }

    /// The `value` as it is written.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Any => None,
            Self::Exact(value) | Self::Wildcard(value) => Some(value),
        }
    }
}
