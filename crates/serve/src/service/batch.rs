//! Requests that are decided together. Each keeps its place from reading the request to sending its answer.

use arrayvec::ArrayVec;

use tidegate_engine::request::Request;
use tidegate_engine::rules::RuleSet;

/// Requests in a batch: enough that memory has answered for the first when the last is asked for, few enough to stay in
/// a processor's nearest cache.
pub const BATCH_MAX: usize = 8;

/// At most [`BATCH_MAX`] places, each with a request or without.
#[derive(Default)]
pub struct Batch<'r> {
    /// Requests are large, so they are read in place. A place without a request holds an empty one.
    requests: ArrayVec<Request<'r>, BATCH_MAX>,
    is_asked: [bool; BATCH_MAX],
}

impl<'r> Batch<'r> {
    /// Adds a place, with the request that `read` fills in.
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

    /// Adds a place with this request.
    pub fn put(&mut self, request: Request<'r>) {
        self.is_asked[self.requests.len()] = true;
        self.requests.push(request);
    }

    /// Adds a place without a request.
    pub fn pass(&mut self) {
        self.requests.push(Request::default());
    }

    /// The requests, each with its place.
    #[inline]
    pub fn requests(&self) -> impl Iterator<Item = (usize, &Request<'r>)> {
        self.requests.iter().enumerate().filter(|&(place, _)| self.is_asked[place])
    }

    /// The same places with the requests to plan instead of these.
    pub(super) fn asked<'s>(&self, rules: &'s RuleSet) -> Batch<'s>
    where
        'r: 's,
    {
        let requests = self.places().map(|request| rules.asked(request)).collect();
        Batch { requests, is_asked: self.is_asked }
    }

    /// All places. One without a request has an empty one.
    #[inline]
    pub(super) fn places(&self) -> impl Iterator<Item = &Request<'r>> + Clone {
        self.requests.iter()
    }
}
