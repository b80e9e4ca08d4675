//! The kinds of values that settings take: how each is written, and what is expected where it is written badly.
//!
//! Where a kind is an enumeration that another module owns, such as [`Algorithm`](tidegate_engine::limit::Algorithm), it is
//! read as that: settings have no copy of it.

mod durations;
mod lists;
mod numbers;
mod texts;
mod words;

pub use self::durations::Flush;
pub use self::lists::{List, Map, NodeMetadata, OtelPairs};
pub use self::numbers::{
    ByteSize, Count, DenyStatus, Hops, Number, Queue, Replicas, RequestBytes, Series, Share, Threads,
};
pub use self::texts::{DnsName, FilePath, HeaderName, HostPort, Secret, UrlPath};
pub use self::words::{Backend, Compression, ConfigType};

/// A kind of value.
pub trait Value: Sized {
    /// What it is called in `--help`.
    const NAME: &'static str;
    /// What a bad one is not, and what was expected: completes `"x" is not …`.
    const EXPECTED: &'static str;
    /// A variable that is set to nothing is as if unset.
    const EMPTY_IS_UNSET: bool = true;

    /// Reads it; `None` when it is not one.
    fn parse(text: &str) -> Option<Self>;
}
