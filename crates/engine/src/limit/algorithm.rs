//! The algorithms, in one list: the enum, the names, the numbers and the memory store's tables all follow from it.

use crate::limit::{COUNT_REQUESTS_MAX, LOG_REQUESTS_MAX, SLOTS_MAX};

/// Calls a macro with every algorithm: documentation, variant (also the type of its counters) and module (also its
/// name in rule files). The number of an algorithm is its place in this list. The last four cannot be named in rules.
macro_rules! with_algorithms {
    ($call:ident) => {
        $call! {
            /// Every admitted hit keeps its own timestamp: exact.
            SlidingLog: sliding_log,
            /// Time is cut into buckets. A bucket counts until all of it has left the window: never more than N in any
            /// window, and capacity comes back at most one bucket late.
            #[default]
            SlidingWindow: sliding_window,
            /// The current aligned window and a share of the previous one: an estimate.
            SlidingWindowWeighted: sliding_window_weighted,
            /// The aligned window of `envoyproxy/ratelimit`: hits count whether admitted or not.
            FixedWindow: fixed_window,
            /// A bucket of `burst` tokens, refilled continuously.
            TokenBucket: token_bucket,
            /// A bucket that leaks continuously; holds at most `burst` hits.
            LeakyBucket: leaky_bucket,
            /// One count for each period of a calendar. Rules choose it by `period`, not by its name.
            Calendar: calendar,
            /// Slots of calls in flight. Rules choose it by `concurrency`.
            Concurrency: concurrency,
            /// Strikes, and the ban that they begin. Rules choose it by `ban`.
            Ban: ban,
            /// Hits that reservations hold. Rules choose it by `reserve`.
            Holds: holds,
        }
    };
}

pub(crate) use with_algorithms;

macro_rules! define {
    ($( $(#[$attribute:meta])* $variant:ident: $module:ident, )+) => {
        /// How a limit counts.
        // Not `non_exhaustive`: the shared store and the simulation have to handle every algorithm, and the compiler
        // finds the places when one is added. A new algorithm is a breaking release of this crate.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub enum Algorithm {
            $( $(#[$attribute])* $variant, )+
        }

        impl Algorithm {
            /// All algorithms, in the order of their numbers.
            pub const ALL: [Self; [$(stringify!($variant)),+].len()] = [$(Self::$variant),+];

            /// Its name in rule files.
            pub const fn name(self) -> &'static str {
                match self {
                    $( Self::$variant => stringify!($module), )+
                }
            }
        }
    };
}

with_algorithms!(define);

impl Algorithm {
    /// Those that rules, records and settings may name: all but `calendar`, `concurrency`, `ban` and `holds`.
    pub const NAMED: [Self; Self::ALL.len() - 4] = *Self::ALL.first_chunk().expect("it is shorter by four");

    /// Those whose counters count hits: all but `concurrency`, whose counters hold slots, `ban` and `holds`.
    #[doc(hidden)]
    pub const OF_HITS: [Self; Self::ALL.len() - 3] =
        *Self::ALL.first_chunk().expect("it is shorter by three");

    /// What a text should have been that names none of them.
    #[doc(hidden)]
    pub const EXPECTED: &str = "an algorithm (expected one of: sliding_log sliding_window sliding_window_weighted \
                                fixed_window token_bucket leaky_bucket)";

    /// Its place in [`ALL`](Self::ALL).
    #[inline]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// It never admits more than N hits in any window, wherever it starts.
    #[inline]
    pub const fn is_strict(self) -> bool {
        matches!(self, Self::SlidingLog | Self::SlidingWindow)
    }

    /// It has a capacity of its own, `burst`.
    #[inline]
    pub const fn is_bucket(self) -> bool {
        matches!(self, Self::TokenBucket | Self::LeakyBucket)
    }

    /// The largest N, and `burst`, that its counters can hold.
    #[inline]
    pub const fn requests_max(self) -> u64 {
        match self {
            Self::FixedWindow | Self::Calendar => COUNT_REQUESTS_MAX,
            Self::SlidingLog => LOG_REQUESTS_MAX,
            Self::Concurrency => SLOTS_MAX as u64,
            _ => u32::MAX as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_place_in_the_list() {
        for (place, algorithm) in Algorithm::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(algorithm.number()), place);
        }
    }

    #[test]
    fn all_but_the_last_four_are_named_and_expected() {
        assert_eq!(Algorithm::NAMED, Algorithm::ALL[..6]);
        let names = Algorithm::NAMED.map(Algorithm::name).join(" ");
        assert_eq!(Algorithm::EXPECTED, format!("an algorithm (expected one of: {names})"));
    }
}
