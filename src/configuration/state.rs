//! Counters that survive restarts, and what happens without them.

use std::path::PathBuf;
use std::time::Duration;

use crate::settings::value::{Backend, ColdStart};
use crate::settings::{Problem, Settings};

/// Counters that survive restarts.
#[derive(Clone)]
pub struct StateOptions {
    /// The folder that holds them. `None`: they end with the process.
    pub folder: Option<PathBuf>,
    /// Where starts are counted outside of the folder.
    pub sequence_file: Option<PathBuf>,
    /// The file of the secret of keys.
    pub secret_file: Option<PathBuf>,
    /// How often they are written while the process serves.
    pub interval: Option<Duration>,
    /// By how much the clocks of two machines may differ.
    pub skew: Duration,
    /// The number of nodes that keys are divided over; 0: not set.
    pub members: u32,
    /// The number before it grew, under which counters are accepted too; 0: not set.
    pub grew_from: u32,
    /// The name of this node.
    pub name: Option<String>,
    /// How long writing may take at the end.
    pub grace: Duration,
    /// Lost counters of windows up to this count as full. `None`: they start at zero.
    pub deny_cold: Option<Duration>,
}

pub(super) fn resolve(settings: &Settings, problems: &mut Vec<Problem>) -> StateOptions {
    let deny_cold = settings.cold_start == ColdStart::Deny;
    if settings.backend_type == Some(Backend::Redis) {
        problems.extend(
            settings.state_dir.iter().map(|_| Problem {
                name: "STATE_DIR".to_owned(),
                what: "is for counters in memory, and these live in Redis (expected BACKEND_TYPE=memory)"
                    .to_owned(),
            }),
        );
    }
    let [members, grew_from] = [settings.shard_members, settings.shard_grew_from]
        .map(|members| members.map_or(0, |members| members.0));
    if members > 0 && grew_from >= members {
        problems.push(Problem {
            name: "SHARD_GREW_FROM".to_owned(),
            what: format!("{grew_from} is not the smaller number (expected less than SHARD_MEMBERS)"),
        });
    }
    let folder = settings.state_dir.as_ref().map(|path| path.0.clone());
    let sequence_file = settings.state_sequence_file.as_ref().map(|path| path.0.clone());
    if let (Some(folder), Some(file)) = (&folder, &sequence_file)
        && file.starts_with(folder)
    {
        problems.push(Problem {
            name: "STATE_SEQUENCE_FILE".to_owned(),
            what: format!("{} is in STATE_DIR (expected a file outside of it)", file.display()),
        });
    }
    StateOptions {
        folder,
        sequence_file,
        secret_file: settings.key_secret_file.as_ref().map(|path| path.0.clone()),
        interval: super::unless_0(settings.state_interval),
        skew: settings.state_skew,
        members,
        grew_from,
        name: super::unless_empty(&settings.shard_name).map(str::to_owned),
        grace: settings.state_grace,
        deny_cold: deny_cold.then_some(settings.cold_start_max_window),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::configured;
    use tidegate_redis::DenyCold;

    #[test]
    fn what_only_counters_in_memory_have_is_refused_with_redis() {
        let redis = ("REDIS_URL", "localhost:6379");
        let folder = ("STATE_DIR", "/state");
        let problems = configured(&[redis, folder]).err().expect("refused");
        let names: Vec<_> = problems.iter().map(|problem| problem.name.as_str()).collect();
        assert_eq!(names, ["STATE_DIR"]);
        assert!(configured(&[folder]).is_ok());
    }

    #[test]
    fn starts_are_not_counted_in_the_folder_itself() {
        let with = |file| configured(&[("STATE_DIR", "/state"), ("STATE_SEQUENCE_FILE", file)]).err();
        assert_eq!(with("/other/starts"), None);
        assert!(with("/state/starts").is_some());
        assert!(configured(&[("STATE_SEQUENCE_FILE", "/starts")]).is_err());
    }

    #[test]
    fn redis_learns_what_is_cold() {
        let redis = ("REDIS_URL", "localhost:6379");
        let deny_cold = |pairs: &[(&str, &str)]| {
            let configuration = configured(pairs).expect("good settings");
            configuration.redis.expect("a URL is set").main.options.deny_cold
        };
        let deny = ("COLD_START", "deny");
        let denies = deny_cold(&[redis, deny, ("COLD_START_MAX_WINDOW", "2m"), ("REDIS_LEASE_TIME", "50ms")]);
        let (window_max, lease_time) = (Duration::from_secs(120), Duration::from_millis(50));
        assert_eq!(denies, Some(DenyCold { window_max, lease_time }));
        assert_eq!(deny_cold(&[redis]), None);
    }

    #[test]
    fn nodes_grow_from_a_smaller_number() {
        let grown = |from, members| {
            let state = ("STATE_DIR", "/state");
            configured(&[state, ("SHARD_GREW_FROM", from), ("SHARD_MEMBERS", members)]).err()
        };
        assert_eq!(grown("3", "4"), None);
        for (from, members) in [("4", "4"), ("5", "4")] {
            let problems = grown(from, members).expect("refused");
            let names: Vec<_> = problems.iter().map(|problem| problem.name.as_str()).collect();
            assert_eq!(names, ["SHARD_GREW_FROM"]);
        }
        assert!(configured(&[("SHARD_GREW_FROM", "3")]).is_err());
    }
}
