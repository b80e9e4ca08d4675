//! Opens a log: a file or standard input, plain or compressed by gzip or zstd.
//!
//! In: a path (`-`: standard input). Out: its bytes, and how many were read so far of how many. The compression is
//! recognised by the first bytes, not by the name. A compressed log is unpacked in bounded memory.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::Path;
use std::rc::Rc;

use flate2::read::MultiGzDecoder;
use zstd::stream::read::Decoder;

/// How a gzip file and a zstd frame begin.
const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// A zstd frame may ask for a window of 2 to this power, in bytes: 128 MiB, as the tool `zstd` allows.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

/// How much of a compressed log is read at once.
const BUFFER_BYTES: usize = 64 << 10;

pub(super) struct Input {
    /// The text of the log.
    pub(super) text: Box<dyn Read>,
    /// How many bytes of the file were read.
    pub(super) read: Rc<Cell<u64>>,
}

/// The size of a log in bytes. `None`: not known.
pub(super) fn size(path: &Path) -> Option<u64> {
    let file = path.metadata().ok().filter(|metadata| metadata.is_file());
    file.map(|metadata| metadata.len())
}

impl Input {
    /// Opens the log at `path`.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        if path.as_os_str() == "-" {
            return Self::new(io::stdin());
        }
        if path.is_dir() {
            return Err(io::Error::other("it is a folder (expected a log)"));
        }
        Self::new(File::open(path)?)
    }

    fn new(raw: impl Read + 'static) -> io::Result<Self> {
        let read = Rc::new(Cell::new(0));
        let mut raw = Counted { raw, read: Rc::clone(&read) };
        let mut start = Vec::new();
        raw.by_ref().take(ZSTD.len() as u64).read_to_end(&mut start)?;
        let is = |magic: &[u8]| start.starts_with(magic);
        let (is_gzip, is_zstd) = (is(GZIP), is(ZSTD));
        let whole = Cursor::new(start).chain(raw);
        let text: Box<dyn Read> = if is_gzip {
            Box::new(MultiGzDecoder::new(BufReader::with_capacity(BUFFER_BYTES, whole)))
        } else if is_zstd {
            let mut decoder = Decoder::new(whole)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
            Box::new(decoder)
        } else {
            Box::new(whole)
        };
        Ok(Self { text, read })
    }
}

/// Counts the bytes that are read.
struct Counted<R> {
    raw: R,
    read: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.raw.read(into)?;
        self.read.set(self.read.get() + read as u64);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).expect("memory takes all");
        encoder.finish().expect("memory takes all")
    }

    fn read(bytes: Vec<u8>) -> io::Result<(Vec<u8>, u64)> {
        let mut input = Input::new(Cursor::new(bytes))?;
        let mut text = Vec::new();
        input.text.read_to_end(&mut text)?;
        Ok((text, input.read.get()))
    }

    #[test]
    fn the_compression_is_recognised_by_the_first_bytes() {
        let text = b"one line\n".repeat(10_000);
        let two = [gzip(&text[..9]), gzip(&text[9..])].concat();
        for packed in [text.clone(), two, zstd::encode_all(&text[..], 3).expect("memory")] {
            let len = packed.len() as u64;
            assert_eq!(read(packed).expect("good"), (text.clone(), len));
        }
        for short in [&b""[..], b"\x1f", b"(\xb5/", b"abc"] {
            assert_eq!(read(short.to_vec()).expect("text").0, short);
        }
    }

    #[test]
    fn what_is_cut_off_or_damaged_is_an_error() {
        let text: Vec<u8> = (0..50_000_u32).flat_map(u32::to_le_bytes).collect();
        for packed in [gzip(&text), zstd::encode_all(&text[..], 3).expect("memory")] {
            assert!(read(packed[..packed.len() / 2].to_vec()).is_err());
        }
        let mut damaged = gzip(&text);
        let middle = damaged.len() / 2;
        damaged[middle..middle + 64].fill(0xff);
        assert!(read(damaged).is_err());
        assert!(Input::open(Path::new("/")).is_err());
    }
}
