//! What changes limits in addition to the rules: records of single keys, and exceptions that operators made.
//!
//! In: a request with its plan under the rules. Out: its plan under the overlay. Records come first, and exceptions
//! then change the result. A request is decided, counted and reported under one [`Overlay`], however long it waits
//! for its counters; the code that plans it holds the values that the overlay borrows.
//!
//! - `record`: the limit of one key; `found`: those of a request's descriptors
//! - `exceptions`: other numbers for requests that name certain values; `exceptions/met`: which ones a request met

mod exceptions;
mod found;
mod record;

use crate::limit::Limit;
use crate::plan::{Check, Modes, Plan, Step};
use crate::request::Request;
use crate::rules::RuleSet;

pub use self::exceptions::{Effect, Exception, Exceptions, Label, Made, Met};
pub use self::found::{Finding, Found, Unconfirmed};
pub use self::record::Record;

/// The overlay for one request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overlay<'o> {
    /// The records of its descriptors, found with its plan under the rules alone. `None`: there are none.
    pub records: Option<&'o Found>,
    /// The exceptions in force. `None`: there are none.
    pub exceptions: Option<&'o Exceptions>,
}

impl<'o> Overlay<'o> {
    /// Puts a plan of the request under the rules under this overlay.
    #[inline]
    pub fn apply<'p>(self, request: &Request<'_>, plan: &mut Plan<'p>)
    where
        'o: 'p,
    {
        if let Some(records) = self.records {
            records.apply(request, plan);
        }
        if let Some(exceptions) = self.exceptions {
            exceptions.apply(request, plan);
        }
        if self.records.is_some() || self.exceptions.is_some() {
            self.charge_reported(plan);
        }
    }

    /// Lets reported costs be charged where the overlay says N = 0. They are spent when another N is in force again, but buckets, and
    /// limits that carry debts, owe as many windows of N: nothing. So they are charged by the N that their key has otherwise.
    #[inline]
    fn charge_reported(self, plan: &mut Plan<'_>) {
        let descriptors = plan.descriptors();
        for (place, step) in plan.steps.iter_mut().enumerate() {
            let Step::Check(check) = step else { continue };
            if check.reported && check.limit.requests() == 0 && check.limit.owes_by_requests() {
                let records = self.records.filter(|_| place < descriptors);
                let record = records.and_then(|records| records.of(place).record);
                check.limit = limit_otherwise(check, record).map_or(check.limit, Limit::passing_nothing);
            }
        }
    }

    /// The exceptions that a request met. Its plan was made under this overlay.
    pub fn met<'m>(self, request: &'m Request<'_>, plan: &'m Plan<'_>) -> impl Iterator<Item = Met> + 'm
    where
        'o: 'm,
    {
        self.exceptions.into_iter().flat_map(move |exceptions| exceptions.met(request, plan))
    }
}

/// The limit of a check by which hits pass again one day: by its record, or by its rule where the record says 0 too.
#[cold]
fn limit_otherwise(check: &Check<'_>, record: Option<Record>) -> Option<Limit> {
    let rule = check.origin.rule()?;
    let mut limit = rule.limit?;
    if let Some(record) = record {
        let (requests, burst) = match record.requests == 0 || record.unlimited {
            true => (limit.requests(), None),
            false => (record.requests, record.burst),
        };
        Record { requests, burst, unlimited: false, ..record }.apply(&mut limit, Some(rule));
    }
    Some(limit)
}

impl RuleSet {
    /// Which limit applies to each descriptor of a request under this overlay, and which counter holds it.
    #[inline]
    pub fn plan_under<'p>(&'p self, request: &Request<'_>, modes: Modes, overlay: Overlay<'p>) -> Plan<'p> {
        let mut plan = self.plan(request, modes);
        overlay.apply(request, &mut plan);
        plan
    }
}
