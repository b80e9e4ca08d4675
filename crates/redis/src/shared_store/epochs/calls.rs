//! What one server is asked about its numbers: to show them, and to raise some of them.

use std::collections::HashMap;
use std::sync::Arc;

use redis::{FromRedisValue, Value};

use super::Numbers;
use crate::connect_error::ConnectError;
use crate::connection::Connection;
use crate::routes::Routes;
use crate::runtime::Runtime;
use crate::store::RedisStore;
use crate::topology::{names_on, slot_of};

const RAISE: &str = include_str!("../../lua/epochs.lua");

/// The field whose text is another one after every change.
const CHANGED: &str = "";
/// How many names are tried to find one in a slot of the server: enough for a server of a single slot.
const NAMES_MAX: usize = 1 << 18;
/// How many of the names in its slots are tried while slots move.
const KEYS_MAX: usize = 3;
/// More fields than nodes write.
const FIELDS_MAX: usize = 100_000;

/// The slots of a server, and one connection to it.
pub(super) type Line<R> = (Arc<Routes<R>>, Arc<Connection<R>>);

/// The numbers of a server.
pub(super) enum Found {
    Nothing,
    /// The numbers that it had when it was asked before.
    Same,
    Numbers {
        /// The text of the field of changes.
        state: Vec<u8>,
        numbers: Numbers,
        /// The number of further fields that are not text.
        unreadable: usize,
    },
}

/// A server's reply when numbers are raised.
pub(super) enum Raise {
    /// It has no numbers, and this call may not write the first ones.
    Nothing,
    /// Those that it refused.
    Done(Numbers),
}

/// Reads a server's numbers, unless its text of changes is still this one.
pub(super) async fn find<R: Runtime>(
    store: &RedisStore<R>,
    line: &Line<R>,
    known: Option<Vec<u8>>,
) -> Result<Found, ConnectError> {
    let mut keys = Keys::of(store, line);
    while let Some(key) = keys.next() {
        let found = find_under(store, &line.1, key, known.as_deref()).await;
        if !keys.goes_on(&found) {
            return found;
        }
    }
    keys.end(Found::Same)
}

async fn find_under<R: Runtime>(
    store: &RedisStore<R>,
    connection: &Connection<R>,
    key: String,
    known: Option<&[u8]>,
) -> Result<Found, ConnectError> {
    let shared = store.shared();
    let state: Option<Vec<u8>> = connection.ask(shared, redis::cmd("HGET").arg(&key).arg(CHANGED)).await?;
    let Some(state) = state else { return Ok(Found::Nothing) };
    if known == Some(&state[..]) {
        return Ok(Found::Same);
    }
    let fields: usize = connection.ask(shared, redis::cmd("HLEN").arg(&key)).await?;
    if fields > FIELDS_MAX {
        return Err(ConnectError::TooManyEpochs(connection.wire.address.clone(), fields));
    }
    let mut all: HashMap<Vec<u8>, Vec<u8>> = connection.ask(shared, redis::cmd("HGETALL").arg(&key)).await?;
    // It may have changed meanwhile: this is the text of these numbers.
    let state = all.remove(CHANGED.as_bytes()).unwrap_or(state);
    let fields = all.len();
    let text = |bytes| String::from_utf8(bytes).ok();
    let numbers = all.into_iter().filter_map(|(field, number)| Some((text(field)?, text(number)?)));
    let numbers: Numbers = numbers.collect();
    let unreadable = fields - numbers.len();
    Ok(Found::Numbers { state, numbers, unreadable })
}

/// What raising numbers does at a server that has no hash of numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MissingHash {
    Create,
    Leave,
}

