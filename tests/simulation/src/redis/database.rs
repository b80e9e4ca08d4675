//! The data of one Redis server: texts and lists with times to live, and the commands that Tidegate uses on them.
//!
//! In: a command and the time. Out: a [`Reply`]. A command that Tidegate does not use is an error, as an unknown one is.
//! Where the model answers calls of scripts, counters are kept as it has them, and no command reads them.

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

/// The scores of the members of a sorted set: whole numbers.
pub type Sorted = BTreeMap<Vec<u8>, i64>;

/// The fields of a hash.
pub type Fields = BTreeMap<Vec<u8>, Vec<u8>>;

/// What is under a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A string.
    Text(Vec<u8>),
    /// A list.
    List(VecDeque<Vec<u8>>),
    /// A sorted set.
    Sorted(Sorted),
    /// A hash.
    Hash(Fields),
    /// A stream.
    Stream(Stream),
    /// A counter of the model.
    Counter(Counter),
}

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

type Outcome = Result<Reply, Reply>;

impl Database {
    /// Runs one command, in capitals, at this time.
    pub fn run(&mut self, now_micros: u64, command: &[&[u8]]) -> Reply {
        let Some((name, arguments)) = command.split_first() else {
            return Reply::error("ERR", "empty command");
        };
        if let Some(key) = arguments.first() {
            self.expire(key, now_micros);
        }
        self.dispatch(name, arguments, now_micros).unwrap_or_else(|error| error)
    }

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

