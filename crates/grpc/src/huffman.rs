//! The Huffman code of HPACK (RFC 7541, appendix B), decoded four bits at a time.
//!
//! The code is canonical: the lengths determine the codes. The tables are computed at compile time.
//! `length` only computes how long the decoded string is, which is enough for most.

mod length;

pub use self::length::length;

/// The end-of-string symbol. It is never sent; strings are padded with the beginning of its code.
const EOS: usize = 256;
const SYMBOLS: usize = 257;
/// A code tree of n leaves has n - 1 inner nodes.
const NODES: usize = SYMBOLS - 1;
/// A string has fewer bits of padding than this.
const PADDING_BITS: usize = 8;

/// Bits of each symbol's code.
#[rustfmt::skip]
const LENGTHS: [u8; SYMBOLS] = [
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

/// The effect of four bits in a state, which is an inner node of the code tree. The shortest code has five bits, so a
/// step yields at most one symbol.
#[derive(Clone, Copy)]
struct Step {
    next: u16,
    yields: Yield,
}

#[derive(Clone, Copy)]
enum Yield {
    Nothing,
    Symbol(u8),
    Error,
}

/// The child of an inner node for one bit.
#[derive(Clone, Copy)]
enum Child {
    None,
    Node(u16),
    Leaf(u16),
}

type Tree = [[Child; 2]; NODES];

static STEPS: [[Step; 16]; NODES] = steps(&tree());
/// States in which a string may end.
static ENDS: [bool; NODES] = ends(&tree());

/// Appends the decoded string to `out`. `None` if it is malformed: it contains the end-of-string symbol or is not
/// padded with the beginning of that symbol's code.
pub fn decode(bytes: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let mut state = 0;
    for byte in bytes {
        for nibble in [byte >> 4, byte & 15] {
            let step = STEPS[usize::from(state)][usize::from(nibble)];
            match step.yields {
                Yield::Nothing => {}
                Yield::Symbol(symbol) => out.push(symbol),
                Yield::Error => return None,
            }
            state = step.next;
        }
    }
    ENDS[usize::from(state)].then_some(())
}

/// Each symbol's code, in the lowest bits.
const fn codes() -> [u32; SYMBOLS] {
    let mut codes = [0; SYMBOLS];
    let (mut code, mut length) = (0, 1);
    while length <= 30 {
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if LENGTHS[symbol] == length {
                codes[symbol] = code;
                code += 1;
            }
            symbol += 1;
        }
        code <<= 1;
        length += 1;
    }
    codes
}

const fn tree() -> Tree {
    let mut tree: Tree = [[Child::None; 2]; NODES];
    let codes = codes();
    let mut nodes = 1;
    let mut symbol = 0;
    while symbol < SYMBOLS {
        let mut node = 0;
        let mut bit = LENGTHS[symbol] - 1;
        while bit > 0 {
            let side = (codes[symbol] >> bit & 1) as usize;
            if let Child::None = tree[node][side] {
                tree[node][side] = Child::Node(nodes);
                nodes += 1;
            }
            if let Child::Node(next) = tree[node][side] {
                node = next as usize;
            }
            bit -= 1;
        }
        tree[node][(codes[symbol] & 1) as usize] = Child::Leaf(symbol as u16);
        symbol += 1;
    }
    tree
}

const fn steps(tree: &Tree) -> [[Step; 16]; NODES] {
    let mut steps = [[Step { next: 0, yields: Yield::Nothing }; 16]; NODES];
    let mut node = 0;
    while node < NODES {
        let mut nibble = 0;
        while nibble < 16 {
            steps[node][nibble] = step(tree, node, nibble);
            nibble += 1;
        }
        node += 1;
    }
    steps
}

const fn step(tree: &Tree, mut node: usize, nibble: usize) -> Step {
    let mut yields = Yield::Nothing;
    let mut bit = 4;
    while bit > 0 {
        bit -= 1;
        match tree[node][nibble >> bit & 1] {
            Child::Node(next) => node = next as usize,
            Child::Leaf(symbol) if symbol as usize != EOS => {
                yields = Yield::Symbol(symbol as u8);
                node = 0;
            }
            Child::Leaf(_) | Child::None => return Step { next: 0, yields: Yield::Error },
        }
    }
    Step { next: node as u16, yields }
}

/// A string may end between two symbols, or after fewer than [`PADDING_BITS`] ones.
const fn ends(tree: &Tree) -> [bool; NODES] {
    let mut ends = [false; NODES];
    let (mut node, mut ones) = (0, 0);
    while ones < PADDING_BITS {
        ends[node] = true;
        if let Child::Node(next) = tree[node][1] {
            node = next as usize;
        }
        ones += 1;
    }
    ends
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn encode(text: &[u8]) -> Vec<u8> {
        let codes = codes();
        let mut bits: Vec<u8> = Vec::new();
        for symbol in text {
            let (code, length) = (codes[usize::from(*symbol)], LENGTHS[usize::from(*symbol)]);
            bits.extend((0..length).rev().map(|bit| (code >> bit & 1) as u8));
        }
        bits.resize(bits.len().next_multiple_of(8), 1);
        bits.chunks(8).map(|byte| byte.iter().fold(0, |sum, bit| sum << 1 | bit)).collect()
    }

    fn decoded(bytes: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        decode(bytes, &mut out).map(|()| out)
    }

    #[test]
    fn the_code_is_complete_and_the_one_of_the_rfc() {
        let sum: f64 = LENGTHS.iter().map(|&length| 0.5_f64.powi(length.into())).sum();
        assert_eq!(sum, 1.0);
        let codes = codes();
        for (symbol, code) in
            [(b'0', 0), (b'w', 0x78), (b':', 0x5c), (b'\\', 0x7fff0), (0, 0x1ff8), (22, 0x3fff_fffe)]
        {
            assert_eq!(codes[usize::from(symbol)], code, "{symbol}");
        }
        assert_eq!(codes[EOS], 0x3fff_ffff);
    }

    #[test]
    fn strings_of_the_rfc_are_decoded() {
        // RFC 7541, C.4 and C.6.
        let text = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        assert_eq!(decoded(&text).as_deref(), Some(&b"www.example.com"[..]));
        let text = [
            0xd0, 0x7a, 0xbe, 0x94, 0x10, 0x54, 0xd4, 0x44, 0xa8, 0x20, 0x05, 0x95, 0x04, 0x0b, 0x81, 0x66,
            0xe0, 0x82, 0xa6, 0x2d, 0x1b, 0xff,
        ];
        assert_eq!(decoded(&text).as_deref(), Some(&b"Mon, 21 Oct 2013 20:13:21 GMT"[..]));
    }

    #[test]
    fn every_symbol_and_every_pair_comes_back() {
        for first in 0..=255 {
            assert_eq!(decoded(&encode(&[first])), Some(vec![first]));
            for second in 0..=255 {
                assert_eq!(decoded(&encode(&[first, second])), Some(vec![first, second]));
            }
        }
    }

    #[test]
    fn bad_padding_and_the_end_of_string_symbol_are_refused() {
        assert_eq!(decoded(&[]), Some(Vec::new()));
        assert_eq!(decoded(&[0xff]), None, "eight bits of padding");
        assert_eq!(decoded(&[0b0000_0000]), None, "padded with zeros");
        assert_eq!(decoded(&[0b0000_0111]), Some(b"0".to_vec()));
        assert_eq!(decoded(&[0xff, 0xff, 0xff, 0xff]), None, "the end-of-string symbol");
    }
}
