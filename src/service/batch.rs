//! Requests that are decided at one time, each in a place that it keeps from where it was read to where its answer goes.

use arrayvec::ArrayVec;

use tidegate_engine::request::Request;

/// Requests of a batch: enough that memory has answered for the first once the last is asked for, few enough that what
/// is known of them stays in a processor's nearest cache.
pub const BATCH_MAX: usize = 8;

/// At most [`BATCH_MAX`] places, each with a request or without.
#[derive(Default)]
pub struct Batch<'r> {
    /// They are large, so they are read where they stay. A place without a request has an empty one.
    requests: ArrayVec<Request<'r>, BATCH_MAX>,
    is_asked: [bool; BATCH_MAX],
}

impl<'r> Batch<'r> {
    /// One more place, with the request that `read` puts there, or without.
    ///
    /// # Errors
    /// Those of `read`: then the place has no request.
    ///
    /// # Panics
    /// When all places are taken; so do [`put`](Self::put) and [`pass`](Self::pass).
    #[inline]
    pub fn read<E>(&mut self, read: impl FnOnce(&mut Request<'r>) -> Result<(), E>) -> Result<(), E> {
        let place = self.requests.len();
        self.requests.push(Request::default());
        let outcome = read(&mut self.requests[place]);
        match &outcome {
            Ok(()) => self.is_asked[place] = true,
            Err(_) => self.requests[place] = Request::default(),
        }
        outcome
    }

    /// One more place, with this request.
    pub fn put(&mut self, request: Request<'r>) {
        self.is_asked[self.requests.len()] = true;
        self.requests.push(request);
    }

    /// One more place without a request.
    pub fn pass(&mut self) {
        self.requests.push(Request::default());
    }

    /// The requests, each with its place.
    #[inline]
    pub fn requests(&self) -> impl Iterator<Item = (usize, &Request<'r>)> {
        self.requests.iter().enumerate().filter(|&(place, _)| self.is_asked[place])
    }

    /// All places; where there is no request, an empty one.
    #[inline]
    pub(super) fn places(&self) -> impl Iterator<Item = &Request<'r>> {
        self.requests.iter()
    }
}
