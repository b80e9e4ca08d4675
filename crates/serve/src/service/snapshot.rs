//! The rules in force, read once for a decision or held while it waits.

use std::sync::Arc;

use super::{Loaded, ServiceError};
use crate::metrics::RulesBySeries;
use tidegate_engine::rules::RuleSet;

/// The rules in force.
#[derive(Clone, Copy)]
pub struct InForce<'l> {
    pub(super) loaded: &'l Loaded,
    shared: &'l Arc<Option<Loaded>>,
}

impl<'l> InForce<'l> {
    pub(super) fn of(shared: &'l Arc<Option<Loaded>>) -> Result<Self, ServiceError> {
        let loaded = shared.as_ref().as_ref().ok_or(ServiceError::NoRules)?;
        Ok(Self { loaded, shared })
    }

    /// The rules.
    pub fn rules(self) -> &'l RuleSet {
        &self.loaded.rules
    }

    /// Holds these rules for a decision that waits, while others may be put in force.
    pub fn hold(self) -> Snapshot {
        Snapshot(Arc::clone(self.shared))
    }
}

/// The rules in force at one moment, held for a decision that waits or a page that is sent.
pub struct Snapshot(pub(super) Arc<Option<Loaded>>);

impl Snapshot {
    /// The rules to decide under.
    pub fn in_force(&self) -> InForce<'_> {
        InForce::of(&self.0).expect("a snapshot is only taken where there are rules")
    }

    /// The rules.
    pub fn rules(&self) -> &RuleSet {
        self.in_force().rules()
    }

    /// Indices of all rules in the order of their paths. The first call sorts them: about a millisecond for a thousand
    /// rules.
    pub fn by_path(&self) -> &[usize] {
        self.in_force().loaded.by_path.get_or_init(|| {
            let rules = self.rules().rules();
            let mut order: Box<[_]> = (0..rules.len()).collect();
            order.sort_by_cached_key(|&id| rules[id].path());
            order
        })
    }

    /// Which rules count in which series of metrics. The first call sorts them: some milliseconds for 100,000 rules.
    pub fn by_series(&self) -> &RulesBySeries {
        let loaded = self.in_force().loaded;
        loaded.by_series.get_or_init(|| loaded.handles.by_series())
    }
}
