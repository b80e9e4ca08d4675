//! The length of a coded string once it is decoded: all that is needed of a header that is not read.
//!
//! It looks up two symbols at a time, as long as they are usual text: digits, letters, most punctuation. For other
//! strings it returns `None`: they have to be decoded. With ids, as proxies send them, a call takes 44 % longer if all
//! strings are decoded (`cargo bench --bench lane -- 64-ids`).

use super::{LENGTHS, codes};

/// Bits that a step looks up: two symbols of an id, which have five or six bits each.
const STEP_BITS: usize = 12;
/// The same for one symbol, at the end of a string.
const LAST_BITS: usize = 8;

/// The result of a step: its bits in the lower half, its symbols in the upper. 0: no usual symbol.
static STEPS: [u8; 1 << STEP_BITS] = steps();
static LAST_STEPS: [u8; 1 << LAST_BITS] = single();

/// The code of a space, and the number of its bits.
const SPACE: u8 = 0x14;
const SPACE_BITS: usize = 6;

/// The length of the decoded string, if it is known that all characters are printable and neither end is a space.
pub fn length(string: &[u8]) -> Option<usize> {
    if string.first().is_some_and(|first| first >> (8 - SPACE_BITS) == SPACE) {
        return None;
    }
    let (mut at, mut symbols, mut ends_with_space) = (0, 0, false);
    'whole: while let Some(word) = string[at / 8..].first_chunk() {
        let mut bits = u64::from_be_bytes(*word) << (at % 8);
        for _ in 0..4 {
            let step = STEPS[(bits >> (64 - STEP_BITS)) as usize];
            if step == 0 {
                break 'whole;
            }
            bits <<= step & 15;
            at += usize::from(step & 15);
            symbols += usize::from(step >> 4);
        }
    }
    let (rest, mut last) = (&string[at / 8..], [0; 8]);
    last.get_mut(..rest.len())?.copy_from_slice(rest);
    let mut bits = u64::from_be_bytes(last) << (at % 8);
    loop {
        let step = usize::from(LAST_STEPS[(bits >> (64 - LAST_BITS)) as usize]);
        if step == 0 || at + step > string.len() * 8 {
            break;
        }
        ends_with_space = bits >> (64 - SPACE_BITS) == u64::from(SPACE);
        bits <<= step;
        at += step;
        symbols += 1;
    }
    (is_padding(string, at) && !ends_with_space).then_some(symbols)
}

/// Whether only padding is left from this bit on: fewer than eight bits, all of them ones.
fn is_padding(string: &[u8], at: usize) -> bool {
    let left = string.len() * 8 - at;
    left < 8 && string.last().is_none_or(|last| last.trailing_ones() as usize >= left)
}

const fn single() -> [u8; 1 << LAST_BITS] {
    let (mut table, codes, mut symbol) = ([0; 1 << LAST_BITS], codes(), 0);
    while symbol < 256 {
        let bits = LENGTHS[symbol] as usize;
        if bits <= LAST_BITS {
            fill(&mut table, codes[symbol] as usize, bits, LAST_BITS, bits as u8);
        }
        symbol += 1;
    }
    table
}

const fn steps() -> [u8; 1 << STEP_BITS] {
    let (mut table, codes, mut first) = ([0; 1 << STEP_BITS], codes(), 0);
    while first < 256 {
        let bits = LENGTHS[first] as usize;
        if bits <= STEP_BITS {
            fill(&mut table, codes[first] as usize, bits, STEP_BITS, 1 << 4 | bits as u8);
            let mut second = 0;
            while second < 256 {
                let both = bits + LENGTHS[second] as usize;
                if both <= STEP_BITS {
                    let code = (codes[first] as usize) << LENGTHS[second] | codes[second] as usize;
                    fill(&mut table, code, both, STEP_BITS, 2 << 4 | both as u8);
                }
                second += 1;
            }
        }
        first += 1;
    }
    table
}

/// Sets every place whose bits begin with this code.
const fn fill(table: &mut [u8], code: usize, bits: usize, place_bits: usize, step: u8) {
    let (mut place, end) = (code << (place_bits - bits), (code + 1) << (place_bits - bits));
    while place < end {
        table[place] = step;
        place += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::huffman::{decode, tests::encode};

    #[test]
    fn ids_are_counted() {
        for text in ["", "0", "traceparent", "4bf92f3577b34da6-a3ce929d0e0e4736", "\u{7f}"] {
            let usual = text != "\u{7f}";
            assert_eq!(length(&encode(text.as_bytes())), usual.then_some(text.len()), "{text}");
        }
    }

    #[test]
    fn controls_have_longer_codes_than_a_step_has() {
        for symbol in (0..b' ').chain(0x7f..=0xff) {
            assert!(usize::from(LENGTHS[usize::from(symbol)]) > STEP_BITS, "{symbol}");
        }
    }

    proptest! {
        #[test]
        fn a_length_is_that_of_the_decoded_string(text in "[ -~]{0,80}", noise in vec(any::<u8>(), 0..40)) {
            let coded = encode(text.as_bytes());
            prop_assert!(length(&coded).is_none_or(|length| length == text.len()));
            if text.starts_with(' ') || text.ends_with(' ') {
                prop_assert_eq!(length(&coded), None);
            }
            for string in [&coded, &noise] {
                let mut decoded = Vec::new();
                let whole = decode(string, &mut decoded);
                if let Some(length) = length(string) {
                    prop_assert_eq!((whole, decoded.len()), (Some(()), length));
                }
            }
        }

        #[test]
        fn a_space_at_either_end_is_seen(text in "[0-9a-zA-Z:/.-]{0,80}") {
            for spaced in [format!(" {text}"), format!("{text} "), format!("\t{text}"), format!("{text}\t")] {
                prop_assert_eq!(length(&encode(spaced.as_bytes())), None);
            }
        }

        #[test]
        fn usual_text_is_always_counted(text in "[0-9a-zA-Z:/.-]{0,80}") {
            // All of it has codes of at most eight bits.
            prop_assert_eq!(length(&encode(text.as_bytes())), Some(text.len()));
        }
    }
}
