//! The scripts that decide inside Redis: their texts, the arguments of a call, and the verdicts in a reply. A script
//! is composed of one Lua fragment for each algorithm, and of a shorter part for a counter that is asked alone.
//!
//! In: checks of one plan whose counters live in one slot. Out: [`Call`]s, and [`Answered`] from the numbers of a
//! reply. It opens no connection, and keys are only bytes to it.

mod periods;

use std::borrow::Cow;
use std::ops::Range;

use smallvec::SmallVec;

use tidegate_engine::limit::{Algorithm, BanTerms, Limit, RemoteCounter, RemoteState, Slot, Verdict, gcd};
use tidegate_engine::plan::{Candidate, Check, Hits, ReservationStep};
use tidegate_engine::time::Timestamp;

/// The clock of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Redis: the only clock that all nodes share.
    Redis,
    /// Two more arguments, for tests: the time in microseconds, and the milliseconds by which expiry is moved.
    Arguments,
}

/// What a script does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Decides a request.
    Decide,
    /// Decides several requests of one check each, independently.
    DecideEach,
    /// Takes leases of several counters and does nothing else.
    Renew,
    /// Gives back what one slot charged for a request that another slot denied, and what leases did not spend.
    GiveBack,
}

impl Purpose {
    /// All of them, in their order.
    pub const ALL: [Self; 4] = [Self::Decide, Self::DecideEach, Self::Renew, Self::GiveBack];
}

/// How counters whose hits may have been lost are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// They start at zero.
    Allow,
    /// They count as full until the lost hits would have left the window. Every call but a give-back has one more
    /// argument: [`cold_argument`].
    Deny,
}

/// How long a mark lives, in seconds: twice the longest window. Every node that connects prolongs it.
pub const MARK_LIFE: u64 = 3 * 366 * 86_400;

/// The script that reads and writes the mark of a primary.
pub fn mark_source(clock: Clock) -> String {
    [prelude(clock), &mark_life(), include_str!("lua/mark.lua")].concat()
}

fn prelude(clock: Clock) -> &'static str {
    match clock {
        Clock::Redis => include_str!("lua/prelude.lua"),
        Clock::Arguments => include_str!("lua/prelude_test.lua"),
    }
}

fn mark_life() -> String {
    format!("local MARK_LIFE = {MARK_LIFE}\n")
}

/// The last argument of a call with [`Lost::Deny`]: the longest time that hits count in a limit that is denied after
/// a loss, the longest lease time that the node has read, and since when the data is complete as the node knows it,
/// all in microseconds; and the key of the mark.
pub fn cold_argument(
    held_micros_max: u64,
    lease_micros: u64,
    complete_since_micros: u64,
    mark: &[u8],
) -> Vec<u8> {
    let numbers = [held_micros_max, lease_micros, complete_since_micros].map(double);
    [numbers.as_flattened(), mark].concat()
}

/// The value of a mark: since when the data is complete, the longest lease time of nodes, and when a node had it, all
/// in microseconds; and the history of the server's data.
pub fn mark_value(since_micros: u64, lease_micros: u64, at_micros: u64, history: &str) -> Vec<u8> {
    let numbers = [since_micros, lease_micros, at_micros, 0].map(double);
    [numbers.as_flattened(), history.as_bytes()].concat()
}

