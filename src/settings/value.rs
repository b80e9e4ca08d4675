//! The kinds of values that settings have: the syntax of each, and the text about what was expected.
//!
//! If another module owns an enumeration, such as [`Algorithm`](tidegate_engine::limit::Algorithm), settings read that
//! one and have no copy of it.

mod durations;
mod lists;
mod numbers;
mod texts;
mod words;

pub use self::durations::{Flush, SpinTime};
pub use self::lists::{List, Map, NodeMetadata, OtelPairs};
pub use self::numbers::{
    ByteSize, Count, DenyStatus, Hops, Members, Number, Queue, Replicas, RequestBytes, Series, Share, Threads,
};
pub use self::texts::{DnsName, DnsNames, FilePath, HeaderName, HostPort, Sans, Secret, UrlPath};
pub use self::words::{Backend, ColdStart, Compression, ConfigType, GrpcFront};
pub use crate::url::Url;

/// How much of a value is a secret: it is in no log, in no error, and not on the status page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secrecy {
    /// Anybody may see it.
    None,
    /// A login that a URL may hold.
    Login,
    /// All of it. Anybody may see that there is one.
    Whole,
}

/// A kind of value.
pub trait Value: Sized {
    /// Its name in `--help`.
    const NAME: &'static str;
    /// Completes `"x" is not …`: the kind, and what was expected.
    const EXPECTED: &'static str;
    /// Whether a variable that is set to nothing counts as unset.
    const EMPTY_IS_UNSET: bool = true;

    /// How much of it is a secret. A secret has a `Debug` that shows nothing.
    const SECRECY: Secrecy = Secrecy::None;

    /// Reads it; `None` if the text is not one.
    fn parse(text: &str) -> Option<Self>;
}
