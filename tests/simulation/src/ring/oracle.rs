//! Who was admitted when, by the true time, and what a limit of N in any window says about it.
//!
//! In: admissions. Out: whether one was too many, and whether a user who was denied had capacity left. It knows neither
//! nodes nor counters.

use tidegate_engine::limit::Limit;

/// The last N admissions of every user.
pub(super) struct Oracle {
    limit: usize,
    window_nanos: u64,
    /// By how much later than the window a hit may still count: a bucket of `sliding_window`.
    late_nanos: u64,
    /// For each user N times plus one nanosecond, in a circle; 0: none yet.
    times: Vec<u64>,
    oldest: Vec<u8>,
}

impl Oracle {
    pub fn new(users: usize, limit: &Limit, late_nanos: u64) -> Self {
        let requests = usize::try_from(limit.requests()).expect("a small limit");
        assert!((1..=255).contains(&requests), "a place in the circle is one byte");
        Self {
            limit: requests,
            window_nanos: limit.window_nanos(),
            late_nanos,
            times: vec![0; users * requests],
            oldest: vec![0; users],
        }
    }

    /// Notes an admission. Whether it is one too many: N more lie in the window that ends with it.
    pub fn admit(&mut self, user: usize, at: u64) -> bool {
        let is_over = self.nanos_since_oldest(user, at).is_some_and(|nanos| nanos < self.window_nanos);
        let place = usize::from(self.oldest[user]);
        self.times[user * self.limit + place] = at + 1;
        self.oldest[user] = ((place + 1) % self.limit) as u8;
        is_over
    }

    /// Whether the user certainly has capacity left: fewer than N admissions can still count.
    pub fn has_capacity(&self, user: usize, at: u64) -> bool {
        self.nanos_since_oldest(user, at).is_none_or(|nanos| nanos >= self.window_nanos + self.late_nanos)
    }

    /// Since the N-th admission back, if there were so many.
    fn nanos_since_oldest(&self, user: usize, at: u64) -> Option<u64> {
        let time = self.times[user * self.limit + usize::from(self.oldest[user])];
        (time > 0).then(|| at + 1 - time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::limit::Algorithm;

    #[test]
    fn the_third_of_two_within_a_window_is_one_too_many() {
        let mut oracle = Oracle::new(2, &Limit::new(Algorithm::SlidingWindow, 2, 10), 1);
        assert_eq!([0, 4, 9, 14].map(|at| oracle.admit(1, at)), [false, false, true, false]);
        assert_eq!([18, 19, 20].map(|at| oracle.has_capacity(1, at)), [false, false, true]);
        assert!(oracle.has_capacity(0, 0) && !oracle.admit(0, 0));
    }
}
