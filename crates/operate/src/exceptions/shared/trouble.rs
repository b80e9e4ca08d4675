//! What is wrong with exceptions, above all with shared ones: noted when it happens, logged once, and shown on
//! request.

use std::collections::BTreeMap;

use super::super::Book;
use super::Shared;
use tidegate_redis::ConnectError;
use tidegate_redis::runtime::Runtime;

/// Values in Redis that are remembered as ignored.
const LEFT_OUT_MAX: usize = 100;

/// What is wrong with shared exceptions.
#[derive(Clone, Debug, Default)]
pub(super) struct Trouble {
    /// Whether they were read at all.
    pub(super) is_read: bool,
    /// Why they cannot be read now.
    away: Option<String>,
    /// Values in Redis that are ignored, and why.
    pub(super) left_out: BTreeMap<String, String>,
}

impl<R: Runtime> Book<R> {
    /// What is wrong with exceptions, in words.
    pub fn trouble(&self) -> Option<String> {
        let Some(shared) = &self.shared else {
            let why = self.unwritable.lock().clone()?;
            return Some(format!("Exceptions can be neither made nor ended. {why}."));
        };
        let trouble = shared.trouble.lock().clone();
        if let Some(away) = trouble.away {
            let known = match (trouble.is_read, self.file.is_some()) {
                (true, _) => "those that this node knew hold",
                (false, true) => "those of EXCEPTIONS_FILE hold",
                (false, false) => "there are none at this node",
            };
            return Some(format!("Exceptions of other nodes cannot be read: {away}. Meanwhile {known}."));
        }
        if !trouble.is_read {
            return Some("Exceptions of other nodes are not read yet.".to_owned());
        }
        if let Some((id, why)) = trouble.left_out.first_key_value() {
            let count = trouble.left_out.len();
            return Some(format!("{count} exceptions in Redis are ignored, such as {id:?}: {why}."));
        }
        let why = self.unwritable.lock().clone()?;
        Some(format!("Exceptions have no copy for a start without Redis. {why}."))
    }

    /// Whether all exceptions of all nodes are known now. `None`: they are not shared.
    pub fn is_in_step(&self) -> Option<bool> {
        self.shared.as_ref().map(|shared| {
            let trouble = shared.trouble.lock();
            trouble.is_read && trouble.away.is_none() && trouble.left_out.is_empty()
        })
    }
}

impl Shared {
    /// Notes whether Redis answers, and logs a change of that.
    pub(super) fn note(&self, error: Option<ConnectError>) {
        let mut trouble = self.trouble.lock();
        let away = error.map(|error| error.to_string());
        match (&trouble.away, &away) {
            (None, Some(why)) => {
                tracing::warn!("exceptions: {why}; changes of other nodes are unknown until then");
            }
            (Some(_), None) => tracing::info!("exceptions: read from Redis again"),
            _ => {}
        }
        trouble.away = away;
    }

    /// Notes that the value of an id is ignored, or no longer.
    pub(super) fn leave_out(&self, id: &str, why: Option<String>) {
        let left_out = &mut self.trouble.lock().left_out;
        let Some(why) = why else {
            left_out.remove(id);
            return;
        };
        if left_out.is_empty() {
            tracing::warn!("exceptions: {id:?} in Redis is ignored: {why}");
        }
        if left_out.len() < LEFT_OUT_MAX {
            left_out.insert(id.to_owned(), why);
        }
    }
}
