//! Splits a log into lines, in bounded memory: a line that is too long is skipped, and never in memory completely.
//!
//! In: bytes. Out: one [`Line`] after the other, without its end (`\n` or `\r\n`).

use std::io::{self, Read};

use memchr::memchr;

/// The longest line that is read, in bytes. A request's line and its headers fit several times.
pub(super) const LINE_BYTES_MAX: usize = 64 << 10;

/// How much is read at once. There is always room for a line of the greatest length and what was read after it.
const BUFFER_BYTES: usize = 4 * LINE_BYTES_MAX;

/// The lines of a log.
pub(super) struct Lines<R> {
    reader: R,
    buffer: Box<[u8]>,
    /// What was read and not yet returned.
    start: usize,
    end: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'b> {
    /// Its bytes.
    Text(&'b [u8]),
    /// It has more than [`LINE_BYTES_MAX`] bytes.
    TooLong,
}

impl<R: Read> Lines<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, buffer: vec![0; BUFFER_BYTES].into_boxed_slice(), start: 0, end: 0 }
    }

    /// The next line; `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        let mut searched = 0;
        loop {
            let held = &self.buffer[self.start..self.end];
            if let Some(at) = memchr(b'\n', &held[searched..]) {
                return Ok(Some(self.take(searched + at, 1)));
            }
            searched = held.len();
            if searched > LINE_BYTES_MAX {
                return self.pass_over().map(|()| Some(Line::TooLong));
            }
            if !self.fill()? {
                return Ok((searched > 0).then(|| self.take(searched, 0)));
            }
        }
    }

    /// The first `len` bytes as a line. So many `ending` bytes after it are dropped.
    fn take(&mut self, len: usize, ending: usize) -> Line<'_> {
        let line = &self.buffer[self.start..self.start + len];
        self.start += len + ending;
        if len > LINE_BYTES_MAX {
            return Line::TooLong;
        }
        Line::Text(line.strip_suffix(b"\r").unwrap_or(line))
    }

    /// Drops bytes up to the end of the line.
    fn pass_over(&mut self) -> io::Result<()> {
        loop {
            if let Some(at) = memchr(b'\n', &self.buffer[self.start..self.end]) {
                self.start += at + 1;
                return Ok(());
            }
            self.start = self.end;
            if !self.fill()? {
                return Ok(());
            }
        }
    }

    /// Reads more after the bytes that are there. Returns whether there was more.
    fn fill(&mut self) -> io::Result<bool> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let read = loop {
            match self.reader.read(&mut self.buffer[self.end..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        self.end += read;
        Ok(read > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a few bytes at a time.
    struct Dripping<'a>(&'a [u8], usize);

    impl Read for Dripping<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let len = self.1.min(into.len());
            self.0.read(&mut into[..len])
        }
    }

    fn lines(text: &[u8], at_once: usize) -> Vec<Option<Vec<u8>>> {
        let mut lines = Lines::new(Dripping(text, at_once));
        let mut found = Vec::new();
        while let Some(line) = lines.next().expect("memory can be read") {
            found.push(match line {
                Line::Text(text) => Some(text.to_vec()),
                Line::TooLong => None,
            });
        }
        found
    }

    #[test]
    fn lines_are_what_stands_between_their_ends_however_they_arrive() {
        for at_once in [1, 2, 3, 1_000] {
            let found = lines(b"a\n\nbc\r\nlast", at_once);
            let text = |text: &str| Some(text.as_bytes().to_vec());
            assert_eq!(found, [text("a"), text(""), text("bc"), text("last")], "{at_once}");
        }
        assert!(lines(b"", 1).is_empty());
    }

    #[test]
    fn a_line_that_is_too_long_is_passed_over() {
        let most = vec![b'x'; LINE_BYTES_MAX];
        for beyond in [1, BUFFER_BYTES, 3 * BUFFER_BYTES + 1] {
            let log = [&most[..], b"\n", &vec![b'y'; LINE_BYTES_MAX + beyond], b"\nz\n"].concat();
            for at_once in [7_777, usize::MAX] {
                assert_eq!(lines(&log, at_once), [Some(most.clone()), None, Some(b"z".to_vec())]);
            }
        }
        assert_eq!(lines(&vec![b'y'; 10 * BUFFER_BYTES], usize::MAX), [None]);
    }
}
