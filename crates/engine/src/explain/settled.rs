//! What a descriptor would charge to its counter, and why.
//!
//! In: its check, and how the request was settled. Out: hits, and a sentence.

use crate::decision::Limited;
use crate::limit::Algorithm;
use crate::plan::{Check, Hits};
use crate::settle::Settlement;

/// What would be charged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Settled {
    /// Hits that would be charged. A report may be charged less: a counter holds only so much.
    pub(super) charged: u64,
    /// What happens to the counter, and why.
    pub(super) why: String,
}

impl Settled {
    /// `denying` are the indices of the descriptors that deny the request. `no_room`: why this one is over, if it is.
    pub(super) fn of(
        check: &Check<'_>,
        limited: &Limited<'_>,
        settlement: Settlement,
        denying: &[usize],
        no_room: &str,
    ) -> Self {
        let over = limited.verdict.over;
        let charged = settlement.charged(check, over);
        let why = match check.hits {
            Hits::GiveBack(hits) => {
                format!("gives back {hits}, the oldest first, as far as they still count")
            }
            Hits::Take(0) => "charges nothing: it only asks".to_owned(),
            Hits::Take(_) if charged == 0 => {
                format!("charges nothing: {}", why_nothing(over, settlement, denying, no_room))
            }
            Hits::Take(_) if settlement.passes && !over => format!("charges {charged}: the request passes"),
            Hits::Take(_) if check.limit.algorithm() == Algorithm::FixedWindow => {
                format!("charges {charged}: a fixed window counts denied hits too")
            }
            Hits::Take(_) => {
                format!("charges {charged}: a reported cost is spent already, whatever the answer")
            }
        };
        Self { charged, why }
    }
}

fn why_nothing(over: bool, settlement: Settlement, denying: &[usize], no_room: &str) -> String {
    if settlement.passes {
        return match over {
            true => no_room.to_owned(),
            false => "another limit of the request is over, and fixed windows stop then".to_owned(),
        };
    }
    let numbers: Vec<String> = denying.iter().map(|index| (index + 1).to_string()).collect();
    match &numbers[..] {
        [_] if over => no_room.to_owned(),
        [] => "the request is denied".to_owned(),
        [one] => format!("the request is denied by descriptor {one}"),
        several => format!("the request is denied by descriptors {}", several.join(", ")),
    }
}
