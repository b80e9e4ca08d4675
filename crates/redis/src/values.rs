//! Values by key, which all nodes share, and a stream of the keys that changed. The users of this module know what
//! the values mean.
//!
//! In: keys and values of bytes. Out: values, and which keys changed since a position in the stream. A change is the
//! value, its place in the index of all keys, and its entry in the stream, in one script: on one server a batch is
//! written and announced completely, or not at all. In a Cluster keys are in many slots, so each value is written by
//! itself, and the batch is announced after the last.
//!
//! A node that keeps values reads the stream from its last position. If the entry at that position is gone, the node
//! may have missed changes, or the server has lost some; the result says so. A value may have been read before its entry
//! in the stream. If the server loses both then, the stream does not show it; so after every new connection any key may
//! have changed.

use std::sync::atomic::Ordering::Acquire;

use parking_lot::Mutex;
use redis::{FromRedisValue, Value};

use crate::address::Servers;
use crate::connect_error::ConnectError;
use crate::runtime::{Runtime, Tokio};
use crate::store::RedisStore;

/// Entries that the stream keeps, give or take a few: each is a batch of changes.
const CHANGES_KEPT: usize = 100_000;

/// Entries of the stream that are read at once.
const CHANGES_READ: usize = 1_000;

/// The most changes that are written together: a script must not take long.
pub const BATCH_MAX: usize = 1_000;

/// Sets the values of keys, or removes those that are empty. KEYS: the stream, the index, the keys. ARGV: how long the
/// stream may be, how many bytes of a key are the prefix, the values. Returns how many keys had a value.
const CHANGE: &str = "local names, there = {}, 0
for i = 3, #KEYS do
  local name = string.sub(KEYS[i], ARGV[2] + 1)
  there = there + redis.call('EXISTS', KEYS[i])
  if ARGV[i] == '' then
    redis.call('DEL', KEYS[i])
    redis.call('ZREM', KEYS[2], name)
  else
    redis.call('SET', KEYS[i], ARGV[i])
    redis.call('ZADD', KEYS[2], 0, name)
  end
  names[#names + 1] = 'k'
  names[#names + 1] = name
end
redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', unpack(names))
return there";

/// Before a change of one key: ends with -1 unless its value is the last argument, which is empty for none.
const COMPARE: &str = "if (redis.call('GET', KEYS[#KEYS]) or '') ~= ARGV[#ARGV] then return -1 end
";

/// Sets the value of a key, or removes it. KEYS: the key. ARGV: the value, or nothing.
const CHANGE_ONE: &str = "if ARGV[1] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[1])
end
return 0";

/// Where a stream has been read up to: the last entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position(Entry);

/// What has changed since a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// The keys that changed, some of them more than once. `None`: any key may have.
    pub keys: Option<Vec<Vec<u8>>>,
    /// Where to go on.
    pub position: Position,
}

/// What [`Values::follow`] does if there is no stream of changes yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingStream {
    /// It creates it.
    Create,
    /// Each call is the first one until there is a stream.
    Await,
}

/// What [`Values::follow`] finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Followed {
    /// It begins here: any key may have changed before.
    Begun,
    /// Keys that changed, some of them more than once.
    Keys(Vec<Vec<u8>>),
    /// Changes were missed: any key may have changed.
    Missed,
    /// Another server may answer than before, or one that has lost changes: any key may have changed.
    Reconnected,
}

/// How far changes were read.
#[derive(Clone)]
struct Read {
    position: Position,
    /// How many connections had been opened before.
    opened: u64,
}

/// Values by key.
pub struct Values<R: Runtime = Tokio> {
    store: RedisStore<R>,
    /// What the keys of all values begin with.
    prefix: Vec<u8>,
    stream: Vec<u8>,
    /// All keys in the order of their bytes.
    index: Vec<u8>,
    /// How far [`follow`](Self::follow) has read.
    followed: Mutex<Option<Read>>,
}

impl<R: Runtime> Values<R> {
    /// The values under `name` in this store, whose options must not say that it has counters.
    pub fn new(store: RedisStore<R>, name: &str) -> Self {
        let [prefix, stream, index] =
            ["k:", "changes", "index"].map(|part| format!("{name}:{part}").into_bytes());
        Self { store, prefix, stream, index, followed: Mutex::default() }
    }

