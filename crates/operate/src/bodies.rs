//! The JSON that operators send and are sent, as types: the one place that says what a body may hold.
//!
//! In: a JSON value. Out: a type whose values are within their bounds, or the first mistake with its place. What a body means
//! (whether an exception does one thing, whether a rule has this path) is judged by the rooms that use it.
//!
//! - `asked`: bodies of requests; `answered`: bodies of answers
//! - `values`: texts, numbers, times and lists, of which both are made
//! - `reader`: how a value becomes a type, and what a mistake says

pub mod answered;
pub mod asked;
mod reader;
pub mod values;

#[cfg(test)]
pub(crate) mod tests;

pub use self::reader::{Mistake, read};

use serde::Serialize;
use serde_json::Value;

/// A body as a value, with the fields of each object in the order of their names.
pub fn json(body: &impl Serialize) -> Value {
    serde_json::to_value(body).expect("bodies are made of texts and numbers")
}
