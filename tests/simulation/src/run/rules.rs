//! The rules of a scenario, as a file of rules says them.
//!
//! In: the limits of a scenario, and their version. Out: the rules that a node takes.

use tidegate_engine::key::KeySecret;
use tidegate_engine::limit::{Algorithm, DEFAULT_BUCKETS};
use tidegate_engine::rules::{Cost, LoadOptions, RuleSet, SourceFile, load};

use super::Run;
use super::cluster;
use super::names::{CLASSES, NODES};
use crate::scenario::{Ban, Classes, FULL, Further, Hold, LimitSpec, Reserve, Scenario};
use crate::world::{MILLI, SECOND};

impl Run {
    /// The rules of a version, for one process: what it learns no other one knows.
    pub(super) fn rules(&self, version: usize) -> RuleSet {
        rules(&self.scenario, version, cluster::secret(self.scenario.layout))
    }
}

/// The rules of a version, whose counters have keys under this secret.
pub(super) fn rules(scenario: &Scenario, version: usize, secret: KeySecret) -> RuleSet {
    let limits = &scenario.limits;
    let is_first = |number: &usize| {
        let limit = &limits[*number];
        !limit.is_override && limit.shape.below.is_none() && limit.further.is_none()
    };
    let rules = (0..limits.len()).filter(is_first).flat_map(|number| nodes(limits, number, version));
    let rules: String = rules.map(|node| format!("  - {node}\n")).collect();
    let replaces = replaces(scenario.unlimited_replaces);
    let text = format!(
        "domain: sim\ndescriptors:\n  - {{key: none, rate_limit: {{unlimited: true{replaces}}}}}\n{rules}"
    );
    let file = SourceFile { name: "sim.yaml".into(), bytes: text.clone().into(), presumed: false };
    let loaded = load(&[file], &LoadOptions::new(secret).default_cost(Cost::Asked)).expect("good rules");
    // Small limits have classes that may use nothing.
    let mut warnings = loaded.warnings.iter().filter(|it| !it.message.contains("is no hit"));
    assert_eq!(warnings.next(), None, "{text}");
    loaded.rules
}

/// The nodes of a limit, with all that is below.
fn nodes(limits: &[LimitSpec], number: usize, version: usize) -> Vec<String> {
    let limit = &limits[number];
    let is_below = |other: &usize| limits[*other].shape.below == Some(number);
    let below: Vec<_> =
        (0..limits.len()).filter(is_below).flat_map(|other| nodes(limits, other, version)).collect();
    let below = match below.is_empty() {
        true => String::new(),
        false => format!(", descriptors: [{}]", below.join(", ")),
    };
    let failure = limit.failure.name();
    let sync = if limit.is_leased { ", sync: leased" } else { "" };
    let records = if limit.recorded.is_some() { "limits_from: store, " } else { "" };
    let classes = limit.shape.classes.map(classes).unwrap_or_default();
    let ban = limit.shape.ban.map(|terms| ban(&terms)).unwrap_or_default();
    let reserve = limit.shape.reserve.map(reserve).unwrap_or_default();
    let quota = if limit.shape.is_quota { "quota_mode: true, " } else { "" };
    let cost = if limit.is_reported { "reported" } else { "asked" };
    let burst = limit.burst.map(|burst| format!(", burst: {burst}")).unwrap_or_default();
    let debt = if limit.shape.carries_debt { ", carry_debt: true" } else { "" };
    let candidate =
        limit.candidate.map(|n| format!(", candidate: {{requests_per_unit: {n}}}")).unwrap_or_default();
    let counts = match limit.algorithm {
        Algorithm::Calendar => {
            let ending = limit.shape.ending.map(|ending| ending.period);
            format!("period: {}", ending.unwrap_or("{calendar: day, tz: UTC}"))
        }
        algorithm => {
            let window = limit.window_secs[version];
            let granularity = match limit.buckets {
                DEFAULT_BUCKETS => String::new(),
                buckets => format!(", granularity: {}ms", 1_000 * window / buckets),
            };
            format!("window: {window}s, algorithm: {}{granularity}", algorithm.name())
        }
    };
    let says = format!(
        "{records}{classes}{ban}{reserve}{quota}shadow_mode: {}, rate_limit: {{name: n{number}, {counts}, requests_per_unit: {}, \
         on_store_failure: {failure}, cost: {cost}{sync}{burst}{debt}{candidate}{}}}{below}",
        limit.is_shadow,
        limit.requests[version],
        replaces(limit.shape.replaces),
    );
    let further: Vec<&LimitSpec> = limits.iter().filter(|other| other.is_further_of(number)).collect();
    let more = further.iter().filter(|other| other.is_slots());
    let more: String = more.map(|slots| format!("{}, ", concurrency(slots, number, version))).collect();
    let says = match limit.algorithm {
        Algorithm::Concurrency => {
            format!("shadow_mode: {}, {}{below}", limit.is_shadow, concurrency(limit, number, version))
        }
        _ => format!("{more}{says}"),
    };
    let prefix = if limit.shape.has_prefix { prefix(&further) } else { String::new() };
    let node = |value: &Option<&str>| match value {
        Some(value) => format!("{{key: l{number}, value: \"{value}\", {says}}}"),
        None => format!("{{key: l{number}, {prefix}{says}}}"),
    };
    let values = if limit.shape.has_nodes { &NODES[..] } else { &[None] };
    values.iter().map(node).collect()
}