    /// The store, to be connected for each worker.
    pub fn store(&self) -> &RedisStore<R> {
        &self.store
    }

    /// The value of a key, if it has one. A value of another program, which is not text, is returned as empty.
    /// Fails when the server does not answer.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ConnectError> {
        let key = self.key(key);
        match self.store.ask(&key, redis::cmd("GET").arg(&key)).await {
            Err(error) if error.code() == Some("WRONGTYPE") => Ok(Some(Vec::new())),
            value => value,
        }
    }

    /// Waits until as many replicas have the last change of this key as the store's options ask for. In a Cluster this
    /// covers the value alone: the announcement may be on another server, whose replicas are not waited for.
    /// Fails when there are too few, or the server does not answer.
    pub async fn replicated(&self, key: &[u8]) -> Result<(), ConnectError> {
        match self.store.options().kind {
            Servers::Cluster(_) => self.store.replicated(self.key(key)).await,
            _ => self.store.replicated(&self.stream).await,
        }
    }

    /// Sets values, or removes those that are `None`, and announces it. Returns how many keys had a value before.
    /// There are at most [`BATCH_MAX`] changes, of different keys; none has an empty value.
    /// Fails when the server does not answer: then either nothing was changed, or everything. In a Cluster only some
    /// of it may have been changed, and not announced; setting the same values again announces them.
    pub async fn change(&self, changes: &[(&[u8], Option<&[u8]>)]) -> Result<usize, ConnectError> {
        let keys: Vec<Vec<u8>> = changes.iter().map(|(key, _)| self.key(key)).collect();
        if let Servers::Cluster(_) = self.store.options().kind {
            return self.change_each(changes, &keys).await;
        }
        let mut command = redis::cmd("EVAL");
        command.arg(CHANGE).arg(keys.len() + 2).arg(&self.stream).arg(&self.index).arg(&keys);
        command.arg(CHANGES_KEPT).arg(self.prefix.len());
        changes.iter().for_each(|(_, value)| {
            command.arg(value.unwrap_or_default());
        });
        self.store.ask(&self.stream, &command).await
    }

    /// Sets the value of a key, or removes it, if its value is `before`, and announces it. Returns whether it was.
    /// Fails as [`change`](Self::change).
    pub async fn exchange(
        &self,
        name: &[u8],
        before: Option<&[u8]>,
        after: Option<&[u8]>,
    ) -> Result<bool, ConnectError> {
        let (key, before, value) = (self.key(name), before.unwrap_or_default(), after.unwrap_or_default());
        let mut command = redis::cmd("EVAL");
        if let Servers::Cluster(_) = self.store.options().kind {
            if after.is_some() {
                self.list(&[name]).await?;
            }
            command.arg([COMPARE, CHANGE_ONE].concat()).arg(1).arg(&key).arg(value).arg(before);
            let is_done = self.store.ask::<i64>(&key, &command).await? >= 0;
            if is_done {
                let announced = self.list_and_announce(name, after.is_some()).await;
                announced.map_err(|error| ConnectError::Unannounced(error.to_string()))?;
            }
            return Ok(is_done);
        }
        command.arg([COMPARE, CHANGE].concat()).arg(3).arg(&self.stream).arg(&self.index).arg(&key);
        command.arg(CHANGES_KEPT).arg(self.prefix.len()).arg(value).arg(before);
        Ok(self.store.ask::<i64>(&self.stream, &command).await? >= 0)
    }

    /// Announces a change that an earlier call may have made without: in a Cluster. Elsewhere there is no such change, and
    /// this does nothing. `has_value`: whether the key has a value now.
    /// Fails when the server does not answer.
    pub async fn announce_again(&self, name: &[u8], has_value: bool) -> Result<(), ConnectError> {
        match self.store.options().kind {
            Servers::Cluster(_) => self.list_and_announce(name, has_value).await,
            _ => Ok(()),
        }
    }

    async fn change_each(
        &self,
        changes: &[(&[u8], Option<&[u8]>)],
        keys: &[Vec<u8>],
    ) -> Result<usize, ConnectError> {
        let (mut there, mut is_begun) = (0, false);
        let names = |has_value: bool| {
            let own = changes.iter().filter(move |(_, value)| value.is_some() == has_value);
            own.map(|(name, _)| *name).collect::<Vec<_>>()
        };
        let (set, removed) = (names(true), names(false));
        self.list(&set).await?;
        let changed = async {
            for ((_, value), key) in changes.iter().zip(keys) {
                there += self.store.ask::<usize>(key, redis::cmd("EXISTS").arg(key)).await?;
                let mut write = redis::cmd(if value.is_some() { "SET" } else { "DEL" });
                self.store.ask::<Value>(key, write.arg(key).arg(*value)).await?;
                is_begun = true;
            }
            self.list(&set).await?;
            self.unlist(&removed).await?;
            self.announce(changes.iter().map(|(name, _)| *name)).await
        };
        let changed: Result<(), ConnectError> = changed.await;
        match changed {
            Err(error) if is_begun => Err(ConnectError::Unannounced(error.to_string())),
            changed => changed.map(|()| there),
        }
    }

    /// Adds keys to the index. In a Cluster that is done before their values are set, because pages leave out keys without a
    /// value, and after it, because another node may have removed them meanwhile.
    async fn list(&self, names: &[&[u8]]) -> Result<(), ConnectError> {
        let mut index = redis::cmd("ZADD");
        index.arg(&self.index);
        names.iter().for_each(|name| _ = index.arg(0).arg(name));
        if names.is_empty() { Ok(()) } else { self.store.ask::<Value>(&self.index, &index).await.map(drop) }
    }

    /// Removes keys from the index whose values were removed. In a Cluster another node may have set some again before that:
    /// these are added once more.
    async fn unlist(&self, names: &[&[u8]]) -> Result<(), ConnectError> {
        if names.is_empty() {
            return Ok(());
        }
        let mut index = redis::cmd("ZREM");
        index.arg(&self.index).arg(names);
        self.store.ask::<Value>(&self.index, &index).await?;
        let mut there = Vec::new();
        for name in names {
            let key = self.key(name);
            if self.store.ask(&key, redis::cmd("EXISTS").arg(&key)).await? {
                there.push(*name);
            }
        }
        self.list(&there).await
    }

    /// Adds these keys to the stream, as one entry.
    async fn announce(&self, names: impl Iterator<Item = &[u8]>) -> Result<(), ConnectError> {
        let mut command = redis::cmd("XADD");
        command.arg(&self.stream).arg("MAXLEN").arg("~").arg(CHANGES_KEPT).arg("*");
        names.for_each(|name| {
            command.arg("k").arg(name);
        });
        self.store.ask::<Value>(&self.stream, &command).await.map(drop)
    }

    async fn list_and_announce(&self, name: &[u8], has_value: bool) -> Result<(), ConnectError> {
        if has_value {
            self.list(&[name]).await?
        } else {
            self.unlist(&[name]).await?
        }
        self.announce(std::iter::once(name)).await
    }

    /// The first `most` keys after `after` that begin with `prefix`, in the order of their bytes, as `read` parses
    /// them with their values; keys that it does not accept are left out. Fewer than `most`: there are no others.
    /// Fails when the server does not answer.
    pub async fn page<T>(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        most: usize,
        read: impl Fn(&[u8], &[u8]) -> Option<T>,
    ) -> Result<Vec<T>, ConnectError> {
        let mut from = match after.filter(|after| *after >= prefix) {
            Some(after) => [b"(", after].concat(),
            None if prefix.is_empty() => b"-".to_vec(),
            None => [b"[", prefix].concat(),
        };
        let mut page = Vec::new();
        loop {
            let wanted = most - page.len();
            let mut command = redis::cmd("ZRANGEBYLEX");
            command.arg(&self.index).arg(from).arg(end_of(prefix)).arg("LIMIT").arg(0).arg(wanted);
            let names: Vec<Vec<u8>> = self.store.ask(&self.index, &command).await?;
            let values = futures_util::future::try_join_all(names.iter().map(|name| self.get(name))).await?;
            // One without a value was removed meanwhile.
            page.extend(names.iter().zip(&values).filter_map(|(name, value)| read(name, value.as_deref()?)));
            match names.last() {
                Some(last) if names.len() == wanted && page.len() < most => from = [b"(", &last[..]].concat(),
                _ => return Ok(page),
            }
        }
    }

    /// The end of the stream: a value that is read after this is no older. A missing stream is created.
    /// Fails when the server does not answer.
    pub async fn end(&self) -> Result<Position, ConnectError> {
        if let Some(last) = self.last().await? {
            return Ok(last);
        }
        let mut command = redis::cmd("XADD");
        command.arg(&self.stream).arg("*").arg("begun").arg(1);
        let id = self.store.ask(&self.stream, &command).await?;
        Ok(Position(Entry(id, vec![b"begun".to_vec(), b"1".to_vec()])))
    }

    /// The end of the stream, if there is a stream: nothing may have been changed yet.
    /// Fails when the server does not answer.
    async fn last(&self) -> Result<Option<Position>, ConnectError> {
        let mut command = redis::cmd("XREVRANGE");
        command.arg(&self.stream).arg("+").arg("-").arg("COUNT").arg(1);
        let last: Vec<Entry> = self.store.ask(&self.stream, &command).await?;
        Ok(last.into_iter().next().map(Position))
    }

    /// Calls `take` with all changes since the last call, a part at a time.
    /// Fails when the server does not answer. The next call reads what this one did not.
    pub async fn follow(
        &self,
        missing: MissingStream,
        mut take: impl FnMut(Followed),
    ) -> Result<(), ConnectError> {
        // What was read on connections from before is dropped by this call or an earlier one.
        let opened = self.store.stats().connections_opened.load(Acquire);
        let note = |position| *self.followed.lock() = Some(Read { position, opened });
        let Some(Read { position: mut since, opened: before }) = self.followed.lock().clone() else {
            let end = match missing {
                MissingStream::Create => Some(self.end().await?),
                MissingStream::Await => self.last().await?,
            };
            end.into_iter().for_each(note);
            take(Followed::Begun);
            return Ok(());
        };
        if opened > before {
            note(self.end().await?);
            take(Followed::Reconnected);
            return Ok(());
        }
        loop {
            let Changes { keys, position } = self.changes(&since).await?;
            let is_end = position == since || keys.is_none();
            take(keys.map_or(Followed::Missed, Followed::Keys));
            note(position.clone());
            if is_end {
                return Ok(());
            }
            since = position;
        }
    }

    /// What has changed since this position. Some of it may be left for the next call.
    /// Fails when the server does not answer.
    pub async fn changes(&self, since: &Position) -> Result<Changes, ConnectError> {
        let mut command = redis::cmd("XRANGE");
        command.arg(&self.stream).arg(&since.0.0).arg("+").arg("COUNT").arg(CHANGES_READ);
        let entries: Vec<Entry> = self.store.ask(&self.stream, &command).await?;
        // The entry at the position is still there, unless the stream was trimmed, or the server lost what this node
        // has read. After a loss another entry may have its id, if all of that happened within a millisecond.
        let Some((first, new)) = entries.split_first().filter(|(first, _)| **first == since.0) else {
            return Ok(Changes { keys: None, position: self.end().await? });
        };
        let position = Position(new.last().unwrap_or(first).clone());
        let fields = new.iter().flat_map(|Entry(_, fields)| fields.chunks_exact(2));
        let keys = fields.filter(|field| field[0] == b"k").map(|field| field[1].clone()).collect();
        Ok(Changes { keys: Some(keys), position })
    }

    fn key(&self, key: &[u8]) -> Vec<u8> {
        [&self.prefix, key].concat()
    }
}

/// The end of the range of all texts that begin with this one, as ZRANGEBYLEX writes it.
fn end_of(prefix: &[u8]) -> Vec<u8> {
    match prefix.iter().rposition(|&byte| byte < u8::MAX) {
        Some(last) => [b"(", &prefix[..last], &[prefix[last] + 1]].concat(),
        None => b"+".to_vec(),
    }
}

/// An entry of a stream: its id, and names and values of its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry(String, Vec<Vec<u8>>);

impl FromRedisValue for Entry {
    fn from_redis_value(value: Value) -> Result<Self, redis::ParsingError> {
        let (id, fields) = redis::from_redis_value(value)?;
        Ok(Self(id, fields))
    }
}