    fn dispatch(&mut self, name: &[u8], arguments: &[&[u8]], now_micros: u64) -> Outcome {
        match (name, arguments) {
            (b"TIME", []) => Ok(time(now_micros)),
            (b"GET", [key]) => Ok(self.text(key)?.map_or(Reply::Nil, |text| Reply::Bulk(text.clone()))),
            (b"SET", [key, value, options @ ..]) => self.set(key, value, options, now_micros),
            (b"GETRANGE", [key, first, last]) => {
                let text = self.text(key)?.map_or(&[][..], Vec::as_slice);
                let range = range(text.len(), integer(first)?, integer(last)?);
                Ok(Reply::Bulk(text[range].to_vec()))
            }
            (b"SETRANGE", [key, offset, value]) => {
                let offset = usize::try_from(integer(offset)?).map_err(|_| out_of_range())?;
                let text = self.text_or_new(key)?;
                let end = offset + value.len();
                text.resize(text.len().max(end), 0);
                text[offset..end].copy_from_slice(value);
                Ok(Reply::Int(text.len() as i64))
            }
            (b"APPEND", [key, value]) => {
                let text = self.text_or_new(key)?;
                text.extend_from_slice(value);
                Ok(Reply::Int(text.len() as i64))
            }
            (b"RPUSH", [key, values @ ..]) => {
                let list = self.list_or_new(key)?;
                list.extend(values.iter().map(|value| value.to_vec()));
                Ok(Reply::Int(list.len() as i64))
            }
            (b"LLEN", [key]) => Ok(Reply::Int(self.list(key)?.map_or(0, VecDeque::len) as i64)),
            (b"LINDEX", [key, index]) => {
                let index = integer(index)?;
                let found = self.list(key)?.and_then(|list| list.get(place(list.len(), index)?));
                Ok(found.map_or(Reply::Nil, |value| Reply::Bulk(value.clone())))
            }
            (b"LSET", [key, index, value]) => {
                let index = integer(index)?;
                let list = self.list_mut(key)?.ok_or_else(|| Reply::error("ERR", "no such key"))?;
                let place =
                    place(list.len(), index).ok_or_else(|| Reply::error("ERR", "index out of range"))?;
                list[place] = value.to_vec();
                Ok(Reply::Status("OK"))
            }
            (b"LRANGE", [key, first, last]) => {
                let (first, last) = (integer(first)?, integer(last)?);
                let Some(list) = self.list(key)? else { return Ok(Reply::Array(Vec::new())) };
                let values = list.range(range(list.len(), first, last));
                Ok(Reply::Array(values.map(|value| Reply::Bulk(value.clone())).collect()))
            }
            (b"LTRIM", [key, first, last]) => {
                let (first, last) = (integer(first)?, integer(last)?);
                if let Some(list) = self.list_mut(key)? {
                    let kept = range(list.len(), first, last);
                    list.truncate(kept.end);
                    list.drain(..kept.start);
                    if list.is_empty() {
                        self.keys.remove(*key);
                    }
                }
                Ok(Reply::Status("OK"))
            }
            (b"ZSCORE", [key, member]) => {
                let score = self.sorted(key)?.and_then(|sorted| sorted.get(*member));
                Ok(score.map_or(Reply::Nil, |score| Reply::Bulk(score.to_string().into_bytes())))
            }
            (b"ZCARD", [key]) => Ok(Reply::Int(self.sorted(key)?.map_or(0, |sorted| sorted.len()) as i64)),
            (b"ZADD", [key, pairs @ ..]) => {
                let sorted = self.sorted_or_new(key)?;
                let before = sorted.len();
                for [score, member] in pairs.as_chunks().0 {
                    sorted.insert(member.to_vec(), integer(score)?);
                }
                Ok(Reply::Int((sorted.len() - before) as i64))
            }
            (b"ZREM", [key, members @ ..]) => self.remove_from(key, |other, _| members.contains(&other)),
            (b"ZREMRANGEBYSCORE", [key, b"-inf", most]) => {
                let most = integer(most)?;
                self.remove_from(key, |_, score| score <= most)
            }
            (b"ZRANGEBYSCORE", [key, least, most, options @ ..]) => {
                let mut all = self.by_score(key)?;
                let (least, most) = (integer(least)?, integer(most)?);
                all.retain(|(score, _)| (least..=most).contains(score));
                match options {
                    [] => Ok(Reply::Array(all.into_iter().map(|(_, member)| Reply::Bulk(member)).collect())),
                    [b"WITHSCORES", b"LIMIT", b"0", count] => {
                        all.truncate(integer(count)? as usize);
                        Ok(with_scores(&all))
                    }
                    _ => Err(syntax()),
                }
            }
            (b"ZRANGE", [key, first, last, b"WITHSCORES"]) => {
                let (first, last) = (integer(first)?, integer(last)?);
                let all = self.by_score(key)?;
                Ok(with_scores(&all[range(all.len(), first, last)]))
            }
            (b"ZRANGEBYLEX", [key, least, most, b"LIMIT", b"0", count]) => {
                let members = self.sorted(key)?.into_iter().flat_map(Sorted::keys);
                let within = members.filter(|member| is_above(member, least) && is_below(member, most));
                let within = within.take(integer(count)? as usize).cloned();
                Ok(Reply::Array(within.map(Reply::Bulk).collect()))
            }
            (b"XADD", [key, b"MAXLEN", b"~", _, b"*", fields @ ..] | [key, b"*", fields @ ..]) => {
                Ok(self.stream_or_new(key)?.add(fields, now_micros))
            }
            (b"XRANGE" | b"XREVRANGE", [key, from, to, b"COUNT", count]) => {
                let is_reversed = name == b"XREVRANGE";
                let (least, most) = if is_reversed { (to, from) } else { (from, to) };
                let count = integer(count)? as usize;
                let found = self.stream(key)?.map(|stream| stream.range(least, most, count, is_reversed));
                found.unwrap_or_else(|| Some(Reply::Array(Vec::new()))).ok_or_else(syntax)
            }
            (b"EXISTS", [key]) => Ok(Reply::Int(self.keys.contains_key(*key).into())),
            (b"HGET", [key, field]) => {
                let found = self.hash(key)?.and_then(|fields| fields.get(*field));
                Ok(found.map_or(Reply::Nil, |value| Reply::Bulk(value.clone())))
            }
            (b"HLEN", [key]) => Ok(Reply::Int(self.hash(key)?.map_or(0, Fields::len) as i64)),
            (b"HGETALL", [key]) => {
                let fields = self.hash(key)?.into_iter().flatten();
                let both = fields.flat_map(|(field, value)| [field.clone(), value.clone()]);
                Ok(Reply::Array(both.map(Reply::Bulk).collect()))
            }
            (b"HSET", [key, field, value]) => {
                let before = self.hash_or_new(key)?.insert(field.to_vec(), value.to_vec());
                Ok(Reply::Int(before.is_none().into()))
            }
            (b"DEL" | b"UNLINK", [key]) => Ok(Reply::Int(self.keys.remove(*key).is_some().into())),
            (b"TYPE", [key]) => Ok(Reply::Status(match self.keys.get(*key).map(|entry| &entry.value) {
                None => "none",
                Some(Value::Text(_)) => "string",
                Some(Value::List(_)) => "list",
                Some(Value::Sorted(_)) => "zset",
                Some(Value::Hash(_)) => "hash",
                Some(Value::Stream(_)) => "stream",
                Some(Value::Counter(_)) => return Err(wrong_type()),
            })),
            (b"PEXPIREAT", [key, at]) => Ok(self.expire_at(key, integer(at)?, now_micros)),
            (b"EXPIRE", [key, seconds]) => {
                let at = (now_micros / 1_000) as i64 + integer(seconds)? * 1_000;
                Ok(self.expire_at(key, at, now_micros))
            }
            (b"PEXPIRETIME", [key]) => Ok(Reply::Int(match self.keys.get(*key) {
                None => -2,
                Some(entry) => entry.expires.unwrap_or(-1),
            })),
            _ => Err(Reply::error("ERR", format!("unknown command {}", String::from_utf8_lossy(name)))),
        }
    }