/// The text of a script.
pub fn source(purpose: Purpose, clock: Clock, lost: Lost) -> String {
    let window = include_str!("lua/window.lua");
    let shared = [include_str!("lua/common.lua"), include_str!("lua/gcra.lua")].concat();
    let counters = [shared, Algorithm::ALL.map(counter).concat()].concat();
    let alone = concat!(
        include_str!("lua/alone.lua"),
        include_str!("lua/alone/sliding_log.lua"),
        include_str!("lua/alone/sliding_window.lua"),
        include_str!("lua/alone/sliding_window_weighted.lua"),
        include_str!("lua/alone/fixed_window.lua"),
        include_str!("lua/alone/gcra.lua"),
        include_str!("lua/alone/calendar.lua"),
    );
    let decide = [alone, &counters, include_str!("lua/decide.lua")].concat();
    let fragments = match purpose {
        Purpose::Decide => match lost {
            Lost::Allow => decide,
            Lost::Deny => as_function(&decide) + "return with_since(decide(KEYS, ARGV))\n",
        },
        Purpose::DecideEach => as_function(&decide) + include_str!("lua/each.lua"),
        Purpose::Renew => include_str!("lua/renew.lua").to_owned(),
        Purpose::GiveBack => [&counters, include_str!("lua/give_back.lua")].concat(),
    };
    let cold = match (purpose, lost) {
        (Purpose::GiveBack, _) => String::new(),
        (_, Lost::Allow) => "local is_cold, with_since
"
        .to_owned(),
        (_, Lost::Deny) => mark_life() + include_str!("lua/cold.lua"),
    };
    [prelude(clock), &algorithms(), &cold, window, &fragments].concat()
}

fn as_function(decide: &str) -> String {
    format!("local function decide(KEYS, ARGV)\n{decide}end\n")
}

/// The names by which fragments refer to the algorithms: `local SLIDING_LOG, … = 0, …`.
fn algorithms() -> String {
    let names = Algorithm::ALL.map(|algorithm| algorithm.name().to_uppercase()).join(", ");
    let numbers = Algorithm::ALL.map(|algorithm| algorithm.number().to_string()).join(", ");
    format!("local {names} = {numbers}\nlocal CARRIES = {CARRIES}\n")
}

/// The counters of one algorithm.
fn counter(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::SlidingLog => include_str!("lua/sliding_log.lua"),
        Algorithm::SlidingWindow => include_str!("lua/sliding_window.lua"),
        Algorithm::SlidingWindowWeighted => include_str!("lua/sliding_window_weighted.lua"),
        Algorithm::FixedWindow => include_str!("lua/fixed_window.lua"),
        Algorithm::TokenBucket => include_str!("lua/token_bucket.lua"),
        Algorithm::LeakyBucket => include_str!("lua/leaky_bucket.lua"),
        Algorithm::Calendar => include_str!("lua/calendar.lua"),
        Algorithm::Concurrency => include_str!("lua/concurrency.lua"),
        Algorithm::Ban => include_str!("lua/ban.lua"),
        Algorithm::Holds => include_str!("lua/holds.lua"),
    }
}

/// Hits beyond this count as this many. A script counts in doubles, which are exact up to here.
const MOST: u64 = 1 << 53;

/// The bytes of [`RequestSummary`].
const SUMMARY_BYTES: usize = 11;
/// The bytes of the first argument.
pub(super) const FIRST_ARG_BYTES: usize = 8 + SUMMARY_BYTES;

/// The numbers of a reply for each check. Buckets have one more.
const NUMBERS: usize = 8;

const GIVES: u8 = 1;
const REPORTED: u8 = 2;
const SHADOW: u8 = 4;
const QUOTA: u8 = 8;
const LEASE: u8 = 16;
const CANDIDATE: u8 = 32;
/// 16 bytes more: the names of a slot, or the lengths of bans. 40 bytes for a hold: its names, a period of a calendar, and the
/// most that the call may cost.
const DETAIL: u8 = 64;
/// The hits are held and not charged: another check holds them.
const RESERVES: u8 = 128;
/// In the byte of the algorithm: its limit carries debts. Then `burst` is N, and the numerator of a calendar says which one it is.
const CARRIES: u8 = 128;
/// The offsets in a packed check of the algorithm, the flags, the window, the buckets per microsecond, and the hits.
const ALGORITHM: usize = 4;
const FLAGS: usize = 5;
const REQUESTS: Range<usize> = 6..14;
const BURST: Range<usize> = 14..22;
const WINDOW: Range<usize> = 22..30;
const NUMERATOR: usize = 30;
const DENOMINATOR: Range<usize> = 31..39;
const HITS: Range<usize> = 39..47;
/// The period of a calendar, in a check that makes a hold.
const PERIOD: Range<usize> = HITS.end + 16..HITS.end + 32;
/// The bytes of a check that asks for a lease and holds no unsynced hits.
const LEASE_BYTES: usize = HITS.end + 16;

