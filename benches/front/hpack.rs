//! The parts of header compression (RFC 7541) that both directions share: the static table, integers, strings.

use super::huffman;

/// Bytes of a dynamic table, unless the peer asks for another size. We never do.
pub(crate) const TABLE_BYTES: usize = 4096;
/// Bytes that the RFC adds to the size of each entry.
pub(crate) const ENTRY_OVERHEAD: usize = 32;

/// Field number `i` is `STATIC[i - 1]`. The dynamic table follows, with the newest entry first.
#[rustfmt::skip]
pub(crate) const STATIC: [(&str, &str); 61] = [
    (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"), (":path", "/index.html"),
    (":scheme", "http"), (":scheme", "https"), (":status", "200"), (":status", "204"), (":status", "206"),
    (":status", "304"), (":status", "400"), (":status", "404"), (":status", "500"), ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"), ("accept-language", ""), ("accept-ranges", ""), ("accept", ""),
    ("access-control-allow-origin", ""), ("age", ""), ("allow", ""), ("authorization", ""),
    ("cache-control", ""), ("content-disposition", ""), ("content-encoding", ""), ("content-language", ""),
    ("content-length", ""), ("content-location", ""), ("content-range", ""), ("content-type", ""),
    ("cookie", ""), ("date", ""), ("etag", ""), ("expect", ""), ("expires", ""), ("from", ""), ("host", ""),
    ("if-match", ""), ("if-modified-since", ""), ("if-none-match", ""), ("if-range", ""),
    ("if-unmodified-since", ""), ("last-modified", ""), ("link", ""), ("location", ""), ("max-forwards", ""),
    ("proxy-authenticate", ""), ("proxy-authorization", ""), ("range", ""), ("referer", ""), ("refresh", ""),
    ("retry-after", ""), ("server", ""), ("set-cookie", ""), ("strict-transport-security", ""),
    ("transfer-encoding", ""), ("user-agent", ""), ("vary", ""), ("via", ""), ("www-authenticate", ""),
];

/// Appends the integer `value`. It starts in the lower `bits` of a byte whose upper bits are those of `pattern`.
pub(crate) fn put_integer(out: &mut Vec<u8>, pattern: u8, bits: u8, value: usize) {
    let max = (1_usize << bits) - 1;
    if value < max {
        return out.push(pattern | value as u8);
    }
    out.push(pattern | max as u8);
    let mut rest = value - max;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Takes an integer from the start of `bytes`. It starts in the lower `bits` of the first byte. `None`: it is cut off.
pub(crate) fn take_integer(bytes: &mut &[u8], bits: u8) -> Option<usize> {
    let max = (1_usize << bits) - 1;
    let (&first, rest) = bytes.split_first()?;
    *bytes = rest;
    let mut value = usize::from(first) & max;
    if value < max {
        return Some(value);
    }
    for shift in [0, 7, 14, 21] {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value += usize::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Appends a Huffman-coded string, which is what real clients send.
pub(crate) fn put_string(out: &mut Vec<u8>, text: &[u8]) {
    let start = out.len();
    out.push(0);
    huffman::encode(text, out);
    let coded_bytes = out.len() - start - 1;
    assert!(coded_bytes < 0x7f, "the length of each of our strings fits in its first byte");
    out[start] = 0x80 | coded_bytes as u8;
}

/// Takes a string from the start of `bytes`.
pub(crate) fn take_string(bytes: &mut &[u8]) -> Option<Vec<u8>> {
    let coded = bytes.first()? & 0x80 != 0;
    let length = take_integer(bytes, 7)?;
    let (text, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    if coded { huffman::decode(text) } else { Some(text.to_vec()) }
}
