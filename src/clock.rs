//! The clocks of the program.

pub use tidegate_serve::clock::{Clock, monotonic, nanos_since, timer, wall};
