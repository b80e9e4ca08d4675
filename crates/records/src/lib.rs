//! Records: limits for single keys, of which there may be millions. No runtime, no network, no knowledge of the program.
//!
//! A rule with `limits_from: store` gives every key its limit; a *record* gives one of these keys another one. This
//! crate defines records, and keeps them in a folder.
//!
//! ```text
//! JSON ─▶ record ─▶ value (bytes) ─▶ folder          key: domain and entries as bytes, in order
//! ```
//!
//! - [`RecordKey`], [`KeyPrefix`]: which key a record is for; bytes that sort as domains and entries do
//! - `checks`: the checks of a [`Record`], which are those of rules
//! - `json`: a record as people write it
//! - [`Reader`]: many of them, as lines of JSON or CSV
//! - `value`: a record as stores keep it
//! - [`Folder`]: records on this machine's disk

mod folder;
mod json;
mod key;
mod reader;
mod unique_keys;
mod checks;
mod value;
#[cfg(test)]
mod fixture;

pub use checks::BadRecord;
pub use folder::{Change, EmbeddedTrees, FILES_MAX, Folder, FolderError, Tree, Trees};
pub use json::{key_of, read, show};
pub use key::{KEY_BYTES_MAX, KeyError, KeyPrefix, LEVELS_MAX, RecordKey};
pub use reader::{Format, LINE_BYTES_MAX, Line, Reader};
pub use tidegate_engine::overlay::Record;
pub use unique_keys::UniqueKeys;
pub use value::{BadValue, decode, encode};
