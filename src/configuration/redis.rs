//! The shared store: where Redis is, how it is called, and the fallback when it does not answer.

use std::time::Duration;

use super::{ClientTlsFiles, unless_0};
use crate::settings::value::{ColdStart, FilePath, Secret, Url};
use crate::settings::{Problem, Settings};
use tidegate_redis::address::{Login, RedisUrl, Servers};
use tidegate_redis::key::KeyStyle;
use tidegate_redis::{Access, DenyCold, RedisOptions, SharedStoreOptions};

/// The pool size that `envoyproxy/ratelimit` takes for 0.
const POOL_SIZE_OF_0: usize = 4;

/// The shared store.
#[derive(Clone)]
pub struct Redis {
    /// The Redis of all limits but those of `per_second`.
    pub main: Server,
    /// The Redis of limits whose unit is a second, if it is another one.
    pub per_second: Option<Server>,
    /// The files of TLS, for the servers that use it.
    pub tls: ClientTlsFiles,
    /// Whether TLS accepts any server name. The chain is verified anyway.
    pub tls_any_name: bool,
    /// What happens when Redis does not answer, and which hits are leased.
    pub failover: SharedStoreOptions,
    /// How long Redis may be out of reach at start. `None`: without a bound.
    pub startup_timeout: Option<Duration>,
    /// Whether the process is not ready while Redis does not answer.
    pub health_follows: bool,
}

/// One Redis.
#[derive(Clone)]
pub struct Server {
    /// Where it is and how it is called, without TLS.
    pub options: RedisOptions,
    pub tls: bool,
}

pub(super) fn resolve(
    settings: &Settings,
    workers: usize,
    counter_bytes: u64,
    problems: &mut Vec<Problem>,
) -> Option<Redis> {
    let mut place = |name: &str, kind: &str, url: &Url, socket_type: &str| {
        let bad = |what: String| Problem { name: name.to_owned(), what };
        let parsed = RedisUrl::parse(kind, &url.0, socket_type);
        parsed.map_err(|error| problems.push(bad(error.to_string()))).ok()
    };
    let main = place("REDIS_URL", &settings.redis_type, &settings.redis_url, &settings.redis_socket_type);
    let per_second = settings.redis_persecond.then(|| {
        let (url, socket_type) = (&settings.redis_persecond_url, &settings.redis_persecond_socket_type);
        place("REDIS_PERSECOND_URL", &settings.redis_persecond_type, url, socket_type)
    });
    Some(Redis {
        main: main_server(settings, main?, workers),
        // A bad one was reported already.
        per_second: per_second.flatten().map(|place| per_second_server(settings, place, workers)),
        tls: tls_files(settings),
        tls_any_name: settings.redis_tls_skip_hostname_verification,
        failover: SharedStoreOptions {
            mode: settings.redis_failure_mode,
            local_share: settings.redis_local_share.0,
            deny_cache_bytes: settings.local_cache_size_in_bytes.0,
            counter_bytes: usize::try_from(counter_bytes).unwrap_or(usize::MAX),
            sync: settings.redis_sync,
            lease_time: settings.redis_lease_time,
        },
        startup_timeout: unless_0(settings.redis_startup_max_elapsed_time),
        health_follows: settings.redis_health_check_active_connection,
    })
}

/// The files of TLS to every Redis.
pub(super) fn tls_files(settings: &Settings) -> ClientTlsFiles {
    let path = |path: &Option<FilePath>| path.as_ref().map(|path| path.0.clone());
    ClientTlsFiles {
        roots: path(&settings.redis_tls_cacert),
        chain: path(&settings.redis_tls_client_cert),
        key: path(&settings.redis_tls_client_key),
    }
}

fn main_server(settings: &Settings, place: RedisUrl, workers: usize) -> Server {
    let (auth, sentinel_auth) = (&settings.redis_auth, &settings.redis_sentinel_auth);
    let (pool_size, timeout) = (settings.redis_pool_size.0, settings.redis_timeout);
    let tls = settings.redis_tls || place.tls;
    Server { options: options(settings, place, workers, auth, sentinel_auth, pool_size, timeout), tls }
}

fn per_second_server(settings: &Settings, place: RedisUrl, workers: usize) -> Server {
    let (auth, sentinel_auth) = (&settings.redis_persecond_auth, &settings.redis_persecond_sentinel_auth);
    let (pool_size, timeout) = (settings.redis_persecond_pool_size.0, settings.redis_persecond_timeout);
    let tls = settings.redis_persecond_tls || place.tls;
    Server { options: options(settings, place, workers, auth, sentinel_auth, pool_size, timeout), tls }
}

/// The options of one Redis. A login in the settings wins over the URL's.
fn options(
    settings: &Settings,
    place: RedisUrl,
    workers: usize,
    auth: &Secret,
    sentinel_auth: &Secret,
    pool_size: usize,
    timeout: Duration,
) -> RedisOptions {
    let or_urls = |login: Login| if login.is_empty() { place.login.clone() } else { login };
    let login = Login::parse(&auth.0);
    let login = if matches!(place.kind, Servers::Sentinel(..)) { login } else { or_urls(login) };
    RedisOptions {
        access: Access::new(login, place.database, None),
        sentinel_login: or_urls(Login::parse(&sentinel_auth.0)),
        workers,
        pool_size: if pool_size == 0 { POOL_SIZE_OF_0 } else { pool_size },
        timeout,
        in_flight_max: settings.redis_max_in_flight.0,
        wait_replicas: settings.redis_wait_replicas.0,
        keys: KeyStyle::new(&settings.cache_key_prefix).hashed_if(settings.redis_key_hash),
        startup_pauses: (settings.redis_startup_initial_interval, settings.redis_startup_max_interval),
        deny_cold: (settings.cold_start == ColdStart::Deny).then_some(DenyCold {
            window_max: settings.cold_start_max_window,
            lease_time: settings.redis_lease_time,
        }),
        ..RedisOptions::new(place.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::configured;

    #[test]
    fn a_wrong_url_is_a_problem_without_its_password() {
        let problems = configured(&[
            ("REDIS_URL", "redis://:hunter2@nowhere"),
            ("REDIS_PERSECOND", "true"),
            ("REDIS_PERSECOND_URL", "hunter2"),
        ]);
        let problems = problems.err().expect("wrong");
        let names: Vec<_> = problems.iter().map(|problem| problem.name.as_str()).collect();
        assert_eq!(names, ["REDIS_URL", "REDIS_PERSECOND_URL"]);
        assert!(problems.iter().all(|problem| !problem.what.contains("hunter2")), "{problems:?}");
    }

    #[test]
    fn settings_win_over_the_url() {
        let url = ("REDIS_URL", "redis://u:p@h:1");
        let login = |pairs: &[(&str, &str)]| {
            let configuration = configured(pairs).expect("good settings");
            configuration.redis.expect("a URL is set").main.options.access.login
        };
        assert!(login(&[url]) == Login::parse("u:p"));
        assert!(login(&[url, ("REDIS_AUTH", "q")]) == Login::parse("q"));
    }
}
