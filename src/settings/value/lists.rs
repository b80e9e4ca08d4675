//! Lists and maps.

use crate::settings::value::Value;
use tidegate_engine::text::percent_decoded;

/// Texts separated by commas.
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

/// Metadata of a node: `k=v,k=v`. The first `=` splits; an item without one is skipped.
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

/// Names and values in OpenTelemetry's form, `a=1,b=%20`. Malformed ones are left out, as its specification says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtelPairs(pub Vec<(String, String)>);

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

fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').take(if text.is_empty() { 0 } else { usize::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }

    #[test]
    fn metadata_of_a_node_skips_what_is_none() {
        let NodeMetadata(pairs) = NodeMetadata::parse("a=b=c,skipped,d=").expect("any text is metadata");
        assert_eq!(pairs, [("a".to_owned(), "b=c".to_owned()), ("d".to_owned(), String::new())]);
    }

    #[test]
    fn opentelemetrys_pairs_are_decoded() {
        let pairs = OtelPairs::parse(" a = b%20c=,d,=e,f=%zz,g=%+f,%C3%A4=%c3%a4").expect("never bad");
        let expected =
            [("a", "b c="), ("%C3%A4", "ä")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(pairs.0, expected);
    }
}