/// What a call has to know about its request, of which it may be a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestSummary {
    /// Fixed windows: when one descriptor is over, the others are not charged.
    pub stop_increment_when_over: bool,
    /// Every descriptor is in quota mode.
    pub quota: bool,
    /// A descriptor outside of this call is over.
    pub any_over: bool,
    /// A descriptor outside of this call denies the request.
    pub denied: bool,
    /// A descriptor outside of this call is banned: nothing is charged but reported costs.
    pub is_banned: bool,
    /// Descriptors outside of this call in quota mode.
    pub quotas: u32,
    /// Those of them that are over.
    pub quotas_over: u32,
}

/// A server's data: the key of its generation or of its mark, and the beginning of the value there, which stays the
/// same as long as the server loses nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DataId {
    /// The key.
    pub key: Vec<u8>,
    /// How its value begins.
    pub generation: Vec<u8>,
    /// The newest connection to the server, by its number. A failover keeps the generation, but loses what was charged
    /// last; all connections to the new master are newer.
    pub connection: u64,
}

/// The keys and arguments of one call of the script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// The keys, each once.
    pub keys: SmallVec<[Vec<u8>; 1]>,
    /// What the call has to know about its request.
    summary: [u8; SUMMARY_BYTES],
    /// The arguments after the first: one for each check.
    pub args: SmallVec<[Vec<u8>; 1]>,
}

impl Call {
    /// A call without checks.
    pub fn new(summary: &RequestSummary) -> Self {
        let RequestSummary {
            stop_increment_when_over, any_over, denied, is_banned, quotas, quotas_over, ..
        } = *summary;
        let [a, b, c, d] = quotas.to_le_bytes();
        let [e, f, g, h] = quotas_over.to_le_bytes();
        let stop = if is_banned { 2 } else { u8::from(stop_increment_when_over) };
        let summary = [stop, u8::from(any_over), u8::from(denied), a, b, c, d, e, f, g, h];
        Self { summary, ..Self::default() }
    }

    /// A call that gives back hits which were charged in this data.
    pub fn giving_back(data: &DataId) -> Self {
        let args = SmallVec::from_vec(vec![data.key.clone(), data.generation.clone()]);
        Self { args, ..Self::default() }
    }

    /// Adds the data's key to the keys of a call that gives back.
    pub(super) fn name_memory(&mut self) {
        self.keys.extend(self.args.first().cloned());
    }

    /// The first argument. After `deadline_micros` of Redis' clock the call does nothing.
    pub fn first_arg(&self, deadline_micros: u64) -> [u8; FIRST_ARG_BYTES] {
        let mut packed = [0; FIRST_ARG_BYTES];
        let (deadline, summary) = packed.split_at_mut(FIRST_ARG_BYTES - SUMMARY_BYTES);
        deadline.copy_from_slice(&double(deadline_micros));
        summary.copy_from_slice(&self.summary);
        packed
    }

