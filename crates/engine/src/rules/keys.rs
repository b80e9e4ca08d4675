//! The keys of rule files: which there are, where each may stand, and the message for an unknown one.
//!
//! There are two vocabularies. For a key of descriptors and limits that is in a wrong place there is only a warning,
//! because `envoyproxy/ratelimit` loads it silently. Keys that its format does not have (`rate_limits` and everything
//! in it, with Envoy's names) are errors outside of their own place.

use crate::rules::quote::{QUOTED_CHARS_MAX, quote};

/// The kinds of mappings that rule files are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    File,
    /// An item of a file of Limitador's limits.
    Limit,
    Descriptor,
    /// A `value` that is a mapping: a pattern.
    Value,
    Prefix,
    RateLimit,
    Classes,
    Period,
    Concurrency,
    Ban,
    Reserve,
    /// `hold` of `reserve`.
    Hold,
    Candidate,
    Replaces,
    /// An item of `rate_limits`.
    Actions,
    /// An item of `actions`.
    Action,
    RemoteAddress,
    MaskedRemoteAddress,
    RequestHeaders,
    QueryParameters,
    GenericKey,
    HeaderValueMatch,
    Metadata,
    MetadataKey,
    /// An item of `path`.
    MetadataSegment,
    HitsAddend,
    /// An item of `headers`.
    HeaderMatcher,
    StringMatch,
}

/// A key that is known to a section.
pub(super) struct KnownKey {
    pub(super) name: &'static str,
    /// It belongs into this section.
    pub(super) is_here: bool,
}

/// The keys of descriptors and limits, and where each may stand.
const KEYS: [(&str, &[Section]); 36] = [
    ("domain", &[Section::File]),
    ("descriptors", &[Section::File, Section::Descriptor]),
    ("key", &[Section::Descriptor]),
    ("value", &[Section::Descriptor]),
    ("rate_limit", &[Section::Descriptor]),
    ("concurrency", &[Section::Descriptor]),
    ("ban", &[Section::Descriptor]),
    ("reserve", &[Section::Descriptor]),
    ("shadow_mode", &[Section::Descriptor]),
    ("quota_mode", &[Section::Descriptor]),
    ("detailed_metric", &[Section::Descriptor]),
    ("value_to_metric", &[Section::Descriptor]),
    ("metrics", &[Section::Descriptor]),
    ("share_threshold", &[Section::Descriptor]),
    ("prefix", &[Section::Descriptor]),
    ("metadata", &[Section::Descriptor]),
    ("limits_from", &[Section::Descriptor]),
    ("classes", &[Section::Descriptor]),
    ("unit", &[Section::RateLimit]),
    ("unit_multiplier", &[Section::RateLimit]),
    ("window", &[Section::RateLimit]),
    ("period", &[Section::RateLimit]),
    ("requests_per_unit", &[Section::RateLimit]),
    ("unlimited", &[Section::RateLimit]),
    ("name", &[Section::RateLimit, Section::Replaces]),
    ("replaces", &[Section::RateLimit]),
    ("algorithm", &[Section::RateLimit]),
    ("granularity", &[Section::RateLimit]),
    ("burst", &[Section::RateLimit]),
    ("candidate", &[Section::RateLimit]),
    ("sync", &[Section::RateLimit]),
    ("on_store_failure", &[Section::RateLimit]),
    ("cost", &[Section::RateLimit]),
    ("near", &[Section::RateLimit]),
    ("carry_debt", &[Section::RateLimit]),
    (MERGE, &[]),
];

/// Merges the fields of another mapping; allowed everywhere.
pub(super) const MERGE: &str = "<<";

/// Names in Envoy's route configuration that are not supported here.
const OTHER_WORDS_OF_ENVOY: [&str; 24] = [
    "stage",
    "disable_key",
    "limit",
    "x_ratelimit_option",
    "source_cluster",
    "destination_cluster",
    "dynamic_metadata",
    "extension",
    "query_parameter_value_match",
    "default_value",
    "exact_match",
    "prefix_match",
    "suffix_match",
    "contains_match",
    "range_match",
    "safe_regex",
    "safe_regex_match",
    "treat_missing_header_as_empty",
    "regex",
    "custom",
    "query_parameters_match",
    "formatter",
    "remote_address_match",
    "is_negative_hits",
];

