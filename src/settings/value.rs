//! The kinds of values that settings take: how each is written, and what is said when it is not.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use tidegate_engine::limit::Algorithm;
use tidegate_engine::rules::Cost;
use tidegate_engine::rules::parse_duration_nanos;
use tidegate_engine::text::percent_decoded;

/// A kind of value.
pub trait Value: Sized {
    /// What it is called in `--help`.
    const NAME: &'static str;
    /// What a bad one is not, and what was expected: completes `"x" is not …`.
    const EXPECTED: &'static str;
    /// A variable that is set to nothing is as if unset.
    const EMPTY_IS_UNSET: bool = true;

    /// Reads it; `None` when it is not one.
    fn parse(text: &str) -> Option<Self>;
}

impl Value for bool {
    const NAME: &'static str = "BOOL";
    const EXPECTED: &'static str = "a boolean (expected one of 1 t T TRUE true True 0 f F FALSE false False)";

    fn parse(text: &str) -> Option<Self> {
        match text {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
            "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
            _ => None,
        }
    }
}

impl Value for u16 {
    const NAME: &'static str = "PORT";
    const EXPECTED: &'static str = "a port (expected a number from 0 to 65535)";

    fn parse(text: &str) -> Option<Self> {
        decimal(text)?.parse().ok()
    }
}

impl Value for String {
    const NAME: &'static str = "TEXT";
    const EXPECTED: &'static str = "a text";
    const EMPTY_IS_UNSET: bool = false;

    fn parse(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }
}

/// A text that nobody may read in a log, an error or a panic: it has no `Display`, and its `Debug` is silent.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(…)")
    }
}

impl Value for Secret {
    const NAME: &'static str = "TEXT";
    const EXPECTED: &'static str = "a text";
    const EMPTY_IS_UNSET: bool = false;

    fn parse(text: &str) -> Option<Self> {
        Some(Self(text.to_owned()))
    }
}

impl Value for f32 {
    const NAME: &'static str = "NUMBER";
    const EXPECTED: &'static str = "a finite number (expected for example 0.8)";

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok().filter(|number: &f32| number.is_finite())
    }
}

impl Value for f64 {
    const NAME: &'static str = "NUMBER";
    const EXPECTED: &'static str = "a finite number (expected for example 0.5)";

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok().filter(|number: &f64| number.is_finite())
    }
}

/// What a node tells of itself: `k=v,k=v`. The first `=` splits; an item without one is skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeMetadata(pub Vec<(String, String)>);

impl Value for NodeMetadata {
    const NAME: &'static str = "METADATA";
    const EXPECTED: &'static str = "metadata (expected k=v,k=v)";
    const EMPTY_IS_UNSET: bool = false;

    fn parse(text: &str) -> Option<Self> {
        let pairs = text.split(',').filter_map(|item| item.split_once('='));
        Some(Self(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()))
    }
}

/// A whole number within bounds that are both included.
macro_rules! counts {
    ($(#[$doc:meta])* $name:ident, $max:expr, $expected:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name(pub usize);

        impl Value for $name {
            const NAME: &'static str = "COUNT";
            const EXPECTED: &'static str = concat!("a count (expected a decimal number ", $expected, ")");

            fn parse(text: &str) -> Option<Self> {
                decimal(text)?.parse().ok().filter(|count| (1..=$max).contains(count)).map(Self)
            }
        }
    };
}

counts!(
    /// A count that is at least 1, such as a bound.
    Count, usize::MAX, "of at least 1"
);

counts!(
    /// Threads: more than there are cores never help, and each has metrics of its own to hold.
    Threads, 1_024, "from 1 to 1024"
);

counts!(
    /// Spans that wait: room for them is made at start.
    Queue, 1_000_000, "from 1 to 1000000"
);

counts!(
    /// Series in metrics: the table of all that there may be is made at start.
    Series, 10_000_000, "from 1 to 10000000"
);

/// A whole number, 0 included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number(pub usize);

impl Value for Number {
    const NAME: &'static str = "NUMBER";
    const EXPECTED: &'static str = "a whole number (expected a decimal number)";

    fn parse(text: &str) -> Option<Self> {
        decimal(text)?.parse().ok().map(Self)
    }
}

/// A part of a whole: 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share(pub f64);

impl Value for Share {
    const NAME: &'static str = "SHARE";
    const EXPECTED: &'static str = "a share (expected a number from 0 to 1)";

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok().filter(|share| (0.0..=1.0).contains(share)).map(Self)
    }
}

