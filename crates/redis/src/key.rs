//! The key of a counter in Redis: the same on all nodes, and different for different counters.
//!
//! `<prefix><domain>|<the rule, 128 bits in hex>|<value>…` for the counters of a rule, and
//! `<prefix><domain>|~<unit>*<multiplier>.<algorithm>|<key>|<value>…` for limits that requests bring along. Every
//! part is escaped. So the key is unambiguous, and no value can choose a slot of a Cluster.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use tidegate_engine::plan::{Check, Origin};
use tidegate_engine::request::Entry;
use tidegate_engine::unit::Window;

/// How keys are written.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct KeyStyle {
    /// Put before every key, unescaped.
    pub prefix: String,
    /// Replaces the rest of the key by the SHA-256 of the whole, so that no value reaches Redis.
    pub hash: bool,
}

impl KeyStyle {
    /// Keys with this prefix, as text.
    pub fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), hash: false }
    }

    /// These keys, hashed or not.
    #[must_use]
    pub fn hashed_if(self, hash: bool) -> Self {
        Self { hash, ..self }
    }

    /// The key of this check's counter, for a descriptor of these entries in a request of this domain.
    pub fn key(&self, domain: &str, check: &Check<'_>, entries: &[Entry<'_>]) -> Vec<u8> {
        let mut key = self.prefix.clone();
        escape(&mut key, domain);
        match check.origin {
            Origin::Rule { rule, counting } => {
                key.push('|');
                hex(&mut key, &counting.shared.0);
                rule.counted(entries).for_each(|(_, value)| part(&mut key, &value));
            }
            Origin::Override { window: Window { unit, multiplier } } => {
                let algorithm = check.limit.algorithm().name();
                let _ = write!(key, "|~{}*{multiplier}.{algorithm}", unit.name());
                entries.iter().flat_map(|entry| [entry.key, entry.value]).for_each(|it| part(&mut key, it));
            }
        }
        if self.hash { self.hashed(&key) } else { key.into_bytes() }
    }

    /// The key of the holds of the counter under this key: in its slot, as the key of a candidate's counter.
    pub fn holds(&self, of: &[u8]) -> Vec<u8> {
        [self.prefix.as_bytes(), b"{", of, b"}h"].concat()
    }

    /// The key of a candidate's counter. In a Cluster it is in the slot of the rule's counter, because the key of
    /// that is its hash tag. It begins with the prefix, to which a user's rights in Redis may be limited. It differs
    /// from all keys but those of holds, because only there a brace follows the prefix.
    pub fn candidate(&self, of: &[u8]) -> Vec<u8> {
        [self.prefix.as_bytes(), b"{", of, b"}"].concat()
    }

    fn hashed(&self, key: &str) -> Vec<u8> {
        let mut hashed = self.prefix.clone();
        hex(&mut hashed, &Sha256::digest(key));
        hashed.into_bytes()
    }
}

fn part(key: &mut String, text: &str) {
    key.push('|');
    escape(key, text);
}

/// Escapes separators, and characters that a terminal should not print, as `%XX`.
fn escape(key: &mut String, text: &str) {
    let is_escaped = |byte| matches!(byte, b'%' | b'|' | b'{' | b'}' | ..=0x1f | 0x7f);
    let mut rest = text;
    // No longer character has a byte that is one of these.
    while let Some(place) = rest.bytes().position(is_escaped) {
        key.push_str(&rest[..place]);
        let _ = write!(key, "%{:02X}", rest.as_bytes()[place]);
        rest = &rest[place + 1..];
    }
    key.push_str(rest);
}

