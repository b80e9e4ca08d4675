//! Which values an entry of a path matches: every value, one value, or those of a pattern.
//!
//! In: a `value` as it is written. Out: whether it matches a value of a request, and which of many patterns does first.
//! Each kind of pattern is a file, which says how many patterns of its kind are searched at once, and a line in each of
//! the functions here. The place of a kind in [`PatternKind`] is its place in the order in which patterns are tried.

mod address;
mod nat64;
mod one_of;
mod range;
mod regexes;
mod wildcard;

use std::cmp::Reverse;
use std::fmt::Display;
use std::slice;
use std::sync::Arc;

pub(crate) use self::nat64::Nat64;
use self::one_of::Lists;
pub(crate) use self::range::Range;
use self::range::Ranges;
use self::regexes::Regexes;
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
    /// As it is written: the text of a wildcard, or the mapping that any other pattern is: `{cidr: 10.0.0.0/8}`. It is
    /// the pattern's identity.
    text: Box<str>,
    /// What metrics call it: the text without the mapping.
    name: Box<str>,
    kind: PatternKind,
}

#[derive(Clone, Debug)]
enum PatternKind {
    /// A list of values.
    OneOf(Box<[Box<str>]>),
    /// Ranges of addresses: one, or those in a file. A pattern of a file is that file, whatever it contains.
    Cidr(Range),
    CidrFile(Arc<[Range]>),
    /// A text in which each `*` stands for zero or more characters.
    Wildcard(Wildcard),
    /// A regular expression.
    Regex,
}

/// The patterns under one key. `T` is the target of a pattern.
#[derive(Clone, Debug)]
pub(crate) struct Patterns<T> {
    lists: Lists<T>,
    ranges: Ranges<T>,
    wildcards: Wildcards<T>,
    regexes: Regexes<T>,
}

/// Stands for a character that `*` matches: one that is in no text.
const ANYTHING: &str = "\u{10FFFF}";

/// The longest name of a list in metrics, in characters. Longer ones are cut, and lists that begin alike have one name.
const LIST_NAME_MAX: usize = 60;

impl Matcher {
    /// The `value` that is written as a text, if there is one.
    pub(crate) fn of_text(value: Option<&str>) -> Self {
        match value {
            None => Self::Any,
            Some(text) if text.contains('*') => {
                let kind = PatternKind::Wildcard(Wildcard::of(text));
                Self::Pattern(Pattern { text: text.into(), name: text.into(), kind })
            }
            Some(text) => Self::Exact(text.to_owned()),
        }
    }

    /// The value of an exception, which is always written as a text. It may be a range: `{cidr: 10.0.0.0/8}`.
    pub(crate) fn of_exception(value: Option<&str>) -> Self {
        let range = value.and_then(|text| text.strip_prefix("{cidr: ")?.strip_suffix('}'));
        range.and_then(|text| Self::cidr(text).ok()).unwrap_or_else(|| Self::of_text(value))
    }

    /// Each of these values.
    pub(crate) fn one_of(values: Vec<Box<str>>) -> Self {
        let mut name = values.join(",");
        let text = format!("{{in: [{}]}}", values.join(", "));
        if let Some((at, _)) = name.char_indices().nth(LIST_NAME_MAX) {
            name.replace_range(at.., "…");
        }
        Self::Pattern(Pattern {
            text: text.into(),
            name: name.into(),
            kind: PatternKind::OneOf(values.into()),
        })
    }

    /// The addresses in this range. `Err`: what is wrong with it, in words that go on after it.
    pub(crate) fn cidr(range: &str) -> Result<Self, String> {
        let range = Range::read(range)?;
        Ok(Self::pattern("cidr", range, PatternKind::Cidr(range)))
    }

    /// The addresses in the ranges of this file.
    pub(crate) fn cidr_file(file: &str, ranges: Arc<[Range]>) -> Self {
        Self::pattern("cidr_file", file, PatternKind::CidrFile(ranges))
    }

    /// The values in which this regular expression is found. `Err`: what is wrong with it, in words that go on after it.
    pub(crate) fn regex(regex: &str) -> Result<Self, String> {
        regexes::one(regex)?;
        Ok(Self::pattern("regex", regex, PatternKind::Regex))
    }

    fn pattern(key: &str, name: impl Display, kind: PatternKind) -> Self {
        let name = name.to_string().into_boxed_str();
        Self::Pattern(Pattern { text: format!("{{{key}: {name}}}").into(), name, kind })
    }