/// Entries of `x-forwarded-for` to skip: no request has passed more proxies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hops(pub usize);

impl Value for Hops {
    const NAME: &'static str = "COUNT";
    const EXPECTED: &'static str = "a count of proxies (expected a decimal number from 0 to 100)";

    fn parse(text: &str) -> Option<Self> {
        decimal(text)?.parse().ok().filter(|hops| *hops <= 100).map(Self)
    }
}

/// Replicas of one master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas(pub u32);

impl Value for Replicas {
    const NAME: &'static str = "COUNT";
    const EXPECTED: &'static str = "a count of replicas (expected a decimal number from 0 to 100)";

    fn parse(text: &str) -> Option<Self> {
        decimal(text)?.parse().ok().filter(|count| *count <= 100).map(Self)
    }
}

/// The HTTP status of a denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenyStatus(pub u16);

impl Value for DenyStatus {
    const NAME: &'static str = "STATUS";
    const EXPECTED: &'static str = "a status of HTTP (expected a decimal number from 400 to 599)";

    fn parse(text: &str) -> Option<Self> {
        decimal(text)?.parse().ok().filter(|status| (400..600).contains(status)).map(Self)
    }
}

/// Where to listen, in Go's form: `host:port`, `[::1]:port`, or `:port` for all addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// Without brackets; empty for all addresses.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Value for HostPort {
    const NAME: &'static str = "ADDRESS";
    const EXPECTED: &'static str = "an address (expected host:port or :port)";
    const EMPTY_IS_UNSET: bool = false;

    fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        // An address of IPv6 without brackets would lose its last group to the port.
        let host = bare.or_else(|| Some(host).filter(|host| !host.contains([':', '['])))?;
        Some(Self { host: host.to_owned(), port: decimal(port)?.parse().ok()? })
    }
}

/// The path of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlPath(pub String);

impl Value for UrlPath {
    const NAME: &'static str = "PATH";
    const EXPECTED: &'static str = "a path of a URL (expected for example /metrics)";
    const EMPTY_IS_UNSET: bool = false;

    fn parse(text: &str) -> Option<Self> {
        let path = text.starts_with('/') && !text.contains(['?', '#']) && !text.contains(char::is_whitespace);
        path.then(|| Self(text.to_owned()))
    }
}

/// The name of an HTTP header, as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderName(pub String);

impl Value for HeaderName {
    const NAME: &'static str = "HEADER";
    const EXPECTED: &'static str = "the name of a header (expected for example RateLimit-Limit)";

    fn parse(text: &str) -> Option<Self> {
        http::HeaderName::from_bytes(text.as_bytes()).is_ok().then(|| Self(text.to_owned()))
    }
}

/// A file in the file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePath(pub PathBuf);

impl Value for FilePath {
    const NAME: &'static str = "FILE";
    const EXPECTED: &'static str = "a path of a file";

    fn parse(text: &str) -> Option<Self> {
        Some(Self(text.into()))
    }
}

/// A name in DNS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsName(pub String);

impl Value for DnsName {
    const NAME: &'static str = "NAME";
    const EXPECTED: &'static str = "a DNS name (expected for example envoy.example.com)";

    fn parse(text: &str) -> Option<Self> {
        rustls::pki_types::DnsName::try_from(text).ok().map(|name| Self(name.as_ref().to_owned()))
    }
}

/// A number of bytes, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSize(pub u64);

impl Value for ByteSize {
    const NAME: &'static str = "BYTES";
    const EXPECTED: &'static str =
        "a size (expected a decimal number of bytes of at least 1, or one with KiB, MiB or GiB behind it)";

    fn parse(text: &str) -> Option<Self> {
        let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("", 1_u64)];
        let (number, unit) =
            units.iter().find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?.trim_end(), *unit)))?;
        let bytes = decimal(number)?.parse::<u64>().ok()?.checked_mul(unit)?;
        (bytes > 0).then_some(Self(bytes))
    }
}

