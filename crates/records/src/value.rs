//! A record as stores keep it: bytes. Most records take six.
//!
//! ```text
//! version 1 ∙ flags ∙ N (4) ∙ [burst (4)] ∙ [unit (1), multiplier (4)] ∙ [algorithm (1)] ∙ [granularity (8)]
//! ```
//!
//! Numbers are little-endian. The flags say which of the parts in brackets are there.

use tidegate_engine::Algorithm;
use tidegate_engine::unit::Unit;

use crate::record::{Record, Window};

const VERSION: u8 = 1;

const BURST: u8 = 1;
const WINDOW: u8 = 1 << 1;
const ALGORITHM: u8 = 1 << 2;
const GRANULARITY: u8 = 1 << 3;
const SHADOW_GIVEN: u8 = 1 << 4;
const SHADOW: u8 = 1 << 5;
const UNLIMITED: u8 = 1 << 6;
const KNOWN: u8 = (1 << 7) - 1;

/// Bytes that are no record, or one that another version wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadValue {
    /// The first byte is another version's.
    #[error("a record of version {0} (expected {VERSION})")]
    Version(u8),
    /// They are cut off, too many, or mean nothing.
    #[error("bytes that are no record")]
    Malformed,
}

impl Record {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let flags = [
            (BURST, self.burst.is_some()),
            (WINDOW, self.window.is_some()),
            (ALGORITHM, self.algorithm.is_some()),
            (GRANULARITY, self.granularity_nanos.is_some()),
            (SHADOW_GIVEN, self.shadow.is_some()),
            (SHADOW, self.shadow == Some(true)),
            (UNLIMITED, self.unlimited),
        ];
        let flags = flags.into_iter().filter(|(_, is_set)| *is_set).fold(0, |all, (flag, _)| all | flag);
        let mut bytes = vec![VERSION, flags];
        bytes.extend(self.requests.to_le_bytes());
        bytes.extend(self.burst.iter().flat_map(|burst| burst.to_le_bytes()));
        if let Some(Window { unit, multiplier }) = self.window {
            bytes.push(unit as u8);
            bytes.extend(multiplier.to_le_bytes());
        }
        bytes.extend(self.algorithm.iter().map(|algorithm| algorithm.number()));
        bytes.extend(self.granularity_nanos.iter().flat_map(|nanos| nanos.to_le_bytes()));
        bytes
    }

    /// The record with these bytes.
    ///
    /// # Errors
    /// When they are none that [`encode`](Self::encode) makes, or hold a record that no check lets pass.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadValue> {
        match bytes.first() {
            Some(&VERSION) => {}
            Some(&other) => return Err(BadValue::Version(other)),
            None => return Err(BadValue::Malformed),
        }
        let record = Parts(&bytes[1..]).record().ok_or(BadValue::Malformed)?;
        match record.checked() {
            Ok(checked) if checked.encode() == bytes => Ok(checked),
            _ => Err(BadValue::Malformed),
        }
    }
}

/// Bytes that are still to be read.
struct Parts<'b>(&'b [u8]);

impl Parts<'_> {
    fn record(&mut self) -> Option<Record> {
        let flags = self.take::<1>()?[0];
        let has = |flag: u8| flags & flag != 0;
        let mut record = Record::of_requests(u32::from_le_bytes(self.take()?));
        if has(BURST) {
            record.burst = Some(u32::from_le_bytes(self.take()?));
        }
        if has(WINDOW) {
            let number = self.take::<1>()?[0];
            let unit = Unit::ALL.into_iter().find(|&unit| unit as u8 == number)?;
            record.window = Some(Window { unit, multiplier: u32::from_le_bytes(self.take()?) });
        }
        if has(ALGORITHM) {
            record.algorithm = Some(*Algorithm::ALL.get(usize::from(self.take::<1>()?[0]))?);
        }
        if has(GRANULARITY) {
            record.granularity_nanos = Some(u64::from_le_bytes(self.take()?));
        }
        record.shadow = has(SHADOW_GIVEN).then_some(has(SHADOW));
        record.unlimited = has(UNLIMITED);
        (self.0.is_empty() && flags & !KNOWN == 0).then_some(record)
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
            prop_assert_eq!(Record::decode(&record.encode()), Ok(record));
        }

        #[test]
        fn any_bytes_are_a_record_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..24)) {
            let bytes = [&[VERSION][..], &bytes].concat();
            if let Ok(record) = Record::decode(&bytes) {
                prop_assert_eq!(record.encode(), bytes);
            }
        }
    }

    #[test]
    fn a_record_of_another_version_says_so() {
        assert_eq!(Record::decode(&[2, 0, 1, 0, 0, 0]), Err(BadValue::Version(2)));
        assert_eq!(Record::decode(&[]), Err(BadValue::Malformed));
        assert_eq!(Record::of_requests(5).encode(), [1, 0, 5, 0, 0, 0]);
    }
}
