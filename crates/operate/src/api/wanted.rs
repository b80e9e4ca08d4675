//! Which exceptions a list shows: those that contain a text, and only the first of them.
//!
//! In: the query of a request. Out: the exceptions that match it, in the order of their ids.

use std::sync::Arc;

use super::{Problem, invalid};
use crate::exceptions::Authored;
use crate::page::parameter;
use tidegate_engine::text::query_decoded;

/// Bytes of the text to search for.
const FIND_BYTES_MAX: usize = 1_024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// In lower case. Empty: all match.
    find: String,
    most: usize,
}

impl Wanted {
    /// Reads `find` and `most`, both of which may be absent.
    pub(super) fn of(query: &str) -> Result<Self, Problem> {
        let find = query_decoded(parameter(query, "find").unwrap_or_default())
            .map_err(|_| invalid("find: is not percent-encoded UTF-8"))?;
        if find.len() > FIND_BYTES_MAX {
            return Err(invalid(&format!("find: is longer than {FIND_BYTES_MAX} bytes")));
        }
        let most = parameter(query, "most").map_or(Ok(usize::MAX), str::parse);
        let most = most.map_err(|_| invalid("most: expected a whole number"))?;
        Ok(Self { find: find.to_lowercase(), most })
    }

    /// Those of `all` that match. Takes some milliseconds for 100,000.
    pub(super) fn among(&self, all: Vec<Arc<Authored>>) -> Vec<Arc<Authored>> {
        all.into_iter().filter(|record| self.is_in(record)).take(self.most).collect()
    }

    /// Whether the id contains the text, or an entry as `key=value`, or the fields `who` or `why`.
    fn is_in(&self, record: &Authored) -> bool {
        let has = |text: &str| text.to_lowercase().contains(&self.find);
        let path = &record.exception.path;
        let mut entries = path.entries.iter().map(|level| match &level.value {
            None => level.key.clone(),
            Some(value) => format!("{}={value}", level.key),
        });
        self.find.is_empty()
            || [&*record.id, &*path.domain, &*record.who, &*record.why].into_iter().any(has)
            || entries.any(|entry| has(&entry))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(query: &str) -> Vec<String> {
        let record = |id: &str, value: &str| {
            let exception = json!({"domain": "shop", "entries": [{"key": "user", "value": value}, {"key": "tier"}],
                "deny": true, "who": "Jane", "why": "a launch"});
            Arc::new(Authored::of_client(id, &exception).expect("good"))
        };
        let all = vec![record("a", "alice"), record("b", "Bob & co"), record("c", "carol")];
        let wanted = Wanted::of(query).expect("a good query");
        wanted.among(all).iter().map(|record| record.id.clone()).collect()
    }

    #[test]
    fn a_text_is_found_wherever_it_stands() {
        assert_eq!(found(""), ["a", "b", "c"]);
        assert_eq!(found("find=&most=2"), ["a", "b"]);
        assert_eq!(found("most=0"), [""; 0]);
        for (query, ids) in [
            ("find=user=b", &["b"][..]),
            ("find=USER%3DBOB%20%26", &["b"]),
            ("find=jane&most=1", &["a"]),
            ("find=tier", &["a", "b", "c"]),
            ("find=LAUNCH", &["a", "b", "c"]),
            ("find=nobody", &[]),
        ] {
            assert_eq!(found(query), ids, "{query}");
        }
    }

    #[test]
    fn a_bad_query_is_refused_by_the_name_of_its_parameter() {
        let long = format!("find={}", "x".repeat(FIND_BYTES_MAX + 1));
        for (query, named) in
            [("most=-1", "most: "), ("most=", "most: "), ("find=%zz", "find: "), (&long, "find: ")]
        {
            let Problem(_, text) = Wanted::of(query).expect_err(query);
            assert!(text.starts_with(named), "{query}: {text}");
        }
    }
}
