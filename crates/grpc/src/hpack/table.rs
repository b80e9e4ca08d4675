//! The static and the dynamic table of HPACK: the meaning and the size of a field, by its index. Text is kept only
//! for headers that the server wants.

use std::collections::VecDeque;
use std::sync::LazyLock;

use super::field::{Meaning, Name};
use super::{ENTRY_OVERHEAD, STATIC_ENTRIES, Served, TABLE_BYTES};

/// A field that a table holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name, and the bytes of the name: a literal field may refer to the name alone.
    pub name: Name,
    pub name_bytes: usize,
    pub meaning: Meaning,
    /// Its size (RFC 7541, 4.1).
    pub size: usize,
}

impl Entry {
    /// The entry of a field with this name and value.
    pub fn of(name: Name, name_bytes: usize, value: &[u8], served: &Served) -> Self {
        let size = name_bytes + value.len() + ENTRY_OVERHEAD;
        Self { name, name_bytes, meaning: Meaning::of(name, value, served), size }
    }

    /// The entry of a well-formed field that is not needed, from the lengths of its name and its value.
    pub fn unread(name_bytes: usize, value_bytes: usize) -> Self {
        let size = name_bytes + value_bytes + ENTRY_OVERHEAD;
        Self { name: Name::Other, name_bytes, meaning: Meaning::Nothing, size }
    }
}

/// Both tables of one connection.
#[derive(Debug)]
pub struct Table {
    fixed: &'static [Entry; STATIC_ENTRIES],
    /// The newest first.
    entries: VecDeque<Entry>,
    size: usize,
    capacity: usize,
}

impl Table {
    pub fn new() -> Self {
        Self { fixed: &STATIC, entries: VecDeque::new(), size: 0, capacity: TABLE_BYTES }
    }

    /// The entry at an index, which begins at 1.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&Entry> {
        match index.checked_sub(STATIC_ENTRIES + 1) {
            None => self.fixed.get(index.checked_sub(1)?),
            Some(dynamic) => self.entries.get(dynamic),
        }
    }

    /// Adds an entry and evicts the oldest ones to make room. An entry that is too large empties the table.
    pub fn insert(&mut self, entry: Entry) {
        self.evict(entry.size);
        if entry.size <= self.capacity {
            self.size += entry.size;
            self.entries.push_front(entry);
        }
    }

    /// Sets the capacity that the client chose. `None` if it is more than we allow.
    pub fn resize(&mut self, capacity: usize) -> Option<()> {
        if capacity > TABLE_BYTES {
            return None;
        }
        self.capacity = capacity;
        self.evict(0);
        Some(())
    }

    fn evict(&mut self, room: usize) {
        while self.size + room > self.capacity {
            let Some(oldest) = self.entries.pop_back() else { break };
            self.size -= oldest.size;
        }
    }

    #[cfg(test)]
    pub fn size(&self) -> usize {
        self.size
    }
}

static STATIC: LazyLock<[Entry; STATIC_ENTRIES]> = LazyLock::new(|| {
    let served = Served { calls: &[], dialogs: &[], kept: &[] };
    let entry = |(name, value): (&str, &str)| {
        Entry::of(Name::of(name.as_bytes(), served.kept), name.len(), value.as_bytes(), &served)
    };
    FIELDS.map(entry)
});

/// RFC 7541, appendix A.
#[rustfmt::skip]
pub(super) const FIELDS: [(&str, &str); STATIC_ENTRIES] = [
    (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"), (":path", "/index.html"),
    (":scheme", "http"), (":scheme", "https"), (":status", "200"), (":status", "204"), (":status", "206"),
    (":status", "304"), (":status", "400"), (":status", "404"), (":status", "500"), ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"), ("accept-language", ""), ("accept-ranges", ""), ("accept", ""),
    ("access-control-allow-origin", ""), ("age", ""), ("allow", ""), ("authorization", ""),
    ("cache-control", ""), ("content-disposition", ""), ("content-encoding", ""), ("content-language", ""),
    ("content-length", ""), ("content-location", ""), ("content-range", ""), ("content-type", ""),
    ("cookie", ""), ("date", ""), ("etag", ""), ("expect", ""), ("expires", ""), ("from", ""), ("host", ""),
    ("if-match", ""), ("if-modified-since", ""), ("if-none-match", ""), ("if-range", ""),
    ("if-unmodified-since", ""), ("last-modified", ""), ("link", ""), ("location", ""), ("max-forwards", ""),
    ("proxy-authenticate", ""), ("proxy-authorization", ""), ("range", ""), ("referer", ""), ("refresh", ""),
    ("retry-after", ""), ("server", ""), ("set-cookie", ""), ("strict-transport-security", ""),
    ("transfer-encoding", ""), ("user-agent", ""), ("vary", ""), ("via", ""), ("www-authenticate", ""),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(size: usize) -> Entry {
        Entry { name: Name::Other, name_bytes: 1, meaning: Meaning::Nothing, size }
    }

    #[test]
    fn indices_go_through_the_static_table_into_the_dynamic_one() {
        let mut table = Table::new();
        assert_eq!(table.get(0), None);
        assert_eq!(table.get(1).map(|entry| entry.name), Some(Name::Authority));
        assert_eq!(table.get(61).map(|entry| entry.size), Some("www-authenticate".len() + 32));
        assert_eq!(table.get(62), None);
        table.insert(entry(40));
        table.insert(entry(50));
        assert_eq!(table.get(62), Some(&entry(50)));
        assert_eq!(table.get(63), Some(&entry(40)));
        assert_eq!(table.get(64), None);
    }

    #[test]
    fn the_oldest_entries_make_room() {
        let mut table = Table::new();
        table.resize(100).expect("less than there may be");
        [40, 50].into_iter().for_each(|size| table.insert(entry(size)));
        assert_eq!(table.size(), 90);
        table.insert(entry(20));
        assert_eq!((table.size(), table.get(64)), (70, None));
        table.insert(entry(101));
        assert_eq!((table.size(), table.get(62)), (0, None));
        table.insert(entry(60));
        table.resize(0).expect("less than there may be");
        assert_eq!(table.get(62), None);
        assert_eq!(table.resize(TABLE_BYTES + 1), None);
    }
}
