//! A share of a limit, as an exact decimal: 0.85 of 20 hits is 17, which it is not in binary fractions. With an overdraft it is
//! more than the limit.

use std::fmt;

/// Parts of the full limit.
const PARTS: u32 = 1_000_000;
/// Digits after the point.
const DIGITS: usize = 6;
/// The largest overdraft: ten times the limit.
const OVERDRAFT_MAX: u32 = 10 * PARTS;

/// A share, in millionths: up to 1, or 1 and an overdraft.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(u32);

impl Share {
    /// The full limit.
    pub const FULL: Self = Self(PARTS);

    /// Nothing of it: no rule says so, but a limit under which nothing may pass has it for what was spent already.
    pub(crate) const NONE: Self = Self(0);

    /// The smallest share.
    pub const LEAST: Self = Self(1);

    /// Reads a decimal of at most six digits after the point. `None`: it is no such number, or not above 0 and up to 1.
    pub fn parse(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let whole: u32 = if whole == "1" { PARTS } else { 0 };
        let is_plain = matches!(text.split('.').next(), Some("" | "0" | "1"));
        let is_short = fraction.len() <= DIGITS && fraction.bytes().all(|byte| byte.is_ascii_digit());
        if !is_plain || !is_short {
            return None;
        }
        let share = whole + format!("{fraction:0<DIGITS$}").parse::<u32>().ok()?;
        (1..=PARTS).contains(&share).then_some(Self(share))
    }

    /// The full limit and an overdraft of so much of it: a decimal from 0 to 10, with at most three digits after the point.
    /// `None`: it is no such number.
    pub fn with_overdraft(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !is_digits(whole) || !is_digits(fraction) || whole.len() > 2 || fraction.len() > 3 {
            return None;
        }
        let over = format!("{whole}{fraction:0<DIGITS$}").parse::<u32>().ok()?;
        (over <= OVERDRAFT_MAX).then_some(Self(PARTS + over))
    }

    /// The overdraft as a decimal.
    pub(crate) fn overdraft(self) -> impl fmt::Display {
        let over = self.0.saturating_sub(PARTS);
        fmt::from_fn(move |out| {
            let text = format!("{}.{:0DIGITS$}", over / PARTS, over % PARTS);
            out.write_str(text.trim_end_matches('0').trim_end_matches('.'))
        })
    }

    /// The share, rounded: for people and programs that do not count by it.
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / f64::from(PARTS)
    }

    /// The share in millionths.
    pub const fn millionths(self) -> u32 {
        self.0
    }

    /// This share of so many hits, rounded down. What fits a limit fits the products.
    #[inline]
    pub(crate) const fn of(self, hits: u64) -> u64 {
        let (parts, share) = (PARTS as u64, self.0 as u64);
        hits / parts * share + hits % parts * share / parts
    }
}

impl fmt::Display for Share {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::FULL {
            return out.write_str("1");
        }
        let digits = format!("{:0DIGITS$}", self.0);
        write!(out, "0.{}", digits.trim_end_matches('0'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_exact_decimals() {
        let of = |text: &str, hits| Share::parse(text).map(|share| share.of(hits));
        assert_eq!(of("0.85", 20), Some(17), "in binary, 0.85 is a little less or more");
        assert_eq!(of("0.29", 100), Some(29));
        assert_eq!(of("0.58", 50), Some(29));
        assert_eq!(of("0.333333", 3_000_000), Some(999_999));
        assert_eq!(of("0.000001", 999_999), Some(0));
        assert_eq!(of("0.999999", u32::MAX.into()), Some(4_294_963_000));
        assert_eq!(
            of("0.999999", 1 << 53),
            Some(9_007_190_247_541_737),
            "9007199254740992 - 9007199254.740992"
        );
        for one in ["1", "1.0", "1.000000", "1."] {
            assert_eq!(of(one, 1 << 53), Some(1 << 53), "{one}");
        }
        assert_eq!([".5", "0.5", "0.500"].map(Share::parse), [Some(Share(500_000)); 3]);
    }

    #[test]
    fn what_is_no_share_is_refused() {
        for text in [
            "",
            ".",
            "0",
            "0.0",
            "1.000001",
            "2",
            "-0.5",
            "+0.5",
            "0.1234567",
            "1e-1",
            "60%",
            "0,5",
            "0.5.5",
            "00.5",
            "a",
            "0.x",
            "½",
        ] {
            assert_eq!(Share::parse(text), None, "{text}");
        }
    }

    #[test]
    fn an_overdraft_is_a_decimal_of_three_digits() {
        let of = |text: &str, hits| Share::with_overdraft(text).map(|share| share.of(hits));
        assert_eq!(of("0", 7), Some(7));
        assert_eq!(of("0.5", 7), Some(10));
        assert_eq!(of("0.07", 100), Some(107), "in binary, 0.07 is a little more");
        assert_eq!(of("0.001", 999), Some(999));
        assert_eq!(of("10", 3), Some(33));
        assert_eq!(of("10.000", 1 << 53), Some(11 << 53));
        for text in ["", ".", ".5", "1.", "-0.5", "+1", "10.001", "11", "0.0005", "1e1", "0,5", "50%", "099"]
        {
            assert_eq!(Share::with_overdraft(text), None, "{text}");
        }
        for text in ["0", "0.5", "0.05", "1", "10", "2.125"] {
            let shown = Share::with_overdraft(text).map(|share| share.overdraft().to_string());
            assert_eq!(shown.as_deref(), Some(text));
        }
    }

    #[test]
    fn a_share_is_shown_as_it_is_written() {
        for text in ["1", "0.85", "0.6", "0.000001", "0.123456"] {
            assert_eq!(Share::parse(text).map(|share| share.to_string()).as_deref(), Some(text));
        }
    }
}