    /// The arguments after the first of a call that decides. Those of `calendar` contain the period that holds the
    /// deadline, those of holds of such a budget the one that holds the expiry of a hold that is made then.
    pub fn args_until(&self, deadline_micros: u64) -> Cow<'_, [Vec<u8>]> {
        periods::named(&self.args, Timestamp::from_nanos(deadline_micros.saturating_mul(1_000)))
    }

    /// Adds `hits` to give back to a counter; they were charged under this stamp.
    pub fn push_give_back(&mut self, key: Vec<u8>, limit: &Limit, stamp: ChargeId, hits: u64) {
        let mut packed = packed(0, limit, 0, hits);
        let ChargeId { at, level, rest, taken_back } = stamp;
        [at, level, rest, taken_back].into_iter().for_each(|number| packed.extend(double(number)));
        self.keys.push(key);
        self.args.push(packed);
    }

    /// Adds a check of the counter under `key`. `quota`: every descriptor is in quota mode.
    pub fn push(&mut self, key: Vec<u8>, check: &Check<'_>, quota: bool) {
        let place = self.keys.iter().position(|known| *known == key).unwrap_or_else(|| {
            self.keys.push(key);
            self.keys.len() - 1
        });
        let (hits, gives) = match check.hits {
            Hits::Take(hits) => (hits, 0),
            Hits::GiveBack(hits) => (hits, GIVES),
        };
        let flag = |is: bool, flag: u8| if is { flag } else { 0 };
        let flags = gives
            | flag(check.reported, REPORTED)
            | flag(check.shadow, SHADOW)
            | flag(check.reservation == ReservationStep::Hold, RESERVES)
            | flag(check.quota || quota, QUOTA);
        self.args.push(packed(place, &check.limit, flags, hits));
    }

    /// Makes the last check one of the holds of the limit whose check is at `place`, counted from 0. The check that bounds its
    /// worst cases is at `bound`.
    pub fn holds_of(&mut self, place: usize, bound: Option<usize>) {
        let number = |place: usize| double(place as u64 + 1);
        if let Some(check) = self.args.last_mut() {
            check[REQUESTS].copy_from_slice(&number(place));
            check[BURST].copy_from_slice(&bound.map_or(double(0), number));
        }
    }

    /// Adds the check of a candidate's counter under `key`: it replaces the check at `place`, counted from 0. All
    /// candidates of one rule are tried together. `quota`: every descriptor is in quota mode.
    pub fn push_candidate(
        &mut self,
        key: Vec<u8>,
        Candidate { rule, check, .. }: &Candidate<'_>,
        quota: bool,
        place: usize,
    ) {
        self.push(key, check, quota);
        if let Some(check) = self.args.last_mut() {
            check[FLAGS] |= CANDIDATE;
            check.extend(double(place as u64 + 1));
            check.extend(double(*rule as u64));
        }
    }

    /// Asks for a lease along with the last check: up to `hits` more, to be spent within `micros`. Strict
    /// algorithms only, and before unsynced hits are added.
    pub fn lease(&mut self, hits: u64, micros: u64) {
        if let Some(check) = self.args.last_mut() {
            check[FLAGS] |= LEASE;
            check.extend(double(hits.min(MOST)));
            check.extend(double(micros));
        }
    }

    /// Whether the call only asks for leases of several counters, and the script for renewals can do it.
    pub fn only_renews(&self) -> bool {
        let renews = |check: &Vec<u8>| {
            let known = check[ALGORITHM] == Algorithm::SlidingWindow.number() && has_exact_places(check);
            known && check[FLAGS] == LEASE && check[HITS] == double(0) && check.len() == LEASE_BYTES
        };
        let each_its_own = self.args.len() > 1 && self.args.len() == self.keys.len();
        each_its_own && self.summary == [0; SUMMARY_BYTES] && self.args.iter().all(renews)
    }

    /// Adds unsynced hits to the last check. They are charged in any case: (microseconds ago, hits).
    pub fn add_unsynced(&mut self, (age_micros, hits): (u64, u64)) {
        if let Some(check) = self.args.last_mut() {
            check.extend(double(age_micros));
            check.extend(double(hits.min(MOST)));
        }
    }
}

/// Whether the script for one counter can compute the bucket of every time: its products are below 2^53.
fn has_exact_places(check: &[u8]) -> bool {
    let denominator = check[DENOMINATOR].try_into().map_or(f64::MAX, f64::from_le_bytes);
    f64::from(check[NUMERATOR]) * denominator < MOST as f64
}

