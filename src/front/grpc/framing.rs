//! How gRPC frames the one message of a unary call: a flag, a length, the message.
//!
//! In: pieces of a body, in order. Out: the message, not copied if it came in a single piece that ended the body.
//! Keeps at most one message within its bound, and refuses a larger one as soon as its length is known.

use bytes::{Bytes, BytesMut};

use tidegate_serve::refusal::{Bounds, Refusal};

/// Bytes of flag and length before every message.
pub(in crate::front) const PREFIX_BYTES: usize = 5;
/// The flag of an uncompressed message. Any other is refused.
pub(super) const UNCOMPRESSED: u8 = 0;

const COMPRESSED: &str = "compressed requests are not supported";
const MISSING: &str = "the call brought no message";
const INCOMPLETE: &str = "the call's message is not complete";
const MORE: &str = "the call brought more than one message";

/// What has arrived of a message, with its prefix.
#[derive(Default)]
pub(super) struct Partial {
    /// The single piece that nearly every message comes in.
    only_piece: Bytes,
    /// All pieces, if there are several. They are copied: a piece that waited for the next would keep alive everything
    /// that was read from the socket with it.
    pieces: BytesMut,
}

impl Partial {
    pub(super) fn push(&mut self, data: Bytes, is_last: bool, bounds: &Bounds) -> Result<(), Refusal> {
        if is_last && self.pieces.is_empty() {
            self.only_piece = data;
        } else {
            self.pieces.extend_from_slice(&data);
        }
        check(self.bytes(), bounds)
    }

    /// The message, once the body has ended.
    pub(super) fn finish(self) -> Result<Bytes, Refusal> {
        message(self.bytes())?;
        let framed = if self.pieces.is_empty() { self.only_piece } else { self.pieces.freeze() };
        Ok(framed.slice(PREFIX_BYTES..))
    }

    fn bytes(&self) -> &[u8] {
        if self.pieces.is_empty() { &self.only_piece } else { &self.pieces }
    }
}

/// Whether a body that begins like this may go on.
pub(in crate::front) fn check(body: &[u8], bounds: &Bounds) -> Result<(), Refusal> {
    match message_bytes(body)? {
        Some(length) if length > bounds.request_bytes_max => Err(Refusal::too_large(bounds)),
        Some(length) if body.len() > PREFIX_BYTES + length => Err(Refusal::invalid(MORE)),
        _ => Ok(()),
    }
}

/// The one message of a complete body.
pub(in crate::front) fn message(body: &[u8]) -> Result<&[u8], Refusal> {
    match message_bytes(body)? {
        None if body.is_empty() => Err(Refusal::invalid(MISSING)),
        Some(length) if body.len() == PREFIX_BYTES + length => Ok(&body[PREFIX_BYTES..]),
        Some(length) if body.len() > PREFIX_BYTES + length => Err(Refusal::invalid(MORE)),
        _ => Err(Refusal::invalid(INCOMPLETE)),
    }
}

/// The length in the prefix, if all of the prefix is there.
fn message_bytes(body: &[u8]) -> Result<Option<usize>, Refusal> {
    match *body {
        [UNCOMPRESSED, a, b, c, d, ..] => Ok(usize::try_from(u32::from_be_bytes([a, b, c, d])).ok()),
        [flag, ..] if flag != UNCOMPRESSED => Err(Refusal::unimplemented(COMPRESSED)),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { descriptors_max: 1, entries_max: 1, request_bytes_max: 4 };

    fn read(pieces: &[&'static [u8]]) -> Result<Bytes, Refusal> {
        let mut partial = Partial::default();
        for (at, piece) in pieces.iter().enumerate() {
            partial.push(Bytes::from_static(piece), at + 1 == pieces.len(), &BOUNDS)?;
        }
        partial.finish()
    }

    #[test]
    fn a_message_may_come_in_any_pieces() {
        let framed: &[u8] = b"\0\0\0\0\x04wave";
        assert_eq!(read(&[framed]).as_deref(), Ok(&b"wave"[..]));
        for cut in 0..=framed.len() {
            assert_eq!(read(&[&framed[..cut], b"", &framed[cut..]]).as_deref(), Ok(&b"wave"[..]), "{cut}");
        }
        let bytes: Vec<&[u8]> = framed.chunks(1).collect();
        assert_eq!(read(&bytes).as_deref(), Ok(&b"wave"[..]));
        assert_eq!(read(&[b"\0\0\0\0\0"]).as_deref(), Ok(&b""[..]));
    }

    #[test]
    fn framing_that_is_wrong_is_refused() {
        let invalid = |message| Err(Refusal::invalid(message));
        assert_eq!(read(&[]), invalid(MISSING));
        assert_eq!(read(&[b"\0\0"]), invalid(INCOMPLETE));
        assert_eq!(read(&[b"\0\0\0\0\x04wav"]), invalid(INCOMPLETE));
        assert_eq!(read(&[b"\0\0\0\0\x04wave", b"\0"]), invalid(MORE));
        assert_eq!(read(&[b"\x01"]), Err(Refusal::unimplemented(COMPRESSED)));
    }

    #[test]
    fn a_message_that_is_too_large_is_refused_by_its_prefix() {
        let too_large = Err(Refusal::too_large(&BOUNDS));
        assert_eq!(read(&[b"\0\0\0\0", b"\x05"]), too_large);
        assert_eq!(read(&[b"\0\xff\xff\xff\xff"]), too_large);
    }
}
