//! `grpc-timeout`: how long the caller waits, in the format of gRPC over HTTP/2 (`20m` is 20 ms).

use std::time::Duration;

/// Digits of the largest timeout that the protocol allows.
const DIGITS_MAX: usize = 8;

/// Parses a `grpc-timeout`. `None` if it is malformed: the call is then served as if it had none.
pub fn parse(value: &[u8]) -> Option<Duration> {
    let (&unit, digits) = value.split_last()?;
    if digits.len() > DIGITS_MAX || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let count: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(count * 3_600),
        b'M' => Duration::from_secs(count * 60),
        b'S' => Duration::from_secs(count),
        b'm' => Duration::from_millis(count),
        b'u' => Duration::from_micros(count),
        b'n' => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_of_the_protocol_is_read() {
        for (value, expected) in [
            ("1H", Duration::from_secs(3_600)),
            ("2M", Duration::from_secs(120)),
            ("3S", Duration::from_secs(3)),
            ("20m", Duration::from_millis(20)),
            ("19875u", Duration::from_micros(19_875)),
            ("99999999n", Duration::from_nanos(99_999_999)),
            ("99999999H", Duration::from_secs(99_999_999 * 3_600)),
        ] {
            assert_eq!(parse(value.as_bytes()), Some(expected), "{value}");
        }
    }

    #[test]
    fn a_malformed_timeout_is_ignored() {
        for value in ["", "m", "20", "20x", "-1S", "+1S", "1.5S", "999999999n", " 1S", "\u{661}S"] {
            assert_eq!(parse(value.as_bytes()), None, "{value}");
        }
    }
}