fn hex(key: &mut String, bytes: &[u8]) {
    let digit = |number: u8| char::from(b"0123456789abcdef"[usize::from(number)]);
    key.reserve(2 * bytes.len());
    for byte in bytes {
        key.push(digit(byte >> 4));
        key.push(digit(byte & 15));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::topology::slot_of;
    use tidegate_engine::key::KeySecret;
    use tidegate_engine::plan::{Modes, Step};
    use tidegate_engine::request::{DescriptorOptions, Override, Request};
    use tidegate_engine::rules::{LoadOptions, RuleSet, SourceFile, Unit, load};

    /// Rules that are easily confused: values, patterns and nodes without a value, one below another.
    const RULES: &str = "
domain: '{a|b}'
descriptors:
  - key: k
    rate_limit: &limit {unit: minute, requests_per_unit: 2}
    descriptors:
      - {key: k, rate_limit: *limit}
      - {key: '|', rate_limit: *limit}
  - {key: k, value: 'x', rate_limit: *limit}
  - {key: k, value: 'x*', rate_limit: *limit}
  - {key: k, value: 'y*', share_threshold: true, rate_limit: *limit}
  - {key: k, value: '|', rate_limit: {unit: minute, requests_per_unit: 2, algorithm: sliding_log}}
  - {key: ip, prefix: {v6: 64}, rate_limit: *limit}
";

    fn rules(secret: u8) -> RuleSet {
        let file = SourceFile { name: "a.yaml".into(), bytes: RULES.into(), presumed: false };
        let options = LoadOptions::new(KeySecret::new([secret; 16]));
        load(&[file], &options).expect("good rules").rules
    }

    type Descriptor = (Vec<(String, String)>, bool);

    /// The key in the engine and the key in Redis of a descriptor, if it has a counter.
    fn keys(rules: &RuleSet, (entries, overridden): &Descriptor, hash: bool) -> Option<(u128, Vec<u8>)> {
        let limit = Override { requests_per_unit: 1, window: Window::of(Unit::Day) };
        let limit = overridden.then_some(limit);
        let mut request = Request::new("{a|b}", 1);
        let entries: Vec<Entry<'_>> = entries.iter().map(|(key, value)| Entry { key, value }).collect();
        request.push(entries.iter().copied(), DescriptorOptions { limit, ..DescriptorOptions::default() });
        let plan = rules.plan(&request, Modes::default());
        let Step::Check(check) = &plan.steps[0] else { return None };
        let style = KeyStyle { prefix: "p".into(), hash };
        Some((check.key.0, style.key(request.domain(), check, &entries)))
    }

    fn descriptor() -> impl Strategy<Value = Descriptor> {
        let text = prop::sample::select(vec![
            "", "k", "x", "xx", "y", "yy", "|", "||", "%7C", "{k}", "k|k", "::1", "::2", "[::1]", "::/64",
            "1::1", "1.2.3.4",
        ]);
        let key = prop::sample::select(vec!["k", "k", "k", "ip", "ip", "|", ""]);
        let entry = (key, text).prop_map(|(key, value)| (key.to_owned(), value.to_owned()));
        (prop::collection::vec(entry, 0..4), any::<bool>())
    }

    #[test]
    fn the_keys_of_a_counter_are_three_in_one_slot() {
        for style in [KeyStyle::new(""), KeyStyle::new("p:")] {
            let own = [style.prefix.as_bytes(), b"shop|0|a"].concat();
            let keys = [own.clone(), style.holds(&own), style.candidate(&own)];
            let slots = keys.each_ref().map(|key| slot_of(key));
            assert_eq!(slots, [slots[0]; 3], "of a Cluster");
            assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2]);
            assert!(keys.iter().all(|key| key.starts_with(style.prefix.as_bytes())), "rights may end there");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        #[test]
        fn keys_are_equal_exactly_when_counters_are(one in descriptor(), other in descriptor()) {
            thread_local!(static RULES: [RuleSet; 2] = [rules(1), rules(2)]);
            RULES.with(|[rules, elsewhere]| {
                let (Some((own, key)), Some((others, other_key))) =
                    (keys(rules, &one, false), keys(rules, &other, false)) else { return Ok(()) };
                prop_assert_eq!(own == others, key == other_key);
                let braces = key.iter().any(|byte| b"{}".contains(byte));
                prop_assert_eq!(braces, false);
                let on_another_node = keys(elsewhere, &one, false).map(|(_, key)| key);
                prop_assert_eq!(Some(&key), on_another_node.as_ref());
                let hashed = |of| keys(rules, of, true).map(|(_, key)| key);
                prop_assert_eq!(own == others, hashed(&one) == hashed(&other));
                Ok(())
            })?;
        }
    }
}
