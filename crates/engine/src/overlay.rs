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

use crate::plan::{Modes, Plan};
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
    }

    /// The exceptions that a request met. Its plan was made under this overlay.
    pub fn met<'m>(self, request: &'m Request<'_>, plan: &'m Plan<'_>) -> impl Iterator<Item = Met> + 'm
    where
        'o: 'm,
    {
        self.exceptions.into_iter().flat_map(move |exceptions| exceptions.met(request, plan))
    }
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
