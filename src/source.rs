//! The sources of rules: texts of files, and of a control plane. The engine loads them, and the service puts them in force.

pub mod file;
pub mod xds;
