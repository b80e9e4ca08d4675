//! What the scripts do, in Rust: most runs answer calls by this, because Lua takes most of their time.
//!
//! In: a call of a script, a database whose counters are kept as [`Counter`]s, and the time. Out: the reply, byte for byte,
//! and the same change of the database. A script is the same with short ways and without: only the long way is here.
//! `RunBy::Both` holds it to the scripts, call by call. Scripts count in doubles, and the model in whole numbers: a window of
//! less than 12 microseconds, whose buckets have numbers beyond 2^53, it does not have.

mod bans;
mod bucket;
mod check;
mod cold;
mod counter;
mod decide;
mod entries;
mod holds;
mod slots;
mod windows;

use tidegate_engine::limit::Algorithm;
use tidegate_redis::script::{Clock, Lost, Purpose};

use super::database::{Database, Reply};
use check::{Check, Reader, div_ceil, doubles};
use cold::Coldness;
pub use counter::{Counter, of_value};
use decide::decide;

/// One of the scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Script {
    /// What it does.
    pub purpose: Purpose,
    /// Where its time comes from.
    pub clock: Clock,
    /// What becomes of counters that may lack hits.
    pub lost: Lost,
}

impl Script {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        let with = |purpose| {
            [Clock::Redis, Clock::Arguments]
                .into_iter()
                .flat_map(move |clock| [Lost::Allow, Lost::Deny].map(|lost| Self { purpose, clock, lost }))
        };
        Purpose::ALL.into_iter().flat_map(with)
    }

    /// Of the arguments of a call, its checks.
    fn checks<'a>(self, arguments: &[&'a [u8]]) -> Vec<&'a [u8]> {
        let times = if self.clock == Clock::Arguments { 2 } else { 0 };
        let about_loss = usize::from(self.lost == Lost::Deny && self.purpose != Purpose::GiveBack);
        let (first, step) = match self.purpose {
            Purpose::Decide | Purpose::Renew => (1, 1),
            Purpose::DecideEach => (1, 2),
            Purpose::GiveBack => (3, 1),
        };
        let end = arguments.len() - times - about_loss;
        arguments[..end].iter().skip(first).step_by(step).copied().collect()
    }
}

/// What a script knows while it runs.
struct Moment {
    /// Unix time in microseconds.
    now: i64,
    /// Expiry is moved by so many milliseconds: only tests need it.
    shift: i64,
    /// Which counters may lack hits.
    cold: Option<Coldness>,
}

/// Runs a script.
pub fn run(
    script: Script,
    (mut keys, mut arguments): (&[&[u8]], &[&[u8]]),
    database: &mut Database,
    now_micros: u64,
) -> Reply {
    let mut moment = Moment { now: now_micros as i64, shift: 0, cold: None };
    if script.clock == Clock::Arguments {
        let [before @ .., now, shift] = arguments else { return no_script() };
        (moment.now, moment.shift, arguments) = (whole(now), whole(shift), before);
    }
    if script.lost == Lost::Deny && script.purpose != Purpose::GiveBack {
        let Some((about_loss, before)) = arguments.split_last() else { return no_script() };
        let cold = Coldness::read(about_loss, moment.now, database);
        arguments = before;
        if keys.last().is_some_and(|key| *key == cold.mark()) {
            keys = &keys[..keys.len() - 1];
        }
        moment.cold = Some(cold);
    }
    match script.purpose {
        Purpose::Decide => Reply::Bulk(moment.with_loss(decide(&moment, keys, arguments, database))),
        Purpose::DecideEach => {
            let calls = keys.iter().zip(arguments.chunks(2));
            let decide = |(key, own): (&&[u8], _)| moment.with_loss(decide(&moment, &[*key], own, database));
            Reply::Array(calls.map(decide).map(Reply::Bulk).collect())
        }
        Purpose::Renew => Reply::Bulk(renew(&moment, keys, arguments, database)),
        Purpose::GiveBack => Reply::Bulk(give_back(&moment, keys, arguments, database)),
    }
}

impl Moment {
    fn is_cold(&self, check: &Check<'_>) -> bool {
        self.cold.as_ref().is_some_and(|cold| cold.holds(check, self.now))
    }

    /// Expiry is never early: whole milliseconds, rounded up.
    fn expiry(&self, micros: i64) -> i64 {
        div_ceil(micros, 1_000) + self.shift
    }

    /// A reply, with since when nothing is missing. A call that came too late has none.
    fn with_loss(&self, mut reply: Vec<u8>) -> Vec<u8> {
        if let Some(cold) = self.cold.as_ref().filter(|_| reply.len() > 8) {
            reply.extend(doubles([cold.complete_since]));
        }
        reply
    }
}

/// Leases of many counters and nothing else.
fn renew(moment: &Moment, keys: &[&[u8]], arguments: &[&[u8]], database: &mut Database) -> Vec<u8> {
    let [first, checks @ ..] = arguments else { return Vec::new() };
    let mut replies = doubles([moment.now]);
    if moment.now > Reader::new(first).double() {
        return replies;
    }
    let mut granted = Vec::new();
    for (key, check) in keys.iter().zip(checks) {
        if moment.is_cold(&Check::read(check)) {
            replies.extend(doubles([1, 0, 0, 0, moment.now, 1, -1, -1]));
            granted.extend(doubles([0, 0]));
            continue;
        }
        let mut own = check.to_vec();
        own[..4].copy_from_slice(&1_u32.to_le_bytes());
        let reply = decide(&Moment { cold: None, ..*moment }, &[*key], &[*first, &own], database);
        let (verdict, lease) = reply[8..].split_at(64);
        replies.extend(verdict);
        granted.extend(lease);
    }
    replies.extend(granted);
    moment.with_loss(replies)
}

/// What was charged goes back, if the memory is still there in which it was charged.
fn give_back(moment: &Moment, keys: &[&[u8]], arguments: &[&[u8]], database: &mut Database) -> Vec<u8> {
    let [first, memory, generation, charges @ ..] = arguments else { return Vec::new() };
    if moment.now > Reader::new(first).double() {
        return doubles([moment.now]);
    }
    let known = database.run(moment.now as u64, &[b"GET", memory]);
    let is_there =
        matches!(known, Reply::Bulk(known) if !generation.is_empty() && known.starts_with(generation));
    if !is_there {
        return doubles([moment.now, 0]);
    }
    for (key, charge) in keys.iter().zip(charges) {
        let (check, stamp) = Check::read_charge(charge);
        let Some(mut counter) = database.take_counter(key, moment.now) else { continue };
        let kept = counter.kind().give_back(&check, stamp);
        database.put_counter(key, counter, kept.map(|micros| moment.expiry(micros)), moment.now);
    }
    doubles([moment.now, 1])
}

/// By which algorithm each key of a call is counted. `None`: it is no counter.
pub fn algorithms(script: Script, keys: &[&[u8]], arguments: &[&[u8]]) -> Vec<Option<Algorithm>> {
    let mut found = vec![None; keys.len()];
    for (number, packed) in script.checks(arguments).iter().enumerate() {
        let check = Check::read_front(&mut Reader::new(packed));
        let place = match script.purpose {
            Purpose::Decide => check.place,
            Purpose::DecideEach | Purpose::Renew | Purpose::GiveBack => number,
        };
        found[place] = Some(check.algorithm);
    }
    found
}

fn whole(text: &[u8]) -> i64 {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).expect("a whole number")
}

fn no_script() -> Reply {
    Reply::error("ERR", "no call of a script")
}
