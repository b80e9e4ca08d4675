//! The arguments of a call: checks, as they are packed, and what is to go back.

use tidegate_engine::limit::Algorithm;

/// Scripts count in doubles, which are exact up to here.
pub(super) const MOST: i64 = 1 << 53;

/// A counter holds N, and debts of so many times N.
pub(super) const DEBT_WINDOWS: i64 = 16;

/// In the byte of the algorithm: its limit carries debts.
const CARRIES: u8 = 128;

const GIVES: u8 = 1;
const REPORTED: u8 = 2;
const SHADOW: u8 = 4;
const QUOTA: u8 = 8;
const LEASE: u8 = 16;
const CANDIDATE: u8 = 32;
const DETAIL: u8 = 64;
const RESERVES: u8 = 128;

/// One check. Times are in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Check<'a> {
    /// Its key, from 0.
    pub(super) place: usize,
    pub(super) algorithm: Algorithm,
    flags: u8,
    pub(super) requests: i64,
    /// How many hits fit for the class that asks: its share of the limit.
    pub(super) capacity: i64,
    /// How many hits of a debt a window or period pays, if debts are carried.
    pub(super) pays: Option<i64>,
    pub(super) window: i64,
    /// So many buckets of a sliding window last one `denominator`.
    pub(super) numerator: i64,
    pub(super) denominator: i64,
    pub(super) hits: i64,
    /// Hits of a lease, and how long it lasts.
    pub(super) lease: Option<(i64, i64)>,
    /// It is a candidate: the check that it stands in for, from 0, and the trial.
    pub(super) stands_in: Option<(usize, i64)>,
    /// The slot that it takes or releases, or the hold that it makes or ends.
    pub(super) slot: Option<Slot>,
    /// Begin and end of the period that holds the deadline of a call that makes a hold, and one `window` more. 0: there is none.
    pub(super) period: Option<(i64, i64)>,
    /// The most that the call may cost whose hold it makes. 0: what it holds.
    pub(super) worst: i64,
    /// The reservation that it makes is open already.
    pub(super) repeats: bool,
    /// It bounds the worst cases of the limit whose check is at this place, from 0; those of others are together so many.
    pub(super) bounds: Option<(usize, i64)>,
    /// Pairs of how long ago hits were admitted, and how many.
    unsynced: &'a [u8],
}

/// The names of a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) id: [u8; 8],
    pub(super) number: [u8; 8],
}

/// Where a charge is found again: a place, and for buckets the level, the rest, and what had been taken back.
pub(super) struct Stamp {
    pub(super) at: i64,
    pub(super) level: i64,
    pub(super) rest: i64,
    pub(super) taken_back: i64,
}

impl<'a> Check<'a> {
    pub(super) fn read(packed: &'a [u8]) -> Self {
        let mut from = Reader::new(packed);
        let mut check = Self::read_front(&mut from).with_slot(&mut from);
        if check.has(LEASE) {
            check.lease = Some((from.double(), from.double()));
        }
        if check.has(CANDIDATE) {
            check.stands_in = Some((from.double() as usize - 1, from.double()));
        }
        check.unsynced = from.0;
        check
    }

    /// A charge that is to go back.
    pub(super) fn read_charge(packed: &'a [u8]) -> (Self, Stamp) {
        let mut from = Reader::new(packed);
        let check = Self::read_front(&mut from).with_slot(&mut from);
        let [at, level, rest, taken_back] = [(); 4].map(|()| from.double());
        (check, Stamp { at, level, rest, taken_back })
    }

    pub(super) fn read_front(from: &mut Reader<'a>) -> Self {
        let (place, algorithm, flags) = (from.four() as usize - 1, from.byte(), from.byte());
        let (requests, capacity, carries) = (from.double(), from.double(), algorithm & CARRIES > 0);
        Self {
            place,
            algorithm: Algorithm::ALL[usize::from(algorithm & !CARRIES)],
            flags,
            requests,
            capacity: if carries { requests } else { capacity },
            pays: carries.then_some(capacity.max(1)),
            window: from.double(),
            numerator: from.byte().into(),
            denominator: from.double(),
            hits: from.double(),
            lease: None,
            stands_in: None,
            slot: None,
            period: None,
            worst: 0,
            repeats: false,
            bounds: None,
            unsynced: &[],
        }
    }

    fn with_slot(self, from: &mut Reader<'a>) -> Self {
        let slot = self.has(DETAIL).then(|| from.slot());
        let names_hold = slot.is_some() && self.algorithm == Algorithm::Holds;
        let period = names_hold.then(|| (from.double(), from.double()));
        let worst = if names_hold { from.double() } else { 0 };
        Self { slot, period, worst, ..self }
    }

