//! Wildcards: which of many patterns is the first, in file order, that matches a value.
//!
//! A pattern is text in which every `*` stands for zero or more characters. Patterns are classified when they are
//! compiled. A plain prefix (`a*`) or suffix (`*a`) needs no test: a binary search among all prefixes finds it, and
//! for every chain of prefixes the first pattern in file order is precomputed. The others (`a*b`, `*a*`, `a*b*c`) are
//! filed under their literal start, or under their end if fewer patterns have it, and are tested when that fits. Where
//! many patterns have the same start and end, they are filed under a literal piece of their middle (`pieces`).
//!
//! Testing a pattern is greedy: each piece between two stars is searched once, from the end of the last one. That is
//! right, because an earlier match leaves more room for the rest. It does not backtrack, and is linear in the value.

mod pieces;

use std::cmp::Ordering;
use std::collections::HashMap;

use self::pieces::Pieces;

/// If more patterns than this have the same end, they are filed under a piece of their middle instead.
const WITH_END_MAX: usize = 16;

/// The patterns under one key, in file order; `T` is the target of a pattern.
#[derive(Clone, Debug)]
pub(super) struct Wildcards<T> {
    targets: Vec<T>,
    by_prefix: Affixes,
    by_suffix: Affixes,
    by_piece: Pieces,
}

/// A pattern, split at its stars.
#[derive(Clone, Debug)]
pub(crate) struct Wildcard {
    /// Its place in file order.
    order: u32,
    prefix: Box<str>,
    suffix: Box<str>,
    /// The pieces between the first star and the last one, without empty ones.
    pieces: Box<[Box<str>]>,
}

/// Literal prefixes (or suffixes, read backwards) of patterns, sorted.
#[derive(Clone, Debug)]
struct Affixes {
    end: End,
    sorted: Vec<Affix>,
}

/// The end of a value that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Prefix,
    Suffix,
}

/// Where a pattern is filed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placement {
    End(End),
    Piece,
}

#[derive(Clone, Debug)]
struct Affix {
    text: Box<str>,
    /// The longest of the other affixes with which this one begins.
    parent: Option<u32>,
    /// The first in file order of the patterns that are only this affix, or only one of its ancestors.
    plain: Option<u32>,
    /// The patterns with this affix that have to be tested, in file order.
    tested: Vec<Wildcard>,
    /// The nearest ancestor that has patterns to be tested.
    next_tested: Option<u32>,
}

impl<T: Copy> Wildcards<T> {
    /// Compiles patterns, given in file order.
    pub(super) fn new<'a>(patterns: impl IntoIterator<Item = (&'a str, T)>) -> Self {
        let (patterns, targets): (Vec<Wildcard>, _) =
            (0..).zip(patterns).map(|(order, (text, target))| (Wildcard::new(order, text), target)).unzip();
        let placements = placements(&patterns);
        let take = |placement: Placement, patterns: &mut Vec<(Placement, Wildcard)>| -> Vec<Wildcard> {
            patterns.extract_if(.., |(its, _)| *its == placement).map(|(_, pattern)| pattern).collect()
        };
        let mut patterns: Vec<_> = placements.into_iter().zip(patterns).collect();
        let (by_piece, left) = match Pieces::new(take(Placement::Piece, &mut patterns)) {
            Ok(pieces) => (pieces, Vec::new()),
            Err(patterns) => (Pieces::default(), patterns),
        };
        let mut by_prefix = take(Placement::End(End::Prefix), &mut patterns);
        by_prefix.extend(left);
        by_prefix.sort_by_key(|pattern| pattern.order);
        Self {
            targets,
            by_prefix: Affixes::new(End::Prefix, by_prefix),
            by_suffix: Affixes::new(End::Suffix, take(Placement::End(End::Suffix), &mut patterns)),
            by_piece,
        }
    }

    /// The target of the first pattern that matches.
    pub(super) fn find(&self, value: &str) -> Option<T> {
        let first = self.by_suffix.first_match(value, self.by_prefix.first_match(value, None));
        let first = self.by_piece.first_match(value, first)?;
        self.targets.get(first as usize).copied()
    }
}

/// Where each of these patterns is filed.
fn placements(patterns: &[Wildcard]) -> Vec<Placement> {
    let (prefixes, suffixes) = (End::Prefix.counts(patterns), End::Suffix.counts(patterns));
    let count = |counts: &HashMap<&str, usize>, text: &str| counts.get(text).copied().unwrap_or_default();
    let placement = |pattern: &Wildcard| {
        pattern.placement(count(&prefixes, &pattern.prefix), count(&suffixes, &pattern.suffix))
    };
    patterns.iter().map(placement).collect()
}

impl Wildcard {
    /// A pattern by itself. `text` has at least one `*`.
    pub(crate) fn of(text: &str) -> Self {
        Self::new(0, text)
    }

    fn new(order: u32, text: &str) -> Self {
        let (prefix, rest) = text.split_once('*').unwrap_or((text, ""));
        let (middle, suffix) = rest.rsplit_once('*').unwrap_or(("", rest));
        let pieces = middle.split('*').filter(|piece| !piece.is_empty()).map(Box::from).collect();
        Self { order, prefix: prefix.into(), suffix: suffix.into(), pieces }
    }

