//! A Redis server as Tidegate sees it: its data, real Lua for the real scripts, and what it says of itself.

pub mod database;
pub mod lua;
pub mod server;
