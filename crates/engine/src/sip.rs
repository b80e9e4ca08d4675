//! SipHash-1-3 with 128 bits, over whole words and a tail of seven bytes.
//!
//! The same function as in the crate `siphasher`, which hashes bytes. Keys are made of words: without a buffer in
//! between, a key of one short value takes half the time. A test compares the two.

/// A message that is hashed word by word.
pub(crate) struct SipHash13 {
    state: [u64; 4],
    words: u64,
}

impl SipHash13 {
    /// An empty message under a secret of 128 bits.
    pub(crate) fn new(key_first: u64, key_second: u64) -> Self {
        let state = [
            key_first ^ 0x736f_6d65_7073_6575,
            key_second ^ 0x646f_7261_6e64_6f6d ^ 0xee,
            key_first ^ 0x6c79_6765_6e65_7261,
            key_second ^ 0x7465_6462_7974_6573,
        ];
        Self { state, words: 0 }
    }

    #[inline]
    pub(crate) fn write(&mut self, word: u64) {
        self.words += 1;
        self.compress(word);
    }

    /// The hash of the message, after the seven low bytes of `tail`: they share the word that ends every message with
    /// its length.
    // A message of one short value is mostly this: inlined, its state stays in registers.
    #[inline(always)]
    pub(crate) fn finish(mut self, tail: u64) -> (u64, u64) {
        self.compress((self.words * 8 + 7) << 56 | tail & (u64::MAX >> 8));
        self.state[2] ^= 0xee;
        let first = self.finalize();
        self.state[1] ^= 0xdd;
        (first, self.finalize())
    }

    #[inline]
    fn compress(&mut self, word: u64) {
        self.state[3] ^= word;
        self.round();
        self.state[0] ^= word;
    }

    #[inline]
    fn finalize(&mut self) -> u64 {
        (0..3).for_each(|_| self.round());
        self.state.iter().fold(0, |hash, word| hash ^ word)
    }

    #[inline]
    fn round(&mut self) {
        let [mut a, mut b, mut c, mut d] = self.state;
        a = a.wrapping_add(b);
        b = b.rotate_left(13) ^ a;
        a = a.rotate_left(32);
        c = c.wrapping_add(d);
        d = d.rotate_left(16) ^ c;
        a = a.wrapping_add(d);
        d = d.rotate_left(21) ^ a;
        c = c.wrapping_add(b);
        b = b.rotate_left(17) ^ c;
        c = c.rotate_left(32);
        self.state = [a, b, c, d];
    }
}

#[cfg(test)]
mod tests {
    use siphasher::sip128::SipHasher13;

    use super::*;

    #[test]
    fn the_same_as_siphasher() {
        let key = [0x0123_4567_89ab_cdef_u64, 0x0f1e_2d3c_4b5a_6978];
        let words: Vec<u64> = (0..40_u64).map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        for count in 0..words.len() {
            let mut ours = SipHash13::new(key[0], key[1]);
            words[..count].iter().for_each(|&word| ours.write(word));
            let tail = words[count].to_le_bytes();
            let before = words[..count].iter().flat_map(|word| word.to_le_bytes());
            let bytes: Vec<u8> = before.chain(tail[..7].iter().copied()).collect();
            let theirs = SipHasher13::new_with_keys(key[0], key[1]).hash(&bytes);
            assert_eq!(ours.finish(words[count]), (theirs.h1, theirs.h2), "{count} words");
        }
    }
}
