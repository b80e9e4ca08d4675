//! The commands that Tidegate uses, by the kind of value that they are about.
//!
//! In: a command and the time. Out: a [`Reply`]. A command that Tidegate does not use is an error, as an unknown one is.

use super::{Database, Entry, Hash, List, Reply, Sorted, Stream, Text, Value, wrong_type};

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
        let reply = match *name {
            b"GET" | b"SET" | b"GETRANGE" | b"SETRANGE" | b"APPEND" => {
                self.texts(name, arguments, now_micros)
            }
            [b'L', ..] | b"RPUSH" => self.lists(name, arguments),
            [b'Z', ..] => self.sorted_sets(name, arguments),
            [b'X', ..] => self.streams(name, arguments, now_micros),
            [b'H', ..] => self.hashes(name, arguments),
            _ => self.any_keys(name, arguments, now_micros),
        };
        reply.unwrap_or_else(|error| error)
    }

    /// Commands about strings.
    fn texts(&mut self, name: &[u8], arguments: &[&[u8]], now_micros: u64) -> Outcome {
        match (name, arguments) {
            (b"GET", [key]) => {
                Ok(self.value::<Text>(key)?.map_or(Reply::Nil, |text| Reply::Bulk(text.clone())))
            }
            (b"SET", [key, value, options @ ..]) => self.set(key, value, options, now_micros),
            (b"GETRANGE", [key, first, last]) => {
                let text = self.value::<Text>(key)?.map_or(&[][..], Vec::as_slice);
                let range = range(text.len(), integer(first)?, integer(last)?);
                Ok(Reply::Bulk(text[range].to_vec()))
            }
            (b"SETRANGE", [key, offset, value]) => {
                let offset = usize::try_from(integer(offset)?).map_err(|_| out_of_range())?;
                let text = self.value_or_new::<Text>(key)?;
                let end = offset + value.len();
                text.resize(text.len().max(end), 0);
                text[offset..end].copy_from_slice(value);
                Ok(Reply::Int(text.len() as i64))
            }
            (b"APPEND", [key, value]) => {
                let text = self.value_or_new::<Text>(key)?;
                text.extend_from_slice(value);
                Ok(Reply::Int(text.len() as i64))
            }
            _ => Err(unknown(name)),
        }
    }

    /// About lists.
    fn lists(&mut self, name: &[u8], arguments: &[&[u8]]) -> Outcome {
        match (name, arguments) {
            (b"RPUSH", [key, values @ ..]) => {
                let list = self.value_or_new::<List>(key)?;
                list.extend(values.iter().map(|value| value.to_vec()));
                Ok(Reply::Int(list.len() as i64))
            }
            (b"LLEN", [key]) => Ok(Reply::Int(self.value::<List>(key)?.map_or(0, List::len) as i64)),
            (b"LINDEX", [key, index]) => {
                let index = integer(index)?;
                let found = self.value::<List>(key)?.and_then(|list| list.get(place(list.len(), index)?));
                Ok(found.map_or(Reply::Nil, |value| Reply::Bulk(value.clone())))
            }
            (b"LSET", [key, index, value]) => {
                let index = integer(index)?;
                let list = self.value_mut::<List>(key)?.ok_or_else(|| Reply::error("ERR", "no such key"))?;
                let place =
                    place(list.len(), index).ok_or_else(|| Reply::error("ERR", "index out of range"))?;
                list[place] = value.to_vec();
                Ok(Reply::Status("OK"))
            }
            (b"LRANGE", [key, first, last]) => {
                let (first, last) = (integer(first)?, integer(last)?);
                let Some(list) = self.value::<List>(key)? else { return Ok(Reply::Array(Vec::new())) };
                let values = list.range(range(list.len(), first, last));
                Ok(Reply::Array(values.map(|value| Reply::Bulk(value.clone())).collect()))
            }
            (b"LTRIM", [key, first, last]) => {
                let (first, last) = (integer(first)?, integer(last)?);
                if let Some(list) = self.value_mut::<List>(key)? {
                    let kept = range(list.len(), first, last);
                    list.truncate(kept.end);
                    list.drain(..kept.start);
                    if list.is_empty() {
                        self.keys.remove(*key);
                    }
                }
                Ok(Reply::Status("OK"))
            }
            _ => Err(unknown(name)),
        }
    }

    /// About sorted sets.
    fn sorted_sets(&mut self, name: &[u8], arguments: &[&[u8]]) -> Outcome {
        match (name, arguments) {
            (b"ZSCORE", [key, member]) => {
                let score = self.value::<Sorted>(key)?.and_then(|sorted| sorted.get(*member));
                Ok(score.map_or(Reply::Nil, |score| Reply::Bulk(score.to_string().into_bytes())))
            }
            (b"ZCARD", [key]) => {
                Ok(Reply::Int(self.value::<Sorted>(key)?.map_or(0, |sorted| sorted.len()) as i64))
            }
            (b"ZADD", [key, pairs @ ..]) => {
                let sorted = self.value_or_new::<Sorted>(key)?;
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
                let members = self.value::<Sorted>(key)?.into_iter().flat_map(Sorted::keys);
                let within = members.filter(|member| is_above(member, least) && is_below(member, most));
                let within = within.take(integer(count)? as usize).cloned();
                Ok(Reply::Array(within.map(Reply::Bulk).collect()))
            }
            _ => Err(unknown(name)),
        }
    }

    /// About streams.
    fn streams(&mut self, name: &[u8], arguments: &[&[u8]], now_micros: u64) -> Outcome {
        match (name, arguments) {
            (b"XADD", [key, b"MAXLEN", b"~", _, b"*", fields @ ..] | [key, b"*", fields @ ..]) => {
                Ok(self.value_or_new::<Stream>(key)?.add(fields, now_micros))
            }
            (b"XRANGE" | b"XREVRANGE", [key, from, to, b"COUNT", count]) => {
                let is_reversed = name == b"XREVRANGE";
                let (least, most) = if is_reversed { (to, from) } else { (from, to) };
                let count = integer(count)? as usize;
                let found =
                    self.value::<Stream>(key)?.map(|stream| stream.range(least, most, count, is_reversed));
                found.unwrap_or_else(|| Some(Reply::Array(Vec::new()))).ok_or_else(syntax)
            }
            _ => Err(unknown(name)),
        }
    }

    /// About hashes.
    fn hashes(&mut self, name: &[u8], arguments: &[&[u8]]) -> Outcome {
        match (name, arguments) {
            (b"HGET", [key, field]) => {
                let found = self.value::<Hash>(key)?.and_then(|fields| fields.get(*field));
                Ok(found.map_or(Reply::Nil, |value| Reply::Bulk(value.clone())))
            }
            (b"HLEN", [key]) => Ok(Reply::Int(self.value::<Hash>(key)?.map_or(0, Hash::len) as i64)),
            (b"HGETALL", [key]) => {
                let fields = self.value::<Hash>(key)?.into_iter().flatten();
                let both = fields.flat_map(|(field, value)| [field.clone(), value.clone()]);
                Ok(Reply::Array(both.map(Reply::Bulk).collect()))
            }
            (b"HSET", [key, field, value]) => {
                let before = self.value_or_new::<Hash>(key)?.insert(field.to_vec(), value.to_vec());
                Ok(Reply::Int(before.is_none().into()))
            }
            _ => Err(unknown(name)),
        }
    }

    /// About keys, whatever is under them; and TIME.
    fn any_keys(&mut self, name: &[u8], arguments: &[&[u8]], now_micros: u64) -> Outcome {
        match (name, arguments) {
            (b"TIME", []) => Ok(time(now_micros)),
            (b"EXISTS", [key]) => Ok(Reply::Int(self.keys.contains_key(*key).into())),
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
            _ => Err(unknown(name)),
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

    /// The members of a sorted set in order, each with its score.
    fn by_score(&self, key: &[u8]) -> Result<Vec<(i64, Vec<u8>)>, Reply> {
        let members = self.value::<Sorted>(key)?.into_iter().flatten();
        let mut all: Vec<_> = members.map(|(member, score)| (*score, member.clone())).collect();
        all.sort_unstable();
        Ok(all)
    }

    /// Removes members of a sorted set.
    fn remove_from(&mut self, key: &[u8], is_meant: impl Fn(&[u8], i64) -> bool) -> Outcome {
        let Some(sorted) = self.value_mut::<Sorted>(key)? else { return Ok(Reply::Int(0)) };
        let before = sorted.len();
        sorted.retain(|member, score| !is_meant(member, *score));
        let removed = before - sorted.len();
        if sorted.is_empty() {
            self.keys.remove(key);
        }
        Ok(Reply::Int(removed as i64))
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

fn unknown(name: &[u8]) -> Reply {
    Reply::error("ERR", format!("unknown command {}", String::from_utf8_lossy(name)))
}

fn out_of_range() -> Reply {
    Reply::error("ERR", "offset is out of range")
}

fn syntax() -> Reply {
    Reply::error("ERR", "syntax error")
}