impl Section {
    /// The keys that only this section knows.
    pub(super) const fn own_keys(self) -> &'static [&'static str] {
        match self {
            Self::File => &["rate_limits", "normalize_path"],
            Self::Descriptor | Self::RateLimit | Self::Replaces | Self::RemoteAddress => &[],
            Self::Limit => &["namespace", "max_value", "seconds", "name", "id", "conditions", "variables"],
            Self::Value => &["in", "cidr", "cidr_file", "regex"],
            Self::Prefix => &["v4", "v6", "not_an_address", "nat64"],
            Self::Classes => &["key", "shares"],
            Self::Period => &["calendar", "tz", "anchor"],
            Self::Concurrency => {
                &["slots", "ttl", "id", "retry", "name", "replaces", "on_store_failure", "near"]
            }
            Self::Ban => &["after", "within", "every", "for", "doubling_to", "on"],
            Self::Reserve => &["ttl", "expired", "retry", "overdraft", "hold"],
            Self::Hold => &["percentile", "of", "initial", "max"],
            Self::Candidate => &["requests_per_unit", "burst"],
            Self::Actions => &["actions", "hits_addend", "apply_on_stream_done"],
            Self::Action => &[
                "remote_address",
                "masked_remote_address",
                "request_headers",
                "query_parameters",
                "generic_key",
                "header_value_match",
                "metadata",
            ],
            Self::MaskedRemoteAddress => &["v4_prefix_mask_len", "v6_prefix_mask_len"],
            Self::RequestHeaders => &["header_name", "descriptor_key", "skip_if_absent"],
            Self::QueryParameters => &["query_parameter_name", "descriptor_key", "skip_if_absent"],
            Self::GenericKey => &["descriptor_key", "descriptor_value"],
            Self::HeaderValueMatch => &["descriptor_key", "descriptor_value", "expect_match", "headers"],
            Self::Metadata => {
                &["descriptor_key", "metadata_key", "default_value", "source", "skip_if_absent"]
            }
            Self::MetadataKey => &["key", "path"],
            Self::MetadataSegment => &["key"],
            Self::HitsAddend => &["number", "format"],
            Self::HeaderMatcher => &["name", "string_match", "present_match", "invert_match"],
            Self::StringMatch => &["exact", "prefix", "suffix", "contains", "ignore_case"],
        }
    }

    /// The keys that this section shares with others.
    const fn shared_keys(self) -> &'static [(&'static str, &'static [Self])] {
        match self {
            Self::File | Self::Descriptor | Self::RateLimit | Self::Replaces => &KEYS,
            _ => &[(MERGE, &[])],
        }
    }

    /// The key of this name, if the section knows it.
    pub(super) fn key(self, name: &str) -> Option<KnownKey> {
        let own = self.own_keys().iter().find(|own| **own == name);
        own.map(|name| KnownKey { name, is_here: true }).or_else(|| {
            let &(name, sections) = self.shared_keys().iter().find(|(shared, _)| *shared == name)?;
            Some(KnownKey { name, is_here: sections.contains(&self) })
        })
    }

    /// The message for a key that the section does not know.
    pub(super) fn unknown_key(self, key: &str) -> String {
        if self.is_of_envoy() {
            let expected = match self.own_keys() {
                [] => "nothing in it".to_owned(),
                own => own.join(", "),
            };
            return match OTHER_WORDS_OF_ENVOY.contains(&key) {
                true => format!("`{key}` of Envoy's is not supported here (expected {expected})"),
                false => format!("unknown key {} (expected {expected})", quote(key)),
            };
        }
        let own = self.own_keys().join(", ");
        match self {
            Self::Limit => return format!("unknown key {} in a limit (expected {own})", quote(key)),
            Self::Candidate => {
                return format!(
                    "unknown key {} (expected {own}; all else is as in `rate_limit`)",
                    quote(key)
                );
            }
            Self::Value => return format!("unknown key {} in `value` (expected {own})", quote(key)),
            Self::Prefix => return format!("unknown key {} in `prefix` (expected {own})", quote(key)),
            Self::Classes => return format!("unknown key {} in `classes` (expected {own})", quote(key)),
            Self::Period => return format!("unknown key {} in `period` (expected {own})", quote(key)),
            Self::Concurrency => {
                return format!("unknown key {} in `concurrency` (expected {own})", quote(key));
            }
            Self::Ban => return format!("unknown key {} in `ban` (expected {own})", quote(key)),
            Self::Reserve => return format!("unknown key {} in `reserve` (expected {own})", quote(key)),
            Self::Hold => return format!("unknown key {} in `hold` (expected {own})", quote(key)),
            _ => {}
        }
        let short: String = key.chars().take(QUOTED_CHARS_MAX).collect();
        let shared = self.shared_keys().iter().map(|&(name, _)| name).filter(|name| *name != MERGE);
        let known = self.own_keys().iter().copied().chain(shared);
        let closest = known.min_by_key(|name| strsim::levenshtein(name, &short)).unwrap_or_default();
        format!("unknown key {} (expected a known key; the closest is `{closest}`)", quote(key))
    }

    /// It is inside `rate_limits`.
    const fn is_of_envoy(self) -> bool {
        !matches!(
            self,
            Self::File
                | Self::Limit
                | Self::Descriptor
                | Self::Value
                | Self::Prefix
                | Self::RateLimit
                | Self::Classes
                | Self::Period
                | Self::Concurrency
                | Self::Ban
                | Self::Reserve
                | Self::Hold
                | Self::Candidate
                | Self::Replaces
        )
    }
}

