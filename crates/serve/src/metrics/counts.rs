//! What one descriptor adds to the metrics of its rule, by the arithmetic of `envoyproxy/ratelimit`.
//!
//! In: the limit, the hits, the counter's value before and after. Out: an amount for each [`Stat`]. Pure.

use tidegate_engine::decision::Limited;
use tidegate_engine::plan::Hits;

tidegate_engine::named! {
    /// The stats that every rule has. A name is the last part of a metric's; dashboards of `envoyproxy/ratelimit` use it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Stat {
        TotalHits = "total_hits",
        OverLimit = "over_limit",
        NearLimit = "near_limit",
        WithinLimit = "within_limit",
        ShadowMode = "shadow_mode",
        /// Denied by the deny cache. [`observe_remembered`](super::Metrics::observe_remembered) counts it.
        OverLimitWithLocalCache = "over_limit_with_local_cache",
    }
}

impl Stat {
    /// The help text of its family.
    pub(super) const fn help(self) -> &'static str {
        match self {
            Self::TotalHits => "Hits that were asked for.",
            Self::OverLimit => "Hits beyond the limit.",
            Self::NearLimit => "Hits within the limit, but beyond NEAR_LIMIT_RATIO of it.",
            Self::WithinLimit => "Hits of descriptors that were not over the limit.",
            Self::ShadowMode => "Hits beyond the limit that the rule's shadow mode let pass.",
            Self::OverLimitWithLocalCache => "Hits that the deny cache denied.",
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
    /// What `limited` adds. `None`: nothing, because it asks for 0 hits or refunds hits.
    pub(super) fn of(limited: &Limited<'_>, near_limit_ratio: f32) -> Option<Self> {
        let Hits::Take(hits @ 1..) = limited.hits else { return None };
        let (n, before, after) = (limited.limit.capacity(), limited.verdict.before, limited.verdict.after);
        let near = near_limit(n, near_limit_ratio);
        if limited.verdict.over {
            let counts = Self::denied(n, near, hits, before, after);
            Some(Self { shadow: if limited.shadow { counts.over } else { 0 }, ..counts })
        } else {
            Some(Self::admitted(near, hits, before, after))
        }
    }

    /// The hits that would still have fitted count as near the limit, the rest as over it. (Hits that all would have
    /// fitted were denied because memory was full: all of them count as over.)
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

/// Hits beyond this count are near the limit: ⌊N × ratio⌋, in 32-bit floats like `envoyproxy/ratelimit`.
fn near_limit(n: u64, ratio: f32) -> u64 {
    // The conversion truncates, which is the floor of a positive number; negative numbers and NaN become 0.
    (n as f32 * ratio) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::limit::{Algorithm, Limit, Verdict};
    use tidegate_engine::plan::Origin;
    use tidegate_engine::rules::Unit;
    use tidegate_engine::unit::Window;

    fn limited(n: u32, hits: Hits, before: u64, after: u64, over: bool) -> Limited<'static> {
        Limited {
            origin: Origin::Override { window: Window::of(Unit::Second) },
            limit: Limit::new(Algorithm::FixedWindow, n.into(), 1),
            hits,
            verdict: Verdict { over, before, after, remaining: 0, reset_nanos: 0, is_counted: true },
            shadow: false,
            quota: false,
        }
    }

    /// Counts hit by hit: the value that each hit takes the counter to decides which stat counts it.
    fn one_by_one(n: u64, near: u64, before: u64, hits: u64, over: bool) -> Counts {
        let mut counts = Counts { total: hits, within: if over { 0 } else { hits }, ..Counts::default() };
        for place in before + 1..=before + hits {
            match place {
                _ if place > n => counts.over += 1,
                _ if place > near => counts.near += 1,
                _ => {}
            }
        }
        counts
    }

    #[test]
    fn the_formula_agrees_with_counting_hit_by_hit() {
        for n in 0..=12_u32 {
            for ratio in [0.0, 0.25, 0.5, 0.8, 1.0] {
                let near = (f64::from(n) * ratio).floor() as u64;
                for before in 0..=15 {
                    for hits in 1..=8 {
                        let after = before + hits;
                        let over = after > u64::from(n);
                        let counts =
                            Counts::of(&limited(n, Hits::Take(hits), before, after, over), ratio as f32);
                        let expected = one_by_one(u64::from(n), near, before, hits, over);
                        assert_eq!(counts, Some(expected), "n {n}, near {near}, {before} to {after}");
                    }
                }
            }
        }
    }

    #[test]
    fn near_is_a_floor_in_32_bit_floats() {
        assert_eq!(near_limit(10, 0.8), 8);
        assert_eq!(near_limit(10, 0.7), 7, "6.999… in 64 bits");
        assert_eq!(near_limit(u32::MAX.into(), 1.0), 1 << 32);
        assert_eq!(near_limit(10, f32::NAN), 0);
    }

    #[test]
    fn zero_hits_and_refunds_count_nothing() {
        assert_eq!(Counts::of(&limited(10, Hits::Take(0), 10, 10, true), 0.8), None);
        assert_eq!(Counts::of(&limited(10, Hits::GiveBack(3), 10, 7, false), 0.8), None);
    }

    #[test]
    fn shadow_mode_counts_what_is_over_and_only_what_it_turned() {
        let shadow = |after, over| Limited { shadow: true, ..limited(10, Hits::Take(5), 8, after, over) };
        let turned = Counts::of(&shadow(13, true), 0.8).expect("hits");
        assert_eq!((turned.over, turned.near, turned.shadow), (3, 2, 3));
        let within = Counts::of(
            &Limited { verdict: Verdict { before: 0, ..shadow(5, false).verdict }, ..shadow(5, false) },
            0.8,
        );
        assert_eq!(within.expect("hits").shadow, 0);
    }

    #[test]
    fn hits_denied_although_they_would_fit_are_all_over() {
        let full = Counts::of(&limited(10, Hits::Take(2), 0, 2, true), 0.8).expect("hits");
        assert_eq!((full.total, full.over, full.near, full.within), (2, 2, 0, 0));
    }

    #[test]
    fn a_bucket_is_measured_by_its_burst() {
        let bucket = Limit::new(Algorithm::TokenBucket, 100, 1).with_burst(10);
        let counts = Counts::of(&Limited { limit: bucket, ..limited(0, Hits::Take(2), 8, 10, false) }, 0.8);
        assert_eq!(counts.expect("hits").near, 2);
    }

    #[test]
    fn no_amount_overflows() {
        for (before, after) in [(0, u64::MAX), (u64::MAX, u64::MAX), (u64::MAX, 0)] {
            for over in [false, true] {
                for ratio in [0.8, 1e30, -1.0] {
                    assert!(
                        Counts::of(&limited(10, Hits::Take(u64::MAX), before, after, over), ratio).is_some()
                    );
                }
            }
        }
    }
}
