//! How a reservation was answered, or what its end found: one word for all limits of its request.

use super::{Code, Decision};
use crate::limit::Found;
use crate::named;

named! {
    /// How a reservation was answered.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ReserveResult {
        /// Its hits are held.
        Reserved = "reserved",
        /// There is no room.
        Denied = "denied",
        /// Its id is that of a reservation of another amount, or of one that has ended.
        Conflict = "conflict",
    }
}

named! {
    /// What a commit or a release found of its reservation.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum EndedAs {
        /// It was open.
        Open = "open",
        /// It had expired.
        Expired = "expired",
        /// It was ended before: nothing was charged.
        Ended = "ended",
        /// There was none: the cost was charged as a report.
        Unknown = "unknown",
    }
}

impl Decision<'_> {
    /// How the reservation of its request was answered.
    pub fn reserve_result(&self) -> ReserveResult {
        let is_taken = |found| matches!(found, Found::Other | Found::Ended | Found::Expired(_));
        match self.code {
            Code::Ok => ReserveResult::Reserved,
            Code::OverLimit if self.found().any(|(_, found)| is_taken(found)) => ReserveResult::Conflict,
            Code::OverLimit => ReserveResult::Denied,
        }
    }

    /// What the commit or the release of its request found.
    pub fn ended_as(&self) -> EndedAs {
        let any = |wanted: fn(Found) -> bool| self.found().any(|(_, found)| wanted(found));
        if any(|found| found == Found::Open) {
            EndedAs::Open
        } else if any(|found| matches!(found, Found::Expired(_))) {
            EndedAs::Expired
        } else if any(|found| found == Found::Ended) {
            EndedAs::Ended
        } else {
            EndedAs::Unknown
        }
    }
}
