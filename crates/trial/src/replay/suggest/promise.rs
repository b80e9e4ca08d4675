//! `--deny-at-most`: how much a suggested limit may deny.
//!
//! In: `0.1 % of keys`, `2% of requests`. Out: the part, and what it is a part of.

use std::fmt;

/// How much a limit may deny.
#[derive(Clone, Debug, PartialEq)]
pub struct Promise {
    /// Above 0, below 1.
    pub(super) part: f64,
    pub(super) of: Of,
}

tidegate_engine::named! {
    /// What a promise counts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Of {
        /// Keys that are denied at least once.
        Keys = "keys",
        /// Requests that are denied.
        Requests = "requests",
    }
}

/// Why a text is no promise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} does not say how much may be denied (expected a percentage above 0 and below 100, of keys or of requests, \
     such as '0.1 % of keys')"
)]
pub struct PromiseError(String);

impl Promise {
    /// Reads a promise.
    /// Fails when it is no percentage of keys or requests.
    pub fn parse(text: &str) -> Result<Self, PromiseError> {
        let parse = || {
            let (percent, of) = text.split_once('%')?;
            let percent: f64 =
                percent.trim().parse().ok().filter(|it| (0.0..100.0).contains(it) && *it > 0.0)?;
            let of = of.trim().strip_prefix("of ")?.trim_start();
            let of = Of::ALL.into_iter().find(|known| known.name() == of)?;
            Some(Self { part: percent / 100.0, of })
        };
        parse().ok_or_else(|| PromiseError(text.to_owned()))
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What a user wrote as 0.3 is not quite that in binary.
        let percent = (self.part * 100.0 * 1e9).round() / 1e9;
        write!(out, "{percent} % of {}", self.of.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_is_a_percentage_of_keys_or_requests() {
        for (text, shown) in [
            ("0.1 % of keys", "0.1 % of keys"),
            (" 2%of requests", "2 % of requests"),
            ("0.3%  of  keys ", "0.3 % of keys"),
        ] {
            assert_eq!(Promise::parse(text).expect(text).to_string(), shown);
        }
        for text in [
            "",
            "0.1 %",
            "0.1 of keys",
            "0 % of keys",
            "100 % of keys",
            "-1 % of keys",
            "nan % of keys",
            "1 % of users",
        ] {
            let error = Promise::parse(text).expect_err(text).to_string();
            assert!(error.contains("expected a percentage above 0 and below 100"), "{error}");
        }
    }
}
