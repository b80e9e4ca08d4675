//! Reads a state file block by block, and uses only what its checksums confirm.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use crate::format::{FRAME_BYTES, Frame, HEADER_BYTES, Header, checksum};
use crate::outcome::Distrust;
use tidegate_engine::limit::Algorithm;
use tidegate_engine::memory::{Encoded, ImportError};
use tidegate_engine::time::Timestamp;

/// A file whose header was read.
#[derive(Debug)]
pub struct StateReader<R = io::BufReader<fs::File>> {
    source: Source<R>,
    /// The contents of its header.
    pub header: Header,
}

/// The totals of a complete file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Counters of each algorithm, in the order of their numbers.
    pub counters: [u64; Algorithm::ALL.len()],
    /// When the last counter was copied, by the clock of decisions of the process that wrote it.
    pub newest: Timestamp,
    /// The length of the file.
    pub bytes: u64,
}

impl Totals {
    /// All counters.
    pub fn all(&self) -> u64 {
        self.counters.iter().sum()
    }
}

/// Bytes of a known length.
#[derive(Debug)]
struct Source<R> {
    bytes: R,
    at: u64,
    length: u64,
}

/// Large reads: a file of many gigabytes is read as fast as the disk allows.
const READ_BYTES: usize = 1 << 20;

impl StateReader {
    /// Opens a file and reads its header.
    /// Fails when the header is damaged.
    pub fn open(path: &Path) -> Result<Self, Distrust> {
        let file = fs::File::open(path)?;
        let length = file.metadata()?.len();
        Self::new(io::BufReader::with_capacity(READ_BYTES, file), length)
    }
}

impl<R: Read> StateReader<R> {
    /// Reads the header of `length` bytes.
    pub(super) fn new(bytes: R, length: u64) -> Result<Self, Distrust> {
        let mut source = Source { bytes, at: 0, length };
        let header = Header::parse(&source.array::<HEADER_BYTES>()?)?;
        Ok(Self { source, header })
    }

    /// Reads the rest, and calls `take` with the counters of every block, once its checksum was confirmed. Only after
    /// the last block is it known whether the file is complete.
    /// Fails when the file is damaged, or `take` refuses.
    pub fn read(
        mut self,
        mut take: impl FnMut(&Encoded<'_>) -> Result<(), ImportError>,
    ) -> Result<Totals, Distrust> {
        let mut totals = Totals { bytes: self.source.length, ..Totals::default() };
        let (mut chain, mut bytes) = (crc32fast::Hasher::new(), Vec::new());
        loop {
            let at = self.source.at;
            let damaged = |what| Distrust::Damaged { at, what };
            let frame_bytes = self.source.array::<FRAME_BYTES>()?;
            let frame = Frame::parse(&frame_bytes).ok_or(damaged("no block begins here"))?;
            bytes.clear();
            if let Frame::Block { bytes: length, .. } = frame {
                self.source.fill(&mut bytes, length)?;
            }
            let checksum = checksum(&frame_bytes, &bytes);
            if checksum != Frame::checksum_in(&frame_bytes) {
                return Err(damaged("the checksum of a block is wrong"));
            }
            match frame {
                Frame::Block { algorithm, copied_at, counters, .. } => {
                    chain.update(&checksum.to_le_bytes());
                    take(&Encoded { algorithm, counters, bytes: &bytes, copied_at }).map_err(|error| {
                        match error {
                            ImportError::Damaged { what, .. } => damaged(what),
                            ImportError::Full => Distrust::TooLarge,
                        }
                    })?;
                    totals.counters[usize::from(algorithm.number())] += u64::from(counters);
                    totals.newest = totals.newest.max(copied_at);
                }
                Frame::Trailer { counters, chain: expected } => {
                    let is_whole = counters == totals.all() && chain.finalize() == expected;
                    return match is_whole && self.source.at == self.source.length {
                        true => Ok(totals),
                        false => Err(damaged("it is not the end of this file")),
                    };
                }
            }
        }
    }
}

impl<R: Read> Source<R> {
    fn array<const COUNT: usize>(&mut self) -> Result<[u8; COUNT], Distrust> {
        let mut bytes = [0; COUNT];
        self.require(COUNT as u64)?;
        self.bytes.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Fills an empty buffer.
    fn fill(&mut self, bytes: &mut Vec<u8>, length: u32) -> Result<(), Distrust> {
        self.require(u64::from(length))?;
        bytes.resize(length as usize, 0);
        self.bytes.read_exact(bytes)?;
        Ok(())
    }

    fn require(&mut self, bytes: u64) -> Result<(), Distrust> {
        self.at += bytes;
        if self.at > self.length { Err(Distrust::Truncated { at: self.length }) } else { Ok(()) }
    }
}
