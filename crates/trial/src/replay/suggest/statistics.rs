//! What a part of some keys says about the part of all keys: the formulas of a promise.
//!
//! In: counts. Out: bounds and probabilities. Two kinds of promises need two kinds of formulas:
//!
//! - **Keys** are independent of each other: of `n` keys, the number that a limit denies is binomial. A limit is good when
//!   so few keys exceed it that with more, in truth, than the promised part, so few would be seen in 5 % of all samples
//!   only. Because the limit is one of the observed peaks, this is the tolerance bound of Wilks ("Determination of sample
//!   sizes for setting tolerance limits", 1941), and it holds for every distribution of peaks. `k` of `n` keys may exceed
//!   the limit, where `k` is the greatest number with P(Binomial(n, part) ≤ k) ≤ 5 %.
//! - **Requests** come in bunches: those of one key are denied together. So the keys are the sample here too, and the rate
//!   of denied requests is a ratio of two sums over them. Its standard error is that of a ratio (Cochran, "Sampling
//!   Techniques", 3rd edition 1977, formula 6.13), and the bound is the rate and 1.645 standard errors.

/// The accepted probability that a promise is broken, by chance of the first half.
pub(super) const RISK: f64 = 0.05;

/// The quantile of the normal distribution with [`RISK`] above it.
const RISK_SIGMAS: f64 = 1.645;

/// A deviation of so many standard errors is not chance: it happens once in 740 times.
pub(super) const CHANCE_SIGMAS: f64 = 3.0;

/// The probability of a normal value above [`CHANCE_SIGMAS`].
const CHANCE: f64 = 0.001_35;

/// Two distributions are distinguished with this probability of a false alarm.
const CHANGE_RISK: f64 = 0.001;

/// Two distributions that differ by less than this part of keys are alike for our purpose, even if many keys show it.
const CHANGE_MIN: f64 = 0.1;

/// How many of `n` keys may exceed a limit, so that it denies at most `part` of all keys. `None`: `n` is too small.
pub(super) fn allowed(n: u64, part: f64) -> Option<u64> {
    let sums = cumulative(n, part).take_while(|sum| *sum <= RISK);
    (sums.count() as u64).checked_sub(1)
}

/// The least number of keys whose greatest peak keeps the promise: (1 − part)^n ≤ 5 %.
pub(super) fn keys_needed(part: f64) -> u64 {
    (RISK.ln() / (-part).ln_1p()).ceil() as u64
}

/// Whether `k` or more of `n` keys are more than chance explains, if the true part is this.
pub(super) fn is_no_chance(k: u64, n: u64, part: f64) -> bool {
    let Some(fewer) = k.checked_sub(1) else { return false };
    let below = cumulative(n, part).nth(usize::try_from(fewer).unwrap_or(usize::MAX)).unwrap_or(1.0);
    1.0 - below < CHANCE
}

/// P(Binomial(n, part) ≤ k) for k = 0, 1, …, n − 1.
fn cumulative(n: u64, part: f64) -> impl Iterator<Item = f64> {
    // In logarithms: (1 − part)^n alone may be too small for a number.
    let odds = part.ln() - (-part).ln_1p();
    let mut term = n as f64 * (-part).ln_1p();
    let mut sum = f64::NEG_INFINITY;
    (0..n).map(move |k| {
        sum = ln_add(sum, term);
        term += ((n - k) as f64 / (k + 1) as f64).ln() + odds;
        sum.exp()
    })
}

/// ln(e^a + e^b).
fn ln_add(a: f64, b: f64) -> f64 {
    let (small, great) = if a < b { (a, b) } else { (b, a) };
    if small == f64::NEG_INFINITY { great } else { great + (small - great).exp().ln_1p() }
}

/// A rate of denied requests, and its standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rate {
    pub(super) rate: f64,
    pub(super) error: f64,
}

impl Rate {
    /// Of keys, each with its requests and the denied ones among them.
    pub(super) fn of(keys: impl Iterator<Item = (u64, u64)> + Clone) -> Self {
        let (mut n, mut requests, mut denied) = (0.0, 0.0, 0.0);
        for (of_key, denied_of_key) in keys.clone() {
            n += 1.0;
            requests += of_key as f64;
            denied += denied_of_key as f64;
        }
        if denied == 0.0 {
            return Self::default();
        }
        let rate = denied / requests;
        let square = |(requests, denied): (u64, u64)| (denied as f64 - rate * requests as f64).powi(2);
        let squares: f64 = keys.map(square).sum();
        // One key alone says nothing about others.
        let error = if n < 2.0 { f64::INFINITY } else { (squares * n / (n - 1.0)).sqrt() / requests };
        Self { rate, error }
    }

    /// The true rate is at most this, but for [`RISK`].
    pub(super) fn upper(&self) -> f64 {
        self.rate + if self.rate > 0.0 { RISK_SIGMAS * self.error } else { 0.0 }
    }
}