/// A check in the form that the script unpacks.
fn packed(place: usize, limit: &Limit, flags: u8, hits: u64) -> Vec<u8> {
    let limit = in_micros(limit);
    let (numerator, denominator) = match limit.algorithm() {
        // Its `burst` below is the share of a class.
        algorithm if algorithm.is_bucket() => (0, limit.burst()),
        Algorithm::Calendar => {
            let table = limit.periods().map_or(0, |periods| periods.number().into());
            (if limit.carries_debt() { limit.calendar_number().into() } else { 0 }, table)
        }
        Algorithm::SlidingWindow => buckets_per_micro(&limit),
        Algorithm::Holds => {
            (0, limit.hold_terms().map_or(0, |terms| u64::from(terms.after_secs) * 1_000_000))
        }
        Algorithm::Ban => (0, limit.ban_terms().map_or(0, |terms| terms.every_nanos / 1_000)),
        _ => (0, 0),
    };
    let place = u32::try_from(place + 1).expect("a request names fewer counters than it has bytes");
    let mut packed = Vec::with_capacity(64);
    packed.extend(place.to_le_bytes());
    let detail = detail(&limit);
    let carries = if limit.carries_debt() { CARRIES } else { 0 };
    packed.extend([limit.algorithm().number() | carries, flags | detail.map_or(0, |_| DETAIL)]);
    // By most algorithms N is how many hits fit. A bucket drains by N, whatever the class. Holds have the places of checks.
    let (requests, burst) = match limit.algorithm() {
        Algorithm::Holds => (0, 0),
        algorithm if algorithm.is_bucket() => (limit.requests(), limit.capacity()),
        _ if limit.carries_debt() => (limit.capacity(), limit.requests()),
        _ => (limit.capacity(), limit.capacity()),
    };
    packed.extend([requests, burst].map(double).as_flattened());
    packed.extend(double(limit.window_nanos() / 1_000));
    packed.push(u8::try_from(numerator).expect("limits in whole microseconds have few buckets in one"));
    packed.extend(double(denominator));
    packed.extend(double(hits.min(MOST)));
    packed.extend(detail.iter().flatten().flatten());
    if let (Some(_), Some(terms)) = (detail, limit.hold_terms()) {
        // In place of a period the number of its table, or 0.
        let table = terms.periods.map_or(0, |periods| periods.number().into());
        packed.extend([table, 0].map(double).as_flattened());
        packed.extend(double(terms.worst.into()));
    }
    packed
}

/// What a check has behind its numbers: the names of a slot, or the lengths of the first and of the longest ban.
fn detail(limit: &Limit) -> Option<[[u8; 8]; 2]> {
    let slot = limit.slot().map(|Slot { id, number }| [id.get(), number].map(u64::to_be_bytes));
    let lengths = |terms: BanTerms| [terms.first_secs, terms.longest_secs];
    slot.or_else(|| Some(lengths(limit.ban_terms()?).map(|secs| double(u64::from(secs) * 1_000_000))))
}

fn double(number: u64) -> [u8; 8] {
    (number as f64).to_le_bytes()
}

/// The limit as Redis counts it: buckets in whole microseconds, rounded up, so that nothing counts shorter than the
/// rule says. Only a granularity given in nanoseconds needs rounding.
fn in_micros(limit: &Limit) -> Limit {
    if limit.algorithm() != Algorithm::SlidingWindow {
        return *limit;
    }
    let (numerator, denominator) = buckets_per_micro(limit);
    match u8::try_from(numerator) {
        Ok(_) => *limit,
        Err(_) => limit.with_granularity((denominator * 1_000).div_ceil(numerator).next_multiple_of(1_000)),
    }
}

/// Buckets of `sliding_window` per microsecond, as a reduced fraction.
fn buckets_per_micro(limit: &Limit) -> (u64, u64) {
    let (numerator, denominator) = limit.buckets();
    let divisor = gcd(numerator * 1_000, denominator);
    (numerator * 1_000 / divisor, denominator / divisor)
}

/// The reply to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The time of the decision, in microseconds of Redis' clock.
    pub now_micros: u64,
    /// One answer for each check, in order. Empty when the call came too late and did nothing.
    pub counters: Vec<CounterAnswered>,
    /// One answer for each lease that was asked for, in order.
    pub leases: Vec<Granted>,
    /// Since when the data is complete, in microseconds of Redis' clock. Only with [`Lost::Deny`].
    pub complete_since_micros: Option<u64>,
}

/// A lease: hits that count as if they happened when the lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// At most as many as were asked for. 0: no lease.
    pub hits: u64,
    /// The stamp under which they count: a time, or a bucket's number.
    pub stamp: u64,
}

/// The answer to one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterAnswered {
    /// The counter's verdict.
    pub verdict: Verdict,
    /// Hits that were charged.
    pub charged: u64,
    /// The stamp of the charge.
    pub stamp: ChargeId,
    /// For how long nothing had been charged before, as far as the counter knows.
    pub quiet_nanos: u64,
}

