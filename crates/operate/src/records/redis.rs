//! Records in Redis, which several nodes share. Redis has the truth: a node has copies.
//!
//! In: keys and records. Out: what Redis holds, and which keys changed since a moment.

use tidegate_records::{BadValue, KeyPrefix, Record, RecordKey, decode, encode};
use tidegate_redis::runtime::{Runtime, Tokio};
use tidegate_redis::values::{BATCH_MAX, Followed, MissingStream, Values};
use tidegate_redis::{ConnectError, RedisStore};

/// The names of all keys in Redis begin with this, after CACHE_KEY_PREFIX.
const NAME: &str = "tidegate:limits";

/// Why Redis did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum RedisError {
    /// It does not answer, or refuses.
    #[error("LIMITS_URL: {0}")]
    NoAnswer(#[from] ConnectError),
    /// What it holds under a key is no record.
    #[error("LIMITS_URL: {key:?}: {why}")]
    Damaged {
        /// Which key.
        key: RecordKey,
        /// What is wrong.
        why: BadValue,
    },
}

/// Records in Redis.
pub struct InRedis<R: Runtime = Tokio> {
    values: Values<R>,
}

impl<R: Runtime> InRedis<R> {
    /// The records in this Redis. It is not connected yet.
    pub fn new(store: RedisStore<R>) -> Self {
        let name = format!("{}{NAME}", store.options().keys.prefix);
        Self { values: Values::new(store, &name) }
    }

    /// Connects for the calling worker, in the background.
    pub fn attach(&self) {
        self.values.store().attach();
    }

    /// The record of a key.
    /// Fails when Redis does not answer, or holds something else.
    pub async fn get(&self, key: &RecordKey) -> Result<Option<Record>, RedisError> {
        let value = self.values.get(key.as_bytes()).await?;
        value.map(|value| read(key, &value)).transpose()
    }

    /// Adds or replaces these, in parts of at most [`BATCH_MAX`]: each part is in force completely or not at all.
    /// Fails when Redis does not answer, or refuses. Parts before the one that failed are in force.
    pub async fn load(&self, batch: &[(RecordKey, Record)]) -> Result<(), RedisError> {
        for part in batch.chunks(BATCH_MAX) {
            let values: Vec<Vec<u8>> = part.iter().map(|(_, record)| encode(record)).collect();
            let changes =
                part.iter().zip(&values).map(|((key, _), value)| (key.as_bytes(), Some(value.as_slice())));
            self.values.change(&changes.collect::<Vec<_>>()).await?;
        }
        Ok(())
    }

    /// Adds, replaces or removes a record if the existing one is `before`. Returns whether it was.
    /// Fails when Redis does not answer, or refuses.
    pub async fn exchange(
        &self,
        key: &RecordKey,
        before: Option<Record>,
        after: Option<Record>,
    ) -> Result<bool, RedisError> {
        // Another version of this program may have written the same record in other bytes.
        let value = self.values.get(key.as_bytes()).await?;
        if value.as_deref().map(|value| read(key, value)).transpose()? != before {
            return Ok(false);
        }
        let after = after.map(|record| encode(&record));
        Ok(self.values.exchange(key.as_bytes(), value.as_deref(), after.as_deref()).await?)
    }

    /// Announces a change of this record that an earlier call may have made without.
    /// Fails when Redis does not answer, or refuses.
    pub async fn announce_again(&self, key: &RecordKey, has_record: bool) -> Result<(), RedisError> {
        Ok(self.values.announce_again(key.as_bytes(), has_record).await?)
    }

    /// The first `most` records after `after` whose keys begin with `prefix`, in the order of their keys.
    /// Fails when Redis does not answer, or holds something else.
    pub async fn page(
        &self,
        prefix: &KeyPrefix,
        after: Option<&RecordKey>,
        most: usize,
    ) -> Result<Vec<(RecordKey, Record)>, RedisError> {
        let known = |name: &[u8], value: &[u8]| {
            // A key that no version of this program makes was written by another program.
            let key = RecordKey::from_bytes(name).ok()?;
            Some(read(&key, value).map(|record| (key, record)))
        };
        let after = after.map(RecordKey::as_bytes);
        self.values.page(prefix.as_bytes(), after, most, known).await?.into_iter().collect()
    }

    /// Calls `take` with the records that any node has changed since the last call. `None`: any may have changed, as at
    /// the first call.
    /// Fails when Redis does not answer.
    pub async fn follow(&self, take: impl Fn(Option<&RecordKey>)) -> Result<(), RedisError> {
        Ok(self.values.follow(MissingStream::Create, |followed| hand_out(followed, &take)).await?)
    }
}

/// Calls `take` with the records of these keys, or with `None` if any may have changed.
fn hand_out(followed: Followed, take: &impl Fn(Option<&RecordKey>)) {
    match followed {
        Followed::Keys(keys) => {
            keys.iter().filter_map(|key| RecordKey::from_bytes(key).ok()).for_each(|key| take(Some(&key)));
        }
        Followed::Begun | Followed::Reconnected => take(None),
        Followed::Missed => {
            tracing::warn!("records: changes were missed; cached records are dropped");
            take(None);
        }
    }
}

fn read(key: &RecordKey, value: &[u8]) -> Result<Record, RedisError> {
    decode(value).map_err(|why| RedisError::Damaged { key: key.clone(), why })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// A node may have fetched records before it knows where the stream ends.
    #[test]
    fn where_the_stream_begins_or_has_a_gap_any_record_may_have_changed() {
        let key = RecordKey::of("d", [("tenant", "a")]).expect("a key");
        let taken = |followed| {
            let all = RefCell::new(Vec::new());
            hand_out(followed, &|key| all.borrow_mut().push(key.cloned()));
            all.into_inner()
        };
        assert_eq!(taken(Followed::Begun), [None]);
        assert_eq!(taken(Followed::Reconnected), [None]);
        assert_eq!(taken(Followed::Missed), [None]);
        let keys = vec![b"of another program".to_vec(), key.as_bytes().to_vec()];
        assert_eq!(taken(Followed::Keys(keys)), [Some(key)]);
    }
}
