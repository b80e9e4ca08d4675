//! A request that owns its text, for fronts that have to decode it first (escapes, headers). It is filled entry by
//! entry, then lent as a [`Request`]. One buffer holds all of the text.
//!
//! The caller that fills it bounds it.

use smallvec::SmallVec;

use crate::request::{DescriptorOptions, Entry, Request, Reservation};

/// Bytes of the keys and values of the usual request.
const TEXT_BYTES: usize = 120;

/// A [`Request`] that owns its text.
#[derive(Clone, Debug, Default)]
pub struct RequestBuf {
    /// The domain, then the keys and values in their order.
    text: String,
    domain_end: usize,
    hits: Option<u32>,
    /// Where the key and the value of each entry end.
    entries: SmallVec<[(usize, usize); 8]>,
    /// Where the entries of each descriptor end, and its options.
    descriptors: SmallVec<[(usize, DescriptorOptions); 4]>,
    reservation: Option<Box<OwnReservation>>,
}

/// A [`Reservation`] that owns its id.
#[derive(Clone, Debug)]
struct OwnReservation {
    id: Box<str>,
    hits: u64,
    ttl_nanos: Option<u64>,
    is_commit: bool,
}

impl RequestBuf {
    /// A request for `domain` without descriptors yet.
    pub fn new(domain: &str) -> Self {
        let mut text = String::with_capacity(domain.len() + TEXT_BYTES);
        text.push_str(domain);
        Self { text, domain_end: domain.len(), ..Self::default() }
    }

    /// Begins another request in place, to keep the space that this one has.
    pub fn begin(&mut self, domain: &str) {
        self.text.clear();
        self.text.push_str(domain);
        (self.domain_end, self.hits) = (domain.len(), None);
        self.entries.clear();
        self.descriptors.clear();
        self.reservation = None;
    }

    /// Sets the hits of each descriptor that has none of its own, instead of 1. 0 only asks, whatever a descriptor has.
    pub fn set_hits(&mut self, hits: u32) {
        self.hits = Some(hits);
    }

    /// Makes it a request that releases slots, with all complete descriptors, and gives back no hits.
    pub fn release(&mut self) {
        for (_, options) in &mut self.descriptors {
            (options.hits_addend, options.is_negative_hits) = (Some(0), true);
        }
    }

    /// Makes it a request that makes this reservation, or commits it.
    pub fn reserve(&mut self, Reservation { id, hits, ttl_nanos, is_commit }: Reservation<'_>) {
        self.reservation = Some(Box::new(OwnReservation { id: id.into(), hits, ttl_nanos, is_commit }));
    }

    /// Makes it a request that renews slots, with all complete descriptors, and takes no hits.
    pub fn renew(&mut self) {
        for (_, options) in &mut self.descriptors {
            (options.hits_addend, options.renews) = (Some(0), true);
        }
    }

    /// Adds an entry to the open descriptor. `write` appends its value, or returns `false` when there is none; then
    /// nothing is added. Returns whether the entry was added.
    ///
    /// # Errors
    /// The error of `write`. The request must not be used after that.
    pub fn entry<E>(
        &mut self,
        key: &str,
        write: impl FnOnce(&mut String) -> Result<bool, E>,
    ) -> Result<bool, E> {
        let start = self.text.len();
        self.text.push_str(key);
        let key_end = self.text.len();
        let added = write(&mut self.text)?;
        match added {
            true => self.entries.push((key_end, self.text.len())),
            false => self.text.truncate(start),
        }
        Ok(added)
    }

    /// Adds an entry with this value to the open descriptor.
    pub fn push(&mut self, key: &str, value: &str) {
        self.text.push_str(key);
        let key_end = self.text.len();
        self.text.push_str(value);
        self.entries.push((key_end, self.text.len()));
    }

    /// Completes the open descriptor, and opens another one.
    pub fn close(&mut self) {
        self.close_with(DescriptorOptions::default());
    }

    /// The same, with these options of the descriptor.
    pub fn close_with(&mut self, options: DescriptorOptions) {
        self.descriptors.push((self.entries.len(), options));
    }

    /// Where the entries of the open descriptor begin.
    fn open_from(&self) -> usize {
        self.descriptors.last().map_or(0, |&(end, _)| end)
    }

    /// Drops the entries of the open descriptor.
    pub fn reopen(&mut self) {
        self.entries.truncate(self.open_from());
        self.text.truncate(self.entries.last().map_or(self.domain_end, |&(_, end)| end));
    }

    /// How many entries the open descriptor has.
    pub fn open_entries(&self) -> usize {
        self.entries.len() - self.open_from()
    }