/// Identifies a charge, so that it can be given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChargeId {
    /// A time, or the number of a bucket or window.
    pub at: u64,
    /// Token and leaky bucket: the whole hits in the bucket after the charge.
    pub level: u64,
    /// Token and leaky bucket: the rest in the bucket, in units of which a hit has W (in microseconds).
    pub rest: u64,
    /// Token and leaky bucket: the hits taken back so far. Only differences of this number mean something.
    pub taken_back: u64,
}

/// The numbers of a reply. `None`: the reply is malformed.
pub fn numbers(reply: &[u8]) -> Option<Vec<i64>> {
    let (numbers, odd) = reply.as_chunks::<8>();
    odd.is_empty().then(|| numbers.iter().map(|&bytes| f64::from_le_bytes(bytes) as i64).collect())
}

impl Answered {
    /// Reads the numbers of a reply to these checks. `None`: they are not a reply to them.
    pub fn read<'c>(numbers: &[i64], checks: impl IntoIterator<Item = &'c Check<'c>>) -> Option<Self> {
        let (&now, rest) = numbers.split_first()?;
        let now_micros = u64::try_from(now).ok()?;
        if rest.is_empty() {
            let (counters, leases) = (Vec::new(), Vec::new());
            return Some(Self { now_micros, counters, leases, complete_since_micros: None });
        }
        let since_complete = Since { now, complete: *numbers.last()? };
        let mut counters = Vec::new();
        let mut rest = rest;
        for check in checks {
            let numbers = NUMBERS + usize::from(check.limit.algorithm().is_bucket());
            let (own, further) = rest.split_at_checked(numbers)?;
            counters.push(read_one(own, check, since_complete)?);
            rest = further;
        }
        let (leases, odd) = rest.as_chunks::<2>();
        let leases = leases.iter().map(|&[hits, stamp]| {
            Some(Granted { hits: u64::try_from(hits).ok()?, stamp: u64::try_from(stamp).ok()? })
        });
        let leases = leases.collect::<Option<_>>()?;
        let complete_since_micros = odd.first().map(|&since| u64::try_from(since)).transpose().ok()?;
        Some(Self { now_micros, counters, leases, complete_since_micros })
    }

    /// Whether any hit was admitted, by a charge of the first `checks` or by a lease.
    pub fn admits(&self, checks: usize) -> bool {
        self.counters.iter().take(checks).any(CounterAnswered::admits)
            || self.leases.iter().any(|lease| lease.hits > 0)
    }
}

impl ChargeId {
    /// The stamp of an algorithm that needs only a place.
    pub fn of(at: u64) -> Self {
        Self { at, ..Self::default() }
    }
}

impl CounterAnswered {
    /// Whether hits were admitted: charged, and not over.
    pub fn admits(&self) -> bool {
        self.charged > 0 && !self.verdict.over
    }
}

/// When a counter was asked, and since when the data is complete: the end of the reply, if it has that.
#[derive(Clone, Copy)]
struct Since {
    now: i64,
    complete: i64,
}

impl Since {
    /// How long hits of this limit may still be missing.
    fn cold_nanos(self, limit: &Limit) -> u64 {
        let micros = self.complete.saturating_sub(self.now);
        let nanos = i128::from(micros) * 1_000 + i128::from(limit.remembered_nanos());
        u64::try_from(nanos.max(0)).unwrap_or(u64::MAX)
    }
}

