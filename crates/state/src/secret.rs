//! The secret of keys: drawn at random, taken from a state, or derived from a file.
//!
//! Counters are identified by keys, which are hashes under this secret. So a state is useful only with it: the state
//! contains the secret or, if it comes from a file, a fingerprint.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::format::{Fingerprint, Header, SecretBytes};
use crate::outcome::Distrust;
use tidegate_engine::key::{KeySecret, SharedId};

/// The longest secret in a file, in bytes.
const FILE_BYTES_MAX: usize = 4 << 10;
/// The bytes that are read of a file: white space at its ends does not count.
const FILE_READ_MAX: u64 = 16 << 10;
/// The shortest, without white space at its ends.
const FILE_BYTES_MIN: usize = 16;

/// A file that cannot be used for the secret of keys.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The system refuses.
    #[error("KEY_SECRET_FILE: cannot read {}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Its length is not allowed.
    #[error("KEY_SECRET_FILE: {} has {length} bytes (expected {FILE_BYTES_MIN} to {FILE_BYTES_MAX})", path.display())]
    Length {
        /// Which file.
        path: PathBuf,
        /// Its length, without white space at its ends.
        length: usize,
    },
}

/// The secret of a process, and where it comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeySource {
    secret: SecretBytes,
    is_in_file: bool,
}

impl KeySource {
    /// A random one.
    /// Fails when the system has no random bytes.
    pub fn random() -> io::Result<Self> {
        let mut secret = [0; 16];
        getrandom::fill(&mut secret).map_err(io::Error::from)?;
        Ok(Self { secret, is_in_file: false })
    }

    /// The secret in this file: a hash of its contents, without white space at its ends.
    /// Fails when it cannot be read, or is too short or too long.
    pub fn of_file(path: &Path) -> Result<Self, SecretError> {
        let mut text = Vec::new();
        // A device or a log may have no end.
        let read = File::open(path).and_then(|file| file.take(FILE_READ_MAX).read_to_end(&mut text));
        read.map_err(|source| SecretError::Io { path: path.to_owned(), source })?;
        let text = text.trim_ascii();
        if !(FILE_BYTES_MIN..=FILE_BYTES_MAX).contains(&text.len()) {
            return Err(SecretError::Length { path: path.to_owned(), length: text.len() });
        }
        Ok(Self::of_text(text))
    }

    /// The secret of this text of a file.
    pub fn of_text(text: &[u8]) -> Self {
        let SharedId(secret) = SharedId::of([b"tidegate: secret of keys".as_slice(), text]);
        Self { secret, is_in_file: true }
    }

    /// The secret under which the keys of this state were made. `own` is the secret of this process, if it has a
    /// file.
    /// Fails when the state's is another one, or not known.
    pub fn of_state(header: &Header, own: Option<Self>) -> Result<Self, Distrust> {
        let written = header.secret.map(|secret| Self { secret, is_in_file: false });
        match (own, written) {
            (Some(own), _) if own.fingerprint() == header.fingerprint => Ok(own),
            (Some(_), _) => Err(Distrust::OtherSecret),
            (None, None) => Err(Distrust::NoSecret),
            (None, Some(written)) if written.fingerprint() == header.fingerprint => Ok(written),
            (None, Some(_)) => {
                Err(Distrust::Damaged { at: 0, what: "the secret is not the one of the keys" })
            }
        }
    }

    /// For the keys of rules.
    pub fn secret(&self) -> KeySecret {
        KeySecret::new(self.secret)
    }

    /// What a state contains of it in addition to the fingerprint.
    pub(super) fn written(&self) -> Option<SecretBytes> {
        (!self.is_in_file).then_some(self.secret)
    }

    pub(super) fn fingerprint(&self) -> Fingerprint {
        SharedId::of([b"tidegate: fingerprint of a secret of keys".as_slice(), &self.secret]).0
    }
}

/// Does not print the secret.
impl std::fmt::Debug for KeySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeySource(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_an_end_is_no_secret() {
        let refused = KeySource::of_file(Path::new("/dev/zero")).expect_err("far too long").to_string();
        assert!(refused.contains("(expected 16 to 4096)"), "{refused}");
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?}", KeySource::of_text(b"0123456789abcdef")), "KeySource(…)");
    }
}
