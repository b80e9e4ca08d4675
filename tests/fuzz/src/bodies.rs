//! The JSON that operators send: read or refused with a place, and what is read is written and read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tidegate_operate::bodies::{asked, json, read};

/// Reads a body as this type.
fn as_body<T: DeserializeOwned + Serialize>(body: &Value) {
    match read::<T>(body) {
        Ok(asked) => {
            let written = json(&asked);
            assert_eq!(read::<T>(&written).map(|again| json(&again)), Ok(written), "{body}");
        }
        Err(mistake) => assert!(mistake.to_string().contains(": "), "{mistake}"),
    }
}

fuzz_target!(|data: &[u8]| {
    let Ok(body) = serde_json::from_slice(data) else { return };
    as_body::<asked::Exception>(&body);
    as_body::<asked::Who>(&body);
    as_body::<asked::DomainEntries>(&body);
    as_body::<asked::ResetCounter>(&body);
    as_body::<asked::ResetBelow>(&body);
    as_body::<asked::TopCounters>(&body);
    as_body::<asked::PutRecord>(&body);
    as_body::<asked::DeleteRecord>(&body);
    as_body::<asked::ListRecords>(&body);
});
