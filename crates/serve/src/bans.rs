//! The bans that this node has seen: for operators, events and metrics.
//!
//! In: decisions, with the bans that denied them. Out: which keys are banned until when, and which bans are new or over.
//! A ban is known here once it has denied a request of this node, whoever began it. Bounded: at most [`BANS_MAX`] bans are
//! known. Further ones deny as well, and are counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use tidegate_engine::decision::Banned;
use tidegate_engine::key::Key;
use tidegate_engine::keyed::KeyMap;
use tidegate_engine::request::{Entry, Request};
use tidegate_engine::text::cut;
use tidegate_engine::time::Timestamp;

/// The most bans that are known at a time.
pub const BANS_MAX: usize = 10_000;

/// Parts by key, so that workers seldom wait for each other. A power of two.
const SHARDS: usize = 16;

/// Characters of a text from a request that are kept.
const TEXT_CHARS_MAX: usize = 160;

/// A ban, as this node has seen it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenBan {
    /// The key of its counter.
    pub key: Key,
    /// The domain.
    pub domain: Box<str>,
    /// The path of the rule.
    pub rule: Box<str>,
    /// The entries of the first descriptor that the ban denied here, long texts cut. Empty if nobody may see them.
    pub entries: Box<[(Box<str>, Box<str>)]>,
    /// When this node saw it first.
    pub since: Timestamp,
    /// When it ends.
    pub until: Timestamp,
}

/// The bans that this node has seen.
#[derive(Debug)]
pub struct Bans {
    shards: [Mutex<KeyMap<SeenBan>>; SHARDS],
    keeps_entries: bool,
    /// Descriptors that a ban denied.
    denied: AtomicU64,
    /// Bans that were seen.
    seen: AtomicU64,
    /// Those of them that found no room in the list.
    not_listed: AtomicU64,
}

/// The bans of this node since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BanTotals {
    /// Those that are known now.
    pub known: u64,
    /// Descriptors that a ban denied.
    pub denied: u64,
    /// Bans that were seen.
    pub seen: u64,
    /// Those of them that found no room in the list.
    pub not_listed: u64,
}

impl Bans {
    /// None is known. `keeps_entries`: somebody may see the entries of requests.
    pub fn new(keeps_entries: bool) -> Self {
        let shards = std::array::from_fn(|_| Mutex::default());
        let (denied, seen, not_listed) = Default::default();
        Self { shards, keeps_entries, denied, seen, not_listed }
    }

    fn shard(&self, key: Key) -> &Mutex<KeyMap<SeenBan>> {
        &self.shards[key.0 as usize % SHARDS]
    }

    /// Notes a ban that denies a descriptor of this request now. Returns what is news: an earlier ban of the key if it is
    /// over, and this ban if it was not known.
    pub(crate) fn observe(
        &self,
        request: &Request<'_>,
        banned: &Banned<'_>,
        now: Timestamp,
    ) -> (Option<SeenBan>, Option<SeenBan>) {
        self.denied.fetch_add(1, Relaxed);
        let until = now.plus(banned.nanos_left);
        let mut shard = self.shard(banned.key).lock();
        if let Some(known) = shard.get_mut(&banned.key) {
            if known.until > now {
                known.until = until;
                return (None, None);
            }
            self.seen.fetch_add(1, Relaxed);
            let ended = known.clone();
            (known.since, known.until) = (now, until);
            return (Some(ended), Some(known.clone()));
        }
        let has_room = shard.len() < BANS_MAX / SHARDS;
        // Nobody remembers a ban that is not listed: only the denial that begins it is news.
        if !has_room && !banned.has_begun {
            return (None, None);
        }
        self.seen.fetch_add(1, Relaxed);
        let entries = request.descriptors().nth(banned.descriptor).map_or(&[][..], |it| it.entries);
        let text = |text: &str| Box::from(&*cut(text, TEXT_CHARS_MAX));
        let named = |entry: &Entry<'_>| (text(entry.key), text(entry.value));
        let ban = SeenBan {
            key: banned.key,
            domain: text(request.domain()),
            rule: banned.rule.path().into(),
            entries: if self.keeps_entries { entries.iter().map(named).collect() } else { Box::default() },
            since: now,
            until,
        };
        match has_room {
            true => drop(shard.insert(ban.key, ban.clone())),
            false => _ = self.not_listed.fetch_add(1, Relaxed),
        }
        (None, Some(ban))
    }

