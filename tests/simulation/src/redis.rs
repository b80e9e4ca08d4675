//! A Redis server as Tidegate sees it: its data, the scripts, and what it says of itself.

pub mod database;
pub mod lua;
pub mod model;
pub mod scripts;
pub mod server;
pub mod stream;
