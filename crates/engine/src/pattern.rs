//! Which values an entry of a path matches: every value, one value, or those of a pattern.
//!
//! In: a `value` as it is written. Out: whether it matches a value of a request, and which of many patterns matches
//! first. Each kind of pattern is a file, which says how a pattern of its kind matches, and a line in each of the
//! functions here. The place of a kind in [`Kind`] is its place in the order in which patterns are tried.

mod wildcard;

use self::wildcard::{Wildcard, Wildcards};

/// The values of entries that a node of the rules, or an entry of a path, matches.
#[derive(Clone, Debug)]
pub(crate) enum Matcher {
    /// Every value, each of them with a counter of its own.
    Any,
    /// This value alone.
    Exact(String),
    /// The values of a pattern.
    Pattern(Pattern),
}

/// A pattern: what it is called, and how it matches.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    /// As it is written.
    text: Box<str>,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// A text in which each `*` stands for zero or more characters.
    Wildcard(Wildcard),
}

/// The patterns under one key. `T` is the target of a pattern.
#[derive(Clone, Debug)]
pub(crate) struct Patterns<T> {
    wildcards: Wildcards<T>,
}

/// Stands for a character that `*` matches: one that is in no text.
const ANYTHING: &str = "\u{10FFFF}";

impl Matcher {
    /// The `value` that is written as a text, if there is one.
    pub(crate) fn of_text(value: Option<&str>) -> Self {
        match value {
            None => Self::Any,
            Some(text) if text.contains('*') => {
                let kind = Kind::Wildcard(Wildcard::of(text));
                Self::Pattern(Pattern { text: text.into(), kind })
            }
            Some(text) => Self::Exact(text.to_owned()),
        }
    }

    /// The `value` as it is written: the identity of a node among those with its key.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Any => None,
            Self::Exact(value) => Some(value),
            Self::Pattern(pattern) => Some(&pattern.text),
        }
    }

    /// A word for its kind. It is a part of counters' keys, so it never changes.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Exact(_) => "value",
            Self::Pattern(Pattern { kind: Kind::Wildcard(_), .. }) => "pattern",
        }
    }

    /// Whether it matches this value.
    pub(crate) fn matches(&self, value: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(own) => own == value,
            Self::Pattern(pattern) => pattern.matches(value),
        }
    }

    /// A value that it matches, for people.
    pub(crate) fn example(&self) -> String {
        match self {
            Self::Any => "alice".to_owned(),
            Self::Exact(value) => value.clone(),
            Self::Pattern(Pattern { text, kind: Kind::Wildcard(_) }) => text.replace('*', "x"),
        }
    }
}

impl Pattern {
    fn matches(&self, value: &str) -> bool {
        match &self.kind {
            Kind::Wildcard(wildcard) => wildcard.matches(value),
        }
    }
}

impl<T: Copy> Patterns<T> {
    /// Compiles patterns, given in file order.
    pub(crate) fn new(patterns: &[(T, Pattern)]) -> Self {
        Self { wildcards: Wildcards::new(patterns.iter().map(|(target, pattern)| (&*pattern.text, *target))) }
    }

    /// The target of the first pattern that matches.
    pub(crate) fn find(&self, value: &str) -> Option<T> {
        self.wildcards.find(value)
    }

    /// The target of the first wildcard that matches all values of this pattern; `None` stands for every value.
    ///
    /// A wildcard matches all values of another one exactly when it matches the other's text with each `*` replaced
    /// by a character that it does not hold itself: only its own `*` can match that character.
    pub(crate) fn covering(&self, pattern: Option<&Pattern>) -> Option<T> {
        let text = pattern.map_or("*", |pattern| &pattern.text);
        self.wildcards.find(&text.replace('*', ANYTHING))
    }
}