/// The key of this name in any section, except [`MERGE`].
pub(super) fn known_key(name: &str) -> Option<&'static str> {
    KEYS.iter().map(|&(known, _)| known).find(|&known| known == name && known != MERGE)
}

/// The message for a key of [`KEYS`] in a section where it does not belong.
pub(super) fn misplaced_key(name: &str) -> String {
    let sections = KEYS.iter().find(|(known, _)| *known == name).map_or(&[][..], |(_, sections)| *sections);
    let places: Vec<&str> = sections
        .iter()
        .map(|section| match section {
            Section::Descriptor => "in a descriptor",
            Section::RateLimit => "inside `rate_limit`",
            Section::Replaces => "inside `replaces`",
            _ => "at the top of the file",
        })
        .collect();
    let places = places.join(" or ");
    match name {
        "rate_limit" => {
            format!("`{name}` is ignored here, and limits nothing (expected {places}, next to its `key`)")
        }
        _ => format!("`{name}` is ignored here (expected {places})"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_closest_key_is_named() {
        for (typo, meant) in
            [("shadow_mod", "shadow_mode"), ("requests_per_units", "requests_per_unit"), ("Key", "key")]
        {
            let message = Section::Descriptor.unknown_key(typo);
            assert!(message.ends_with(&format!("the closest is `{meant}`)")), "{message}");
        }
    }

    #[test]
    fn rate_limits_is_a_typo_wherever_it_does_not_belong() {
        assert!(Section::File.key("rate_limits").is_some());
        assert!(Section::Descriptor.key("rate_limits").is_none());
        assert!(Section::Actions.key("key").is_none());
    }

    /// Editors would underline a key that the schema does not have.
    #[test]
    fn the_schema_has_the_keys_of_each_section() {
        let schema: serde_json::Value = serde_json::from_str(crate::rules::SCHEMA).expect("JSON");
        for (name, section) in [
            ("", Section::File),
            ("/definitions/descriptor", Section::Descriptor),
            ("/definitions/value", Section::Value),
            ("/definitions/prefix", Section::Prefix),
            ("/definitions/rate_limit", Section::RateLimit),
            ("/definitions/classes", Section::Classes),
            ("/definitions/period", Section::Period),
            ("/definitions/concurrency", Section::Concurrency),
            ("/definitions/ban", Section::Ban),
            ("/definitions/reserve", Section::Reserve),
            ("/definitions/hold", Section::Hold),
            ("/definitions/candidate", Section::Candidate),
            ("/definitions/replaces", Section::Replaces),
            ("/definitions/rate_limits", Section::Actions),
            ("/definitions/action", Section::Action),
            ("/definitions/remote_address", Section::RemoteAddress),
            ("/definitions/masked_remote_address", Section::MaskedRemoteAddress),
            ("/definitions/request_headers", Section::RequestHeaders),
            ("/definitions/query_parameters", Section::QueryParameters),
            ("/definitions/generic_key", Section::GenericKey),
            ("/definitions/header_value_match", Section::HeaderValueMatch),
            ("/definitions/metadata", Section::Metadata),
            ("/definitions/metadata_key", Section::MetadataKey),
            ("/definitions/metadata_segment", Section::MetadataSegment),
            ("/definitions/hits_addend", Section::HitsAddend),
            ("/definitions/header_matcher", Section::HeaderMatcher),
            ("/definitions/string_match", Section::StringMatch),
        ] {
            let properties = schema.pointer(&format!("{name}/properties")).and_then(|it| it.as_object());
            let properties: BTreeSet<_> = properties.expect("an object").keys().map(String::as_str).collect();
            let shared = KEYS.iter().filter(|(_, places)| places.contains(&section)).map(|(key, _)| *key);
            assert_eq!(properties, shared.chain(section.own_keys().iter().copied()).collect(), "{name}");
        }
    }

    #[test]
    fn no_word_is_supported_and_not_supported_in_one_section() {
        for section in [Section::Actions, Section::Action, Section::HeaderMatcher, Section::StringMatch] {
            let both = section.own_keys().iter().find(|key| OTHER_WORDS_OF_ENVOY.contains(key));
            assert_eq!(both, None, "{section:?}");
        }
    }
}