    fn set(&mut self, key: &[u8], value: &[u8], options: &[&[u8]], now_micros: u64) -> Outcome {
        let (mut expires, mut keeps, mut only_new, mut options) = (None, false, false, options.iter());
        while let Some(option) = options.next() {
            match &*option.to_ascii_uppercase() {
                b"KEEPTTL" => keeps = true,
                b"NX" => only_new = true,
                b"EX" => {
                    let seconds = integer(options.next().ok_or_else(syntax)?)?;
                    expires = Some((now_micros / 1_000) as i64 + seconds * 1_000);
                }
                _ => return Err(syntax()),
            }
        }
        if only_new && self.keys.contains_key(key) {
            return Ok(Reply::Nil);
        }
        if keeps {
            expires = self.keys.get(key).and_then(|entry| entry.expires);
        }
        self.keys.insert(key.to_vec(), Entry { value: Value::Text(value.to_vec()), expires });
        Ok(Reply::Status("OK"))
    }

    fn expire_at(&mut self, key: &[u8], at: i64, now_micros: u64) -> Reply {
        let Some(entry) = self.keys.get_mut(key) else { return Reply::Int(0) };
        entry.expires = Some(at);
        if at <= (now_micros / 1_000) as i64 {
            self.keys.remove(key);
        }
        Reply::Int(1)
    }

