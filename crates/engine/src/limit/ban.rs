//! `ban`: a key that a limit denied too often is denied for a while, without counting.
//!
//! The counter holds strikes: denials by the limit. A number of them within W begins a ban. While the ban lasts, the counter
//! is over and counts no strikes. Each ban in a row is twice as long as the one before, up to a longest length. After that
//! length of time without a ban, the next one is as short as the first.
//!
//! - **Invariant:** the strikes are in order, fewer than begin a ban, and all of them count at `latest`. A banned key has
//!   none.
//! - **Error:** none. A strike at s counts at t exactly when s > t − W; a ban that begins at s ends at s + its length.
//!
//! ```
//! # use tidegate_engine::key::Key;
//! # use tidegate_engine::limit::{BanTerms, Limit};
//! # use tidegate_engine::memory::{MemoryOptions, MemoryStore};
//! # use tidegate_engine::time::{SECOND_NANOS, Timestamp};
//! # let store = MemoryStore::new(MemoryOptions::new(1 << 20));
//! // The third strike within ten seconds begins a ban of a minute.
//! let within_nanos = 10 * SECOND_NANOS;
//! let terms = BanTerms { strikes: 3, within_nanos, every_nanos: 0, first_secs: 60, longest_secs: 60 };
//! let limit = Limit::ban(&terms);
//! # let strike = |second| store.take(&limit, Key(1), 1, Timestamp::from_secs(second));
//! # let is_banned = |second| store.take(&limit, Key(1), 0, Timestamp::from_secs(second)).over;
//! assert_eq!([0, 1, 11].map(|second| strike(second).remaining), [2, 1, 2], "the first two do not count at 11 s");
//! assert_eq!([12, 13].map(|second| strike(second).remaining), [1, 0]);
//! assert_eq!([13, 72, 73].map(is_banned), [true, true, false]);
//! ```

use std::fmt;
use std::time::Duration;

use crate::limit::bytes::{Append as _, Damage, Reader};
use crate::limit::counter::{Counter, Pending, grown_capacity};
use crate::limit::{Limit, Preview};
use crate::time::{SECOND_NANOS, Timestamp};

/// The most strikes that begin a ban: a counter keeps a time for each.
pub const STRIKES_MAX: u32 = 1_000;

/// What begins a ban, and how long it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BanTerms {
    /// How many strikes within W begin a ban: 1 to [`STRIKES_MAX`].
    pub strikes: u32,
    /// W.
    pub within_nanos: u64,
    /// A denial within this time of another that counted does not count. 0: each counts.
    pub every_nanos: u64,
    /// The length of the first ban.
    pub first_secs: u32,
    /// The length that no ban exceeds. After this time without a ban, the next one has the length of the first.
    pub longest_secs: u32,
}

impl BanTerms {
    /// The length of a ban that follows `level` others in a row.
    fn nanos(&self, level: u32) -> u64 {
        let first = u64::from(self.first_secs);
        let doubled = first.checked_mul(1_u64.checked_shl(level.min(40)).unwrap_or(u64::MAX));
        doubled.unwrap_or(u64::MAX).min(u64::from(self.longest_secs)) * SECOND_NANOS
    }

    /// Whether these are as many hits as a ban takes. One is a strike in any case.
    fn begins_at_once(&self, hits: u64) -> bool {
        hits > 1 && hits >= u64::from(self.strikes)
    }
}

/// The terms as people read them: `5 denials within 600s, every 1s, for 3600s, doubling to 86400s`.
impl fmt::Display for BanTerms {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { strikes, within_nanos, every_nanos, first_secs, longest_secs } = self;
        let [within, every] = [within_nanos, every_nanos].map(|nanos| match nanos {
            0 => "0s".to_owned(),
            nanos => format!("{:?}", Duration::from_nanos(*nanos)),
        });
        let plural = if *strikes == 1 { "" } else { "s" };
        write!(out, "{strikes} denial{plural} within {within}, every {every}, for {first_secs}s")?;
        if longest_secs > first_secs { write!(out, ", doubling to {longest_secs}s") } else { Ok(()) }
    }
}

/// The state: 64 bytes, and 8 for each strike.
#[derive(Debug, Default)]
pub(crate) struct Ban {
    latest: Timestamp,
    /// When the ban ends.
    until: Timestamp,
    /// How many bans there were in a row, and when they are forgotten.
    level: u32,
    level_until: Timestamp,
    /// When the last strike does not count any more.
    counts_until: Timestamp,
    strikes: Vec<Timestamp>,
}

impl Ban {
    fn is_banned(&self) -> bool {
        self.until > self.latest
    }

    fn begin(&mut self, terms: &BanTerms) {
        self.until = self.latest.plus(terms.nanos(self.level));
        if terms.longest_secs > terms.first_secs {
            self.level = self.level.saturating_add(1);
            let forgotten = self.until.plus(u64::from(terms.longest_secs) * SECOND_NANOS);
            self.level_until = self.level_until.max(forgotten);
        }
        self.counts_until = Timestamp::default();
        self.strikes = Vec::new();
    }

