//! A naive oracle: records come, change and go, the store goes away and comes back, and time goes on. In no window are there
//! more hits than the largest N that was in force during it, through the whole service.

use proptest::prelude::*;

use super::tests::{Shop, key};
use super::*;

const WINDOW_SECS: u64 = 60;
const RULE: u32 = 3;

/// What happens.
#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Ask,
    Change(Option<u32>),
    /// All that is known is dropped, as after a gap in the stream of changes.
    Forget,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0_u64..20).prop_map(Step::Wait),
        6 => Just(Step::Ask),
        2 => proptest::option::of(0_u32..8).prop_map(Step::Change),
        1 => Just(Step::Forget),
    ]
}

/// When which N came into force, in order. Several may in one second.
struct History(Vec<(u64, u32)>);

impl History {
    /// The largest N in force at any time from `from` on.
    fn largest_since(&self, from: u64) -> u32 {
        let before = self.0.iter().rposition(|&(since, _)| since < from).unwrap_or(0);
        self.0[before..].iter().map(|&(_, n)| n).max().unwrap_or(0)
    }
}

async fn judged(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let shop = Shop::with(StaleMode::Rule, 100);
    let (mut now, mut history, mut passed) = (1_000_u64, History(vec![(0, RULE)]), Vec::new());
    for step in steps {
        match step {
            Step::Wait(seconds) => now += seconds,
            Step::Forget => shop.records.forget_all(),
            Step::Change(requests) => {
                shop.source.set("alice", requests.map(|requests| Record::of(requests.into())));
                shop.records.forget(&key("alice"));
                history.0.push((now, requests.unwrap_or(RULE)));
            }
            Step::Ask => {
                if shop.asks("alice", now).await.0 {
                    passed.push(now);
                }
                let from = now.saturating_sub(WINDOW_SECS - 1);
                let (count, most) =
                    (passed.iter().filter(|&&at| at >= from).count(), history.largest_since(from));
                prop_assert!(count <= most as usize, "{} of {} in the minute before {}", count, most, now);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_window_holds_more_than_the_largest_n_in_force_in_it(steps in prop::collection::vec(step(), 1..120)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(judged(steps))?;
    }
}
