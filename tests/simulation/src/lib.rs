//! A cluster of Tidegate's nodes in one process: real code, with everything around it simulated.

pub mod network;
pub mod node;
pub mod oracle;
pub mod random;
pub mod redis;
pub mod ring;
pub mod run;
pub mod scenario;
pub mod shrink;
pub mod world;

/// A run allocates many small things.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