    /// Where it is filed, given how many patterns have its prefix and its suffix: under the end that fewer have and
    /// that is not empty, or under a piece if many have that too.
    fn placement(&self, with_prefix: usize, with_suffix: usize) -> Placement {
        let is_prefix = self.suffix.is_empty() || (!self.prefix.is_empty() && with_prefix <= with_suffix);
        let (end, with_end) = if is_prefix { (End::Prefix, with_prefix) } else { (End::Suffix, with_suffix) };
        let is_common = with_end > WITH_END_MAX && !self.pieces.is_empty();
        if is_common { Placement::Piece } else { Placement::End(end) }
    }

    /// It matches every value that has the affix under which it is filed.
    fn is_plain(&self) -> bool {
        self.pieces.is_empty() && (self.prefix.is_empty() || self.suffix.is_empty())
    }

    /// Whether all of `value` matches.
    pub(crate) fn matches(&self, value: &str) -> bool {
        let Some(rest) = value.strip_prefix(&*self.prefix) else { return false };
        let Some(mut rest) = rest.strip_suffix(&*self.suffix) else { return false };
        self.pieces.iter().all(|piece| match rest.split_once(&**piece) {
            Some((_, after)) => {
                rest = after;
                true
            }
            None => false,
        })
    }
}

impl Affixes {
    /// Files patterns (in file order) under their affixes.
    fn new(end: End, mut patterns: Vec<Wildcard>) -> Self {
        // Stable, so that patterns with the same affix stay in file order.
        patterns.sort_by(|a, b| end.compare(end.of(a), end.of(b)));
        let mut affixes = Self { end, sorted: Vec::new() };
        for pattern in patterns {
            affixes.file(pattern);
        }
        affixes
    }

    /// Files the next pattern in sorted order.
    fn file(&mut self, pattern: Wildcard) {
        let text = self.end.of(&pattern);
        if self.sorted.last().is_none_or(|last| *last.text != *text) {
            let affix = self.child(text);
            self.sorted.push(affix);
        }
        let Some(affix) = self.sorted.last_mut() else { return };
        if pattern.is_plain() {
            affix.plain = earlier(affix.plain, pattern.order);
        } else {
            affix.tested.push(pattern);
        }
    }

    /// An affix that comes after all others, with the values that it inherits from its parent.
    fn child(&self, text: &str) -> Affix {
        let last = self.sorted.len().checked_sub(1).map(|last| last as u32);
        let parent = self.chain(last).find(|&(_, affix)| self.end.fits(&affix.text, text));
        Affix {
            text: text.into(),
            parent: parent.map(|(index, _)| index),
            plain: parent.and_then(|(_, affix)| affix.plain),
            tested: Vec::new(),
            next_tested: parent.and_then(|(index, affix)| {
                if affix.tested.is_empty() { affix.next_tested } else { Some(index) }
            }),
        }
    }

    /// The affix of this index and its ancestors, longest first.
    fn chain(&self, from: Option<u32>) -> impl Iterator<Item = (u32, &Affix)> {
        let at = |index: u32| self.sorted.get(index as usize).map(|affix| (index, affix));
        std::iter::successors(from.and_then(at), move |(_, affix)| affix.parent.and_then(at))
    }

    /// The least of `first` and the places in file order of all patterns that match.
    fn first_match(&self, value: &str, first: Option<u32>) -> Option<u32> {
        let Some(longest) = self.longest_fitting(value) else { return first };
        let mut first = longest.plain.map_or(first, |plain| earlier(first, plain));
        let mut affix = Some(longest);
        while let Some(Affix { tested, next_tested, .. }) = affix {
            let candidates =
                tested.iter().take_while(|pattern| first.is_none_or(|first| pattern.order < first));
            if let Some(found) = candidates.into_iter().find(|pattern| pattern.matches(value)) {
                first = Some(found.order);
            }
            affix = next_tested.and_then(|index| self.sorted.get(index as usize));
        }
        first
    }

    /// The longest affix that the value has. All other affixes of the value are ancestors of this one: everything
    /// that sorts between an affix of the value and the value itself has that affix too.
    fn longest_fitting(&self, value: &str) -> Option<&Affix> {
        let after = self.sorted.partition_point(|affix| self.end.compare(&affix.text, value).is_le());
        let last = self.sorted.get(..after)?.last()?;
        let common = self.end.common_len(&last.text, value);
        let mut affix = last;
        while affix.text.len() > common {
            affix = self.sorted.get(affix.parent? as usize)?;
        }
        Some(affix)
    }
}

impl End {
    /// The literal text at this end of a pattern.
    fn of(self, pattern: &Wildcard) -> &str {
        match self {
            Self::Prefix => &pattern.prefix,
            Self::Suffix => &pattern.suffix,
        }
    }

