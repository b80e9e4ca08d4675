//! HTTP/2 frames (RFC 9113, sections 4 and 6), as far as a load generator needs them.
//!
//! From bytes of the socket to frames that borrow from them, and from frames to bytes. No state, no I/O.

/// The bytes that a client sends before its first frame.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The bytes of a frame before its payload.
pub(crate) const HEADER_BYTES: usize = 9;
/// No peer may send a longer payload, because we do not raise SETTINGS_MAX_FRAME_SIZE.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 16_384;
/// The initial flow-control windows.
pub(crate) const WINDOW_DEFAULT: i64 = 65_535;

/// The types of frames.
pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
}

/// The flags of frames.
pub(crate) mod flag {
    pub(crate) const ACK: u8 = 1;
    pub(crate) const END_STREAM: u8 = 1;
    pub(crate) const END_HEADERS: u8 = 4;
    pub(crate) const PADDED: u8 = 8;
    pub(crate) const PRIORITY: u8 = 0x20;
}

/// The parameters of SETTINGS that we use.
pub(crate) mod setting {
    pub(crate) const HEADER_TABLE_SIZE: u16 = 1;
    pub(crate) const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;
}

/// One frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: &'a [u8],
}

impl Frame<'_> {
    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Takes the first frame from the start of `bytes`; `None` while it is incomplete.
pub(crate) fn take<'a>(bytes: &mut &'a [u8]) -> Option<Frame<'a>> {
    let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let payload_bytes = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
    let (payload, rest) = rest.split_at_checked(payload_bytes)?;
    *bytes = rest;
    let stream = u32::from_be_bytes([header[5], header[6], header[7], header[8]]) & 0x7fff_ffff;
    Some(Frame { kind: header[3], flags: header[4], stream, payload })
}

/// Appends a frame with this payload.
pub(crate) fn put(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    put_header(out, payload.len(), kind, flags, stream);
    out.extend_from_slice(payload);
}

/// Appends a frame whose payload `write` appends.
pub(crate) fn put_with(
    out: &mut Vec<u8>,
    kind: u8,
    flags: u8,
    stream: u32,
    write: impl FnOnce(&mut Vec<u8>),
) {
    let start = out.len();
    put_header(out, 0, kind, flags, stream);
    write(out);
    let payload_bytes = ((out.len() - start - HEADER_BYTES) as u32).to_be_bytes();
    out[start..start + 3].copy_from_slice(&payload_bytes[1..]);
}

fn put_header(out: &mut Vec<u8>, payload_bytes: usize, kind: u8, flags: u8, stream: u32) {
    let length = (payload_bytes as u32).to_be_bytes();
    let stream = stream.to_be_bytes();
    let header = [length[1], length[2], length[3], kind, flags, stream[0], stream[1], stream[2], stream[3]];
    out.extend_from_slice(&header);
}

/// The first four bytes of a payload as a number; 0 where there are fewer.
pub(crate) fn number(payload: &[u8]) -> u32 {
    payload.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}
