//! The limiter inside another process: the settings that have a meaning there, and their defaults.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::thread;

use super::Configuration;
use crate::settings::value::Secrecy;
use crate::settings::{TABLE, Texts};
use tidegate_engine::rules::Sync;

/// What a limiter inside another process is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InsideOptions {
    /// Settings by their names.
    pub settings: BTreeMap<String, String>,
    /// The rules, instead of those that settings name.
    pub rules: Option<String>,
}

/// The groups of settings that have a meaning here. The others are about sockets, and about files that one process
/// owns.
const GROUPS: [&str; 6] = ["Rules", "Rules over xDS", "Decisions", "Redis", "Records", "Bounds"];

/// Settings of other groups that have a meaning here, and settings of these groups that have none.
const OTHERS: [&str; 4] = ["COLD_START", "COLD_START_MAX_WINDOW", "EXCEPTIONS_FILE", "MAX_METRIC_SERIES"];
const NOT: [&str; 7] = [
    "LIMIT_RESPONSE_HEADERS_ENABLED",
    "LIMIT_LIMIT_HEADER",
    "LIMIT_REMAINING_HEADER",
    "LIMIT_RESET_HEADER",
    "RESPONSE_DYNAMIC_METADATA",
    "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
    "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
];

/// Folders of a server, and what the host has instead.
const FOLDERS: [(&str, &str); 2] = [
    ("LIMITS_DIR", "LIMITS_URL for records in Redis"),
    ("STATE_DIR", "REDIS_URL for counters that survive the process"),
];

/// The defaults here: the host has other uses for threads and memory, and never removes a series of metrics.
const DEFAULTS: [(&str, &str); 3] =
    [("MAX_COUNTER_BYTES", "256MiB"), ("MAX_METRIC_SERIES", "1000"), ("WORKER_THREADS", "1")];

impl InsideOptions {
    /// The configuration of the limiter.
    /// Fails with all settings that are bad, or have no meaning here.
    pub fn resolve(&self) -> Result<Configuration, String> {
        let Self { settings, rules } = self;
        let refused: Vec<_> = settings.keys().filter_map(|name| refusal(name)).collect();
        if !refused.is_empty() {
            return Err(refused.join("; "));
        }
        let default = |name: &str| DEFAULTS.iter().find(|(of, _)| *of == name).map(|(_, value)| *value);
        let variable =
            |name: &str| settings.get(name).map(String::as_str).or_else(|| default(name)).map(str::to_owned);
        let read = Configuration::read(Texts { flag: &|_| None, variable: &variable });
        let mut configuration =
            read.map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
        if configuration.redis.is_none() && configuration.state.deny_cold.is_some() {
            return Err(
                "COLD_START: deny needs Redis here: counters in memory end with the process".to_owned()
            );
        }
        configuration.admin.exceptions_followed = configuration.admin.exceptions_file.take();
        if configuration.redis.is_some() && configuration.admin.exceptions_followed.is_some() {
            return Err("EXCEPTIONS_FILE: with Redis, exceptions are read there".to_owned());
        }
        configuration.rules.text.clone_from(rules);
        if let Some(redis) = configuration.redis.as_mut().filter(|_| !settings.contains_key("REDIS_SYNC")) {
            // The module is there to avoid a call for each request, so leases are the default.
            redis.failover.sync = Sync::Leased;
        }
        // The threads that decide are the host's.
        configuration.metrics.options.stripes = 1 + thread::available_parallelism().map_or(1, NonZero::get);
        Ok(configuration)
    }
}

/// Why this setting is refused. `None`: it has a meaning here.
fn refusal(name: &str) -> Option<String> {
    let Some(row) = TABLE.iter().find(|row| row.name == name) else {
        return Some(format!("{name}: there is no such setting"));
    };
    let why = if let Some((_, instead)) = FOLDERS.iter().find(|(folder, _)| *folder == name) {
        format!("because its folder belongs to one server (expected {instead})")
    } else if NOT.contains(&name) {
        format!("unlike others of the group {}", row.group)
    } else if OTHERS.contains(&name) || GROUPS.contains(&row.group) {
        return None;
    } else {
        format!("(expected one of the groups {})", GROUPS.join(", "))
    };
    Some(format!("{name} means nothing inside another process {why}"))
}

/// Whether the value of this setting is a secret: then it has to be a text, or a number may be written in another way.
pub fn is_secret(name: &str) -> bool {
    TABLE.iter().any(|row| row.name == name && row.secrecy == Secrecy::Whole)
}
