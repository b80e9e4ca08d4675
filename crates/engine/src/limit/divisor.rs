//! Division by a number that is known in advance, in a fraction of the time of the instruction.

/// A divisor with its reciprocal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Divisor {
    divisor: u64,
    /// ⌊(2^64 − 1) / divisor⌋.
    reciprocal: u64,
}

impl Divisor {
    /// `divisor` must not be 0.
    pub(super) const fn new(divisor: u64) -> Self {
        Self { divisor, reciprocal: u64::MAX / divisor }
    }

    /// Its two words, for a place that other numbers share.
    pub(super) const fn words(self) -> [u64; 2] {
        [self.divisor, self.reciprocal]
    }

    /// The divisor of these words.
    #[inline]
    pub(super) const fn of_words([divisor, reciprocal]: [u64; 2]) -> Self {
        Self { divisor, reciprocal }
    }

    pub(super) const fn get(self) -> u64 {
        self.divisor
    }

    /// The quotient and the remainder.
    ///
    /// The reciprocal is at least 2^64 / divisor − 1, so number × reciprocal / 2^64 falls short of number / divisor by
    /// less than 1: rounded down, the guess is right or one too small.
    #[inline]
    pub(super) const fn divide(self, number: u64) -> (u64, u64) {
        let guess = ((number as u128 * self.reciprocal as u128) >> 64) as u64;
        let rest = number - guess * self.divisor;
        if rest >= self.divisor { (guess + 1, rest - self.divisor) } else { (guess, rest) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_divides() {
        let edges = |number: u64| [number.wrapping_sub(1), number, number.wrapping_add(1)];
        let numbers: Vec<u64> =
            (0..64).flat_map(|bit| edges(1 << bit)).chain(edges(10_u64.pow(18))).collect();
        for &divisor in numbers.iter().filter(|&&divisor| divisor > 0) {
            for number in numbers.iter().flat_map(|&number| [number, number / divisor * divisor]) {
                let expected = (number / divisor, number % divisor);
                assert_eq!(Divisor::new(divisor).divide(number), expected, "{number} / {divisor}");
            }
        }
    }
}
