//! A rule's path in metrics: the names of its nodes, and where values of the request stand in it.

/// The path of a rule in metrics: one name a level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetricName;