    /// The lengths of the first and of the longest ban: they are where a slot has its names.
    pub(super) fn ban_lengths(&self) -> Option<(i64, i64)> {
        let Slot { id, number } = self.slot?;
        let double = |bytes| f64::from_le_bytes(bytes) as i64;
        Some((double(id), double(number)))
    }

    /// Microseconds since hits were admitted, and how many.
    pub(super) fn unsynced(&self) -> impl Iterator<Item = (i64, i64)> + use<'a> {
        let mut from = Reader::new(self.unsynced);
        std::iter::from_fn(move || (!from.is_empty()).then(|| (from.double(), from.double())))
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag > 0
    }

    pub(super) fn gives(&self) -> bool {
        self.has(GIVES)
    }

    pub(super) fn is_reported(&self) -> bool {
        self.has(REPORTED)
    }

    /// Its hits are held, and not charged.
    pub(super) fn reserves(&self) -> bool {
        self.has(RESERVES)
    }

    /// Makes it bound the worst cases of a limit, whose hits it reserves as that does.
    pub(super) fn bound(&mut self, limited: &Self, place: usize, others: i64) {
        (self.bounds, self.repeats) = (Some((place, others)), limited.repeats);
        self.flags |= limited.flags & RESERVES;
    }

    pub(super) fn is_shadow(&self) -> bool {
        self.has(SHADOW)
    }

    pub(super) fn is_quota(&self) -> bool {
        self.has(QUOTA)
    }

    /// The most hits that a cost adds to a count, if debts are carried.
    pub(super) fn room_of_debt(&self, count: i64) -> Option<i64> {
        self.pays.map(|pays| (((1 + DEBT_WINDOWS) * pays).min(MOST) - count).max(0))
    }

    /// How many hits of a debt a window pays, if this is a cost whose debt is carried.
    pub(super) fn carries(&self) -> Option<i64> {
        self.pays.filter(|_| self.is_reported())
    }

    /// The size of a bucket, of which classes have shares.
    pub(super) fn burst(&self) -> i64 {
        self.denominator
    }

    /// It counts entries: their times, or the numbers of their buckets.
    pub(super) fn place_of(&self, time: i64) -> i64 {
        match self.algorithm {
            Algorithm::SlidingLog => time,
            _ => muldiv(time, self.numerator, self.denominator).0,
        }
    }

    /// The newest entry that counts no more.
    pub(super) fn gone_at(&self, time: i64) -> i64 {
        match self.algorithm {
            Algorithm::SlidingLog => time - self.window,
            _ => self.place_of(time - self.window) - 1,
        }
    }

    /// When the entry of this place counts no more.
    pub(super) fn counts_until(&self, place: i64) -> i64 {
        match self.algorithm {
            Algorithm::SlidingLog => place + self.window,
            _ => ceil(muldiv(place + 1, self.denominator, self.numerator)) + self.window,
        }
    }
}

/// The whole part of `a * b / n`, and the rest.
pub(super) fn muldiv(a: i64, b: i64, n: i64) -> (i64, i64) {
    let product = i128::from(a) * i128::from(b);
    (product.div_euclid(n.into()) as i64, product.rem_euclid(n.into()) as i64)
}

/// One more if there is a rest.
pub(super) fn ceil((whole, rest): (i64, i64)) -> i64 {
    whole + i64::from(rest > 0)
}

/// The quotient, rounded up. Neither number is negative.
pub(super) fn div_ceil(number: i64, divisor: i64) -> i64 {
    ceil((number / divisor, number % divisor))
}

/// Numbers, as a reply has them.
pub(super) fn doubles(numbers: impl IntoIterator<Item = i64>) -> Vec<u8> {
    // As long as most replies.
    let mut packed = Vec::with_capacity(96);
    numbers.into_iter().for_each(|number| packed.extend_from_slice(&(number as f64).to_le_bytes()));
    packed
}

/// Reads packed numbers, one after the other.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(packed: &'a [u8]) -> Self {
        Self(packed)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (&bytes, rest) = self.0.split_first_chunk().expect("nobody else makes calls");
        self.0 = rest;
        bytes
    }

    pub(super) fn slot(&mut self) -> Slot {
        Slot { id: self.take(), number: self.take() }
    }

    pub(super) fn byte(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    pub(super) fn four(&mut self) -> i64 {
        u32::from_le_bytes(self.take()).into()
    }

    pub(super) fn double(&mut self) -> i64 {
        f64::from_le_bytes(self.take()) as i64
    }
}