    /// How many entries each complete descriptor has.
    pub fn entries_of_each(&self) -> impl ExactSizeIterator<Item = usize> {
        let mut first = 0;
        self.descriptors.iter().map(move |&(end, _)| end - std::mem::replace(&mut first, end))
    }

    /// The domain.
    pub fn domain(&self) -> &str {
        &self.text[..self.domain_end]
    }

    /// How many bytes of text it holds.
    pub fn text_bytes(&self) -> usize {
        self.text.len()
    }

    /// The request, with all complete descriptors.
    pub fn as_request(&self) -> Request<'_> {
        let mut request = Request::new(self.domain(), self.hits.unwrap_or(1));
        let only_asks = self.hits.filter(|&hits| hits == 0).map(u64::from);
        let (mut first, mut start) = (0, self.domain_end);
        for &(end, options) in &self.descriptors {
            let entries = self.entries[first..end].iter().map(|&(key_end, value_end)| {
                let entry = Entry { key: &self.text[start..key_end], value: &self.text[key_end..value_end] };
                start = value_end;
                entry
            });
            request.push(
                entries,
                DescriptorOptions { hits_addend: only_asks.or(options.hits_addend), ..options },
            );
            first = end;
        }
        match self.reservation.as_deref() {
            None => request,
            Some(&OwnReservation { ref id, hits, ttl_nanos, is_commit }) => {
                request.with_reservation(Reservation { id, hits, ttl_nanos, is_commit })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(buf: &mut RequestBuf, key: &str, value: &str) {
        let write = |text: &mut String| -> Result<bool, ()> {
            text.push_str(value);
            Ok(value != "none")
        };
        assert_eq!(buf.entry(key, write), Ok(value != "none"));
    }

    fn entries_of(buf: &RequestBuf) -> Vec<Vec<(String, String)>> {
        let text = |entry: &Entry<'_>| (entry.key.to_owned(), entry.value.to_owned());
        buf.as_request().descriptors().map(|it| it.entries.iter().map(text).collect()).collect()
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn what_was_filled_in_is_what_is_asked() {
        let mut buf = RequestBuf::new("shop");
        push(&mut buf, "user", "alice");
        push(&mut buf, "left out", "none");
        push(&mut buf, "path", "");
        buf.close();
        push(&mut buf, "dropped", "again");
        buf.reopen();
        push(&mut buf, "user", "bob");
        assert_eq!(buf.open_entries(), 1);
        buf.close();
        assert_eq!(buf.as_request().domain(), "shop");
        assert_eq!(entries_of(&buf), [pairs(&[("user", "alice"), ("path", "")]), pairs(&[("user", "bob")])]);
    }

    #[test]
    fn another_request_begins_in_the_same_space() {
        let mut buf = RequestBuf::new("shop");
        push(&mut buf, "user", "alice");
        buf.close();
        push(&mut buf, "left", "open");
        buf.set_hits(7);
        buf.begin("bar");
        push(&mut buf, "path", "/");
        buf.close();
        assert_eq!((buf.domain(), entries_of(&buf)), ("bar", vec![pairs(&[("path", "/")])]));
        assert_eq!(buf.as_request().hits_addend(), 1);
    }

    /// A rule's actions may say what a descriptor costs.
    #[test]
    fn a_question_of_zero_hits_takes_no_hits_of_its_descriptors() {
        for (hits, cost) in [(None, 5), (Some(3), 5), (Some(0), 0)] {
            let mut buf = RequestBuf::new("shop");
            hits.into_iter().for_each(|hits| buf.set_hits(hits));
            push(&mut buf, "user", "alice");
            buf.close_with(DescriptorOptions { hits_addend: Some(5), ..DescriptorOptions::default() });
            let request = buf.as_request();
            let descriptor = request.descriptors().next().expect("one");
            assert_eq!(request.hits_of(&descriptor.options), cost, "{hits:?}");
        }
    }

    #[test]
    fn each_descriptor_costs_the_hits_and_zero_only_asks() {
        for (hits, cost) in [(None, 1), (Some(1), 1), (Some(3), 3), (Some(0), 0)] {
            let mut buf = RequestBuf::new("shop");
            hits.into_iter().for_each(|hits| buf.set_hits(hits));
            push(&mut buf, "user", "alice");
            buf.close();
            let request = buf.as_request();
            let descriptor = request.descriptors().next().expect("one");
            assert_eq!(request.hits_of(&descriptor.options), cost);
            assert!(descriptor.options.hits_addend.is_none_or(|own| own == 0), "a report would be charged");
        }
    }
}
