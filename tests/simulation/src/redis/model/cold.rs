//! COLD_START=deny: which counters may lack hits that a server has lost.

use tidegate_engine::limit::Algorithm;

use super::check::{Check, Reader, ceil, doubles, muldiv};
use crate::redis::database::{Database, Reply};

/// Since when nothing is missing, and of which counters that matters.
pub(super) struct Coldness {
    pub(super) complete_since: i64,
    held_max: i64,
    mark: Vec<u8>,
}

impl Coldness {
    /// What the last argument of a call says, and the mark of the server. Without one, it makes one.
    pub(super) fn read(argument: &[u8], now: i64, database: &mut Database) -> Self {
        let mut from = Reader::new(argument);
        let [held_max, longest, known] = [(); 3].map(|()| from.double());
        let mark = argument[24..].to_vec();
        let marked = database.run(now as u64, &[b"GET", &mark]);
        let mut set = |value: &[u8], life: &[&[u8]]| {
            database.run(now as u64, &[&[b"SET", &mark[..], value], life].concat());
        };
        let complete_since = match marked {
            Reply::Bulk(marked) => {
                let mut from = Reader::new(&marked);
                let (since, lease) = (from.double(), from.double());
                // The server's clock was set back.
                if since > now + lease {
                    set(&[&doubles([now + lease]), &marked[8..]].concat(), &[b"KEEPTTL"]);
                }
                since.min(now + lease)
            }
            Reply::Nil => {
                let life = tidegate_redis::script::MARK_LIFE.to_string();
                set(&doubles([now + longest, longest, now, 0]), &[b"EX", life.as_bytes()]);
                now + longest
            }
            _ => known,
        };
        Self { complete_since, held_max, mark }
    }

    pub(super) fn mark(&self) -> &[u8] {
        &self.mark
    }

    /// Whether hits of this limit may be missing. A bucket of more than N takes longer to drain. Calendar budgets are
    /// exempt.
    pub(super) fn holds(&self, check: &Check<'_>, now: i64) -> bool {
        if matches!(check.algorithm, Algorithm::Calendar | Algorithm::Ban) {
            return false;
        }
        let is_bucket = matches!(check.algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket);
        let counts = if is_bucket && check.requests > 0 && check.burst() > check.requests {
            ceil(muldiv(check.burst(), check.window, check.requests))
        } else {
            check.window
        };
        counts <= self.held_max && now < self.complete_since + counts
    }
}