/// Bytes of one request: half of what a connection may hold of requests that have come in part, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestBytes(pub usize);

impl Value for RequestBytes {
    const NAME: &'static str = "BYTES";
    const EXPECTED: &'static str = "the size of a request (expected a decimal number of bytes, or one with KiB behind it, from 1 to 512KiB)";

    fn parse(text: &str) -> Option<Self> {
        let ByteSize(bytes) = ByteSize::parse(text)?;
        usize::try_from(bytes).ok().filter(|&bytes| bytes <= 512 << 10).map(Self)
    }
}

impl Value for Duration {
    const NAME: &'static str = "DURATION";
    const EXPECTED: &'static str = "a duration (expected Go's form: 10s, 150ms, 1m30s, 1.5h; units ns us µs ms s m h; a bare number only as 0)";

    fn parse(text: &str) -> Option<Self> {
        parse_duration_nanos(text).map(Self::from_nanos)
    }
}

/// A duration that can be waited for over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush(pub Duration);

impl Value for Flush {
    const NAME: &'static str = "DURATION";
    const EXPECTED: &'static str =
        "an interval (expected a duration in Go's form of at least 100ms, such as 10s)";

    fn parse(text: &str) -> Option<Self> {
        Duration::parse(text).filter(|interval| *interval >= Duration::from_millis(100)).map(Self)
    }
}

/// Texts with commas between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct List(pub Vec<String>);

impl Value for List {
    const NAME: &'static str = "LIST";
    const EXPECTED: &'static str = "a list (expected a,b)";
    const EMPTY_IS_UNSET: bool = false;

    fn parse(text: &str) -> Option<Self> {
        Some(Self(items(text).map(str::to_owned).collect()))
    }
}

/// Names with values: `key:value,key:value`. Nothing is trimmed, and no value holds a `:`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Map(pub Vec<(String, String)>);

impl Value for Map {
    const NAME: &'static str = "MAP";
    const EXPECTED: &'static str = "a map (expected key:value,key:value, with one colon each)";
    const EMPTY_IS_UNSET: bool = false;

    fn parse(text: &str) -> Option<Self> {
        let pair = |item: &str| {
            let (key, value) = item.split_once(':')?;
            (!value.contains(':')).then(|| (key.to_owned(), value.to_owned()))
        };
        items(text).map(pair).collect::<Option<_>>().map(Self)
    }
}

fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').take(if text.is_empty() { 0 } else { usize::MAX })
}

/// Names and values in OpenTelemetry's form, `a=1,b=%20`; what is not of it is left out, as that says. Headers among
/// them are secrets, so `Debug` is silent.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct OtelPairs(pub Vec<(String, String)>);

impl fmt::Debug for OtelPairs {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("OtelPairs(…)")
    }
}

impl Value for OtelPairs {
    const NAME: &'static str = "PAIRS";
    const EXPECTED: &'static str = "pairs (expected name=value,name=value)";
    const EMPTY_IS_UNSET: bool = false;

    fn parse(text: &str) -> Option<Self> {
        let pair = |item: &str| {
            let (name, value) = item.split_once('=')?;
            let (name, value) = (name.trim(), percent_decoded(value.trim()).ok()?.into_owned());
            (!name.is_empty()).then(|| (name.to_owned(), value))
        };
        Some(Self(items(text).filter_map(pair).collect()))
    }
}

/// Digits only: `0x1F`, `010` (octal elsewhere), `1_000` and signs are refused rather than guessed.
fn decimal(text: &str) -> Option<&str> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits && (text == "0" || !text.starts_with('0'))).then_some(text)
}

/// A value that is one of a few words.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $label:literal, $same:expr, { $($text:literal => $variant:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum $name { $($variant),+ }

        impl $name {
            /// The word that stands for it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl Value for $name {
            const NAME: &'static str = $label;
            const EXPECTED: &'static str = concat!("one of the words expected:" $(, " ", $text)+);

            fn parse(text: &str) -> Option<Self> {
                let same: fn(&str, &str) -> bool = $same;
                [$(Self::$variant),+].into_iter().find(|word| same(word.name(), text))
            }
        }
    };
}

