//! Numbers that all nodes come to agree on, because each only grows: the epochs of rules.
//!
//! In: fields with numbers, from the node where somebody began an epoch. Out: all of them, to every node that asks. They
//! lie in one hash on the server of its slot, without an end of life. When Redis loses it, nodes write what they know
//! again. It does not know what fields mean.

use std::collections::HashMap;

use crate::connect_error::ConnectError;
use crate::runtime::Runtime;
use crate::shared_store::SharedStore;
use crate::store::RedisStore;

const RAISE: &str = include_str!("lua/epochs.lua");

/// The field that has another text after every change.
const CHANGED: &str = "";

/// Fields, each with its number as digits of a fixed count.
pub type Numbers = Vec<(String, String)>;

/// All numbers at some moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Differs from that of every other state.
    pub state: String,
    /// The numbers.
    pub numbers: Numbers,
}

impl<R: Runtime> SharedStore<R> {
    /// All numbers, unless the state is this one still.
    ///
    /// # Errors
    /// When there is no connection, or Redis does not answer, or with an error.
    pub async fn epochs(&self, unless: Option<&str>) -> Result<Option<Heard>, ConnectError> {
        self.main().epochs(unless).await
    }

    /// Raises each of these numbers that is not as great already. Returns whether there was one.
    ///
    /// # Errors
    /// When there is no connection, or Redis does not answer, or with an error. They may be raised nevertheless.
    pub async fn raise_epochs(&self, numbers: &Numbers) -> Result<bool, ConnectError> {
        self.main().raise_epochs(numbers).await
    }
}

impl<R: Runtime> RedisStore<R> {
    async fn epochs(&self, unless: Option<&str>) -> Result<Option<Heard>, ConnectError> {
        let key = self.epochs_key();
        let state: Option<String> = self.ask(&key, redis::cmd("HGET").arg(&key).arg(CHANGED)).await?;
        if unless.is_some_and(|known| known == state.as_deref().unwrap_or_default()) {
            return Ok(None);
        }
        let all: HashMap<String, String> = self.ask(&key, redis::cmd("HGETALL").arg(&key)).await?;
        let state = all.get(CHANGED).cloned().unwrap_or_default();
        let numbers = all.into_iter().filter(|(field, _)| field != CHANGED).collect();
        Ok(Some(Heard { state, numbers }))
    }

    async fn raise_epochs(&self, numbers: &Numbers) -> Result<bool, ConnectError> {
        let (key, random) = (self.epochs_key(), [self.runtime().random(), self.runtime().random()]);
        let mut command = redis::cmd("EVAL");
        command.arg(RAISE).arg(1).arg(&key).arg(format!("{:016x}{:016x}", random[0], random[1]));
        numbers.iter().for_each(|(field, number)| _ = command.arg(field).arg(number));
        Ok(self.ask::<u8>(&key, &command).await? > 0)
    }

    fn epochs_key(&self) -> String {
        format!("{}tidegate:epochs", self.options().keys.prefix)
    }
}
