//! Rule sets: texts in, a compiled [`RuleSet`] or every problem out; and how a request finds its limits.
//!
//! Text becomes raw (`yaml`), checked (`check`) and compiled (`rule`, `matcher`): a type and a file each. A set is
//! loaded whole or not at all.

mod metric_name;
mod rule;

pub use metric_name::MetricName;
pub use rule::{Rule, StoreFailure, Sync, Unit};
