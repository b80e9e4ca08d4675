//! Black-box tests of the engine and the memory store.

mod asking;
mod limits_examples;
mod limits_oracle;
mod limits_reload;
mod limits_sequences;
mod limits_strict;
mod random;
mod store_memory;
mod store_requests;
mod store_threads;
