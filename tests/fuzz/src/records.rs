//! Records as others write them: lines of JSON and CSV, bodies, and values in a folder or in Redis.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_records::{Format, Line, Reader, decode, encode, read, show};

/// All lines of a file that is read in these pieces.
fn lines(format: Format, pieces: &[&[u8]]) -> Vec<String> {
    let (mut reader, mut lines) = (Reader::new(format), Vec::new());
    let mut take = |line: Line| lines.push(format!("{} {:?}", line.number, line.read));
    pieces.iter().for_each(|piece| reader.feed(piece, &mut take));
    reader.finish(&mut take);
    lines
}

fuzz_target!(|data: (u16, &[u8])| {
    let (cut, bytes) = data;
    let (before, after) = bytes.split_at(usize::from(cut) % (bytes.len() + 1));
    for format in [Format::JsonLines, Format::Csv] {
        assert_eq!(lines(format, &[before, after]), lines(format, &[bytes]), "cut after {}", before.len());
    }
    if let Ok(record) = decode(bytes) {
        assert_eq!(decode(&encode(&record)).expect("our own"), record);
    }
    if let Ok(value) = serde_json::from_slice(bytes)
        && let Ok((key, record)) = read(&value)
    {
        assert_eq!(read(&show(&key, &record)).expect("our own"), (key, record));
    }
});
