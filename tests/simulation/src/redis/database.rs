//! The data of one Redis server: values of several kinds, with times to live. What commands do with them is in `commands`.
//!
//! Where the model answers calls of scripts, counters are kept as it has them, and no command reads them.

mod commands;

use std::collections::{BTreeMap, VecDeque};

use tidegate_engine::limit::Algorithm;

use super::model::{Counter, of_value};
use super::stream::Stream;

/// What a command answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// Nothing: a key that is not there.
    Nil,
    /// A status such as `OK`.
    Status(&'static str),
    /// A number.
    Int(i64),
    /// Bytes.
    Bulk(Vec<u8>),
    /// Several replies.
    Array(Vec<Reply>),
    /// An error: its code, and the rest of its text.
    Error(String, String),
}

impl Reply {
    /// An error with this code.
    pub fn error(code: &str, text: impl Into<String>) -> Self {
        Self::Error(code.to_owned(), text.into())
    }
}

/// A string.
type Text = Vec<u8>;

/// The values of a list.
pub type List = VecDeque<Vec<u8>>;

/// The scores of the members of a sorted set: whole numbers.
pub type Sorted = BTreeMap<Vec<u8>, i64>;

/// The fields of a hash.
pub type Hash = BTreeMap<Vec<u8>, Vec<u8>>;

/// What is under a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A string.
    Text(Text),
    /// A list.
    List(List),
    /// A sorted set.
    Sorted(Sorted),
    /// A hash.
    Hash(Hash),
    /// A stream.
    Stream(Stream),
    /// A counter of the model.
    Counter(Counter),
}

/// A kind of value that commands use.
trait Kind: Default {
    fn of(value: &Value) -> Option<&Self>;
    fn of_mut(value: &mut Value) -> Option<&mut Self>;
    fn into_value(self) -> Value;
}

macro_rules! kinds {
    ($($kind:ident),*) => {$(
        impl Kind for $kind {
            fn of(value: &Value) -> Option<&Self> {
                if let Value::$kind(own) = value { Some(own) } else { None }
            }

            fn of_mut(value: &mut Value) -> Option<&mut Self> {
                if let Value::$kind(own) = value { Some(own) } else { None }
            }

            fn into_value(self) -> Value {
                Value::$kind(self)
            }
        }
    )*};
}

kinds!(Text, List, Sorted, Hash, Stream);

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    value: Value,
    /// Unix time in milliseconds.
    expires: Option<i64>,
}

impl Entry {
    fn is_over(&self, now_micros: u64) -> bool {
        self.expires.is_some_and(|at| at <= (now_micros / 1_000) as i64)
    }
}

/// All keys of a server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Database {
    keys: BTreeMap<Vec<u8>, Entry>,
}

impl Database {
    /// Forgets everything.
    pub fn clear(&mut self) {
        self.keys.clear();
    }

    /// Takes out the keys for which this is true.
    pub fn take(&mut self, is_meant: impl Fn(&[u8]) -> bool) -> Self {
        let (taken, kept) = std::mem::take(&mut self.keys).into_iter().partition(|(key, _)| is_meant(key));
        self.keys = kept;
        Self { keys: taken }
    }

    /// Adds these keys.
    pub fn add(&mut self, other: Self) {
        self.keys.extend(other.keys);
    }

    /// Takes out the counter under a key, to be put back.
    pub fn take_counter(&mut self, key: &[u8], now_micros: i64) -> Option<Counter> {
        let entry = self.keys.get_mut(key)?;
        if entry.is_over(now_micros as u64) {
            self.keys.remove(key);
            return None;
        }
        match std::mem::replace(&mut entry.value, Value::Text(Vec::new())) {
            Value::Counter(counter) => Some(counter),
            other => panic!("no counter is under this key, but {other:?}"),
        }
    }

    /// Puts a counter back, or a new one in. `expires`: from now on its key does at this Unix time in milliseconds.
    pub fn put_counter(&mut self, key: &[u8], counter: Counter, expires: Option<i64>, now_micros: i64) {
        let value = Value::Counter(counter);
        match self.keys.get_mut(key) {
            Some(entry) => entry.value = value,
            None => _ = self.keys.insert(key.to_vec(), Entry { value, expires: None }),
        }
        if let Some(at) = expires {
            self.expire_at(key, at, now_micros as u64);
        }
    }

    /// The same data, with the counters under these keys as the model has them.
    #[must_use]
    pub fn with_counters<'k>(&self, keys: impl Iterator<Item = (&'k [u8], Algorithm)>) -> Self {
        let mut same = self.clone();
        for (key, algorithm) in keys {
            if let Some(entry) =
                same.keys.get_mut(key).filter(|entry| !matches!(entry.value, Value::Counter(_)))
            {
                entry.value = Value::Counter(of_value(algorithm, &entry.value));
            }
        }
        same
    }

    /// How many keys there are.
    pub fn count(&self) -> usize {
        self.keys.len()
    }

    fn expire(&mut self, key: &[u8], now_micros: u64) {
        if self.keys.get(key).is_some_and(|entry| entry.is_over(now_micros)) {
            self.keys.remove(key);
        }
    }

    fn expire_at(&mut self, key: &[u8], at: i64, now_micros: u64) -> Reply {
        let Some(entry) = self.keys.get_mut(key) else { return Reply::Int(0) };
        entry.expires = Some(at);
        if at <= (now_micros / 1_000) as i64 {
            self.keys.remove(key);
        }
        Reply::Int(1)
    }

    /// What is under a key, which has to be of this kind if it is there.
    fn value<K: Kind>(&self, key: &[u8]) -> Result<Option<&K>, Reply> {
        let value = self.keys.get(key).map(|entry| &entry.value);
        value.map(|value| K::of(value).ok_or_else(wrong_type)).transpose()
    }

    /// The same, to be changed.
    fn value_mut<K: Kind>(&mut self, key: &[u8]) -> Result<Option<&mut K>, Reply> {
        let value = self.keys.get_mut(key).map(|entry| &mut entry.value);
        value.map(|value| K::of_mut(value).ok_or_else(wrong_type)).transpose()
    }

    /// The same, made if it is not there.
    fn value_or_new<K: Kind>(&mut self, key: &[u8]) -> Result<&mut K, Reply> {
        let new = || Entry { value: K::default().into_value(), expires: None };
        K::of_mut(&mut self.keys.entry(key.to_vec()).or_insert_with(new).value).ok_or_else(wrong_type)
    }
}

fn wrong_type() -> Reply {
    Reply::error("WRONGTYPE", "Operation against a key holding the wrong kind of value")
}
