//! The tests of the simulation, as one program: each that links the limiter takes long to build.

mod model;
mod ring;
mod seeds;
mod stories;
