//! A record as stores keep it: bytes. Most records take six.
//!
//! ```text
//! version 1 ∙ flags ∙ N (4; version 2: 8) ∙ [burst (4)] ∙ [unit (1), multiplier (4)] ∙ [algorithm (1)] ∙ [granularity (8)] ∙ [anchor (2)]
//! ```
//!
//! Numbers are little-endian. Version 2 is for N over 2^32 - 1. The flags say which of the parts in brackets are there.

use tidegate_engine::Algorithm;
use tidegate_engine::overlay::Record;
use tidegate_engine::unit::{Anchor, Unit, Window};

use crate::checks::checked;

const VERSION: u8 = 1;
const LARGE_VERSION: u8 = 2;

const BURST: u8 = 1;
const WINDOW: u8 = 1 << 1;
const ALGORITHM: u8 = 1 << 2;
const GRANULARITY: u8 = 1 << 3;
const SHADOW_GIVEN: u8 = 1 << 4;
const SHADOW: u8 = 1 << 5;
const UNLIMITED: u8 = 1 << 6;
const ANCHOR: u8 = 1 << 7;

/// Bytes that are not a record, or a record of another version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadValue {
    /// The first byte is another version's.
    #[error("a record of version {0} (expected {VERSION} or {LARGE_VERSION})")]
    Version(u8),
    /// They are cut off, too many, or have no meaning.
    #[error("bytes that are no record")]
    Malformed,
}

/// The bytes of a record.
pub fn encode(record: &Record) -> Vec<u8> {
    let flags = [
        (BURST, record.burst.is_some()),
        (WINDOW, record.window.is_some()),
        (ALGORITHM, record.algorithm.is_some()),
        (GRANULARITY, record.granularity_nanos.is_some()),
        (SHADOW_GIVEN, record.shadow.is_some()),
        (SHADOW, record.shadow == Some(true)),
        (UNLIMITED, record.unlimited),
        (ANCHOR, record.anchor.is_some()),
    ];
    let flags = flags.into_iter().filter(|(_, is_set)| *is_set).fold(0, |all, (flag, _)| all | flag);
    let mut bytes = match u32::try_from(record.requests) {
        Ok(requests) => [&[VERSION, flags][..], &requests.to_le_bytes()].concat(),
        Err(_) => [&[LARGE_VERSION, flags][..], &record.requests.to_le_bytes()].concat(),
    };
    // No `burst` is larger.
    bytes.extend(record.burst.iter().flat_map(|burst| (*burst as u32).to_le_bytes()));
    if let Some(Window { unit, multiplier }) = record.window {
        bytes.push(unit as u8);
        bytes.extend(multiplier.to_le_bytes());
    }
    bytes.extend(record.algorithm.iter().map(|algorithm| algorithm.number()));
    bytes.extend(record.granularity_nanos.iter().flat_map(|nanos| nanos.to_le_bytes()));
    bytes.extend(record.anchor.iter().flat_map(|anchor| anchor.number().to_le_bytes()));
    bytes
}

/// The record with these bytes.
///
/// # Errors
/// When [`encode`] makes no such bytes, or the record would fail its checks.
pub fn decode(bytes: &[u8]) -> Result<Record, BadValue> {
    let is_large = match bytes.first() {
        Some(&VERSION) => false,
        Some(&LARGE_VERSION) => true,
        Some(&other) => return Err(BadValue::Version(other)),
        None => return Err(BadValue::Malformed),
    };
    let record = Parts(&bytes[1..]).record(is_large).ok_or(BadValue::Malformed)?;
    match checked(record) {
        Ok(checked) if encode(&checked) == bytes => Ok(checked),
        _ => Err(BadValue::Malformed),
    }
}

/// Bytes that are still to be read.
struct Parts<'b>(&'b [u8]);

impl Parts<'_> {
    fn record(&mut self, is_large: bool) -> Option<Record> {
        let flags = self.take::<1>()?[0];
        let has = |flag: u8| flags & flag != 0;
        let requests =
            if is_large { u64::from_le_bytes(self.take()?) } else { u32::from_le_bytes(self.take()?).into() };
        let mut record = Record::of(requests);
        if has(BURST) {
            record.burst = Some(u32::from_le_bytes(self.take()?).into());
        }
        if has(WINDOW) {
            let number = self.take::<1>()?[0];
            let unit = Unit::from_number(number.into())?;
            record.window = Some(Window { unit, multiplier: u32::from_le_bytes(self.take()?) });
        }
        if has(ALGORITHM) {
            record.algorithm = Some(*Algorithm::NAMED.get(usize::from(self.take::<1>()?[0]))?);
        }
        if has(GRANULARITY) {
            record.granularity_nanos = Some(u64::from_le_bytes(self.take()?));
        }
        if has(ANCHOR) {
            record.anchor = Some(Anchor::numbered(u16::from_le_bytes(self.take()?))?);
        }
        record.shadow = has(SHADOW_GIVEN).then_some(has(SHADOW));
        record.unlimited = has(UNLIMITED);
        self.0.is_empty().then_some(record)
    }

    fn take<const LEN: usize>(&mut self) -> Option<[u8; LEN]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixture::record;

    proptest! {
        #[test]
        fn a_record_comes_back_from_its_bytes(record in record()) {
            prop_assert_eq!(decode(&encode(&record)), Ok(record));
        }

        #[test]
        fn any_bytes_are_a_record_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..24)) {
            for version in [VERSION, LARGE_VERSION] {
                let bytes = [&[version][..], &bytes].concat();
                if let Ok(record) = decode(&bytes) {
                    prop_assert_eq!(encode(&record), bytes);
                }
            }
        }
    }

    #[test]
    fn a_record_of_another_version_says_so() {
        assert_eq!(decode(&[3, 0, 1, 0, 0, 0]), Err(BadValue::Version(3)));
        assert_eq!(decode(&[]), Err(BadValue::Malformed));
        assert_eq!(encode(&Record::of(5)), [1, 0, 5, 0, 0, 0]);
        assert_eq!(encode(&Record::of((1 << 32) + 5)), [2, 0, 5, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(
            decode(&[2, 0, 5, 0, 0, 0, 0, 0, 0, 0]),
            Err(BadValue::Malformed),
            "it would be of version 1"
        );
    }
}