impl Value for Algorithm {
    const NAME: &'static str = "ALGORITHM";
    const EXPECTED: &'static str = "an algorithm (expected sliding_log, sliding_window, sliding_window_weighted, \
                                    fixed_window, token_bucket or leaky_bucket)";

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == text)
    }
}

impl Value for Cost {
    const NAME: &'static str = "COST";
    const EXPECTED: &'static str = "one of the words expected: reported asked";

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cost| cost.name() == text)
    }
}

words!(
    /// What speaks HTTP/2 on the gRPC port.
    GrpcFrontKind, "FRONT", str::eq, {
        "lane" => Lane,
        "tonic" => Tonic,
    }
);

words!(
    /// What is logged.
    LogLevel, "LEVEL", str::eq_ignore_ascii_case, {
        "panic" => Panic,
        "fatal" => Fatal,
        "error" => Error,
        "warn" => Warn,
        "warning" => Warning,
        "info" => Info,
        "debug" => Debug,
        "trace" => Trace,
    }
);

words!(
    /// Where rules come from.
    ConfigType, "SOURCE", |word, text| word == text, { "FILE" => File, "GRPC_XDS_SOTW" => GrpcXdsSotw }
);

words!(
    /// How StatsD travels.
    StatsdProtocol, "PROTOCOL", |word, text| word == text, { "tcp" => Tcp, "udp" => Udp }
);

words!(
    /// How spans travel.
    OtlpProtocol, "PROTOCOL", |word, text| word == text, { "http" => Http, "grpc" => Grpc }
);

words!(
    /// How exports of spans are compressed.
    Compression, "COMPRESSION", |word, text| word == text, { "gzip" => Gzip, "none" => None }
);

words!(
    /// Where counters live.
    Backend, "BACKEND", |word, text| word == text, { "memory" => Memory, "redis" => Redis }
);

words!(
    /// What a request gets when Redis does not answer.
    StoreFailureMode, "MODE", |word, text| word == text, {
        "error" => Error,
        "deny" => Deny,
        "allow" => Allow,
        "local" => Local,
    }
);

words!(
    /// How counters are shared.
    SyncMode, "MODE", |word, text| word == text, { "strict" => Strict, "leased" => Leased }
);

words!(
    /// Whose headers describe a client's request to `/check`.
    CheckProxy, "PROXY", |word, text| word == text, { "nginx" => Nginx, "forwarded" => Forwarded }
);

