//! The string code of HPACK (RFC 7541, Appendix B): bytes to Huffman-coded bytes and back.
//!
//! The code is canonical, so its lengths define it. Decoding works bit by bit: a server sends each of its strings once
//! per connection and an index after that, so the speed does not matter.

use std::sync::LazyLock;

/// The bits of each symbol's code. The last symbol is EOS, which no string contains.
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, // 0
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28, // 16
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, // 32
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, // 48
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, // 64
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, // 80
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, // 96
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, // 112
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, // 128
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, // 144
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, // 160
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, // 176
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, // 192
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, // 208
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, // 224
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, // 240
    30, // EOS
];

const BITS_MAX: usize = 30;

struct Code {
    /// (code, bits) by symbol.
    of_symbol: Vec<(u32, u8)>,
    /// Symbols in the order of their codes.
    symbols: Vec<usize>,
    /// For each number of bits: the first code with that many, and its index in `symbols`.
    first: [(u32, usize); BITS_MAX + 2],
}

static CODE: LazyLock<Code> = LazyLock::new(|| {
    let mut symbols: Vec<usize> = (0..LENGTHS.len()).collect();
    symbols.sort_by_key(|&symbol| (LENGTHS[symbol], symbol));
    let mut code = Code { of_symbol: vec![(0, 0); LENGTHS.len()], symbols, first: [(0, 0); BITS_MAX + 2] };
    let (mut next, mut place) = (0, 0);
    for bits in 1..=BITS_MAX as u8 {
        next <<= 1;
        code.first[usize::from(bits)] = (next, place);
        while code.symbols.get(place).is_some_and(|&symbol| LENGTHS[symbol] == bits) {
            code.of_symbol[code.symbols[place]] = (next, bits);
            next += 1;
            place += 1;
        }
    }
    code.first[BITS_MAX + 1] = (next << 1, place);
    code
});

/// Appends the code of `text` to `out`, padded with ones to a whole byte.
pub(crate) fn encode(text: &[u8], out: &mut Vec<u8>) {
    let (mut pending, mut pending_bits) = (0_u64, 0_u32);
    for &byte in text {
        let (code, bits) = CODE.of_symbol[usize::from(byte)];
        pending = pending << bits | u64::from(code);
        pending_bits += u32::from(bits);
        while pending_bits >= 8 {
            pending_bits -= 8;
            out.push((pending >> pending_bits) as u8);
        }
    }
    if pending_bits > 0 {
        let fill = 8 - pending_bits;
        out.push((pending << fill | ((1 << fill) - 1)) as u8);
    }
}

/// Decodes `coded`; `None` if it contains EOS. The padding is not checked.
pub(crate) fn decode(coded: &[u8]) -> Option<Vec<u8>> {
    let code = &*CODE;
    let mut text = Vec::with_capacity(coded.len() * 2);
    let (mut value, mut bits) = (0_u32, 0_usize);
    for bit in coded.iter().flat_map(|byte| (0..8).rev().map(move |at| byte >> at & 1)) {
        value = value << 1 | u32::from(bit);
        bits += 1;
        if bits > BITS_MAX {
            return None;
        }
        let (first, place) = code.first[bits];
        let count = code.first[bits + 1].1 - place;
        if let Some(&symbol) = code.symbols[place..place + count].get((value - first) as usize) {
            text.push(u8::try_from(symbol).ok()?);
            (value, bits) = (0, 0);
        }
    }
    Some(text)
}
