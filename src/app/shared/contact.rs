//! Reports whether the servers of the shared store answer, to the log and to health, with the setting that helps.
//!
//! In: the store's contacts, and why they are lost. Out: a log line for each change, readiness, and the end of the
//! program when Redis can never be used.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::app::{App, AppError, Essential, dead};
use crate::clock::monotonic;
use tidegate_redis::{ConnectError, Contact, RedisStore, SharedStore};
use tidegate_serve::events::Events;
use tidegate_serve::health::Health;

/// Why the process is not ready before the first contact.
pub(in crate::app) const NOT_REACHED: &str = "redis was not reached yet";
/// Why it is not ready later, when health follows the connection.
const LOST: &str = "redis does not answer";

/// Reports every change, if there is a shared store.
pub(in crate::app) fn keep(tasks: &mut Essential, app: &App) {
    if let (Some(shared), Some(redis)) = (app.service.counters().shared(), &app.configuration.redis) {
        let (health, events) = (Arc::clone(&app.health), app.event_tasks.events.clone());
        let (timeout, health_follows) = (redis.startup_timeout, redis.health_follows);
        tasks.spawn(watch(Arc::clone(shared), health, events, timeout, health_follows));
    }
}

/// Reports every change to the log and to health. Ends when Redis can never be used, or was not reached in time.
/// `startup_timeout` bounds the time to the first contact. With `health_follows`, the process is not ready while Redis
/// does not answer.
async fn watch(
    shared: Arc<SharedStore>,
    health: Arc<Health>,
    events: Option<Arc<Events>>,
    startup_timeout: Option<Duration>,
    health_follows: bool,
) -> AppError {
    let mut contacts: Vec<Watched> = shared.stores().map(|(name, store)| Watched::new(name, store)).collect();
    let began = monotonic();
    loop {
        let now: Vec<ContactState> =
            contacts.iter_mut().map(|watched| watched.update(events.as_deref())).collect();
        let (mut reached, waited) = (true, monotonic().saturating_duration_since(began));
        for state in &now {
            match state {
                ContactState::Unusable(why) => return dead("redis", why),
                ContactState::Never(why) => {
                    reached = false;
                    if startup_timeout.is_some_and(|timeout| waited >= timeout) {
                        return dead("redis", why.as_deref().unwrap_or("it was not reached in time"));
                    }
                }
                ContactState::Up | ContactState::Lost(_) => {}
            }
        }
        report(&health, health_follows, &now);
        let changes = contacts.iter_mut().map(|watched| Box::pin(watched.contact.changed()));
        let changed = futures_util::future::select_all(changes);
        match startup_timeout.filter(|_| !reached) {
            None => drop(changed.await),
            Some(timeout) => drop(tokio::time::timeout(timeout.saturating_sub(waited), changed).await),
        }
    }
}

/// Sets readiness by the state of these contacts.
fn report(health: &Health, health_follows: bool, states: &[ContactState]) {
    let trouble = states.iter().find_map(|state| match state {
        ContactState::Never(why) => Some((true, why.as_deref().unwrap_or("not reached yet"))),
        ContactState::Lost(why) | ContactState::Unusable(why) => Some((false, why.as_str())),
        ContactState::Up => None,
    });
    let Some((never, why)) = trouble else {
        health.withdraw(NOT_REACHED);
        health.withdraw(LOST);
        return health.note(None);
    };
    health.note(Some(format!("redis: {why}")));
    if !never {
        health.withdraw(NOT_REACHED);
    }
    if health_follows {
        health.refuse(LOST);
    }
}

/// The contact to one Redis, as it is logged and reported to health.
struct Watched {
    /// The store's name in metrics.
    name: String,
    contact: watch::Receiver<Contact>,
    names: SettingNames,
    /// The servers, for the log.
    place: String,
    /// Whether the last log line said that it answers. `None`: there is no line yet.
    logged_up: Option<bool>,
}

impl Watched {
    fn new(name: &str, store: &RedisStore) -> Self {
        let place = store.options().kind.to_string();
        let (name, names) = (name.to_owned(), SettingNames::of(name));
        Self { name, contact: store.contact(), names, place, logged_up: None }
    }

    /// Reads the current state. Logs it if it has changed, and emits an event.
    fn update(&mut self, events: Option<&Events>) -> ContactState {
        let contact = self.contact.borrow_and_update();
        let explain = |error| self.names.explain(error);
        let state = match &*contact {
            Contact::Up => ContactState::Up,
            Contact::Never(why) => ContactState::Never(why.as_ref().map(explain)),
            Contact::Lost(why) => ContactState::Lost(explain(why)),
            Contact::Unusable(why) => ContactState::Unusable(explain(why)),
        };
        match &state {
            ContactState::Up if self.logged_up != Some(true) => {
                let is_back = self.logged_up.replace(true) == Some(false);
                tracing::info!("redis: {} answers", self.place);
                if let Some(events) = events.filter(|_| is_back) {
                    events.store_back(&self.name, monotonic());
                }
            }
            ContactState::Never(Some(why)) | ContactState::Lost(why) if self.logged_up != Some(false) => {
                self.logged_up = Some(false);
                tracing::error!("redis: {} does not answer: {why}", self.place);
                if let Some(events) = events {
                    events.store_lost(&self.name, why, monotonic());
                }
            }
            _ => {}
        }
        state
    }
}

/// A [`Contact`] with its reason as text.
enum ContactState {
    Up,
    Never(Option<String>),
    Lost(String),
    Unusable(String),
}

/// The settings that help when a server cannot be used, by store.
struct SettingNames {
    auth: &'static str,
    sentinel_auth: &'static str,
    kind: &'static str,
}

impl SettingNames {
    fn of(store: &str) -> Self {
        match store {
            "per_second" => Self {
                auth: "REDIS_PERSECOND_AUTH",
                sentinel_auth: "REDIS_PERSECOND_SENTINEL_AUTH",
                kind: "REDIS_PERSECOND_TYPE",
            },
            _ => Self { auth: "REDIS_AUTH", sentinel_auth: "REDIS_SENTINEL_AUTH", kind: "REDIS_TYPE" },
        }
    }

    /// The error, with the setting that helps.
    fn explain(&self, error: &ConnectError) -> String {
        match error {
            ConnectError::AuthenticationRefused(_) => format!("{error} ({})", self.auth),
            ConnectError::SentinelAuthenticationRefused(_) => format!("{error} ({})", self.sentinel_auth),
            ConnectError::WrongKind { expected, .. } => {
                format!("{error} (expected {}={expected})", self.kind)
            }
            _ => error.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_setting_that_helps() {
        let wrong =
            ConnectError::WrongKind { found: "redis:1 is a sentinel".to_owned(), expected: "sentinel" };
        let explained = |store| SettingNames::of(store).explain(&wrong);
        assert_eq!(explained("main"), "redis:1 is a sentinel (expected REDIS_TYPE=sentinel)");
        assert_eq!(explained("per_second"), "redis:1 is a sentinel (expected REDIS_PERSECOND_TYPE=sentinel)");
    }
}
