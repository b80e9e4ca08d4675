//! Black-box tests of the engine and the memory store.

mod asking;
mod limits_examples;
