//! Who asks: users by a distribution, each with a key and a place on every ring.

use crate::random::Random;
use crate::ring::envoy::{Ring, hash};
use tidegate_engine::key::Key;

tidegate_engine::named! {
    /// How requests are spread over users. Names are those of results.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Crowd {
        /// The k-th user asks 1/k as often as the first.
        Zipf = "zipf",
        /// Everybody asks as often.
        Uniform = "uniform",
    }
}

/// All users.
pub(super) struct Users {
    hashes: Vec<u64>,
    /// The sum of the weights up to each user, for `Zipf`; made of sums and quotients alone, which are the same everywhere.
    up_to: Vec<f64>,
}

impl Users {
    pub fn new(count: usize, crowd: Crowd) -> Self {
        let mut sum = 0.0;
        let mut next = |user: usize| {
            sum += 1.0 / (user + 1) as f64;
            sum
        };
        let up_to = match crowd {
            Crowd::Zipf => (0..count).map(&mut next).collect(),
            Crowd::Uniform => Vec::new(),
        };
        Self { hashes: (0..count).map(|user| hash(&format!("user-{user}"))).collect(), up_to }
    }

    pub fn count(&self) -> usize {
        self.hashes.len()
    }

    /// Who asks next.
    pub fn draw(&self, random: &mut Random) -> usize {
        let Some(all) = self.up_to.last() else { return random.below(self.count() as u64) as usize };
        let at = (random.bits() >> 11) as f64 / (1_u64 << 53) as f64 * all;
        self.up_to.partition_point(|sum| *sum <= at).min(self.count() - 1)
    }

    /// The key of a user's counter.
    pub fn key(&self, user: usize) -> Key {
        let mut mixed = Random::new(self.hashes[user]);
        Key(u128::from(mixed.bits()) << 64 | u128::from(mixed.bits()))
    }

    /// The node of every user on this ring.
    pub fn places(&self, ring: &Ring) -> Vec<u8> {
        self.hashes.iter().map(|hash| u8::try_from(ring.node_at(*hash)).expect("few nodes")).collect()
    }
}
