//! Bytes of incomplete requests: bounded per connection, however many calls it has in flight.
//!
//! Knows only how many bytes the calls keep in total, not the calls. The bytes of a call are freed when it is
//! dropped.

use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_grpc::connection::{TOO_MUCH_UNFINISHED, UNFINISHED_BYTES_MAX};
use tidegate_serve::refusal::{Refusal, RefusalCode};

/// The bytes that all calls of one connection keep.
#[derive(Default)]
pub(super) struct Unfinished(AtomicUsize);

/// The bytes that one call keeps.
pub(super) struct Held<'a> {
    of: &'a Unfinished,
    bytes: usize,
}

impl Unfinished {
    /// A call that keeps nothing yet.
    pub(super) fn hold(&self) -> Held<'_> {
        Held { of: self, bytes: 0 }
    }
}

impl Held<'_> {
    /// Keeps so many bytes more, or refuses if the connection then keeps too many.
    pub(super) fn more(&mut self, bytes: usize) -> Result<(), Refusal> {
        let before = self.of.0.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        if before + bytes > UNFINISHED_BYTES_MAX {
            return Err(Refusal {
                code: RefusalCode::ResourceExhausted,
                message: TOO_MUCH_UNFINISHED.to_owned(),
            });
        }
        Ok(())
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.of.0.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_share_a_bound_and_give_back_what_they_held() {
        let unfinished = Unfinished::default();
        let (mut one, mut other) = (unfinished.hold(), unfinished.hold());
        assert_eq!(one.more(UNFINISHED_BYTES_MAX - 10), Ok(()));
        assert_eq!(other.more(10), Ok(()));
        let refused = other.more(1).expect_err("the bound is reached");
        assert_eq!(refused.code, RefusalCode::ResourceExhausted);
        drop(other);
        assert_eq!(one.more(10), Ok(()));
        drop(one);
        assert_eq!(unfinished.hold().more(UNFINISHED_BYTES_MAX), Ok(()));
    }
}