    fn text(&self, key: &[u8]) -> Result<Option<&Vec<u8>>, Reply> {
        match self.keys.get(key).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(wrong_type()),
        }
    }

    fn text_or_new(&mut self, key: &[u8]) -> Result<&mut Vec<u8>, Reply> {
        match self.value_or_new(key, || Value::Text(Vec::new())) {
            Value::Text(text) => Ok(text),
            _ => Err(wrong_type()),
        }
    }

    fn list(&self, key: &[u8]) -> Result<Option<&VecDeque<Vec<u8>>>, Reply> {
        match self.keys.get(key).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::List(list)) => Ok(Some(list)),
            Some(_) => Err(wrong_type()),
        }
    }

    fn list_mut(&mut self, key: &[u8]) -> Result<Option<&mut VecDeque<Vec<u8>>>, Reply> {
        match self.keys.get_mut(key).map(|entry| &mut entry.value) {
            None => Ok(None),
            Some(Value::List(list)) => Ok(Some(list)),
            Some(_) => Err(wrong_type()),
        }
    }

    fn sorted(&self, key: &[u8]) -> Result<Option<&Sorted>, Reply> {
        match self.keys.get(key).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::Sorted(sorted)) => Ok(Some(sorted)),
            Some(_) => Err(wrong_type()),
        }
    }

    /// The members of a sorted set in order, each with its score.
    fn by_score(&self, key: &[u8]) -> Result<Vec<(i64, Vec<u8>)>, Reply> {
        let members = self.sorted(key)?.into_iter().flatten();
        let mut all: Vec<_> = members.map(|(member, score)| (*score, member.clone())).collect();
        all.sort_unstable();
        Ok(all)
    }

    fn value_or_new(&mut self, key: &[u8], new: impl FnOnce() -> Value) -> &mut Value {
        let entry = self.keys.entry(key.to_vec());
        &mut entry.or_insert_with(|| Entry { value: new(), expires: None }).value
    }

    fn sorted_or_new(&mut self, key: &[u8]) -> Result<&mut Sorted, Reply> {
        match self.value_or_new(key, || Value::Sorted(Sorted::new())) {
            Value::Sorted(sorted) => Ok(sorted),
            _ => Err(wrong_type()),
        }
    }

    fn hash(&self, key: &[u8]) -> Result<Option<&Fields>, Reply> {
        match self.keys.get(key).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::Hash(fields)) => Ok(Some(fields)),
            Some(_) => Err(wrong_type()),
        }
    }

    fn hash_or_new(&mut self, key: &[u8]) -> Result<&mut Fields, Reply> {
        match self.value_or_new(key, || Value::Hash(Fields::new())) {
            Value::Hash(fields) => Ok(fields),
            _ => Err(wrong_type()),
        }
    }

    fn stream(&self, key: &[u8]) -> Result<Option<&Stream>, Reply> {
        match self.keys.get(key).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::Stream(stream)) => Ok(Some(stream)),
            Some(_) => Err(wrong_type()),
        }
    }

    fn stream_or_new(&mut self, key: &[u8]) -> Result<&mut Stream, Reply> {
        match self.value_or_new(key, || Value::Stream(Stream::default())) {
            Value::Stream(stream) => Ok(stream),
            _ => Err(wrong_type()),
        }
    }

    /// Removes members of a sorted set.
    fn remove_from(&mut self, key: &[u8], is_meant: impl Fn(&[u8], i64) -> bool) -> Outcome {
        if self.sorted(key)?.is_none() {
            return Ok(Reply::Int(0));
        }
        let sorted = self.sorted_or_new(key)?;
        let before = sorted.len();
        sorted.retain(|member, score| !is_meant(member, *score));
        let removed = before - sorted.len();
        if sorted.is_empty() {
            self.keys.remove(key);
        }
        Ok(Reply::Int(removed as i64))
    }

    fn list_or_new(&mut self, key: &[u8]) -> Result<&mut VecDeque<Vec<u8>>, Reply> {
        match self.value_or_new(key, || Value::List(VecDeque::new())) {
            Value::List(list) => Ok(list),
            _ => Err(wrong_type()),
        }
    }
}

/// Members of a sorted set, each with its score.
fn with_scores(members: &[(i64, Vec<u8>)]) -> Reply {
    let both = |(score, member): &(i64, Vec<u8>)| [member.clone(), score.to_string().into_bytes()];
    Reply::Array(members.iter().flat_map(both).map(Reply::Bulk).collect())
}

/// The reply to TIME.
fn time(now_micros: u64) -> Reply {
    let text = |number: u64| Reply::Bulk(number.to_string().into_bytes());
    Reply::Array(vec![text(now_micros / 1_000_000), text(now_micros % 1_000_000)])
}

/// The places from `first` to `last`, both included, where negative ones count from the end.
fn range(length: usize, first: i64, last: i64) -> std::ops::Range<usize> {
    let from_end = |index: i64| if index < 0 { (index + length as i64).max(-1) } else { index };
    let first = from_end(first).max(0) as usize;
    let end = (from_end(last) + 1).clamp(0, length as i64) as usize;
    if first >= end { 0..0 } else { first..end }
}

/// Whether a member is in a range of ZRANGEBYLEX that begins here: with it, behind it, or with the first.
fn is_above(member: &[u8], least: &[u8]) -> bool {
    match least.split_first() {
        Some((b'[', least)) => member >= least,
        Some((b'(', least)) => member > least,
        _ => least == b"-",
    }
}

/// Whether it is in one that ends here.
fn is_below(member: &[u8], most: &[u8]) -> bool {
    match most.split_first() {
        Some((b'[', most)) => member <= most,
        Some((b'(', most)) => member < most,
        _ => most == b"+",
    }
}

fn place(length: usize, index: i64) -> Option<usize> {
    let index = if index < 0 { index + length as i64 } else { index };
    usize::try_from(index).ok().filter(|&index| index < length)
}

fn integer(text: &[u8]) -> Result<i64, Reply> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| Reply::error("ERR", "value is not an integer or out of range"))
}

fn out_of_range() -> Reply {
    Reply::error("ERR", "offset is out of range")
}

fn syntax() -> Reply {
    Reply::error("ERR", "syntax error")
}

fn wrong_type() -> Reply {
    Reply::error("WRONGTYPE", "Operation against a key holding the wrong kind of value")
}