/// Whether two sorted samples come from different distributions: the test of Kolmogorov and Smirnov. Samples of whole
/// numbers, and of the same keys, differ less than it expects, so that false alarms are still rarer (Conover, "Practical
/// Nonparametric Statistics", 3rd edition 1999, section 6.3).
pub(super) fn differ(one: &[u64], two: &[u64]) -> bool {
    let (n, m) = (one.len() as f64, two.len() as f64);
    if one.is_empty() || two.is_empty() {
        return one.len() != two.len();
    }
    let part =
        |sample: &[u64], value: u64| sample.partition_point(|it| *it <= value) as f64 / sample.len() as f64;
    let distance = |value: &u64| (part(one, *value) - part(two, *value)).abs();
    let greatest = one.iter().chain(two).map(distance).fold(0.0, f64::max);
    let critical = ((CHANGE_RISK / 2.0).ln() / -2.0).sqrt() * ((n + m) / (n * m)).sqrt();
    greatest > critical.max(CHANGE_MIN)
}

/// The value that so much of a sorted sample does not exceed.
pub(super) fn quantile(sorted: &[u64], part: f64) -> u64 {
    let rank = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P(Binomial(n, p) = k) as it is written in books.
    fn exactly(k: u64, n: u64, p: f64) -> f64 {
        let choose = (0..k).fold(1.0, |choose, i| choose * (n - i) as f64 / (i + 1) as f64);
        choose * p.powi(k as i32) * (1.0 - p).powi((n - k) as i32)
    }

    #[test]
    fn sums_are_those_of_the_binomial_distribution() {
        for (n, p) in [(10, 0.5), (60, 0.02), (400, 0.003)] {
            let mut sum = 0.0;
            for (k, got) in (0..n).zip(cumulative(n, p)) {
                sum += exactly(k, n, p);
                assert!((got - sum).abs() < 1e-9, "{k} of {n}: {got} {sum}");
            }
        }
        // The smallest sample whose greatest value is a 95 % bound for 95 % of all: 59 (Wilks).
        assert_eq!((allowed(58, 0.05), allowed(59, 0.05), keys_needed(0.05)), (None, Some(0), 59));
        // And with one value left out: 93.
        assert_eq!((allowed(92, 0.05), allowed(93, 0.05)), (Some(0), Some(1)));
        assert_eq!(allowed(0, 0.05), None);
        // Far more than what a number can hold of (1 − p)^n.
        let most = allowed(10_000_000, 0.01).expect("enough");
        assert!(most.abs_diff(100_000 - 1_645 * 315 / 1_000) < 5, "{most}");
    }

    #[test]
    fn chance_ends_at_three_standard_errors() {
        // Mean 100, standard error 10.
        assert!(!is_no_chance(128, 1_000_000, 0.0001) && is_no_chance(134, 1_000_000, 0.0001));
        assert!(!is_no_chance(0, 10, 0.5) && !is_no_chance(10, 10, 0.6) && is_no_chance(10, 10, 0.5));
    }

    #[test]
    fn the_error_of_a_rate_is_that_of_bunches() {
        // Each request a key of its own: that of a binomial part, √(0.1 × 0.9 / 1,000).
        let single = Rate::of((0..1_000).map(|at| (1, u64::from(at % 10 == 0))));
        assert!((single.rate - 0.1).abs() < 1e-12 && (single.error - 0.009_49).abs() < 1e-4, "{single:?}");
        // The same requests in bunches of ten: √10 times as much.
        let bunches = Rate::of((0..100).map(|at| (10, if at % 10 == 0 { 10 } else { 0 })));
        assert!((bunches.error / single.error - 10_f64.sqrt()).abs() < 0.02, "{bunches:?}");
        assert_eq!(Rate::of([(5, 0), (7, 0)].into_iter()).upper(), 0.0);
        assert!(Rate::of([(5, 1)].into_iter()).upper().is_infinite());
    }

    #[test]
    fn samples_differ_when_their_distributions_do() {
        let sample =
            |shift: u64| (0..1_000).map(|at| at % 100 + shift).map(|it| it * it / 100).collect::<Vec<_>>();
        let sorted = |mut sample: Vec<u64>| {
            sample.sort_unstable();
            sample
        };
        let (same, other, far) = (sorted(sample(0)), sorted(sample(5)), sorted(sample(30)));
        assert!(!differ(&same, &same) && !differ(&same, &other) && differ(&same, &far));
        assert!(!differ(&same[..5], &far[..5]), "five keys prove nothing");
        assert_eq!([0.5, 0.9, 1.0].map(|part| quantile(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], part)), [5, 9, 10]);
        assert_eq!((quantile(&[], 0.5), quantile(&[7], 0.001)), (0, 7));
    }
}
