//! Fronts.
pub mod proto;
