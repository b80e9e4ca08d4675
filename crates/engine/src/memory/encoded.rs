//! Counters as bytes, one after the other, each as its key and its state. Reading checks every one.

use std::fmt;

use crate::key::Key;
use crate::limit::{Algorithm, Append as _, Counter, Damage, Reader, with_algorithms};
use crate::time::Timestamp;

/// Counters of one algorithm, as bytes.
#[derive(Clone, Copy, Debug)]
pub struct Encoded<'b> {
    /// Their algorithm.
    pub algorithm: Algorithm,
    /// How many they are.
    pub counters: u32,
    /// One after the other.
    pub bytes: &'b [u8],
    /// When they were copied, or later: no counter may have seen a later time.
    pub copied_at: Timestamp,
}

/// Why counters were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportError {
    /// No store has ever written these bytes.
    Damaged {
        /// The counter among those of this step, from 0.
        counter: u32,
        /// What is wrong.
        what: &'static str,
    },
    /// There is no room for all of them.
    Full,
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged { counter, what } => write!(f, "counter {counter}: {what}"),
            Self::Full => f.write_str("there is no room for all counters"),
        }
    }
}

impl std::error::Error for ImportError {}

impl Encoded<'_> {
    /// Checks what can be checked without a store.
    ///
    /// # Errors
    /// When the bytes are no counters.
    pub fn verify(&self) -> Result<(), ImportError> {
        macro_rules! verify {
            ($( $(#[$attribute:meta])* $variant:ident: $module:ident, )+) => {
                match self.algorithm {
                    $( Algorithm::$variant => {
                        self.each(|_, _: crate::limit::$module::$variant| Ok(()))
                    } )+
                }
            };
        }
        with_algorithms!(verify)
    }

    /// Calls `take` with every counter.
    pub(super) fn each<S: Counter>(
        &self,
        mut take: impl FnMut(Key, S) -> Result<(), ImportError>,
    ) -> Result<(), ImportError> {
        let mut bytes = Reader::new(self.bytes);
        for counter in 0..self.counters {
            let damaged = |what| ImportError::Damaged { counter, what };
            let (key, state) = decode(&mut bytes, self.copied_at).map_err(damaged)?;
            take(key, state).map_err(|error| match error {
                ImportError::Damaged { what, .. } => damaged(what),
                ImportError::Full => ImportError::Full,
            })?;
        }
        let behind = ImportError::Damaged { counter: self.counters, what: "bytes follow the last counter" };
        if bytes.is_empty() { Ok(()) } else { Err(behind) }
    }
}

pub(super) fn encode<S: Counter>(key: Key, state: &S, out: &mut Vec<u8>) {
    out.u128(key.0);
    state.encode(out);
}

/// Reads a counter that was copied at `copied_at`.
fn decode<S: Counter>(bytes: &mut Reader<'_>, copied_at: Timestamp) -> Result<(Key, S), Damage> {
    let (key, state) = (Key(bytes.u128()?), S::decode(bytes)?);
    if state.latest() > copied_at {
        return Err("its latest time is later than the copy");
    }
    if state.expires_at() <= state.latest() {
        return Err("it had expired when it was last used");
    }
    Ok((key, state))
}
