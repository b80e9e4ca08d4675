//! Where nodes keep the exceptions that they share: a value for each id, and the stream of ids that changed.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tidegate_redis::runtime::Runtime;
use tidegate_redis::values::{Followed, MissingStream, Values};
use tidegate_redis::{ConnectError, Contact, RedisStore};

/// The names of all keys in Redis begin with this, after CACHE_KEY_PREFIX.
const NAME: &str = "tidegate:exceptions";
/// Values that are read together.
pub(super) const PAGE: usize = 1_000;

/// What a call to the store returns.
pub(super) type StoreCall<'a, T> = Pin<Box<dyn Future<Output = Result<T, ConnectError>> + Send + 'a>>;

/// A store that several nodes share. Values are never empty.
pub(super) trait ExceptionStore: Send + Sync {
    /// Connects, in the background.
    fn attach(&self);

    /// Whether the first attempt to reach it has failed.
    fn is_away(&self) -> bool;

    /// The value of an id.
    fn get<'s>(&'s self, id: &'s str) -> StoreCall<'s, Option<Vec<u8>>>;

    /// Sets or removes the value of an id if it is `before`. Returns whether it was.
    fn exchange<'s>(
        &'s self,
        id: &'s str,
        before: Option<&'s [u8]>,
        after: Option<&'s [u8]>,
    ) -> StoreCall<'s, bool>;

    /// Waits until as many replicas as are required have the last change of an id.
    fn replicated<'s>(&'s self, id: &'s str) -> StoreCall<'s, ()>;

    /// The first [`PAGE`] ids after this one, in the order of their bytes, with their values. Fewer: there are no others.
    fn page<'s>(&'s self, after: Option<&'s str>) -> StoreCall<'s, Vec<(String, Vec<u8>)>>;

    /// The ids that any node has changed since the last call, or all ids that were changed since some earlier time.
    /// `None`: any may have changed, as at the first call.
    fn changed(&self) -> StoreCall<'_, Option<Vec<String>>>;
}

pub(super) struct InRedis<R: Runtime> {
    values: Values<R>,
    /// Whether there was ever a value.
    has_values: AtomicBool,
}

impl<R: Runtime> InRedis<R> {
    /// It is not connected yet.
    pub(super) fn new(store: RedisStore<R>) -> Self {
        let name = format!("{}{NAME}", store.options().keys.prefix);
        Self { values: Values::new(store, &name), has_values: AtomicBool::new(false) }
    }

    async fn read_changed(&self) -> Result<Option<Vec<String>>, ConnectError> {
        let mut ids = Some(Vec::new());
        // If nobody ever made an exception, there are no keys of exceptions in Redis: the stream is created with the
        // first change.
        let missing = match self.has_values.load(Relaxed) {
            true => MissingStream::Create,
            false => MissingStream::Await,
        };
        self.values.follow(missing, |followed| add(&mut ids, followed)).await?;
        Ok(ids)
    }
}

/// Adds what was read to the ids that changed. `None`: any may have changed.
fn add(ids: &mut Option<Vec<String>>, followed: Followed) {
    match (&mut *ids, followed) {
        (Some(ids), Followed::Keys(keys)) => {
            ids.extend(keys.into_iter().filter_map(|key| String::from_utf8(key).ok()));
        }
        _ => *ids = None,
    }
}

impl<R: Runtime> ExceptionStore for InRedis<R> {
    fn attach(&self) {
        self.values.store().attach();
    }

    fn is_away(&self) -> bool {
        !matches!(*self.values.store().contact().borrow(), Contact::Never(None) | Contact::Up)
    }

    fn get<'s>(&'s self, id: &'s str) -> StoreCall<'s, Option<Vec<u8>>> {
        Box::pin(self.values.get(id.as_bytes()))
    }

    fn exchange<'s>(
        &'s self,
        id: &'s str,
        before: Option<&'s [u8]>,
        after: Option<&'s [u8]>,
    ) -> StoreCall<'s, bool> {
        Box::pin(self.values.exchange(id.as_bytes(), before, after))
    }

    fn replicated<'s>(&'s self, id: &'s str) -> StoreCall<'s, ()> {
        Box::pin(self.values.replicated(id.as_bytes()))
    }

    fn page<'s>(&'s self, after: Option<&'s str>) -> StoreCall<'s, Vec<(String, Vec<u8>)>> {
        // A name that is not text was written by another program.
        let read = |name: &[u8], value: &[u8]| Some((String::from_utf8(name.to_vec()).ok()?, value.to_vec()));
        Box::pin(async move {
            let page = self.values.page(b"", after.map(str::as_bytes), PAGE, read).await?;
            self.has_values.fetch_or(!page.is_empty(), Relaxed);
            Ok(page)
        })
    }

    fn changed(&self) -> StoreCall<'_, Option<Vec<String>>> {
        Box::pin(self.read_changed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first exception of all makes the stream: who waited for that has not read it.
    #[test]
    fn where_the_stream_begins_any_exception_may_have_changed() {
        let read = |all: Vec<Followed>| {
            let mut ids = Some(Vec::new());
            all.into_iter().for_each(|followed| add(&mut ids, followed));
            ids
        };
        let keys = |keys: &[&[u8]]| Followed::Keys(keys.iter().map(|key| key.to_vec()).collect());
        assert_eq!(read(vec![Followed::Begun]), None);
        assert_eq!(read(vec![Followed::Reconnected]), None);
        assert_eq!(read(vec![keys(&[b"a"]), Followed::Missed, keys(&[b"b"])]), None);
        let known = ["a", "b"].map(str::to_owned).to_vec();
        assert_eq!(read(vec![keys(&[b"a", b"\xff"]), keys(&[b"b"]), keys(&[])]), Some(known));
    }
}