/// Raises numbers at a server.
pub(super) async fn raise<R: Runtime>(
    store: &RedisStore<R>,
    line: &Line<R>,
    numbers: &Numbers,
    missing: MissingHash,
) -> Result<Raise, ConnectError> {
    let nothing_to_do = Raise::Done(Numbers::new());
    if numbers.is_empty() && missing == MissingHash::Leave {
        return Ok(nothing_to_do);
    }
    let (runtime, mut keys) = (store.runtime(), Keys::of(store, line));
    let changed = format!("{:016x}{:016x}", runtime.random(), runtime.random());
    while let Some(key) = keys.next() {
        let mut command = redis::cmd("EVAL");
        command.arg(RAISE).arg(1).arg(key).arg(&changed).arg(u8::from(missing == MissingHash::Create));
        numbers.iter().for_each(|(field, number)| _ = command.arg(field).arg(number));
        let raised = line.1.ask(store.shared(), &command).await;
        if !keys.goes_on(&raised) {
            return raised;
        }
    }
    keys.end(nothing_to_do)
}

/// The keys under which a server may have its numbers: while the slot of the first one moves, the next one is used. A
/// server without a slot for any of them has no counters either.
struct Keys<'l> {
    names: Box<dyn Iterator<Item = String> + Send + 'l>,
    moving: Option<ConnectError>,
}

impl<'l> Keys<'l> {
    fn of<R: Runtime>(store: &'l RedisStore<R>, (routes, connection): &'l Line<R>) -> Self {
        let (options, holds) = (store.options(), move |slot| routes.holds(connection, slot));
        // The first name is that of versions that had one key for all servers.
        let name = format!("{}tidegate:epochs", options.keys.prefix);
        let first = Some(name.clone()).filter(|name| holds(slot_of(name.as_bytes())));
        let names = first.into_iter().chain(names_on(&options.kind, name, NAMES_MAX, holds));
        Self { names: Box::new(names.take(KEYS_MAX)), moving: None }
    }

    fn next(&mut self) -> Option<String> {
        self.names.next()
    }

    /// Whether the slot of the key in this error moves.
    fn goes_on<T>(&mut self, answer: &Result<T, ConnectError>) -> bool {
        let moves = |error: &&ConnectError| matches!(error.code(), Some("MOVED" | "ASK" | "TRYAGAIN"));
        self.moving = answer.as_ref().err().filter(moves).cloned();
        self.moving.is_some()
    }

    /// The result when no key is left; `without`: if there was none.
    fn end<T>(self, without: T) -> Result<T, ConnectError> {
        self.moving.map_or(Ok(without), Err)
    }
}

/// Why a server does not have all numbers that were written to it. Its greater ones count.
pub(super) fn why_refused(kept: &Result<Raise, ConnectError>) -> Option<String> {
    match kept {
        Err(error) => Some(error.to_string()),
        Ok(Raise::Nothing) => None,
        Ok(Raise::Done(refused)) => {
            let ahead = refused.iter().filter(|(_, number)| number.is_empty()).count();
            (ahead > 0)
                .then(|| format!("{ahead} are not written, because they are too far ahead of its clock"))
        }
    }
}

/// Whether the server answers, but neither shows its numbers nor accepts any: the login may not, or the key is
/// another program's.
pub(super) fn is_refusal(error: &ConnectError) -> bool {
    const NOT_YET: [&str; 7] = ["MOVED", "ASK", "TRYAGAIN", "LOADING", "CLUSTERDOWN", "MASTERDOWN", "NOAUTH"];
    let refuses = error.code().is_some_and(|code| !NOT_YET.contains(&code));
    refuses || matches!(error, ConnectError::TooManyEpochs(..))
}

impl FromRedisValue for Raise {
    fn from_redis_value(value: Value) -> Result<Self, redis::ParsingError> {
        let Some(mut reply) = Option::<Vec<Value>>::from_redis_value(value)? else {
            return Ok(Self::Nothing);
        };
        let refused = redis::from_redis_value(Value::Array(reply.split_off(reply.len().min(1))))?;
        Ok(Self::Done(refused))
    }
}
