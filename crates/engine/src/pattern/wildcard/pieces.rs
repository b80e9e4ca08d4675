//! Patterns that share their ends with many others (`*a*`, `user-*-a-*`), filed under a literal piece of their middle.
//!
//! The pieces of all patterns are searched in a value at once (Aho-Corasick), so a look-up is linear in the value and
//! not in the number of patterns. A pattern that is only its piece (`*a*`) matches where the piece is found; the
//! others are tested then, each once per value.
//!
//! Pieces in the automaton are short. So the number of patterns bounds its memory, and the number of pieces that end
//! at one byte of a value is bounded too.

use std::cmp::Reverse;
use std::collections::HashMap;

use aho_corasick::Anchored;
use aho_corasick::automaton::Automaton;
use aho_corasick::nfa::contiguous::NFA;
use smallvec::SmallVec;

use super::{Wildcard, earlier};

/// The most bytes of a piece that are searched; of a longer piece the last ones.
const SEARCHED_BYTES_MAX: usize = 32;

/// Patterns by a piece of their middle.
#[derive(Clone, Debug, Default)]
pub(super) struct Pieces {
    /// `None`: there are no patterns.
    automaton: Option<NFA>,
    /// By the automaton's number of the piece.
    pieces: Vec<Piece>,
}

/// The patterns that are filed under one piece.
#[derive(Clone, Debug, Default)]
struct Piece {
    /// The first in file order of the patterns that are only this piece.
    plain: Option<u32>,
    /// The patterns that have to be tested, in file order.
    tested: Vec<Wildcard>,
}

/// The pieces that were found in a value: a bit each. The first 8,192 need no allocation.
#[derive(Default)]
struct Seen(SmallVec<[u64; 128]>);

impl Pieces {
    /// Files patterns (in file order), each under the piece that the fewest others have. They all have pieces. `Err`
    /// returns the patterns, when they are too many for an automaton.
    pub(super) fn new(patterns: Vec<Wildcard>) -> Result<Self, Vec<Wildcard>> {
        if patterns.is_empty() {
            return Ok(Self::default());
        }
        let (texts, numbers) = number_pieces(&patterns);
        let Ok(automaton) = NFA::new(&texts) else { return Err(patterns) };
        let mut pieces: Vec<Piece> = texts.iter().map(|_| Piece::default()).collect();
        for (pattern, number) in patterns.into_iter().zip(numbers) {
            pieces[number].file(pattern);
        }
        Ok(Self { automaton: Some(automaton), pieces })
    }

    /// No pattern is filed here.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The least of `first` and the places in file order of all patterns that match.
    pub(super) fn first_match(&self, value: &str, mut first: Option<u32>) -> Option<u32> {
        let Some(automaton) = &self.automaton else { return first };
        let Ok(mut state) = automaton.start_state(Anchored::No) else { return first };
        let mut seen = Seen::default();
        for &byte in value.as_bytes() {
            state = automaton.next_state(Anchored::No, state, byte);
            if !automaton.is_match(state) {
                continue;
            }
            for index in 0..automaton.match_len(state) {
                let number = automaton.match_pattern(state, index).as_usize();
                if seen.insert(number) {
                    first = self.pieces[number].first_match(value, first);
                }
            }
        }
        first
    }
}

/// The different pieces under which these patterns are filed, and the number of each pattern's piece.
fn number_pieces(patterns: &[Wildcard]) -> (Vec<Box<[u8]>>, Vec<usize>) {
    let mut patterns_with = HashMap::<&[u8], usize>::new();
    for piece in patterns.iter().flat_map(|pattern| &pattern.pieces) {
        *patterns_with.entry(searched(piece)).or_default() += 1;
    }
    let mut numbers = HashMap::<&[u8], usize>::new();
    let mut texts = Vec::new();
    let mut number = |piece| {
        *numbers.entry(piece).or_insert_with(|| {
            texts.push(Box::from(piece));
            texts.len() - 1
        })
    };
    let numbered = patterns.iter().map(|pattern| number(rarest(pattern, &patterns_with))).collect();
    (texts, numbered)
}

/// The piece of a pattern that the fewest patterns have; of several the longest.
fn rarest<'p>(pattern: &'p Wildcard, patterns_with: &HashMap<&[u8], usize>) -> &'p [u8] {
    let pieces = pattern.pieces.iter().map(|piece| searched(piece));
    pieces.min_by_key(|piece| (patterns_with.get(piece), Reverse(piece.len()))).unwrap_or_default()
}

/// The part of a piece that is searched: its end, because long pieces often begin alike (`https://…`).
fn searched(piece: &str) -> &[u8] {
    let bytes = piece.as_bytes();
    &bytes[bytes.len().saturating_sub(SEARCHED_BYTES_MAX)..]
}

impl Piece {
    fn file(&mut self, pattern: Wildcard) {
        let is_short = |pieces: &[Box<str>]| matches!(pieces, [only] if only.len() <= SEARCHED_BYTES_MAX);
        if pattern.prefix.is_empty() && pattern.suffix.is_empty() && is_short(&pattern.pieces) {
            self.plain = earlier(self.plain, pattern.order);
        } else {
            self.tested.push(pattern);
        }
    }

    fn first_match(&self, value: &str, first: Option<u32>) -> Option<u32> {
        let first = self.plain.map_or(first, |plain| earlier(first, plain));
        let mut earlier_ones =
            self.tested.iter().take_while(|pattern| first.is_none_or(|first| pattern.order < first));
        earlier_ones.find(|pattern| pattern.matches(value)).map(|found| found.order).or(first)
    }
}

impl Seen {
    /// Notes a piece; `false` when it was seen already.
    fn insert(&mut self, number: usize) -> bool {
        let (word, bit) = (number / 64, 1 << (number % 64));
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        let is_new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        is_new
    }
}
