//! Which exceptions a request met, for reports: metrics, explanations, the metadata of answers.
//!
//! In: a request with its plan under the exceptions. Out: one [`Met`] for each descriptor that met one.

use std::sync::Arc;

use super::{Effect, Exceptions};
use crate::plan::{Plan, Step};
use crate::request::Request;
use crate::time::Timestamp;

/// What is shown of an exception.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Its name.
    pub id: String,
    /// Who made it, and why. `None`: the reader may not know.
    pub made: Option<Made>,
    /// When it ends; `None`: when somebody ends it.
    pub until: Option<Timestamp>,
}

/// Who made an exception, and why, in their own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// Who.
    pub who: String,
    /// Why.
    pub why: String,
}

/// An exception that one descriptor of a request met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Met {
    /// The index of the descriptor.
    pub descriptor: usize,
    /// The index of the exception in the list that [`Exceptions`] were made from.
    pub index: usize,
    /// Its effect.
    pub effect: Effect,
    /// What is shown of it, if known.
    pub label: Option<Arc<Label>>,
}

impl Met {
    /// The same, without the author's texts: they may name the customer.
    #[must_use]
    pub fn unlabelled(&self) -> Self {
        Self { label: None, ..*self }
    }
}

impl Effect {
    /// Its effect, in one word, for metrics and metadata.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Limit { .. } => "limit",
            Self::Unlimited => "unlimited",
            Self::Deny => "deny",
        }
    }
}

impl Exceptions {
    /// The same exceptions with what is shown of them, in the order of the list that they were made from.
    #[must_use]
    pub fn labelled(self, labels: Vec<Arc<Label>>) -> Self {
        Self { labels, ..self }
    }

    /// The exceptions that a request met, given its plan under them.
    pub(in super::super) fn met<'m>(
        &'m self,
        request: &'m Request<'_>,
        plan: &'m Plan<'_>,
    ) -> impl Iterator<Item = Met> + 'm {
        let descriptors = request.descriptors().zip(&plan.steps).enumerate();
        let checked = descriptors.filter(|(_, (_, step))| matches!(step, Step::Check(_)));
        checked.filter_map(|(at, (descriptor, step))| {
            let place = self.fitting(request.domain(), step, &descriptor)?;
            let label = self.labels.get(place.id).cloned();
            Some(Met { descriptor: at, index: place.id, effect: place.effect, label })
        })
    }
}
