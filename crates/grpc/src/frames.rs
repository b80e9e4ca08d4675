//! HTTP/2 frames (RFC 9113, sections 4 and 6): reads frame headers, and writes the frames that this server sends.
//!
//! In and out: bytes. It does not know what a frame means for a stream or a connection.

/// Bytes of a frame header.
pub const HEAD_BYTES: usize = 9;
/// Bytes of the largest payload in either direction: every peer accepts it, and we accept no more.
pub const PAYLOAD_MAX: usize = 16_384;
/// The connection preface of a client (RFC 9113, 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The highest stream identifier, and the largest window.
pub const U31_MAX: u32 = 0x7fff_ffff;

/// Frame types.
pub mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PUSH_PROMISE: u8 = 5;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

/// Frame flags.
pub mod flag {
    pub const END_STREAM: u8 = 1;
    pub const ACK: u8 = 1;
    pub const END_HEADERS: u8 = 4;
    pub const PADDED: u8 = 8;
    pub const PRIORITY: u8 = 0x20;
}

/// The error codes (RFC 9113, section 7) that this server sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ErrorCode {
    NoError = 0,
    ProtocolError = 1,
    FlowControlError = 3,
    StreamClosed = 5,
    FrameSizeError = 6,
    RefusedStream = 7,
    Cancel = 8,
    CompressionError = 9,
    EnhanceYourCalm = 11,
}

/// A frame header (RFC 9113, 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Bytes of the payload.
    pub length: usize,
    /// The type: one of [`kind`]. Frames of other types are ignored.
    pub kind: u8,
    /// Bits of [`flag`]; their meaning depends on the type.
    pub flags: u8,
    /// The stream identifier; 0 is the connection.
    pub stream: u32,
}

impl Head {
    /// Whether the flag is set.
    pub fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Reads the frame header at the start of `bytes`, if it is complete.
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let &[a, b, c, kind, flags, ref stream @ ..] = bytes.first_chunk::<HEAD_BYTES>()?;
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        Some(Self { length, kind, flags, stream: u32::from_be_bytes(*stream) & U31_MAX })
    }

    /// Whether `bytes` begin with a complete frame.
    #[inline]
    pub fn begins_whole_frame(bytes: &[u8]) -> bool {
        Self::read(bytes).is_some_and(|head| bytes.len() - HEAD_BYTES >= head.length)
    }

    /// Appends it to `out`.
    #[inline]
    pub fn write(self, out: &mut Vec<u8>) {
        let length = u32::try_from(self.length).expect("a payload is short").to_be_bytes();
        let [_, a, b, c] = length;
        let [d, e, f, g] = self.stream.to_be_bytes();
        out.extend_from_slice(&[a, b, c, self.kind, self.flags, d, e, f, g]);
    }
}

/// The number in the first four bytes of `payload`; 0 if there are fewer.
pub fn first_u32(payload: &[u8]) -> u32 {
    payload.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// Appends a DATA frame.
pub fn data(out: &mut Vec<u8>, stream: u32, flags: u8, payload: &[u8]) {
    write(out, kind::DATA, flags, stream, payload);
}

/// Appends a HEADERS frame. `block` appends its header block, which has to fit into one frame.
pub fn headers(out: &mut Vec<u8>, stream: u32, flags: u8, block: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    let flags = flags | flag::END_HEADERS;
    Head { length: 0, kind: kind::HEADERS, flags, stream }.write(out);
    block(out);
    let length = out.len() - start - HEAD_BYTES;
    debug_assert!(length <= PAYLOAD_MAX, "a block of ours is far smaller than a frame");
    let [_, a, b, c] = (length as u32).to_be_bytes();
    out[start..start + 3].copy_from_slice(&[a, b, c]);
}

/// Appends a RST_STREAM frame.
pub fn reset(out: &mut Vec<u8>, stream: u32, code: ErrorCode) {
    write(out, kind::RST_STREAM, 0, stream, &u32::from(code as u8).to_be_bytes());
}

/// Appends a SETTINGS frame.
pub fn settings(out: &mut Vec<u8>, values: &[(u16, u32)]) {
    Head { length: values.len() * 6, kind: kind::SETTINGS, flags: 0, stream: 0 }.write(out);
    for (name, value) in values {
        out.extend_from_slice(&name.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Appends the acknowledgement of a SETTINGS frame.
pub fn settings_ack(out: &mut Vec<u8>) {
    write(out, kind::SETTINGS, flag::ACK, 0, &[]);
}

/// Appends a PING frame, or with [`flag::ACK`] the answer to one.
pub fn ping(out: &mut Vec<u8>, flags: u8, payload: &[u8]) {
    write(out, kind::PING, flags, 0, payload);
}

/// Appends a GOAWAY frame.
pub fn goaway(out: &mut Vec<u8>, last_stream: u32, code: ErrorCode) {
    let mut payload = [0; 8];
    payload[..4].copy_from_slice(&last_stream.to_be_bytes());
    payload[7] = code as u8;
    write(out, kind::GOAWAY, 0, 0, &payload);
}

/// Appends a WINDOW_UPDATE frame.
pub fn window_update(out: &mut Vec<u8>, stream: u32, increment: u32) {
    write(out, kind::WINDOW_UPDATE, 0, stream, &increment.to_be_bytes());
}

fn write(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    Head { length: payload.len(), kind, flags, stream }.write(out);
    out.extend_from_slice(payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_it_was_written_and_never_too_early() {
        let head = Head { length: 0x01_02_03, kind: kind::DATA, flags: flag::PADDED, stream: 0x7abc_def1 };
        let mut bytes = Vec::new();
        head.write(&mut bytes);
        assert_eq!(Head::read(&bytes), Some(head));
        for length in 0..HEAD_BYTES {
            assert_eq!(Head::read(&bytes[..length]), None);
        }
        // The highest bit of a stream identifier is reserved and ignored.
        bytes[5] |= 0x80;
        assert_eq!(Head::read(&bytes), Some(head));
    }

    #[test]
    fn a_block_of_headers_gets_its_length() {
        let mut out = vec![7];
        headers(&mut out, 5, flag::END_STREAM, |out| out.extend_from_slice(&[9; 300]));
        let head = Head { length: 300, kind: kind::HEADERS, flags: 5, stream: 5 };
        assert_eq!(Head::read(&out[1..]), Some(head));
        assert_eq!(out.len(), 1 + HEAD_BYTES + 300);
    }
}
