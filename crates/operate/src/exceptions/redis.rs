//! Where nodes keep the exceptions that they share: a value for each id, and the stream of ids that changed.

use std::collections::BTreeMap;
use std::pin::Pin;

use parking_lot::Mutex;

use super::EXCEPTIONS_MAX;
use tidegate_redis::values::{Position, Values};
use tidegate_redis::{ConnectError, Contact, RedisStore};

/// What the names of all keys in Redis begin with, behind CACHE_KEY_PREFIX.
const NAME: &str = "tidegate:exceptions";
/// Values that are read together.
const PAGE: usize = 1_000;
/// Values that are read at most: all exceptions, as many that were ended, and some that others wrote there.
const READ_MAX: usize = 2 * EXCEPTIONS_MAX + 10_000;

/// What a call to the store returns.
pub(super) type Asked<'a, T> = Pin<Box<dyn Future<Output = Result<T, ConnectError>> + Send + 'a>>;

/// A store that several nodes share. Values are never empty.
pub(super) trait Store: Send + Sync {
    /// Connects, in the background.
    fn attach(&self);

    /// Whether the first attempt to reach it has failed.
    fn is_away(&self) -> bool;

    /// The value of an id.
    fn get<'s>(&'s self, id: &'s str) -> Asked<'s, Option<Vec<u8>>>;

    /// Sets or removes the value of an id if it is `before`. Returns whether it was.
    fn exchange<'s>(
        &'s self,
        id: &'s str,
        before: Option<&'s [u8]>,
        after: Option<&'s [u8]>,
    ) -> Asked<'s, bool>;

    /// The values of all ids.
    fn all(&self) -> Asked<'_, BTreeMap<String, Vec<u8>>>;

    /// The ids that any node has changed since the last call, or all of those since another moment before. `None`: any may
    /// have, as when it was never called.
    fn changed(&self) -> Asked<'_, Option<Vec<String>>>;
}

/// The store in Redis.
pub(super) struct InRedis {
    values: Values,
    /// Up to where changes were read.
    position: Mutex<Option<Position>>,
}

impl InRedis {
    /// It is not connected yet.
    pub(super) fn new(store: RedisStore) -> Self {
        let name = format!("{}{NAME}", store.options().keys.prefix);
        Self { values: Values::new(store, &name), position: Mutex::default() }
    }

    async fn read_changed(&self) -> Result<Option<Vec<String>>, ConnectError> {
        // Who never makes an exception has no keys of exceptions in Redis: nobody begins the stream before there is a change.
        let Some(mut since) = self.position.lock().clone() else {
            let last = self.values.last().await?;
            *self.position.lock() = last;
            return Ok(None);
        };
        let mut ids = Vec::new();
        loop {
            let changes = self.values.changes(&since).await?;
            let is_end = changes.position == since;
            since = changes.position;
            let Some(keys) = changes.keys else {
                *self.position.lock() = None;
                return Box::pin(self.read_changed()).await;
            };
            ids.extend(keys.into_iter().filter_map(|key| String::from_utf8(key).ok()));
            if is_end {
                *self.position.lock() = Some(since);
                return Ok(Some(ids));
            }
        }
    }
}

impl Store for InRedis {
    fn attach(&self) {
        self.values.store().attach();
    }

    fn is_away(&self) -> bool {
        !matches!(*self.values.store().contact().borrow(), Contact::Never(None) | Contact::Up)
    }

    fn get<'s>(&'s self, id: &'s str) -> Asked<'s, Option<Vec<u8>>> {
        Box::pin(self.values.get(id.as_bytes()))
    }

    fn exchange<'s>(
        &'s self,
        id: &'s str,
        before: Option<&'s [u8]>,
        after: Option<&'s [u8]>,
    ) -> Asked<'s, bool> {
        Box::pin(self.values.exchange(id.as_bytes(), before, after))
    }

    fn all(&self) -> Asked<'_, BTreeMap<String, Vec<u8>>> {
        Box::pin(async {
            let mut all = BTreeMap::new();
            let mut last = None::<Vec<u8>>;
            while all.len() < READ_MAX {
                let read = |name: &[u8], value: &[u8]| Some((name.to_vec(), value.to_vec()));
                let page = self.values.page(b"", last.as_deref(), PAGE, read).await?;
                last = page.last().map(|(name, _)| name.clone());
                let is_last = page.len() < PAGE;
                let named = |(name, value)| Some((String::from_utf8(name).ok()?, value));
                all.extend(page.into_iter().filter_map(named));
                if is_last {
                    break;
                }
            }
            Ok(all)
        })
    }

    fn changed(&self) -> Asked<'_, Option<Vec<String>>> {
        Box::pin(self.read_changed())
    }
}
