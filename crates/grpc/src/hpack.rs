//! HPACK (RFC 7541), decoded straight to what a server of unary calls asks of a header block.
//!
//! Each entry of the dynamic table is classified once, when it enters, so that an indexed field costs a look-up and no
//! copy; what it said is not even kept. A block equal to the last one, with an unchanged table, says the same.
//!
//! - `field`: what a field means; `head`: what a block of fields means
//! - `table`: the two tables; `decoder`: blocks in; `encoder`: blocks out

mod decoder;
mod encoder;
mod field;
mod head;
mod table;
/// For tests, also of those that drive a connection.
pub mod text;

pub(crate) use self::decoder::{DecodeError, Decoder};
pub(crate) use self::encoder::Encoder;
pub(crate) use self::field::Method;
pub use self::field::Route;
pub(crate) use self::head::RequestHead;

/// Bytes of either side's dynamic table, which is what the protocol begins with.
const TABLE_BYTES: usize = 4_096;
/// What an entry costs beside its text (RFC 7541, 4.1).
const ENTRY_OVERHEAD: usize = 32;
/// Entries of the static table (RFC 7541, appendix A).
const STATIC_ENTRIES: usize = 61;

/// Bytes of a request's headers, decoded, beyond which it is answered 431. Told to clients.
pub const LIST_BYTES_MAX: usize = 16 * 1_024;
