//! The text of the headers that a server keeps ([`Served::kept`](super::Served::kept)), for one header block.
//!
//! Most servers keep none. A block with kept headers has at most as many bytes of them as a header list may have.

/// Capacity that is kept for the text of the next block.
const BYTES_KEPT: usize = 256;

/// The kept headers of one block, in its order.
#[derive(Debug)]
pub struct KeptHeaders {
    names: &'static [&'static str],
    /// The index of each name, and where its text ends.
    fields: Vec<(u8, usize)>,
    text: Vec<u8>,
}

impl KeptHeaders {
    pub(super) fn new(names: &'static [&'static str]) -> Self {
        Self { names, fields: Vec::new(), text: Vec::new() }
    }

    /// The text of the first header with this name.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let place = self.fields.iter().position(|&(index, _)| self.names[usize::from(index)] == name)?;
        let begin = place.checked_sub(1).map_or(0, |before| self.fields[before].1);
        Some(&self.text[begin..self.fields[place].1])
    }

    pub(super) fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.fields.clear();
        self.text.clear();
    }

    pub(super) fn push(&mut self, name: u8, text: &[u8]) {
        self.text.extend_from_slice(text);
        self.fields.push((name, self.text.len()));
    }

    pub(super) fn has_spare(&self) -> bool {
        self.text.capacity() > BYTES_KEPT
    }

    pub(super) fn shrink(&mut self) {
        self.clear();
        self.text.shrink_to(BYTES_KEPT);
        self.fields.shrink_to(self.names.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_header_of_a_name_counts() {
        let mut kept = KeptHeaders::new(&["b3", "traceparent"]);
        assert!(kept.is_empty() && kept.get("b3").is_none());
        for (name, text) in [(1, "first"), (0, ""), (1, "second"), (0, "x")] {
            kept.push(name, text.as_bytes());
        }
        assert_eq!((kept.get("traceparent"), kept.get("b3")), (Some(&b"first"[..]), Some(&b""[..])));
        assert_eq!(kept.get("other"), None);
        kept.clear();
        assert!(kept.is_empty() && kept.get("b3").is_none());
    }
}