    fn forget(&mut self) {
        *self = Self { latest: self.latest, ..Self::default() };
    }

    /// Grows by as much as [`growth_bytes`](Counter::growth_bytes) says.
    fn push(&mut self, at: Timestamp) {
        self.strikes.reserve_exact(grown_capacity(&self.strikes, 1) - self.strikes.len());
        self.strikes.push(at);
    }
}

impl Counter for Ban {
    fn advance(&mut self, limit: &Limit, now: Timestamp) {
        self.latest = self.latest.max(now);
        let now = self.latest;
        // W may have become longer since. Once the last strike has ended by the earlier W, none counts.
        let counts = self.counts_until > now;
        self.strikes.retain(|strike| counts && strike.plus(limit.window_nanos()) > now);
        if self.level_until <= now {
            self.level = 0;
        }
    }

    /// A banned key is over, for hits and for questions. An operator's ban replaces any other.
    fn look(&self, limit: &Limit, _pending: Pending, hits: u64) -> Preview {
        let before = self.strikes.len() as u64;
        let left = if self.is_banned() { 0 } else { limit.capacity().saturating_sub(before).max(1) };
        let replaces = || limit.ban_terms().is_some_and(|terms| terms.begins_at_once(hits));
        Preview { over: self.is_banned() && !replaces(), left, before }
    }

    /// One hit is a strike. As many hits as a ban takes begin it at once, whatever was there before: this is how an operator
    /// bans a key.
    fn charge(&mut self, limit: &Limit, hits: u64) {
        let Some(terms) = limit.ban_terms() else { return };
        if terms.begins_at_once(hits) {
            self.forget();
            return self.begin(&terms);
        }
        if self.is_banned() {
            return;
        }
        let last = self.strikes.last();
        let counts = last.is_none_or(|last| self.latest >= last.plus(terms.every_nanos));
        if counts && self.strikes.len() + 1 >= terms.strikes as usize {
            return self.begin(&terms);
        }
        if counts {
            self.push(self.latest);
            self.counts_until = self.counts_until.max(self.latest.plus(limit.window_nanos()));
        }
    }

    fn after(&self, limit: &Limit, _now: Preview, _hits: u64) -> Preview {
        self.look(limit, Pending::default(), 0)
    }

    /// Lifts the ban, and forgets all strikes and earlier bans.
    fn refund(&mut self, _limit: &Limit, _hits: u64) {
        self.forget();
    }

    fn wait_nanos(&self, _limit: &Limit, _hits: u64) -> u64 {
        self.until.nanos_since(self.latest)
    }

    /// The time until the ban ends, also if it has just begun.
    fn reset_nanos(&self, limit: &Limit, _now: Preview, hits: u64, _over: bool) -> u64 {
        self.wait_nanos(limit, hits)
    }

    fn expires_at(&self) -> Timestamp {
        self.until.max(self.level_until).max(self.counts_until)
    }

    fn latest(&self) -> Timestamp {
        self.latest
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let times = [self.latest, self.until, self.level_until, self.counts_until];
        times.into_iter().for_each(|time| out.u64(time.as_nanos()));
        out.u32(self.level);
        out.u32(self.strikes.len() as u32);
        self.strikes.iter().for_each(|strike| out.u64(strike.as_nanos()));
    }

    fn decode(bytes: &mut Reader<'_>) -> Result<Self, Damage> {
        let mut time = || bytes.u64().map(Timestamp::from_nanos);
        let [latest, until, level_until, counts_until] = [time()?, time()?, time()?, time()?];
        let level = bytes.u32()?;
        let mut state = Self { latest, until, level, level_until, counts_until, strikes: Vec::new() };
        let count = bytes.u32()?;
        if count >= STRIKES_MAX {
            return Err("more strikes than a counter holds");
        }
        for _ in 0..count {
            let strike = Timestamp::from_nanos(bytes.u64()?);
            if state.strikes.last().is_some_and(|before| *before > strike) || strike > latest {
                return Err("the strikes are not in order");
            }
            state.push(strike);
        }
        match state.expires_at() > latest {
            true => Ok(state),
            false => Err("a ban that has ended"),
        }
    }

    fn invariants(&self, _limit: &Limit) -> Result<(), &'static str> {
        let in_order =
            self.strikes.is_sorted() && self.strikes.last().is_none_or(|last| *last <= self.latest);
        let has_none = !self.is_banned() || self.strikes.is_empty();
        if in_order && has_none { Ok(()) } else { Err("strikes out of order, or during a ban") }
    }

    fn heap_bytes(&self) -> usize {
        self.strikes.capacity() * size_of::<Timestamp>()
    }

    fn growth_bytes(&self, _limit: &Limit) -> usize {
        grown_capacity(&self.strikes, 1) * size_of::<Timestamp>() - self.heap_bytes()
    }

    fn growth_bytes_after_others(&self, _limit: &Limit) -> usize {
        // Checks that were prepared before this one may use the room that is free now.
        grown_capacity(&self.strikes, self.strikes.len().max(4)) * size_of::<Timestamp>() - self.heap_bytes()
    }
}
