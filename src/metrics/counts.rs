//! What one descriptor adds to the counters of its rule: the arithmetic of `envoyproxy/ratelimit`.
//!
//! In: the limit, the hits, what the counter held before and after. Out: an amount for each [`Stat`]. Pure.

use crate::engine::decision::Limited;
use crate::engine::plan::Hits;

/// The counters that every rule has. The names are those that dashboards of `envoyproxy/ratelimit` use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stat {
    TotalHits,
    OverLimit,
    NearLimit,
    WithinLimit,
    ShadowMode,
    /// Denied from a local memory of what is over. No store keeps one yet, so nothing adds to it.
    OverLimitWithLocalCache,
}

impl Stat {
    pub(super) const ALL: [Self; 6] = [
        Self::TotalHits,
        Self::OverLimit,
        Self::NearLimit,
        Self::WithinLimit,
        Self::ShadowMode,
        Self::OverLimitWithLocalCache,
    ];

    /// Its name, as the last part of a metric's.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::TotalHits => "total_hits",
            Self::OverLimit => "over_limit",
            Self::NearLimit => "near_limit",
            Self::WithinLimit => "within_limit",
            Self::ShadowMode => "shadow_mode",
            Self::OverLimitWithLocalCache => "over_limit_with_local_cache",
        }
    }

    /// What it counts.
    pub(super) const fn help(self) -> &'static str {
        match self {
            Self::TotalHits => "Hits that were asked for.",
            Self::OverLimit => "Hits beyond the limit.",
            Self::NearLimit => "Hits within the limit, but beyond NEAR_LIMIT_RATIO of it.",
            Self::WithinLimit => "Hits of descriptors that were not over the limit.",
            Self::ShadowMode => "Hits beyond the limit that the rule's shadow mode let pass.",
            Self::OverLimitWithLocalCache => "Hits denied from a local memory of what is over the limit.",
        }
    }
}

/// An amount for each stat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    total: u64,
    over: u64,
    near: u64,
    within: u64,
    shadow: u64,
}

impl Counts {
    /// What `limited` adds. `None`: nothing, as for a question and for hits that are given back.
    pub(super) fn of(limited: &Limited<'_>, near_limit_ratio: f32) -> Option<Self> {
        let Hits::Take(hits @ 1..) = limited.hits else { return None };
        let (n, before, after) = (limited.limit.burst(), limited.verdict.before, limited.verdict.after);
        let near = near_limit(n, near_limit_ratio);
        if limited.verdict.over {
            let counts = Self::denied(u64::from(n), near, hits, before, after);
            Some(Self { shadow: if limited.shadow { counts.over } else { 0 }, ..counts })
        } else {
            Some(Self::admitted(near, hits, before, after))
        }
    }

    /// The part of the hits that would still have fitted is near the limit, the rest is over it. (Where all of it
    /// would have fitted, it was denied for want of memory: all of it is over.)
    fn denied(n: u64, near: u64, hits: u64, before: u64, after: u64) -> Self {
        if before >= n || after <= n {
            return Self { total: hits, over: hits, ..Self::default() };
        }
        Self { total: hits, over: after - n, near: n.saturating_sub(near.max(before)), ..Self::default() }
    }

    fn admitted(near: u64, hits: u64, before: u64, after: u64) -> Self {
        let beyond = if before >= near { hits } else { after.saturating_sub(near) };
        Self { total: hits, within: hits, near: if after > near { beyond } else { 0 }, ..Self::default() }
    }

    /// The amount for `stat`.
    pub(super) const fn get(&self, stat: Stat) -> u64 {
        match stat {
            Stat::TotalHits => self.total,
            Stat::OverLimit => self.over,
            Stat::NearLimit => self.near,
            Stat::WithinLimit => self.within,
            Stat::ShadowMode => self.shadow,
            Stat::OverLimitWithLocalCache => 0,
        }
    }
}

/// The count from which on hits are near the limit: ⌊N × ratio⌋, in 32-bit floats as `envoyproxy/ratelimit` has it.
fn near_limit(n: u32, ratio: f32) -> u64 {
    (n as f32 * ratio).floor() as u64
}
