//! COLD_START=deny: which counters may lack hits that a server has lost.

use tidegate_engine::limit::Algorithm;

use super::check::{Check, Reader, ceil, doubles, muldiv};
use crate::redis::database::{Database, Reply};

/// Since when nothing is missing, and of which counters that matters.
pub(super) struct Coldness {
    pub(super) whole_since: i64,
    held_max: i64,
    mark: Vec<u8>,
}

impl Coldness {
    /// What the last argument of a call says, and the mark of the server. Without one, it makes one.
    pub(super) fn read(told: &[u8], now: i64, database: &mut Database) -> Self {
        let mut from = Reader::new(told);
        let [held_max, spent_late, known] = [(); 3].map(|()| from.double());
        let mark = told[24..].to_vec();
        let whole_since = match database.run(now as u64, &[b"GET", &mark]) {
            Reply::Bulk(marked) => Reader::new(&marked).double(),
            Reply::Nil => {
                let (since, life) = (now + spent_late, tidegate_redis::script::MARK_LIFE.to_string());
                let value = doubles([since]);
                database.run(now as u64, &[b"SET", &mark, &value, b"EX", life.as_bytes()]);
                since
            }
            _ => known,
        };
        Self { whole_since, held_max, mark }
    }

    pub(super) fn mark(&self) -> &[u8] {
        &self.mark
    }

    /// Whether hits of this limit may be missing. A bucket of more than N takes longer to drain.
    pub(super) fn holds(&self, check: &Check<'_>, now: i64) -> bool {
        let is_bucket = matches!(check.algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket);
        let counts = if is_bucket && check.requests > 0 && check.burst > check.requests {
            ceil(muldiv(check.burst, check.window, check.requests))
        } else {
            check.window
        };
        counts <= self.held_max && now < self.whole_since + counts
    }
}
