//! How the state of a counter is written as bytes and read back: numbers in little-endian order, one after the other,
//! whatever the state looks like in memory.
//!
//! In: bytes that anybody may have changed. Out: numbers, or what is wrong.

/// What is wrong with bytes that should be a counter.
pub(crate) type Damage = &'static str;

/// Bytes that are read from the front.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    pub(crate) fn new(bytes: &'b [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Damage> {
        self.bytes().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Damage> {
        self.bytes().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Damage> {
        self.bytes().map(u64::from_le_bytes)
    }

    pub(crate) fn u128(&mut self) -> Result<u128, Damage> {
        self.bytes().map(u128::from_le_bytes)
    }

    fn bytes<const COUNT: usize>(&mut self) -> Result<[u8; COUNT], Damage> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or("the bytes end within a counter")?;
        self.0 = rest;
        Ok(*bytes)
    }
}

/// Appends numbers in the order in which a [`Reader`] returns them.
pub(crate) trait Append {
    fn u16(&mut self, number: u16);
    fn u32(&mut self, number: u32);
    fn u64(&mut self, number: u64);
    fn u128(&mut self, number: u128);
}

impl Append for Vec<u8> {
    fn u16(&mut self, number: u16) {
        self.extend_from_slice(&number.to_le_bytes());
    }

    fn u32(&mut self, number: u32) {
        self.extend_from_slice(&number.to_le_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.extend_from_slice(&number.to_le_bytes());
    }

    fn u128(&mut self, number: u128) {
        self.extend_from_slice(&number.to_le_bytes());
    }
}
