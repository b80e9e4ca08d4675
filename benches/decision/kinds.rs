//! What a kind of rule costs beyond a plain one: prefixes of two lengths, classes of importance, bans.
//!
//! A decision is from the parts of a request to the answer.

use std::hint::black_box;

use tidegate_engine::decision::conclude;
use tidegate_engine::memory::{MemoryOptions, MemoryStore};
use tidegate_engine::plan::Modes;
use tidegate_engine::request::Request;
use tidegate_engine::rules::RuleSet;

use crate::{START, nanos, print_pair, rules_of};

const LIMIT: &str = "rate_limit: {unit: minute, requests_per_unit: 100000000}";

/// A rule set of one key, and the descriptor that is asked.
struct Asked {
    name: &'static str,
    rules: RuleSet,
    entries: &'static [(&'static str, &'static str)],
}

/// The pairs, and how many times the first one the second may take.
pub(crate) fn kinds() {
    println!("\na request of one descriptor, from its parts to the answer, by the kind of its rule");
    let address = &[("ip", "2001:db8:1:2::3")];
    let (user, named) = (&[("user", "alice")], &[("user", "alice"), ("class", "batch")]);
    let classes = "classes: {key: class, shares: {critical: 1.0, standard: 0.85, batch: 0.6}}";
    let one = |name, node: &str, entries| Asked {
        name,
        rules: rules_of(format!("domain: d\ndescriptors:\n  - {{{node}}}\n")),
        entries,
    };
    let key_of_two = format!("key: user, descriptors: [{{key: class, {LIMIT}}}]");
    let of_classes = format!("key: user, {LIMIT}, {classes}");
    let with_ban = |after: &str| {
        let limit = LIMIT.replace("100000000", "1");
        format!("key: user, {limit}, ban: {{after: {after}, within: 1s, for: 8760h}}")
    };
    let pairs = [
        (
            one("one prefix", &format!("key: ip, {LIMIT}, prefix: {{v6: 64}}"), address as &[_]),
            one(
                "prefixes of two lengths",
                &format!("key: ip, {LIMIT}, prefix: {{v6: {{64: 1, 48: 16}}}}"),
                address,
            ),
            1.6,
        ),
        (
            one("one entry", &format!("key: user, {LIMIT}"), user),
            one("classes, none named", &of_classes, user),
            1.1,
        ),
        (one("two entries", &key_of_two, named), one("classes, one named", &of_classes, named), 1.1),
        (
            one("a denial by a limit with a ban", &with_ban("1000"), user),
            one("banned", &with_ban("1"), user),
            0.5,
        ),
    ];
    for (first, second, most) in pairs {
        let pair = [first, second];
        print_pair([pair[0].name, pair[1].name], most, |which, _| pair[which].nanos());
    }
}

impl Asked {
    /// Processor time of a decision.
    fn nanos(&self) -> f64 {
        let store = MemoryStore::new(MemoryOptions::new(1 << 30));
        let decide = |call: usize| {
            let request = Request::new(black_box("d"), 1).descriptor(black_box(self.entries));
            let plan = self.rules.plan(&request, Modes::default());
            black_box(conclude(&plan, &store.apply(&plan, START.plus(call as u64 * 1_000))));
        };
        // Of limits of 1, the first passes, and the second may begin a ban.
        (0..2).for_each(decide);
        nanos(100_000, decide)
    }
}
