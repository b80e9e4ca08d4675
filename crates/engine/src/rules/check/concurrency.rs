//! `concurrency`: a bound on calls in flight.
//!
//! In: the fields of a node. Out: its limit, with the key of the entry that names a call.

use std::sync::Arc;

use super::{CheckedLimit, Checker};
use crate::limit::{Limit, SLOTS_MAX};
use crate::rules::fields::Fields;
use crate::rules::keys::Section;
use crate::rules::{Cost, StoreFailure};
use crate::unit::Window;
use tidegate_yaml::NodeId;

impl Checker<'_, '_> {
    /// The bound of a node. Merges may assign several mappings to it; they count together.
    pub(super) fn concurrency(&mut self, node: &Fields, mappings: &[NodeId]) -> Option<CheckedLimit> {
        let fields = self.reader.fields(self.since_last_null(mappings), Section::Concurrency)?;
        for name in ["quota_mode", "classes"] {
            self.refuse(node, name, || {
                format!("`{name}` with `concurrency` (expected a descriptor of its own for each)")
            });
        }
        let slots = self.reader.number(&fields, "slots", 1..=SLOTS_MAX);
        for name in ["slots", "ttl", "id"] {
            if !self.reader.is_given(&fields, name) {
                self.reader.error(fields.at, || {
                    format!("`{name}` is missing (expected `slots`, `ttl` and `id`: 20, 1h, request_id)")
                });
            }
        }
        let window = self.seconds(&fields, "ttl").and_then(Window::of_nanos);
        let id = self.reader.text(&fields, "id").map(|(_, key)| Arc::from(key));
        let name = self.reader.text(&fields, "name").map(|(_, name)| name.to_owned()).unwrap_or_default();
        let replaces = self.replaces(&fields, &name);
        let on_store_failure = self.on_store_failure(&fields);
        if on_store_failure == Some(StoreFailure::Local) {
            let at = self.place(&fields, "on_store_failure");
            self.reader.error(at, || {
                "`on_store_failure: local` with `concurrency` (expected error, deny or allow: no node knows the calls of the others)".to_owned()
            });
        }
        let near = self.reader.share(&fields, "near");
        let retry_nanos = self.retry(&fields)?;
        let window = window?;
        Some(CheckedLimit {
            limit: slots.map(|(_, slots)| Limit::concurrency(slots, window.nanos())),
            is_unlimited: false,
            candidate: None,
            window,
            name,
            replaces,
            sync: None,
            on_store_failure,
            cost: Cost::Asked,
            near,
            call_id: Some(id?),
            retry_nanos,
        })
    }
}
