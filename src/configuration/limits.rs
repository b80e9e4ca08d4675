//! Limits for single keys: where they are kept, and how they are looked up.

use std::path::PathBuf;
use std::time::Duration;

use super::ClientTlsFiles;
use super::redis::{Server, tls_files};
use crate::settings::{Problem, Settings};
use tidegate_redis::address::{Login, RedisUrl, Servers};
use tidegate_redis::key::KeyStyle;
use tidegate_redis::{Access, RedisOptions};
use tidegate_serve::service::RecordsOptions;

/// Limits for single keys, and where they are kept. At most one of the two stores is set.
#[derive(Clone)]
pub struct Limits {
    /// The folder that keeps them on this machine.
    pub folder: Option<PathBuf>,
    /// The Redis that keeps them for several nodes.
    pub redis: Option<LimitsRedis>,
    /// How they are looked up.
    pub lookup: Lookup,
}

/// A Redis that keeps limits.
#[derive(Clone)]
pub struct LimitsRedis {
    /// Where it is and how it is called.
    pub server: Server,
    /// The files of TLS, if it uses that.
    pub tls: ClientTlsFiles,
    /// Whether TLS accepts any server name.
    pub tls_any_name: bool,
}

/// How records are looked up.
#[derive(Clone, Copy)]
pub struct Lookup {
    /// The cache, and what applies without the store.
    pub records: RecordsOptions,
    /// How long a cached record may be used while the store does not answer.
    pub stale_max: Duration,
}

pub(super) fn resolve(settings: &Settings, workers: usize, problems: &mut Vec<Problem>) -> Limits {
    let folder = settings.limits_dir.as_ref().map(|path| path.0.clone());
    let redis = redis(settings, workers, problems);
    if folder.is_some() && settings.limits_url.is_some() {
        let what = "together with LIMITS_DIR (expected one of the two: records have one place)".to_owned();
        problems.push(Problem { name: "LIMITS_URL".to_owned(), what });
    }
    let records = RecordsOptions {
        cache_entries: settings.limits_cache_size.0,
        timeout: settings.limits_timeout,
        stale_mode: settings.limits_stale_mode,
    };
    Limits { folder, redis, lookup: Lookup { records, stale_max: settings.limits_stale_max } }
}

fn redis(settings: &Settings, workers: usize, problems: &mut Vec<Problem>) -> Option<LimitsRedis> {
    let url = settings.limits_url.as_ref()?;
    let place = RedisUrl::parse(&settings.limits_type, &url.0, "");
    let bad = |what: String| Problem { name: "LIMITS_URL".to_owned(), what };
    let place = place.map_err(|error| problems.push(bad(error.to_string()))).ok()?;
    let tls = place.tls;
    Some(LimitsRedis {
        server: Server { options: options(settings, place, workers), tls },
        tls: tls_files(settings),
        tls_any_name: settings.redis_tls_skip_hostname_verification,
    })
}

/// LIMITS_AUTH wins over the URL's login, which is that of the sentinels if there are any.
fn options(settings: &Settings, place: RedisUrl, workers: usize) -> RedisOptions {
    let own = Login::parse(&settings.limits_auth.0);
    let is_of_sentinels = matches!(place.kind, Servers::Sentinel(..));
    let login = if own.is_empty() && !is_of_sentinels { place.login.clone() } else { own };
    RedisOptions {
        access: Access::new(login, place.database, None),
        sentinel_login: place.login,
        workers,
        timeout: settings.limits_timeout,
        keys: KeyStyle::new(&settings.cache_key_prefix),
        ..RedisOptions::new(place.kind).without_counters()
    }
}

#[cfg(test)]
mod tests {
    use crate::configuration::configured;

    #[test]
    fn records_are_kept_in_one_place() {
        let both = [("LIMITS_DIR", "/d"), ("LIMITS_URL", "127.0.0.1:1")];
        let problems = configured(&both).err().expect("two places");
        assert_eq!(problems.iter().map(|problem| problem.name.as_str()).collect::<Vec<_>>(), ["LIMITS_URL"]);
        let none = configured(&[]).expect("good settings").limits;
        assert!(none.folder.is_none() && none.redis.is_none());
    }

    #[test]
    fn a_wrong_url_is_a_problem_without_its_password() {
        let problems = configured(&[("LIMITS_URL", "redis://:hunter2@nowhere")]).err().expect("wrong");
        assert!(problems.iter().all(|problem| problem.name == "LIMITS_URL"), "{problems:?}");
        assert!(problems.iter().all(|problem| !problem.what.contains("hunter2")), "{problems:?}");
    }
}
