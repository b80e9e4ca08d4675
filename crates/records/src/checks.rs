//! The checks of a record: those of a rule's limit, as far as a record can be checked without its rule.

use tidegate_engine::Algorithm;
use tidegate_engine::limit::{
    BUCKETS_MAX, COUNT_REQUESTS_MAX, FILL_NANOS_MAX, LOG_REQUESTS_MAX, WINDOW_NANOS_MAX,
};
use tidegate_engine::overlay::Record;
use tidegate_engine::time::SECOND_NANOS;
use tidegate_engine::unit::Window;

/// What is wrong with a record: the field, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadRecord(pub(crate) String);

pub(crate) fn bad<T>(what: impl Into<String>) -> Result<T, BadRecord> {
    Err(BadRecord(what.into()))
}

/// The record, if its parts fit each other.
///
/// # Errors
/// The first part that is wrong. Parts that depend on the rule (`burst` without `algorithm`, `granularity` without a
/// window) are not checked here.
pub fn checked(record: Record) -> Result<Record, BadRecord> {
    if record.unlimited {
        return checked_unlimited(record);
    }
    check_anchor(&record)?;
    check_window(&record)?;
    check_granularity(&record)?;
    check_burst(&record)?;
    check_requests(&record)?;
    Ok(record)
}

fn check_requests(record: &Record) -> Result<(), BadRecord> {
    let requests = record.requests;
    match record.algorithm {
        Some(Algorithm::SlidingLog) if requests > LOG_REQUESTS_MAX => bad(format!(
            "{requests} requests with sliding_log (expected at most {LOG_REQUESTS_MAX}, or sliding_window)"
        )),
        Some(algorithm) if requests > algorithm.requests_max() => {
            let (name, most) = (algorithm.name(), algorithm.requests_max());
            bad(format!("{requests} requests with {name} (expected at most {most})"))
        }
        _ if requests > COUNT_REQUESTS_MAX => {
            bad(format!("{requests} requests (expected at most {COUNT_REQUESTS_MAX})"))
        }
        _ if requests > u32::MAX.into() && (record.burst.is_some() || record.granularity_nanos.is_some()) => {
            let most = u32::MAX;
            bad(format!("{requests} requests with `burst` or `granularity` (expected at most {most})"))
        }
        _ => Ok(()),
    }
}

fn checked_unlimited(record: Record) -> Result<Record, BadRecord> {
    let parts = [
        ("burst", record.burst.is_some()),
        ("unit", record.window.is_some()),
        ("algorithm", record.algorithm.is_some()),
        ("granularity", record.granularity_nanos.is_some()),
        ("anchor", record.anchor.is_some()),
    ];
    match parts.into_iter().find(|(_, is_given)| *is_given) {
        Some((name, _)) => bad(format!("`{name}` with `unlimited: true` (expected one of the two)")),
        None => Ok(Record { requests: 0, ..record }),
    }
}

/// A calendar budget has none of what windows have.
fn check_anchor(record: &Record) -> Result<(), BadRecord> {
    let of_windows = [
        ("burst", record.burst.is_some()),
        ("unit` or `window", record.window.is_some()),
        ("algorithm", record.algorithm.is_some()),
        ("granularity", record.granularity_nanos.is_some()),
    ];
    let wrong = of_windows.into_iter().find(|(_, is_given)| *is_given && record.anchor.is_some());
    wrong.map_or(Ok(()), |(name, _)| {
        bad(format!("`{name}` with `anchor`, which is for calendar budgets (expected one of the two)"))
    })
}

fn check_window(record: &Record) -> Result<(), BadRecord> {
    let Some(window) = record.window else { return Ok(()) };
    if !(1..=WINDOW_NANOS_MAX).contains(&window.nanos()) {
        let secs = window.nanos() / SECOND_NANOS;
        return bad(format!("a window of {secs} seconds (expected 1 second to 366 days)"));
    }
    Ok(())
}

fn check_granularity(record: &Record) -> Result<(), BadRecord> {
    let Some(nanos) = record.granularity_nanos else { return Ok(()) };
    if let Some(algorithm) = record.algorithm.filter(|&algorithm| algorithm != Algorithm::SlidingWindow) {
        let name = algorithm.name();
        return bad(format!("`granularity` on {name} (expected `algorithm: sliding_window`)"));
    }
    let window = record.window.map(Window::nanos);
    if nanos == 0 {
        return bad("`granularity` is 0 (expected a time above 0, such as `1s` or `500ms`)");
    }
    if nanos > window.unwrap_or(WINDOW_NANOS_MAX) {
        return bad("`granularity` is too long (expected no more than the window)");
    }
    if window.is_some_and(|window| window > nanos.saturating_mul(BUCKETS_MAX)) {
        return bad(format!("`granularity` is too short (expected at least 1/{BUCKETS_MAX} of the window)"));
    }
    Ok(())
}

fn check_burst(record: &Record) -> Result<(), BadRecord> {
    if record.burst == Some(0) {
        return bad("`burst` is 0 (expected 1 or more)");
    }
    let Some(algorithm) = record.algorithm else { return Ok(()) };
    if !algorithm.is_bucket() {
        return match record.burst {
            Some(_) => {
                let name = algorithm.name();
                bad(format!("`burst` on {name} (expected token_bucket or leaky_bucket)"))
            }
            None => Ok(()),
        };
    }
    let (burst, requests) = (record.burst.unwrap_or(record.requests), record.requests);
    let window = record.window.map_or(0, Window::nanos);
    let fill_nanos = u128::from(burst) * u128::from(window) / u128::from(requests.max(1));
    if requests > 0 && fill_nanos > FILL_NANOS_MAX {
        return bad(format!("a `burst` of {burst} takes over 500 years to refill (expected a smaller one)"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tidegate_engine::unit::Unit;

    use super::*;

    /// N, and a burst, of a bucket of a year.
    fn is_right(requests: u64, burst: u64) -> bool {
        let window = Window { unit: Unit::Day, multiplier: 366 };
        let algorithm = Some(Algorithm::TokenBucket);
        checked(Record { window: Some(window), algorithm, burst: Some(burst), requests, ..Record::default() })
            .is_ok()
    }

    #[test]
    fn only_numbers_of_32_bits_go_with_a_burst_or_a_granularity() {
        let is_right = |requests, burst, granularity_nanos| {
            checked(Record { burst, granularity_nanos, ..Record::of(requests) }).is_ok()
        };
        let (most, second) = (u64::from(u32::MAX), Some(SECOND_NANOS));
        assert!(
            is_right(most, Some(1), None) && is_right(most, None, second) && is_right(most + 1, None, None)
        );
        assert!(!is_right(most + 1, Some(1), None) && !is_right(most + 1, None, second));
    }

    #[test]
    fn a_burst_refills_within_500_years_or_never() {
        assert!(is_right(1, 498) && is_right(10, 4_980));
        assert!(!is_right(1, 499) && !is_right(1, u32::MAX.into()), "366 days for each");
        assert!(is_right(0, u32::MAX.into()), "what admits nothing needs no refill");
    }
}
