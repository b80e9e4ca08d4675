//! `metadata`: any YAML, as a JSON value. The keys of mappings keep their text.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::Checker;
use crate::rules::fields::Fields;
use crate::rules::quote::quote;
use crate::rules::scalar;
use tidegate_yaml::{Content, NodeId, Place};

impl Checker<'_, '_> {
    /// The metadata of a node; null when there is none.
    pub(super) fn metadata(&mut self, fields: &Fields) -> Value {
        let Some(id) = fields.last("metadata") else { return Value::Null };
        match &self.reader.document.node(id).content {
            Content::Mapping(_) => self.value(id),
            Content::Scalar(scalar) if scalar.is_null() => Value::Null,
            Content::Scalar(_) | Content::Sequence(_) => {
                self.reader.expected(id, "a mapping");
                Value::Null
            }
        }
    }

    /// Recursion is bounded by the depth that a document may have.
    fn value(&mut self, id: NodeId) -> Value {
        let document = self.reader.document;
        match &document.node(id).content {
            Content::Scalar(scalar) => scalar::value(scalar),
            Content::Sequence(items) => Value::Array(items.iter().map(|&item| self.value(item)).collect()),
            Content::Mapping(_) => {
                let mut map = Map::new();
                self.assign(id, &mut map);
                Value::Object(map)
            }
        }
    }

    /// Assigns the entries of a mapping in their order; a merge counts at its place.
    fn assign(&mut self, mapping: NodeId, map: &mut Map<String, Value>) {
        let document = self.reader.document;
        let Content::Mapping(pairs) = &document.node(mapping).content else { return };
        let mut own = HashMap::new();
        for &(key, value) in pairs {
            let Content::Scalar(text) = &document.node(key).content else {
                self.reader.expected(key, "a key");
                continue;
            };
            let at = self.reader.at(key);
            if let Some(Place { line, column }) = own.insert(&text.text, at) {
                self.reader.warning(at, || {
                    let key = quote(&text.text);
                    format!("{key} twice in one mapping: the last one counts (expected once; it is at {line}:{column} too)")
                });
            }
            if text.text == "<<" {
                let mut merged = Vec::new();
                self.reader.merge(value, |_, mapping| merged.push(mapping));
                merged.into_iter().for_each(|mapping| self.assign(mapping, map));
            } else {
                let value = self.value(value);
                map.insert(text.text.clone().into_owned(), value);
            }
        }
    }
}
