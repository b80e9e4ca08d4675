//! HPACK (RFC 7541), decoded directly to what a server of unary calls needs to know of a header block.
//!
//! An entry of the dynamic table is classified once, when it is added. So an indexed field costs a look-up and no
//! copy, and its text is not kept. A block with the same bytes as the last one, and an unchanged table, is not
//! decoded again.
//!
//! - `served`: what a server serves and keeps; `kept`: the text of headers that it keeps
//! - `field`: the meaning of a field; `head`: the meaning of a header block
//! - `table`: the static and the dynamic table; `decoder`: received blocks; `encoder`: sent blocks

mod decoder;
mod encoder;
mod field;
mod head;
mod kept;
mod served;
mod table;
/// For tests, also those of other crates.
pub mod text;

pub use self::decoder::{DecodeError, Decoder};
pub(crate) use self::encoder::Encoder;
pub use self::field::{Method, Route};
pub use self::head::RequestHead;
pub use self::kept::KeptHeaders;
pub use self::served::Served;

/// Bytes of each side's dynamic table: the protocol's default (RFC 9113, 6.5.2).
const TABLE_BYTES: usize = 4_096;
/// Bytes that the size of an entry includes in addition to its text (RFC 7541, 4.1).
const ENTRY_OVERHEAD: usize = 32;
/// Entries of the static table (RFC 7541, appendix A).
const STATIC_ENTRIES: usize = 61;

/// Decoded bytes of a request's headers beyond which it is answered 431. Announced to clients.
pub const LIST_BYTES_MAX: usize = 16 * 1_024;
