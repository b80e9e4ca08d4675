//! Writes the counters of a store to a file, block by block: memory stays bounded, and decisions wait at most for the
//! copy of one shard.

use std::io::{self, Write};

use crate::clock::Machine;
use crate::format::{BLOCK_BYTES, Frame, Header};
use tidegate_engine::clock::Clock;
use tidegate_engine::limit::Algorithm;
use tidegate_engine::memory::{ExportPlace, MemoryStore};
use tidegate_engine::time::Timestamp;

/// The data to write, and the clock under which its counters were made.
#[derive(Clone, Copy)]
pub struct Writing<'a> {
    /// The contents of the header.
    pub header: &'a Header,
    /// The counters.
    pub store: &'a MemoryStore,
    /// The clock of decisions, on this machine.
    pub clock: &'a Clock,
    pub machine: &'a dyn Machine,
}

/// A file in which blocks are written.
struct Output<W> {
    file: W,
    counters: u64,
    chain: crc32fast::Hasher,
}

/// Counters that are not written yet.
struct Block {
    algorithm: Algorithm,
    counters: u32,
}

impl Writing<'_> {
    fn now(&self) -> Timestamp {
        self.clock.at(self.machine.monotonic())
    }

    /// Writes everything, and returns the number of counters. Calls `pause` with the size of each block.
    /// Fails as `file` and `pause` do.
    pub(super) fn write_to(
        &self,
        file: impl Write,
        mut pause: impl FnMut(usize) -> io::Result<()>,
    ) -> io::Result<u64> {
        let mut output = Output { file, counters: 0, chain: crc32fast::Hasher::new() };
        output.file.write_all(&self.header.to_bytes())?;
        let (mut place, mut bytes) = (ExportPlace::default(), Vec::with_capacity(2 * BLOCK_BYTES));
        let mut block: Option<Block> = None;
        loop {
            let before = bytes.len();
            let Some(next) = self.store.export(&mut place, self.now(), &mut bytes) else { break };
            // A block has counters of one algorithm.
            let same = block.take_if(|block| block.algorithm == next.algorithm);
            if let Some(block) = block {
                output.write_block(&block, &bytes[..before], self.now())?;
                bytes.drain(..before);
            }
            let counters = same.map_or(0, |block| block.counters) + next.counters;
            let filled = Block { algorithm: next.algorithm, counters };
            block = if bytes.len() < BLOCK_BYTES {
                Some(filled)
            } else {
                output.write_block(&filled, &bytes, self.now())?;
                pause(bytes.len())?;
                bytes.clear();
                None
            };
        }
        if let Some(block) = block {
            output.write_block(&block, &bytes, self.now())?;
        }
        output.finish()
    }
}

impl<W: Write> Output<W> {
    /// Writes a block of counters that were copied until `copied_at`.
    fn write_block(&mut self, block: &Block, bytes: &[u8], copied_at: Timestamp) -> io::Result<()> {
        let length = u32::try_from(bytes.len());
        let length = length.map_err(|_| io::Error::new(io::ErrorKind::FileTooLarge, "a block of 4 GiB"))?;
        let (algorithm, counters) = (block.algorithm, block.counters);
        let frame = Frame::Block { bytes: length, algorithm, copied_at, counters };
        let (frame, checksum) = frame.to_bytes(bytes);
        self.file.write_all(&frame)?;
        self.file.write_all(bytes)?;
        self.chain.update(&checksum.to_le_bytes());
        self.counters += u64::from(counters);
        Ok(())
    }

    fn finish(mut self) -> io::Result<u64> {
        let trailer = Frame::Trailer { counters: self.counters, chain: self.chain.finalize() };
        self.file.write_all(&trailer.to_bytes(&[]).0)?;
        self.file.flush()?;
        Ok(self.counters)
    }
}