words!(
    /// What a descriptor gets that would need more memory than there may be.
    FullMode, "MODE", |word, text| word == text, { "deny" => Deny, "allow" => Allow }
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_gos() {
        let millis = |text| Duration::parse(text).map(|duration| duration.as_millis());
        assert_eq!(millis("10s"), Some(10_000));
        assert_eq!(millis("1m30s"), Some(90_000));
        assert_eq!(millis("1.5h"), Some(5_400_000));
        assert_eq!(millis("150us"), Some(0));
        assert_eq!(millis("100ms"), Some(100));
        assert_eq!(millis("0"), Some(0));
        for bad in ["", "10", "s", "-1s", "1x", "1s 2s", "+", "1..5s", "99999999999999999999h"] {
            assert_eq!(millis(bad), None, "{bad}");
        }
    }

    #[test]
    fn numbers_that_would_take_the_memory_at_start_are_refused() {
        assert_eq!(Threads::parse("1024"), Some(Threads(1024)));
        assert_eq!(Series::parse("10000000"), Some(Series(10_000_000)));
        assert_eq!(Threads::parse("1025"), None);
        for bad in ["10000001", "18446744073709551615", "0"] {
            assert_eq!(Series::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn addresses_are_gos() {
        let parsed = |text| HostPort::parse(text).map(|HostPort { host, port }| (host, port));
        assert_eq!(parsed(":9090"), Some((String::new(), 9090)));
        assert_eq!(parsed("127.0.0.1:1"), Some(("127.0.0.1".to_owned(), 1)));
        assert_eq!(parsed("[::1]:1"), Some(("::1".to_owned(), 1)));
        for bad in ["", "9090", "host:", "host:port", "host:65536", "::1", "fe80::1:9090", "[::1:9090"] {
            assert_eq!(parsed(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_path_that_no_request_can_have_is_refused() {
        assert_eq!(UrlPath::parse("/a/b"), Some(UrlPath("/a/b".to_owned())));
        for bad in ["", "metrics", "/a?b", "/a#b", "/a b"] {
            assert_eq!(UrlPath::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_name_that_no_header_can_have_is_refused() {
        assert_eq!(HeaderName::parse("X-Limit"), Some(HeaderName("X-Limit".to_owned())));
        for bad in ["", "a b", "a:b", "a\r\nb", "é"] {
            assert_eq!(HeaderName::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn metadata_of_a_node_skips_what_is_none() {
        let NodeMetadata(pairs) = NodeMetadata::parse("a=b=c,skipped,d=").expect("any text is metadata");
        assert_eq!(pairs, [("a".to_owned(), "b=c".to_owned()), ("d".to_owned(), String::new())]);
    }

    #[test]
    fn a_name_that_no_certificate_can_carry_is_refused() {
        assert_eq!(DnsName::parse("a.example"), Some(DnsName("a.example".to_owned())));
        for bad in ["spiffe://a/b", "a b", "*.example", "10.0.0.1", "a..b"] {
            assert_eq!(DnsName::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(ByteSize::parse("65536"), Some(ByteSize(65_536)));
        assert_eq!(ByteSize::parse("32 MiB"), Some(ByteSize(32 << 20)));
        assert_eq!(ByteSize::parse("1GiB"), Some(ByteSize(1 << 30)));
        for bad in ["", "0", "1.5MiB", "1MB", "-1", "0x10", "99999999999GiB"] {
            assert_eq!(ByteSize::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_request_is_no_larger_than_a_connection_can_hold() {
        assert_eq!(RequestBytes::parse("512KiB"), Some(RequestBytes(524_288)));
        for bad in ["0", "524289", "1MiB", "99999999999GiB"] {
            assert_eq!(RequestBytes::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn numbers_are_decimal() {
        assert_eq!(u16::parse("8081"), Some(8081));
        assert_eq!(u16::parse("0"), Some(0));
        for bad in ["010", "0x1F", "65536", "-1", "1_000", " 1"] {
            assert_eq!(u16::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn lists_and_maps_are_gos() {
        assert_eq!(List::parse("a,,b "), Some(List(vec!["a".to_owned(), String::new(), "b ".to_owned()])));
        assert_eq!(List::parse(""), Some(List(vec![])));
        let map = |text| Map::parse(text).map(|map| map.0);
        assert_eq!(
            map("a:1,b:"),
            Some(vec![("a".to_owned(), "1".to_owned()), ("b".to_owned(), String::new())])
        );
        assert_eq!(map(""), Some(vec![]));
        for bad in ["a", "a:1:2", "a:1,", ","] {
            assert_eq!(map(bad), None, "{bad}");
        }
        assert!(
            Flush::parse("0").is_none() && Flush::parse("99ms").is_none() && Flush::parse("100ms").is_some()
        );
    }

    #[test]
    fn opentelemetrys_pairs_are_decoded_and_silent() {
        let pairs = OtelPairs::parse(" a = b%20c=,d,=e,f=%zz,g=%+f,%C3%A4=%c3%a4").expect("never bad");
        let expected =
            [("a", "b c="), ("%C3%A4", "ä")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(pairs.0, expected);
        assert!(!format!("{pairs:?}").contains('b'));
    }

    #[test]
    fn a_denial_is_an_error_and_hops_may_be_none() {
        assert_eq!(DenyStatus::parse("403"), Some(DenyStatus(403)));
        for bad in ["399", "600", "200", "0403", "+429"] {
            assert_eq!(DenyStatus::parse(bad), None, "{bad}");
        }
        assert_eq!(Hops::parse("0"), Some(Hops(0)));
        assert_eq!(Hops::parse("101"), None);
    }

    #[test]
    fn words_are_exact_but_log_levels_ignore_case() {
        assert_eq!(LogLevel::parse("WARN"), Some(LogLevel::Warn));
        assert_eq!(Backend::parse("Memory"), None);
        assert_eq!(Algorithm::parse("fixed_window"), Some(Algorithm::FixedWindow));
    }
}
