//! What the settings of Redis come to when they are taken together: whether counters live there, and where it is.

use crate::settings::value::{Backend, Secret};
use crate::settings::{Problem, Row, Settings, TABLE};
use tidegate_redis::address::{Login, Place, PlaceError};

/// Variables of `envoyproxy/ratelimit` that have no effect here, but say that counters live in Redis.
const OTHERS: &[&str] = &[
    "REDIS_PIPELINE_WINDOW",
    "REDIS_PIPELINE_LIMIT",
    "REDIS_CLUSTER_PIPELINE_PARALLELISM",
    "REDIS_POOL_ON_EMPTY_BEHAVIOR",
    "REDIS_PERSECOND_PIPELINE_WINDOW",
    "REDIS_PERSECOND_PIPELINE_LIMIT",
    "REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM",
    "REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR",
];

/// One Redis, as settings have it.
#[derive(Clone, Debug)]
pub struct Target {
    /// Where it is.
    pub place: Place,
    /// Who we are to its servers.
    pub login: Login,
    /// Who we are to its sentinels.
    pub sentinel_login: Login,
    /// TLS is wanted.
    pub tls: bool,
}

/// Where counters live when BACKEND_TYPE does not say it: in Redis as soon as anything is said of one. (Not any
/// variable whose name begins with REDIS_: Kubernetes sets some.)
pub(super) fn backend(
    text: impl Fn(&Row) -> Option<String>,
    variable: impl Fn(&str) -> Option<String>,
) -> Option<Backend> {
    let said = |value: Option<String>| value.is_some_and(|value| !value.is_empty());
    let mut rows = TABLE.iter().filter(|row| row.name.starts_with("REDIS_"));
    let redis = rows.any(|row| said(text(row))) || OTHERS.iter().any(|name| said(variable(name)));
    Some(if redis { Backend::Redis } else { Backend::Memory })
}

/// Every form that is wrong.
pub(super) fn problems(settings: &Settings) -> Vec<Problem> {
    if settings.backend_type != Some(Backend::Redis) {
        return Vec::new();
    }
    let problem = |name: &str, what: PlaceError| Problem { name: name.to_owned(), what: what.to_string() };
    let main = settings.redis().err().map(|what| problem("REDIS_URL", what));
    let per_second =
        settings.redis_per_second().and_then(Result::err).map(|what| problem("REDIS_PERSECOND_URL", what));
    main.into_iter().chain(per_second).collect()
}

impl Settings {
    /// The Redis of REDIS_URL.
    ///
    /// # Errors
    /// What was expected of the URL, or of what it goes with.
    pub fn redis(&self) -> Result<Target, PlaceError> {
        target(
            (&self.redis_type, &self.redis_url, &self.redis_socket_type),
            (&self.redis_auth, &self.redis_sentinel_auth),
            self.redis_tls,
        )
    }

    /// The Redis of REDIS_PERSECOND_URL, if there is a second one.
    pub fn redis_per_second(&self) -> Option<Result<Target, PlaceError>> {
        self.redis_persecond.then(|| {
            target(
                (&self.redis_persecond_type, &self.redis_persecond_url, &self.redis_persecond_socket_type),
                (&self.redis_persecond_auth, &self.redis_persecond_sentinel_auth),
                self.redis_persecond_tls,
            )
        })
    }
}

fn target(
    (kind, url, socket_type): (&str, &Secret, &str),
    (auth, sentinel_auth): (&Secret, &Secret),
    tls: bool,
) -> Result<Target, PlaceError> {
    let place = Place::parse(kind, &url.0, socket_type)?;
    let or_urls = |login: Login| if login.is_empty() { place.login.clone() } else { login };
    let is_sentinel = kind.eq_ignore_ascii_case("sentinel");
    let login = Login::parse(&auth.0);
    Ok(Target {
        login: if is_sentinel { login } else { or_urls(login) },
        sentinel_login: or_urls(Login::parse(&sentinel_auth.0)),
        tls: tls || place.tls,
        place,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Settings, Vec<Problem>> {
        let variable = |name: &str| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.to_owned());
        Settings::read(|_| None, variable)
    }

    #[test]
    fn anything_said_of_redis_means_redis() {
        let backend = |pairs: &[(&str, &str)]| read(pairs).expect("good").backend_type;
        assert_eq!(backend(&[]), Some(Backend::Memory));
        assert_eq!(backend(&[("REDIS_PORT", "tcp://10.0.0.1:6379")]), Some(Backend::Memory));
        assert_eq!(backend(&[("REDIS_URL", "redis:6379")]), Some(Backend::Redis));
        assert_eq!(backend(&[("REDIS_PIPELINE_WINDOW", "1ms")]), Some(Backend::Redis));
        assert_eq!(
            backend(&[("REDIS_URL", "redis:6379"), ("BACKEND_TYPE", "memory")]),
            Some(Backend::Memory)
        );
    }

    #[test]
    fn a_wrong_url_is_told_without_its_password() {
        let problems = read(&[
            ("REDIS_URL", "redis://:hunter2@nowhere"),
            ("REDIS_PERSECOND", "true"),
            ("REDIS_PERSECOND_URL", "hunter2"),
        ])
        .expect_err("wrong");
        let names: Vec<_> = problems.iter().map(|problem| problem.name.as_str()).collect();
        assert_eq!(names, ["REDIS_URL", "REDIS_PERSECOND_URL"]);
        assert!(problems.iter().all(|problem| !problem.what.contains("hunter2")), "{problems:?}");
        assert!(!format!("{:?}", read(&[("REDIS_AUTH", "hunter2")])).contains("hunter2"));
    }

    #[test]
    fn settings_win_over_the_url() {
        let url = ("REDIS_URL", "redis://u:p@h:1");
        let login = |pairs: &[(&str, &str)]| read(pairs).expect("good").redis().expect("good").login;
        assert_eq!(login(&[url]), Login::parse("u:p"));
        assert_eq!(login(&[url, ("REDIS_AUTH", "q")]), Login::parse("q"));
    }
}
