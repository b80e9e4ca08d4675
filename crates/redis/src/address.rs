//! Where Redis is, and the login, as settings write them.
//!
//! In: the texts of settings. Out: a [`RedisUrl`], or the form that was expected. No error and no `Debug` prints a
//! password.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use tidegate_engine::text::percent_decoded;

/// An address of one server.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A host (IPv6 without brackets) and a port.
    Tcp(String, u16),
    /// A unix socket.
    Unix(PathBuf),
}

/// User and password. `Debug` shows neither.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Login {
    /// The user. `None`: Redis' default user.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
}

/// How to connect to a server.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Access {
    /// The login.
    pub login: Login,
    /// The database.
    pub database: i64,
    /// TLS. `None`: the connection is not encrypted.
    pub tls: Option<Arc<rustls::ClientConfig>>,
}

impl Access {
    /// Access with this login to this database, with TLS or without.
    pub fn new(login: Login, database: i64, tls: Option<Arc<rustls::ClientConfig>>) -> Self {
        Self { login, database, tls }
    }
}

/// The servers that counters live in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Servers {
    /// One server.
    Single(Address),
    /// The master of this name, known to these sentinels.
    Sentinel(String, Vec<Address>),
    /// The masters of the Cluster that these nodes belong to.
    Cluster(Vec<Address>),
}

/// What a URL says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisUrl {
    /// The servers.
    pub kind: Servers,
    /// The login in the URL. With Sentinel it is the sentinels' login.
    pub login: Login,
    /// The database of a single server.
    pub database: i64,
    /// The URL asks for TLS.
    pub tls: bool,
}

/// One item of a URL.
struct Item {
    address: Address,
    login: Login,
    database: i64,
    tls: bool,
}

/// The expected form. The URL is not repeated, because it may hold a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RedisUrlError {
    /// The kind of Redis is unknown.
    #[error("{0:?} is no kind of Redis (expected single, sentinel or cluster)")]
    Servers(String),
    /// The kind of socket is unknown.
    #[error("{0:?} is no kind of socket (expected unix or tcp)")]
    SocketType(String),
    /// The URL of a single server is malformed.
    #[error("expected host:port, redis://[user:password@]host:port[/db], or the path of a unix socket")]
    Single,
    /// The URL of a master behind sentinels is malformed.
    #[error("expected mastername,host:port[,host:port…], without spaces")]
    Sentinel,
    /// The URL of a Cluster is malformed.
    #[error("expected host:port[,host:port…], without spaces")]
    Cluster,
}

impl RedisUrl {
    /// Reads the kind of Redis (single, sentinel, cluster, in any case), its URL, and the kind of socket (unix, tcp, or
    /// nothing).
    /// Fails with the form that was expected.
    pub fn parse(kind: &str, url: &str, socket_type: &str) -> Result<Self, RedisUrlError> {
        match kind.to_ascii_lowercase().as_str() {
            "single" | "" => Self::single(url, socket_type),
            "sentinel" => Self::sentinel(url),
            "cluster" => {
                let items = items(url.split(',')).ok_or(RedisUrlError::Cluster)?;
                Ok(Self::of(items, Servers::Cluster))
            }
            _ => Err(RedisUrlError::Servers(kind.to_owned())),
        }
    }

    fn single(url: &str, socket_type: &str) -> Result<Self, RedisUrlError> {
        let is_unix = match socket_type.to_ascii_lowercase().as_str() {
            "unix" => true,
            "tcp" | "tcp4" | "tcp6" => false,
            "" => url.starts_with('/'),
            _ => return Err(RedisUrlError::SocketType(socket_type.to_owned())),
        };
        if is_unix {
            let path = Some(url).filter(|url| url.starts_with('/')).ok_or(RedisUrlError::Single)?;
            let kind = Servers::Single(Address::Unix(path.into()));
            return Ok(Self { kind, login: Login::default(), database: 0, tls: false });
        }
        let Item { address, login, database, tls } = item(url).ok_or(RedisUrlError::Single)?;
        Ok(Self { kind: Servers::Single(address), login, database, tls })
    }

    fn sentinel(url: &str) -> Result<Self, RedisUrlError> {
        let (name, rest) = url.split_once(',').ok_or(RedisUrlError::Sentinel)?;
        let is_name = !name.is_empty() && !name.contains([' ', '/', ':']);
        let items = items(rest.split(',')).filter(|_| is_name).ok_or(RedisUrlError::Sentinel)?;
        Ok(Self::of(items, |sentinels| Servers::Sentinel(name.to_owned(), sentinels)))
    }

    fn of(items: Vec<Item>, kind: impl FnOnce(Vec<Address>) -> Servers) -> Self {
        let login = items.iter().map(|item| &item.login).find(|login| login.password.is_some());
        let (login, tls) = (login.cloned().unwrap_or_default(), items.iter().any(|item| item.tls));
        let addresses = items.into_iter().map(|item| item.address).collect();
        Self { kind: kind(addresses), login, database: 0, tls }
    }
}

impl Address {
    /// `host:port`.
    pub(super) fn tcp(text: &str) -> Option<Self> {
        host_and_port(text)
    }
}

