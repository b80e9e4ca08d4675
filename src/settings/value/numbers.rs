//! Numbers: counts, ports, shares, sizes and statuses.

use http::StatusCode;

use crate::settings::value::Value;

impl Value for u16 {
    const NAME: &'static str = "PORT";
    const EXPECTED: &'static str = "a port (expected a number from 0 to 65535)";

    fn parse(text: &str) -> Option<Self> {
        decimal(text)?.parse().ok()
    }
}

/// Whole numbers between two bounds, both included.
macro_rules! whole_numbers {
    ($($(#[$doc:meta])* $name:ident($number:ty) from $min:literal to $max:expr, $label:literal, $expected:literal;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name(pub $number);

        impl Value for $name {
            const NAME: &'static str = $label;
            const EXPECTED: &'static str = $expected;

            fn parse(text: &str) -> Option<Self> {
                decimal(text)?.parse().ok().filter(|number| ($min..=$max).contains(number)).map(Self)
            }
        }
    )+};
}

whole_numbers! {
    /// A count that is at least 1, such as a bound.
    Count(usize) from 1 to usize::MAX, "COUNT", "a count (expected a decimal number of at least 1)";
    /// Threads. More threads than cores never help, and each has metrics of its own.
    Threads(usize) from 1 to 1_024, "COUNT", "a count (expected a decimal number from 1 to 1024)";
    /// Spans that wait. Memory for all of them is allocated at the start.
    Queue(usize) from 1 to 1_000_000, "COUNT", "a count (expected a decimal number from 1 to 1000000)";
    /// Series in metrics. The table of all of them is allocated at the start.
    Series(usize) from 1 to 10_000_000, "COUNT", "a count (expected a decimal number from 1 to 10000000)";
    /// A whole number, 0 included.
    Number(usize) from 0 to usize::MAX, "NUMBER", "a whole number (expected a decimal number)";
    /// Entries of `x-forwarded-for` to skip. No request has passed more proxies.
    Hops(usize) from 0 to 100, "COUNT", "a count of proxies (expected a decimal number from 0 to 100)";
    /// Nodes that keys are divided over.
    Members(u32) from 1 to u32::MAX, "COUNT", "a count (expected a decimal number of at least 1)";
    /// Replicas of one master.
    Replicas(u32) from 0 to 100, "COUNT", "a count of replicas (expected a decimal number from 0 to 100)";
}

impl Value for f32 {
    const NAME: &'static str = "NUMBER";
    const EXPECTED: &'static str = "a finite number (expected for example 0.8)";

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok().filter(|number: &f32| number.is_finite())
    }
}

impl Value for f64 {
    const NAME: &'static str = "NUMBER";
    const EXPECTED: &'static str = "a finite number (expected for example 0.5)";

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok().filter(|number: &f64| number.is_finite())
    }
}

/// A share: 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share(pub f64);

impl Value for Share {
    const NAME: &'static str = "SHARE";
    const EXPECTED: &'static str = "a share (expected a number from 0 to 1)";

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok().filter(|share| (0.0..=1.0).contains(share)).map(Self)
    }
}

/// A number of bytes, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSize(pub u64);

impl Value for ByteSize {
    const NAME: &'static str = "BYTES";
    const EXPECTED: &'static str =
        "a size (expected a decimal number of bytes of at least 1, or one with KiB, MiB or GiB behind it)";

    fn parse(text: &str) -> Option<Self> {
        let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("", 1_u64)];
        let (number, unit) =
            units.iter().find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?.trim_end(), *unit)))?;
        let bytes = decimal(number)?.parse::<u64>().ok()?.checked_mul(unit)?;
        (bytes > 0).then_some(Self(bytes))
    }
}

/// Bytes of one request: at most half of what a connection may hold of unfinished requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestBytes(pub usize);

impl Value for RequestBytes {
    const NAME: &'static str = "BYTES";
    const EXPECTED: &'static str = "the size of a request (expected a decimal number of bytes, or one with KiB behind it, from 1 to 512KiB)";

    fn parse(text: &str) -> Option<Self> {
        let ByteSize(bytes) = ByteSize::parse(text)?;
        usize::try_from(bytes).ok().filter(|&bytes| bytes <= 512 << 10).map(Self)
    }
}

/// The HTTP status of a denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenyStatus(pub StatusCode);

impl Value for DenyStatus {
    const NAME: &'static str = "STATUS";
    const EXPECTED: &'static str = "a status of HTTP (expected a decimal number from 400 to 599)";

    fn parse(text: &str) -> Option<Self> {
        let status = StatusCode::from_u16(decimal(text)?.parse().ok()?).ok()?;
        (status.is_client_error() || status.is_server_error()).then_some(Self(status))
    }
}

/// Digits only: `0x1F`, `010` (octal elsewhere), `1_000` and signs are refused rather than guessed.
pub(super) fn decimal(text: &str) -> Option<&str> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits && (text == "0" || !text.starts_with('0'))).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_decimal() {
        assert_eq!(u16::parse("8081"), Some(8081));
        assert_eq!(u16::parse("0"), Some(0));
        for bad in ["010", "0x1F", "65536", "-1", "1_000", " 1"] {
            assert_eq!(u16::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn numbers_that_would_take_the_memory_at_start_are_refused() {
        assert_eq!(Threads::parse("1024"), Some(Threads(1024)));
        assert_eq!(Series::parse("10000000"), Some(Series(10_000_000)));
        assert_eq!(Threads::parse("1025"), None);
        for bad in ["10000001", "18446744073709551615", "0"] {
            assert_eq!(Series::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(ByteSize::parse("65536"), Some(ByteSize(65_536)));
        assert_eq!(ByteSize::parse("32 MiB"), Some(ByteSize(32 << 20)));
        assert_eq!(ByteSize::parse("1GiB"), Some(ByteSize(1 << 30)));
        for bad in ["", "0", "1.5MiB", "1MB", "-1", "0x10", "99999999999GiB"] {
            assert_eq!(ByteSize::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_request_is_no_larger_than_a_connection_can_hold() {
        assert_eq!(RequestBytes::parse("512KiB"), Some(RequestBytes(524_288)));
        for bad in ["0", "524289", "1MiB", "99999999999GiB"] {
            assert_eq!(RequestBytes::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_denial_is_an_error_and_hops_may_be_none() {
        assert_eq!(DenyStatus::parse("403"), Some(DenyStatus(StatusCode::FORBIDDEN)));
        for bad in ["399", "600", "200", "0403", "+429"] {
            assert_eq!(DenyStatus::parse(bad), None, "{bad}");
        }
        assert_eq!(Hops::parse("0"), Some(Hops(0)));
        assert_eq!(Hops::parse("101"), None);
    }
}