    /// Forgets a ban that was lifted, and returns it.
    pub(crate) fn forget(&self, key: Key) -> Option<SeenBan> {
        self.shard(key).lock().remove(&key)
    }

    /// Forgets the bans that are over, and returns them.
    pub(crate) fn ended(&self, now: Timestamp) -> Vec<SeenBan> {
        let ended = |shard: &Mutex<KeyMap<SeenBan>>| {
            let mut shard = shard.lock();
            let over: Vec<SeenBan> = shard.values().filter(|ban| ban.until <= now).cloned().collect();
            over.iter().for_each(|ban| _ = shard.remove(&ban.key));
            over
        };
        self.shards.iter().flat_map(ended).collect()
    }

    /// The bans that are known and in force, the one that ends last first.
    pub fn all(&self, now: Timestamp) -> Vec<SeenBan> {
        let mut all: Vec<SeenBan> =
            self.shards.iter().flat_map(|shard| shard.lock().values().cloned().collect::<Vec<_>>()).collect();
        all.retain(|ban| ban.until > now);
        all.sort_by(|one, other| other.until.cmp(&one.until).then_with(|| one.key.0.cmp(&other.key.0)));
        all
    }

    /// The bans of this node since it started.
    pub fn totals(&self) -> BanTotals {
        BanTotals {
            known: self.shards.iter().map(|shard| shard.lock().len() as u64).sum(),
            denied: self.denied.load(Relaxed),
            seen: self.seen.load(Relaxed),
            not_listed: self.not_listed.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::fixture;

    #[test]
    fn a_ban_that_follows_another_has_times_of_its_own() {
        let rules = fixture::rules(
            "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}}]",
        );
        let (bans, request) = (Bans::new(true), Request::new("shop", 1).descriptor(&[("user", "alice")]));
        let times = |ban: Option<SeenBan>| ban.map(|ban| [ban.since, ban.until].map(secs));
        let observe = |now: u64, until: u64| {
            let nanos_left = Timestamp::from_secs(until).nanos_since(Timestamp::from_secs(now));
            let banned =
                Banned { descriptor: 0, rule: &rules.rules()[0], key: Key(7), nanos_left, has_begun: false };
            let (ended, begun) = bans.observe(&request, &banned, Timestamp::from_secs(now));
            (times(ended), times(begun))
        };
        assert_eq!(observe(1_000, 1_060), (None, Some([1_000, 1_060])));
        assert_eq!(observe(1_059, 1_061), (None, None));
        assert_eq!(observe(1_061, 1_100), (Some([1_000, 1_061]), Some([1_061, 1_100])));
        assert_eq!((bans.totals().seen, bans.totals().denied, bans.totals().known), (2, 3, 1));
        assert_eq!(bans.ended(Timestamp::from_secs(1_099)), []);
        assert_eq!(bans.all(Timestamp::from_secs(1_100)), []);
        let ended = bans.ended(Timestamp::from_secs(1_100)).pop();
        assert_eq!((times(ended), bans.totals().known), (Some([1_061, 1_100]), 0));
    }

    #[test]
    fn a_ban_that_finds_no_room_is_news_once() {
        let rules = fixture::rules(
            "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}}]",
        );
        let (bans, request) = (Bans::new(true), Request::new("shop", 1).descriptor(&[("user", "alice")]));
        let is_news = |key: usize, has_begun: bool| {
            let key = Key((key * SHARDS) as u128);
            let banned = Banned { descriptor: 0, rule: &rules.rules()[0], key, nanos_left: 1_000, has_begun };
            let (_, begun) = bans.observe(&request, &banned, Timestamp::from_secs(1_000));
            begun.is_some()
        };
        let listed = BANS_MAX / SHARDS;
        assert!((0..listed).all(|key| is_news(key, false)));
        assert!(is_news(listed, true), "it begins");
        assert!((0..listed + 1).all(|key| !is_news(key, false)));
        let BanTotals { known, denied, seen, not_listed } = bans.totals();
        let listed = listed as u64;
        assert_eq!((known, denied, seen, not_listed), (listed, 2 * listed + 2, listed + 1, 1));
    }

    fn secs(at: Timestamp) -> u64 {
        at.nanos_since(Timestamp::default()) / 1_000_000_000
    }
}
