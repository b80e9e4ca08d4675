//! Durations as people write them: `90s`, `1h30m`, `1.5h`, `250ms`; the format is that of Go.

use crate::time::SECOND_NANOS;

/// Nanoseconds as a duration in the largest unit that divides them, up to seconds.
pub fn shown_duration(nanos: u64) -> String {
    let units = [(SECOND_NANOS, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns")];
    let whole = units.into_iter().find(|(unit, _)| nanos.is_multiple_of(*unit));
    let (unit, name) = whole.unwrap_or((1, "ns"));
    format!("{}{name}", nanos / unit)
}

/// Nanoseconds of a duration without a sign. `None`: it is no duration, or longer than 584 years.
pub fn parse_duration_nanos(text: &str) -> Option<u64> {
    if text == "0" {
        return Some(0);
    }
    let mut rest = text;
    let mut nanos = 0_u64;
    while !rest.is_empty() {
        let number_len =
            rest.find(|char: char| !char.is_ascii_digit() && char != '.').filter(|&len| len > 0)?;
        let (number, after) = rest.split_at(number_len);
        let unit_len = after.find(|char: char| char.is_ascii_digit() || char == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_len);
        nanos = nanos.checked_add(times(number, unit_nanos(unit)?)?)?;
        rest = after;
    }
    (!text.is_empty()).then_some(nanos)
}

fn unit_nanos(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// A decimal number times a unit, in whole nanoseconds, rounded down.
fn times(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()? };
    // Further digits are less than a nanosecond.
    let fraction = &fraction[..fraction.len().min(18)];
    let parts = if fraction.is_empty() { 0 } else { fraction.parse::<u64>().ok()? };
    let part_nanos = u128::from(parts) * u128::from(unit) / 10_u128.pow(fraction.len() as u32);
    whole.checked_mul(unit)?.checked_add(u64::try_from(part_nanos).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_go() {
        for (text, expected) in [
            ("0", Some(0)),
            ("10s", Some(10_000_000_000)),
            ("1h30m", Some(5_400_000_000_000)),
            ("1.5h", Some(5_400_000_000_000)),
            (".5s", Some(500_000_000)),
            ("1.s", Some(1_000_000_000)),
            ("250ms", Some(250_000_000)),
            ("1µs1ns", Some(1_001)),
            ("5m", Some(300_000_000_000)),
            ("", None),
            ("5", None),
            ("s", None),
            (".s", None),
            ("1.2.3s", None),
            ("5 s", None),
            ("-5s", None),
            ("5d", None),
            ("99999999h", None),
            ("é", None),
        ] {
            assert_eq!(parse_duration_nanos(text), expected, "{text}");
        }
    }
}