fn items<'a>(texts: impl Iterator<Item = &'a str>) -> Option<Vec<Item>> {
    texts.map(item).collect()
}

/// `host:port`, or a `redis://` URL.
fn item(text: &str) -> Option<Item> {
    let secure = text.strip_prefix("rediss://");
    let Some(rest) = secure.or_else(|| text.strip_prefix("redis://")) else {
        let address = host_and_port(text)?;
        return Some(Item { address, login: Login::default(), database: 0, tls: false });
    };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (login, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let parameter =
        |name: &str| query.split('&').find_map(|pair| pair.split_once('=').filter(|pair| pair.0 == name));
    // A malformed escape is refused: a login that was read wrongly would never work.
    let text_of = |name: &str| match parameter(name) {
        Some((_, value)) => percent_decoded(value).ok().map(|value| Some(value.into_owned())),
        None => Some(None),
    };
    let mut login = match login.split_once(':') {
        Some((user, password)) => Login::of(&percent_decoded(user).ok()?, &percent_decoded(password).ok()?),
        None => Login::of("", &percent_decoded(login).ok()?),
    };
    let (user, password) = (text_of("username")?, text_of("password")?);
    login.user = login.user.or(user);
    login.password = login.password.or(password);
    let database = if path.is_empty() { parameter("db").map_or("0", |(_, value)| value) } else { path };
    Some(Item {
        address: host_and_port(host)?,
        login,
        database: database.parse().ok().filter(|database| *database >= 0)?,
        tls: secure.is_some(),
    })
}

fn host_and_port(text: &str) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = bare.or_else(|| Some(host).filter(|host| !host.contains([':', '[', '/', '@', ' '])))?;
    (!host.is_empty()).then_some(Address::Tcp(host.to_owned(), port.parse().ok()?))
}

impl Login {
    /// Reads `password` or `user:password`.
    pub fn parse(text: &str) -> Self {
        match text.split_once(':') {
            Some((user, password)) => Self::of(user, password),
            None => Self::of("", text),
        }
    }

    fn of(user: &str, password: &str) -> Self {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Self { user: given(user), password: given(password) }
    }

    /// Whether there is neither a user nor a password.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Login(…)")
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(formatter, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(formatter, "{host}:{port}"),
            Self::Unix(path) => write!(formatter, "{}", path.display()),
        }
    }
}

impl fmt::Display for Servers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single(address) => write!(formatter, "{address}"),
            Self::Sentinel(name, _) => write!(formatter, "the master {name}"),
            Self::Cluster(_) => formatter.write_str("the cluster"),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp(host.to_owned(), port)
    }

    #[test]
    fn every_form_is_understood() {
        let single = |url, socket| RedisUrl::parse("SINGLE", url, socket).expect("a good form");
        assert_eq!(single("redis:6379", "").kind, Servers::Single(tcp("redis", 6379)));
        assert_eq!(single("[::1]:1", "tcp").kind, Servers::Single(tcp("::1", 1)));
        assert_eq!(single("/a/b.sock", "").kind, Servers::Single(Address::Unix("/a/b.sock".into())));
        let full = single("rediss://u%40x:p%3A@h:1/3?db=4", "tcp");
        assert_eq!((full.kind, full.database, full.tls), (Servers::Single(tcp("h", 1)), 3, true));
        assert_eq!(full.login, Login::of("u@x", "p:"));
        let query = single("redis://h:1?db=4&username=u&password=p", "");
        assert_eq!((query.database, query.login), (4, Login::of("u", "p")));
        let sentinel = RedisUrl::parse("sentinel", "mymaster,a:1,redis://:secret@b:2", "unix").expect("good");
        assert_eq!(sentinel.kind, Servers::Sentinel("mymaster".into(), vec![tcp("a", 1), tcp("b", 2)]));
        assert_eq!(sentinel.login, Login::of("", "secret"));
        let cluster = RedisUrl::parse("Cluster", "a:1,b:2", "").expect("good");
        assert_eq!(cluster.kind, Servers::Cluster(vec![tcp("a", 1), tcp("b", 2)]));
    }

    #[test]
    fn a_wrong_form_is_refused_without_its_password() {
        for (kind, url, socket) in [
            ("single", "redis", ""),
            ("single", "redis://u:hunter2@h", ""),
            ("single", "redis://u:hunter2@h:1/x", ""),
            ("single", "redis://u:hunter2%+f@h:1", ""),
            ("single", "redis://hunter2%@h:1", ""),
            ("single", "redis://h:1?password=hunter2%zz", ""),
            ("single", "h:1", "unix"),
            ("single", "h:1", "carrier pigeon"),
            ("sentinel", "hunter2@a:1", ""),
            ("sentinel", "a:1,b:2", ""),
            ("cluster", "a:1, b:2", ""),
            ("cluster", "", ""),
            ("memcache", "a:1", ""),
        ] {
            let refused = RedisUrl::parse(kind, url, socket).expect_err(url).to_string();
            assert!(refused.contains("expected") && !refused.contains("hunter2"), "{refused}");
        }
        assert!(!format!("{:?}", Login::of("u", "hunter2")).contains("hunter2"));
    }
}