fn concurrency(slots: &LimitSpec, number: usize, version: usize) -> String {
    let LimitSpec { requests, window_secs, failure, shape, .. } = slots;
    let name = if slots.further.is_some() { String::new() } else { format!("name: n{number}, ") };
    format!(
        "concurrency: {{{name}slots: {}, ttl: {}s, id: call, on_store_failure: {}{}}}",
        requests[version],
        window_secs[version],
        failure.name(),
        replaces(shape.replaces),
    )
}

/// The lengths of a rule that counts addresses by their prefixes.
fn prefix(further: &[&LimitSpec]) -> String {
    let of_family = |own: bool, longest: u32| {
        let shorter = further.iter().filter_map(|other| match other.further {
            Some((_, Further::Shorter { is_v6, len, factor })) if is_v6 == own => Some((len, factor)),
            _ => None,
        });
        let lengths = std::iter::once((longest, 1)).chain(shorter);
        lengths.map(|(len, factor)| format!("{len}: {factor}")).collect::<Vec<_>>().join(", ")
    };
    format!("prefix: {{v4: {{{}}}, v6: {{{}}}}}, ", of_family(false, 24), of_family(true, 64))
}

fn classes(shares: Classes) -> String {
    let share = |millionths: u64| format!("{}.{:06}", millionths / FULL, millionths % FULL);
    let shares = CLASSES.iter().zip(shares).map(|(name, own)| format!("{name}: {}", share(own)));
    format!("classes: {{key: class, shares: {{{}}}}}, ", shares.collect::<Vec<_>>().join(", "))
}

fn ban(Ban { after, within, every, first, longest, on }: &Ban) -> String {
    let on = on.map(|limit| format!(", on: [l{limit}]")).unwrap_or_default();
    format!(
        "ban: {{after: {after}, within: {}s, every: {}ms, for: {}s, doubling_to: {}s{on}}}, ",
        within / SECOND,
        every / MILLI,
        first / SECOND,
        longest / SECOND
    )
}

fn reserve(Reserve { ttl, charges, hold }: Reserve) -> String {
    let expired = if charges { "charge" } else { "free" };
    let hold = hold.map(|Hold { percentile, is_of_counter, initial, max, overdraft }| {
        let of = if is_of_counter { "counter" } else { "rule" };
        format!(
            ", overdraft: {}.{:03}, hold: {{percentile: {percentile}, of: {of}, initial: {initial}, max: {max}}}",
            overdraft / 1_000,
            overdraft % 1_000
        )
    });
    format!("reserve: {{ttl: {}s, expired: {expired}{}}}, ", ttl / SECOND, hold.unwrap_or_default())
}

fn replaces(limit: Option<usize>) -> String {
    limit.map(|number| format!(", replaces: [{{name: n{number}}}]")).unwrap_or_default()
}
