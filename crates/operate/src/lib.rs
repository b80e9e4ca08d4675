//! The operators' part of a limiter: what people change while it runs, who did, and the pages that show it.
//!
//! - [`exceptions`], [`resets`], [`records`]: what operators change, and where it is kept
//! - [`audit`]: who changed what, and what came of it
//! - [`api`]: the admin API over them
//! - [`debug`]: the pages of the debug port and of the metrics port; [`status`]: the state of the process that they show
//! - [`bodies`]: what requests and answers of that API may hold, as types
//! - [`FileError`]: why a file of lines of JSON, of exceptions or resets, cannot be used; `numbers`: which of two
//!   changes is later
//! - [`gate`]: who may change and see things, for the [`peer`] of a connection
//! - [`page`]: requests and responses of an HTTP port, for all ports
//!
//! It opens no sockets and knows no settings. The items are for the program `tidegate`, and change with it.

pub mod bodies;
mod line_file;
mod numbers;
pub mod audit;
pub mod exceptions;
pub mod resets;
pub mod records;
pub mod status;
pub mod peer;
pub mod page;
pub mod gate;
pub mod api;
pub mod debug;

pub use self::line_file::FileError;
