//! A request: a domain and descriptors, each a list of (key, value) entries. A front builds it once, and nothing
//! modifies it after that. It borrows its text from the message that the front decoded, and keeps all entries in one
//! list, so that the usual request needs no allocation. [`RequestBuf`] owns its text.
//!
//! The front bounds the number of descriptors, entries and bytes.

mod buf;

use smallvec::SmallVec;

pub use buf::RequestBuf;

use crate::cost::Cost;
use crate::unit::Window;

/// The longest id of a call or a reservation, in bytes: that of a trace and a span fit several times.
pub const ID_BYTES_MAX: usize = 128;

/// One (key, value) pair of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The entry's key.
    pub key: &'a str,
    /// The entry's value; may be empty.
    pub value: &'a str,
}

/// A limit that a descriptor brings (`RateLimitOverride`), already checked by the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Override {
    /// N: hits per window.
    pub requests_per_unit: u32,
    /// The window.
    pub window: Window,
}

/// What a descriptor has besides its entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DescriptorOptions {
    /// The limit that it brings, if any.
    pub limit: Option<Override>,
    /// Its own `hits_addend`, if the field is present (0 included: it only asks).
    pub hits_addend: Option<u64>,
    /// It takes none of its hits: who asks compares them with what is left.
    pub only_asks: bool,
    /// Its hits are given back instead of taken.
    pub is_negative_hits: bool,
    /// It keeps the slot of a call in flight, whose token is its last entry, and does nothing else.
    pub renews: bool,
    /// What its own cost means, if the caller knows it. `auto`: its rule decides.
    pub cost: Cost,
}

impl DescriptorOptions {
    /// Whether it has a cost: hits of its own, to be taken.
    #[inline]
    pub fn has_own_cost(&self) -> bool {
        self.hits_addend.is_some_and(|hits| hits > 0) && !self.is_negative_hits && !self.only_asks
    }
}

/// A reservation that a request makes, or whose cost it commits, with every limit that it meets and that has `reserve`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation<'a> {
    /// Its id, which is not empty. It belongs to each counter: elsewhere the same id is another reservation.
    pub id: &'a str,
    /// The most that the call may cost, or the actual cost.
    pub hits: u64,
    /// It lasts no longer than this. `None`: as long as the rule says.
    pub ttl_nanos: Option<u64>,
    /// It ends the reservation, and charges the cost.
    pub is_commit: bool,
}

impl Reservation<'_> {
    /// The amount of a reservation that does not say one: as much as each rule allows for.
    pub const AMOUNT_OF_RULE: u64 = u64::MAX;
}

/// A request: may these hits pass?
#[derive(Clone, Debug)]
pub struct Request<'a> {
    domain: &'a str,
    hits_addend: u32,
    reservation: Option<Reservation<'a>>,
    entries: SmallVec<[Entry<'a>; 16]>,
    descriptors: SmallVec<[Span; 8]>,
}

/// One descriptor of a [`Request`].
#[derive(Clone, Copy, Debug)]
pub struct Descriptor<'r, 'a> {
    /// Its entries, in order.
    pub entries: &'r [Entry<'a>],
    /// Its limit, hits and sign.
    pub options: DescriptorOptions,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    entries_end: usize,
    options: DescriptorOptions,
}

/// A request without descriptors.
impl Default for Request<'_> {
    #[inline]
    fn default() -> Self {
        Self::new("", 0)
    }
}

impl<'a> Request<'a> {
    /// A request for `domain` without descriptors yet. `hits_addend` is the message's own field: 0 means 1 hit for
    /// each descriptor that has none.
    #[inline]
    pub fn new(domain: &'a str, hits_addend: u32) -> Self {
        Self {
            domain,
            hits_addend,
            reservation: None,
            entries: SmallVec::new(),
            descriptors: SmallVec::new(),
        }
    }

    /// Adds a descriptor.
    #[inline]
    pub fn push(&mut self, entries: impl IntoIterator<Item = Entry<'a>>, options: DescriptorOptions) {
        self.entries.extend(entries);
        self.close(options);
    }

    /// Begins another request in place, to avoid a large move.
    #[doc(hidden)]
    #[inline]
    pub fn begin(&mut self, domain: &'a str, hits_addend: u32) {
        (self.domain, self.hits_addend, self.reservation) = (domain, hits_addend, None);
        self.entries.clear();
        self.descriptors.clear();
    }

    /// Adds an entry to the open descriptor.
    #[doc(hidden)]
    #[inline]
    pub fn entry(&mut self, entry: Entry<'a>) {
        self.entries.push(entry);
    }

    /// How many entries the open descriptor has.
    #[doc(hidden)]
    #[inline]
    pub fn open_entries(&self) -> usize {
        self.entries.len() - self.descriptors.last().map_or(0, |span| span.entries_end)
    }

    /// Completes the open descriptor, and opens another one.
    #[doc(hidden)]
    #[inline]
    pub fn close(&mut self, options: DescriptorOptions) {
        self.descriptors.push(Span { entries_end: self.entries.len(), options });
    }

    /// Like [`push`](Self::push), as a builder: a descriptor of these (key, value) pairs with no options.
    #[must_use]
    #[inline]
    pub fn descriptor(mut self, entries: &[(&'a str, &'a str)]) -> Self {
        self.push(entries.iter().map(|&(key, value)| Entry { key, value }), DescriptorOptions::default());
        self
    }

    /// Makes it one that reserves, or commits.
    #[must_use]
    pub fn with_reservation(self, reservation: Reservation<'a>) -> Self {
        Self { reservation: Some(reservation), ..self }
    }

    /// What it reserves or commits, if it does.
    #[inline]
    pub fn reservation(&self) -> Option<&Reservation<'a>> {
        self.reservation.as_ref()
    }

    /// The domain.
    #[inline]
    pub fn domain(&self) -> &'a str {
        self.domain
    }

    /// The message's own `hits_addend`, as it came (0: absent).
    #[inline]
    pub fn hits_addend(&self) -> u32 {
        self.hits_addend
    }

    /// The descriptors, in order.
    #[inline]
    pub fn descriptors(&self) -> impl ExactSizeIterator<Item = Descriptor<'_, 'a>> {
        let mut start = 0;
        self.descriptors.iter().map(move |span| {
            let entries = &self.entries[start..span.entries_end];
            start = span.entries_end;
            Descriptor { entries, options: span.options }
        })
    }

    /// The hits that a descriptor with these options asks for (or gives back): its own if it has the field, else the
    /// request's, where 0 means 1.
    #[inline]
    pub fn hits_of(&self, options: &DescriptorOptions) -> u64 {
        if options.only_asks {
            return 0;
        }
        options.hits_addend.unwrap_or(u64::from(self.hits_addend.max(1)))
    }
}