    /// The `value` as it is written: the identity of a node among those with its key.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Any => None,
            Self::Exact(value) => Some(value),
            Self::Pattern(pattern) => Some(&pattern.text),
        }
    }

    /// The `value`, if it is written as a text: a value of a request may be the same text.
    pub(crate) fn literal(&self) -> Option<&str> {
        match self {
            Self::Any => None,
            Self::Exact(value) => Some(value),
            Self::Pattern(pattern) => {
                matches!(pattern.kind, PatternKind::Wildcard(_)).then_some(&pattern.text)
            }
        }
    }

    /// What metrics call it.
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Self::Pattern(pattern) => Some(&pattern.name),
            _ => self.text(),
        }
    }

    /// A word for its kind. It is a part of counters' keys, so it never changes.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Exact(_) => "value",
            Self::Pattern(pattern) => match pattern.kind {
                PatternKind::OneOf(_) => "in",
                PatternKind::Cidr(_) => "cidr",
                PatternKind::CidrFile(_) => "cidr_file",
                PatternKind::Wildcard(_) => "pattern",
                PatternKind::Regex => "regex",
            },
        }
    }

    /// Whether it is of a kind that `envoyproxy/ratelimit` does not know.
    pub(crate) fn is_of_tidegate(&self) -> bool {
        match self {
            Self::Any | Self::Exact(_) => false,
            Self::Pattern(pattern) => !matches!(pattern.kind, PatternKind::Wildcard(_)),
        }
    }

    /// Whether it matches addresses as such: those of ranges, or every value.
    pub(crate) fn may_be_addresses(&self) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(_) => false,
            Self::Pattern(pattern) => matches!(pattern.kind, PatternKind::Cidr(_) | PatternKind::CidrFile(_)),
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
            Self::Pattern(pattern) => match &pattern.kind {
                PatternKind::OneOf(values) => values.first().map(ToString::to_string).unwrap_or_default(),
                PatternKind::Cidr(_) | PatternKind::CidrFile(_) => {
                    pattern.ranges().first().map(Range::address).unwrap_or_default()
                }
                PatternKind::Wildcard(_) => pattern.text.replace('*', "x"),
                // Nobody can derive a value from any regular expression.
                PatternKind::Regex => pattern.name.to_string(),
            },
        }
    }
}

impl Pattern {
    /// Whether it matches this value. It may search all of a file, or compile an expression.
    pub(crate) fn matches(&self, value: &str) -> bool {
        match &self.kind {
            PatternKind::OneOf(values) => values.iter().any(|own| **own == *value),
            PatternKind::Cidr(_) | PatternKind::CidrFile(_) => {
                self.ranges().iter().any(|range| range.contains(value))
            }
            PatternKind::Wildcard(wildcard) => wildcard.matches(value),
            PatternKind::Regex => regexes::matches(&self.name, value),
        }
    }

    /// The values of a list.
    pub(crate) fn values(&self) -> &[Box<str>] {
        match &self.kind {
            PatternKind::OneOf(values) => values,
            _ => &[],
        }
    }

    /// The ranges of addresses.
    pub(crate) fn ranges(&self) -> &[Range] {
        match &self.kind {
            PatternKind::Cidr(range) => slice::from_ref(range),
            PatternKind::CidrFile(ranges) => ranges,
            _ => &[],
        }
    }

    /// Its place in the order in which patterns are tried. Equal ones are tried in file order.
    pub(crate) fn rank(&self) -> impl Ord + use<> {
        match &self.kind {
            PatternKind::OneOf(_) => (0, Reverse(0)),
            PatternKind::Cidr(range) => (1, Reverse(range.len())),
            PatternKind::CidrFile(_) => (1, Reverse(0)),
            PatternKind::Wildcard(_) => (2, Reverse(0)),
            PatternKind::Regex => (3, Reverse(0)),
        }
    }
}

impl<T: Copy> Patterns<T> {
    /// Compiles patterns, given in file order. `Err` is the target of the first regular expression: all of them are too
    /// large together.
    pub(crate) fn new(patterns: &[(T, Pattern)]) -> Result<Self, T> {
        let lists = patterns.iter().map(|(target, pattern)| (pattern.values(), *target));
        let ranges = |(target, pattern): &(T, Pattern)| {
            let target = *target;
            pattern.ranges().iter().map(move |range| (*range, target)).collect::<Vec<_>>()
        };
        let texts = |is_wanted: fn(&PatternKind) -> bool| {
            let wanted = patterns.iter().filter(move |(_, pattern)| is_wanted(&pattern.kind));
            wanted.map(|(target, pattern)| (&*pattern.name, *target))
        };
        Ok(Self {
            lists: Lists::new(lists),
            ranges: Ranges::new(patterns.iter().flat_map(ranges)),
            wildcards: Wildcards::new(texts(|kind| matches!(kind, PatternKind::Wildcard(_)))),
            regexes: Regexes::new(texts(|kind| matches!(kind, PatternKind::Regex)))?,
        })
    }

    /// The target of the first pattern that matches.
    pub(crate) fn find(&self, value: &str) -> Option<T> {
        let listed = self.lists.find(value).or_else(|| self.ranges.find(value));
        listed.or_else(|| self.wildcards.find(value)).or_else(|| self.regexes.find(value))
    }

    /// The target of the first wildcard that matches all values of this pattern, where a wildcard is tried first;
    /// `None` stands for every value.
    ///
    /// A wildcard matches all values of another one exactly when it matches the other's text with each `*` replaced
    /// by a character that it does not hold itself: only its own `*` can match that character.
    pub(crate) fn covering(&self, pattern: Option<&Pattern>) -> Option<T> {
        let text = match pattern.map(|pattern| (&pattern.kind, &pattern.text)) {
            None | Some((PatternKind::Regex, _)) => "*",
            Some((PatternKind::Wildcard(_), text)) => text,
            Some(_) => return None,
        };
        self.wildcards.find(&text.replace('*', ANYTHING))
    }
}
