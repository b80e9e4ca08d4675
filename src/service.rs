//! A stand-in of the service's shape, until the service is there.
#![allow(missing_docs)]

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::engine::decision::{Code, Decision, Limited, Status};
use crate::engine::limit::{Algorithm, Limit, Verdict};
use crate::engine::plan::{Hits, Origin};
use crate::engine::request::Request;
use crate::engine::rules::Unit;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    #[error("no rate limit configuration loaded")]
    NoRules,
}

pub struct Service {
    rules: Option<u32>,
    counts: Mutex<HashMap<Vec<(String, String)>, u64>>,
}

impl Service {
    pub fn stand_in(rules: Option<u32>) -> Self {
        Self { rules, counts: Mutex::default() }
    }

    pub fn decide<T>(
        &self,
        request: &Request<'_>,
        render: impl FnOnce(&Decision<'_>) -> T,
    ) -> Result<T, ServiceError> {
        let requests = self.rules.ok_or(ServiceError::NoRules)?;
        let mut counts = self.counts.lock();
        let statuses = request.descriptors().map(|descriptor| {
            if descriptor.entries[0].key != "user" {
                return Status::NoLimit;
            }
            let key = descriptor.entries.iter().map(|e| (e.key.to_owned(), e.value.to_owned())).collect();
            let count = counts.entry(key).or_default();
            let hits = request.hits_of(&descriptor.options);
            let over = *count + hits > u64::from(requests);
            let before = *count;
            *count += if over { 0 } else { hits };
            Status::Limited(Limited {
                origin: Origin::Override { unit: Unit::Minute, unit_multiplier: 1 },
                limit: Limit::new(Algorithm::SlidingWindow, requests, Unit::Minute.nanos()),
                hits: Hits::Take(hits),
                verdict: Verdict {
                    over,
                    before,
                    after: before + hits,
                    remaining: u64::from(requests) - *count,
                    reset_nanos: 59_000_000_001,
                },
                shadow: false,
                quota: false,
            })
        });
        let statuses: smallvec::SmallVec<[Status<'_>; 8]> = statuses.collect();
        let over = statuses.iter().any(|status| status.code() == Code::OverLimit);
        let code = if over { Code::OverLimit } else { Code::Ok };
        Ok(render(&Decision { code, shadowed: false, domain_known: true, statuses }))
    }

    pub fn with_rules<T>(&self, show: impl FnOnce(Option<&u32>) -> T) -> T {
        show(self.rules.as_ref())
    }
}