fn read_one(numbers: &[i64], check: &Check<'_>, since: Since) -> Option<CounterAnswered> {
    let &[over, before, left, charged, latest, wanted, one, other, ref third @ ..] = numbers else {
        return None;
    };
    let natural = |number: i64| u64::try_from(number).ok();
    let limit = &in_micros(&check.limit);
    let (over, is_cold, is_only_held) = (over & 1 != 0, over & 2 != 0, over & 4 != 0);
    let (before, remaining, wanted) = (natural(before)?, natural(left)?, natural(wanted)?);
    let remote = RemoteCounter { latest: micros(latest)?, state: state(limit, one, other)? };
    let charged = natural(charged)?;
    let hits = match check.hits {
        // Of the cost of a commit, what an expired hold has paid is left out.
        Hits::Take(_) if check.reservation == ReservationStep::Commit => charged,
        Hits::Take(hits) => hits,
        Hits::GiveBack(_) => 0,
    };
    let reset_nanos = match (is_cold, is_only_held) {
        (true, _) => since.cold_nanos(limit),
        (false, true) => 0,
        (false, false) => remote.reset_nanos(limit, wanted, over),
    };
    let verdict = Verdict {
        over,
        before,
        after: before.saturating_add(hits),
        remaining,
        reset_nanos,
        is_counted: !is_cold,
    };
    let stamp = stamp(limit, latest, [one, other], third.first())?;
    let quiet_nanos = remote.latest.nanos_since(newest(limit, remote.latest, other));
    Some(CounterAnswered { verdict, charged, stamp, quiet_nanos })
}

/// The latest time at which the counter may have been charged.
fn newest(limit: &Limit, latest: Timestamp, newest: i64) -> Timestamp {
    let Ok(newest) = u64::try_from(newest) else { return latest };
    match limit.algorithm() {
        Algorithm::SlidingLog => Timestamp::from_nanos(newest.saturating_mul(1_000)),
        Algorithm::SlidingWindow => limit.bucket_end(newest),
        _ => latest,
    }
}

fn micros(micros: i64) -> Option<Timestamp> {
    Some(Timestamp::from_nanos(u64::try_from(micros).ok()?.checked_mul(1_000)?))
}

/// The state in the two numbers of an algorithm.
fn state(limit: &Limit, one: i64, other: i64) -> Option<RemoteState> {
    Some(match (limit.algorithm(), one) {
        (Algorithm::SlidingLog | Algorithm::SlidingWindow, -1) => RemoteState::Room,
        (Algorithm::SlidingLog | Algorithm::SlidingWindow, -2) => RemoteState::Never,
        (Algorithm::SlidingLog, stamp) => RemoteState::Stamp(micros(stamp)?),
        (Algorithm::SlidingWindow, bucket) => RemoteState::Bucket(u64::try_from(bucket).ok()?),
        (Algorithm::SlidingWindowWeighted | Algorithm::FixedWindow, current) => RemoteState::Counts {
            current: u64::try_from(current).ok()?,
            previous: u32::try_from(other).ok()?,
        },
        (Algorithm::Calendar, count) => {
            RemoteState::Period { count: u64::try_from(count).ok()?, end: micros(other)? }
        }
        (Algorithm::Concurrency, _) => RemoteState::Slots,
        (Algorithm::Holds, _) => RemoteState::Room,
        (Algorithm::Ban, end) => RemoteState::Banned(micros(end)?),
        (Algorithm::TokenBucket | Algorithm::LeakyBucket, hits) => {
            let (hits, rest) = (u128::try_from(hits).ok()?, u128::try_from(other).ok()?);
            RemoteState::Level(hits * u128::from(limit.window_nanos()) + rest * 1_000)
        }
    })
}

/// The stamp of a charge.
fn stamp(limit: &Limit, latest: i64, [one, other]: [i64; 2], taken_back: Option<&i64>) -> Option<ChargeId> {
    let natural = |number: i64| u64::try_from(number).unwrap_or(0);
    let latest = u64::try_from(latest).ok()?;
    Some(match limit.algorithm() {
        Algorithm::SlidingLog | Algorithm::SlidingWindow | Algorithm::Calendar => {
            ChargeId::of(natural(other))
        }
        Algorithm::SlidingWindowWeighted | Algorithm::FixedWindow => {
            ChargeId::of(latest * 1_000 / limit.window_nanos())
        }
        // 1: the slot or the hold was there before.
        Algorithm::Concurrency | Algorithm::Holds => ChargeId::of(natural(one)),
        Algorithm::Ban => ChargeId::default(),
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            let taken_back = u64::try_from(*taken_back?).ok()?;
            ChargeId { at: latest, level: natural(one), rest: natural(other), taken_back }
        }
    })
}
