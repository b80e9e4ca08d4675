//! Families whose values other parts of the program hold.
//!
//! In: a part, and how its values are read. Out: families of samples. A part may hold the metrics, as the service does,
//! so metrics do not hold the part: its families are not written any more once it is gone.

use std::fmt::Display;
use std::sync::{Arc, Weak};

use super::Metrics;
use super::text::{MetricType, Page, Samples};

/// Writes a family. It runs each time metrics are rendered.
pub(super) type WriteFamily = dyn Fn(&mut Page) + Send + Sync;

/// Adds the families of one part. A name must be a valid metric name that is not used yet. `read` runs on the rendering
/// thread and must not block.
pub struct Families<'m, Part> {
    metrics: &'m Metrics,
    part: Weak<Part>,
}

impl Metrics {
    /// Adds families that show this part.
    pub fn of<Part>(&self, part: &Arc<Part>) -> Families<'_, Part> {
        Families { metrics: self, part: Arc::downgrade(part) }
    }

    pub(super) fn write_registered(&self, page: &mut Page) {
        self.registered.read().iter().for_each(|write| write(page));
    }
}

impl<Part: Send + Sync + 'static> Families<'_, Part> {
    /// Adds a family with one sample, which has no labels.
    pub fn value<Value: Display>(
        self,
        kind: MetricType,
        name: &'static str,
        help: &'static str,
        read: impl Fn(&Part) -> Value + Send + Sync + 'static,
    ) -> Self {
        self.samples(kind, name, help, move |part, samples| samples.push(&[], read(part)))
    }

    /// Adds a family with any samples.
    pub fn samples(
        self,
        kind: MetricType,
        name: &'static str,
        help: &'static str,
        read: impl Fn(&Part, &mut Samples<'_>) + Send + Sync + 'static,
    ) -> Self {
        let part = Weak::clone(&self.part);
        let write = move |page: &mut Page| {
            if let Some(part) = part.upgrade() {
                read(&part, &mut Samples::of(page, name, help, kind));
            }
        };
        self.metrics.registered.write().push(Box::new(write));
        self
    }
}
