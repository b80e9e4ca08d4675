//! Words: values that are one of a few.

use crate::front::HeadersFormat;
use crate::front::http::Proxy;
use crate::logging::LogLevel;
use crate::settings::value::Value;
use crate::spans::Protocol;
use crate::statsd::Transport;
use tidegate_engine::limit::Algorithm;
use tidegate_engine::memory::StoreFull;
use tidegate_engine::rules::{Cost, RulesFormat, StoreFailure, Sync};
use tidegate_serve::events::Kinds;
use tidegate_serve::service::StaleMode;

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

impl Value for LogLevel {
    const NAME: &'static str = "LEVEL";
    const EXPECTED: &'static str = Self::EXPECTED;

    fn parse(text: &str) -> Option<Self> {
        Self::parse(text)
    }
}

impl Value for Kinds {
    const NAME: &'static str = "LIST";
    const EXPECTED: &'static str = Self::EXPECTED;

    fn parse(text: &str) -> Option<Self> {
        Self::parse(text)
    }
}

/// Implements [`Value`] for a kind that is one of these words. `enum` also defines the kind, which only settings use.
macro_rules! words {
    ($(#[$doc:meta])* enum $kind:ident, $label:literal, { $($word:literal => $value:ident),+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum $kind { $($value),+ }

        words!($kind, $label, { $($word => $value),+ });
    };
    ($kind:ty, $label:literal, { $($word:literal => $value:ident),+ }) => {
        impl Value for $kind {
            const NAME: &'static str = $label;
            const EXPECTED: &'static str = concat!("one of the words expected:" $(, " ", $word)+);

            fn parse(text: &str) -> Option<Self> {
                match text {
                    $($word => Some(Self::$value),)+
                    _ => None,
                }
            }
        }
    };
}

words!(
    /// What speaks HTTP/2 on the gRPC port.
    enum GrpcFront, "FRONT", { "lane" => Lane, "tonic" => Tonic }
);
words!(HeadersFormat, "FORMAT", { "legacy" => Legacy, "draft11" => Draft11, "both" => Both });
words!(
    /// Where rules come from.
    enum ConfigType, "SOURCE", { "FILE" => File, "GRPC_XDS_SOTW" => GrpcXdsSotw }
);
words!(RulesFormat, "FORMAT", { "tidegate" => Tidegate, "limitador" => Limitador });
words!(
    /// How exports of spans are compressed.
    enum Compression, "COMPRESSION", { "gzip" => Gzip, "none" => None }
);
words!(
    /// Where counters live.
    enum Backend, "BACKEND", { "memory" => Memory, "redis" => Redis }
);
words!(
    /// How lost counters are treated.
    enum ColdStart, "MODE", { "allow" => Allow, "deny" => Deny }
);
words!(Transport, "PROTOCOL", { "tcp" => Tcp, "udp" => Udp });
words!(Protocol, "PROTOCOL", { "http" => Http, "grpc" => Grpc });
words!(StaleMode, "MODE", { "rule" => Rule, "last" => Last, "deny" => Deny });
words!(Proxy, "PROXY", { "nginx" => Nginx, "forwarded" => Forwarded });

/// The same for a kind that knows its words itself, by the list of its values and their `name`.
macro_rules! own_words {
    ($kind:ty, $list:ident, $label:literal, $expected:expr) => {
        impl Value for $kind {
            const NAME: &'static str = $label;
            const EXPECTED: &'static str = $expected;

            fn parse(text: &str) -> Option<Self> {
                Self::$list.into_iter().find(|value| value.name() == text)
            }
        }
    };
}

own_words!(Algorithm, NAMED, "ALGORITHM", Algorithm::EXPECTED);
own_words!(Cost, ALL, "COST", "one of the words expected: auto reported asked");
own_words!(StoreFailure, ALL, "MODE", "one of the words expected: error deny allow local");
own_words!(StoreFull, ALL, "MODE", "one of the words expected: deny allow");
own_words!(Sync, ALL, "MODE", "one of the words expected: strict leased");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_exact_but_log_levels_ignore_case() {
        assert_eq!(LogLevel::parse("WARN").map(LogLevel::name), Some("warn"));
        assert_eq!(Backend::parse("Memory"), None);
        assert_eq!(Algorithm::parse("fixed_window"), Some(Algorithm::FixedWindow));
    }

    #[test]
    fn every_word_is_expected() {
        fn all<T: Value + Copy>(values: &[T], name: fn(T) -> &'static str) {
            for value in values {
                assert!(T::EXPECTED.contains(name(*value)), "{}: {}", name(*value), T::EXPECTED);
            }
        }
        all(&Algorithm::NAMED, Algorithm::name);
        all(&Cost::ALL, Cost::name);
        all(&StoreFailure::ALL, StoreFailure::name);
        all(&StoreFull::ALL, StoreFull::name);
        all(&Sync::ALL, Sync::name);
    }
}
