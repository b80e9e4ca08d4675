//! The admin token: a text that an HTTP header can carry.
//!
//! In: the text of a setting, or the bytes of a file. Out: a token, or why it could never match. It is never printed.

use std::fmt;
use std::io;

use http::HeaderValue;

/// Random bytes in a new token.
const RANDOM_BYTES: usize = 32;

/// Why a text is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// There is nothing in it.
    #[error("is empty (expected a token)")]
    Empty,
    /// Not text.
    #[error("is not UTF-8 (expected a token)")]
    NotText,
    /// Characters that no header can carry.
    #[error(
        "has a line feed or another control character in it, so no request could carry it (expected a token of one line)"
    )]
    Control,
    /// Spaces at its ends, which a header loses.
    #[error("begins or ends with white space, which HTTP removes from headers (expected a token without)")]
    Space,
}

/// The token.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminToken(String);

impl AdminToken {
    /// The token that a text is.
    /// Fails when no request could carry it.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        if text.is_empty() {
            return Err(TokenError::Empty);
        }
        if text.contains(|each: char| each.is_control()) {
            return Err(TokenError::Control);
        }
        if text.trim() != text {
            return Err(TokenError::Space);
        }
        Ok(Self(text.to_owned()))
    }

    /// The token in a file. One line feed at its end, as editors write it, is not part of it.
    /// Fails when no request could carry it.
    pub fn of_file(bytes: &[u8]) -> Result<Self, TokenError> {
        let text = std::str::from_utf8(bytes).map_err(|_| TokenError::NotText)?;
        Self::parse(text.strip_suffix('\n').unwrap_or(text))
    }

    /// A new one that nobody can guess.
    /// Fails when the system has no random bytes.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; RANDOM_BYTES];
        getrandom::fill(&mut bytes).map_err(io::Error::from)?;
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The header with which a client sends it.
    #[must_use]
    pub fn header(&self) -> HeaderValue {
        let bearer = HeaderValue::from_str(&format!("Bearer {}", self.0));
        let mut header = bearer.expect("a token has no control characters");
        header.set_sensitive(true);
        header
    }
}

/// Does not print it.
impl fmt::Debug for AdminToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("AdminToken(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_what_a_header_can_carry() {
        for good in ["a", "open sesame", "ключ", "a=b,c;\"d\""] {
            let token = AdminToken::parse(good).expect(good);
            assert_eq!(token.as_str(), good);
            assert_eq!(token.header().as_bytes(), format!("Bearer {good}").as_bytes());
            assert!(!format!("{token:?} {:?}", token.header()).contains(good));
        }
        for (bad, why) in [
            ("", TokenError::Empty),
            ("a\nb", TokenError::Control),
            ("a\n", TokenError::Control),
            ("a\tb", TokenError::Control),
            ("a\u{7f}", TokenError::Control),
            (" a", TokenError::Space),
            ("a ", TokenError::Space),
        ] {
            assert_eq!(AdminToken::parse(bad), Err(why), "{bad:?}");
        }
    }

    #[test]
    fn one_line_feed_at_the_end_of_a_file_is_not_part_of_it() {
        let read = |bytes: &[u8]| AdminToken::of_file(bytes).map(|token| token.as_str().to_owned());
        assert_eq!((read(b"open"), read(b"open\n")), (Ok("open".to_owned()), Ok("open".to_owned())));
        assert_eq!(read(b"open\n\n"), Err(TokenError::Control));
        assert_eq!(read(b"open\r\n"), Err(TokenError::Control));
        assert_eq!((read(b""), read(b"\n")), (Err(TokenError::Empty), Err(TokenError::Empty)));
        assert_eq!(read(b"\xff"), Err(TokenError::NotText));
        let (one, other) = (AdminToken::random().expect("bytes"), AdminToken::random().expect("bytes"));
        assert!(one != other && one.as_str().len() == 64);
    }
}