    /// How many patterns have each of the literal texts at this end.
    fn counts(self, patterns: &[Wildcard]) -> HashMap<&str, usize> {
        let mut counts = HashMap::new();
        patterns.iter().for_each(|pattern| *counts.entry(self.of(pattern)).or_default() += 1);
        counts
    }

    fn compare(self, a: &str, b: &str) -> Ordering {
        match self {
            Self::Prefix => a.as_bytes().cmp(b.as_bytes()),
            Self::Suffix => a.bytes().rev().cmp(b.bytes().rev()),
        }
    }

    fn fits(self, affix: &str, text: &str) -> bool {
        match self {
            Self::Prefix => text.as_bytes().starts_with(affix.as_bytes()),
            Self::Suffix => text.as_bytes().ends_with(affix.as_bytes()),
        }
    }

    /// How many bytes two texts have in common at this end.
    fn common_len(self, a: &str, b: &str) -> usize {
        let common = |(a, b): &(u8, u8)| a == b;
        match self {
            Self::Prefix => a.bytes().zip(b.bytes()).take_while(common).count(),
            Self::Suffix => a.bytes().rev().zip(b.bytes().rev()).take_while(common).count(),
        }
    }
}

fn earlier(a: Option<u32>, b: u32) -> Option<u32> {
    Some(a.map_or(b, |a| a.min(b)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Written from the words "each `*` matches zero or more characters", by trying all of them.
    fn naive(pattern: &[char], value: &[char]) -> bool {
        match pattern.split_first() {
            None => value.is_empty(),
            Some(('*', rest)) => (0..=value.len()).any(|skipped| naive(rest, &value[skipped..])),
            Some((first, rest)) => value.first() == Some(first) && naive(rest, &value[1..]),
        }
    }

    fn chars(text: &str) -> Vec<char> {
        text.chars().collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn the_first_pattern_that_matches_is_found(
            patterns in prop::collection::vec("[abé]{0,3}\\*[abé*]{0,5}", 0..12),
            values in prop::collection::vec("[abé]{0,8}", 1..12),
        ) {
            let compiled = Wildcards::new(patterns.iter().map(String::as_str).zip(0..));
            for value in values {
                let expected = patterns.iter().position(|pattern| naive(&chars(pattern), &chars(&value)));
                prop_assert_eq!(compiled.find(&value), expected, "{:?} {:?}", patterns, value);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        /// Enough patterns with the same ends that pieces are searched. Some pieces are longer than the searched
        /// part.
        #[test]
        fn the_first_of_many_patterns_with_the_same_ends_is_found(
            patterns in prop::collection::vec("(a|)\\*[abc]{1,4}(\\*[abc*]{0,4}|(ab){20})\\*(c|)", 40..80),
            values in prop::collection::vec("[abc]{0,12}(ab){0,25}[abc]{0,4}", 1..12),
        ) {
            let compiled = Wildcards::new(patterns.iter().map(String::as_str).zip(0..));
            prop_assert!(!compiled.by_piece.is_empty());
            for value in values {
                let matches = |pattern: &String| Wildcard::new(0, pattern).matches(&value);
                let expected = patterns.iter().position(matches);
                prop_assert_eq!(compiled.find(&value), expected, "{:?} {:?}", patterns, value);
            }
        }
    }

    #[test]
    fn of_many_pieces_in_one_value_the_first_in_file_order_is_found() {
        let patterns: Vec<String> = (0..5_000).map(|index| format!("*-{}-*", 4_999 - index)).collect();
        let wildcards = Wildcards::new(patterns.iter().map(String::as_str).zip(0..5_000));
        let value: String = (0..5_000).map(|index| format!("-{index}-")).collect();
        assert_eq!(wildcards.find(&value), Some(0));
        assert_eq!(wildcards.find("x-17-y-4000-"), Some(999));
        assert_eq!(wildcards.find("-17"), None);
    }

    /// A piece that is found everywhere, and patterns that are tested without a match: each once, not once per place.
    #[test]
    fn a_hostile_value_takes_no_time() {
        let patterns: Vec<String> = (1..=40).map(|len| format!("*{}*b*", "a".repeat(len))).collect();
        let wildcards = Wildcards::new(patterns.iter().map(String::as_str).zip(0..));
        assert!(!wildcards.by_piece.is_empty());
        assert_eq!(wildcards.find(&"a".repeat(1_000_000)), None);
    }

    #[test]
    fn the_pieces_of_a_pattern_do_not_overlap_in_the_value() {
        let wildcards = Wildcards::new([("aba*aba", 0), ("x*y*y*z", 1)]);
        for (value, found) in
            [("aba", None), ("ababa", None), ("abaaba", Some(0)), ("xyz", None), ("xyyz", Some(1))]
        {
            assert_eq!(wildcards.find(value), found, "{value}");
        }
    }

    #[test]
    fn a_hostile_pattern_takes_no_time() {
        let pattern = "*a".repeat(2_000) + "*b*";
        let wildcards = Wildcards::new([(pattern.as_str(), 0)]);
        assert_eq!(wildcards.find(&"a".repeat(100_000)), None);
    }
}
