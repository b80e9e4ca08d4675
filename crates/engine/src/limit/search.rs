//! Binary search by index, for states that have no slice to search.

/// The first index of `0..len` that does not satisfy `before`; no later one may satisfy it.
pub(super) fn search(len: usize, before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, len);
    while low < high {
        let middle = low + (high - low) / 2;
        if before(middle) { low = middle + 1 } else { high = middle }
    }
    low
}
