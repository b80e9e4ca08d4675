//! Records for tests: any that pass the checks.

use proptest::prelude::*;

use tidegate_engine::Algorithm;
use tidegate_engine::limit::COUNT_REQUESTS_MAX;
use tidegate_engine::overlay::Record;
use tidegate_engine::unit::{Anchor, Unit, Window};

use crate::checks::checked;

/// Any record that passes its checks.
pub fn record() -> impl Strategy<Value = Record> {
    let window = (proptest::sample::select(&Unit::ALL[..]), 1_u32..5);
    let window = window.prop_map(|(unit, multiplier)| Window { unit, multiplier });
    let algorithm = proptest::sample::select(&Algorithm::NAMED[..]);
    let modes = (any::<Option<bool>>(), proptest::bool::weighted(0.1));
    let requests = prop_oneof![4 => any::<u32>().prop_map(u64::from), 1 => 0..=COUNT_REQUESTS_MAX];
    let numbers = (requests, proptest::option::of(1_u64..1_000), proptest::option::of(1_u64..u64::MAX));
    let of_windows = (proptest::option::of(window), proptest::option::of(algorithm), Just(None));
    let anchored = (Just(None), Just(None), (1_u16..=404).prop_map(Anchor::numbered));
    let parts = (numbers, prop_oneof![3 => of_windows.boxed(), 1 => anchored.boxed()], modes);
    let record =
        parts.prop_map(|((requests, burst, granularity_nanos), (window, algorithm, anchor), modes)| {
            let (shadow, unlimited) = modes;
            let has_anchor = anchor.is_some();
            let (burst, granularity_nanos) =
                (burst.filter(|_| !has_anchor), granularity_nanos.filter(|_| !has_anchor));
            Record { requests, burst, window, algorithm, granularity_nanos, anchor, shadow, unlimited }
        });
    record.prop_filter_map("its parts do not go together", |record| checked(record).ok())
}
