//! `/rlconfig`: the limits in force, one per line, in the form of `envoyproxy/ratelimit`, sorted, with our own fields
//! at the end. Or everything about them, as YAML or as JSON. A header has their hash, because each line is a limit.
//!
//! Each piece is rendered when the previous one is taken. So a response that the client does not read keeps only one
//! piece in memory, and the rules, which exist anyway.

use serde_json::{Value, json};

use tidegate_engine::limit::{HoldTerms, Limit};
use tidegate_engine::rules::{Cost, Rule, RuleSet};
use tidegate_engine::text::{json_line, one_line};
use tidegate_engine::time::SECOND_NANOS;
use tidegate_serve::service::Snapshot;

/// A piece ends with the limit that reaches this length.
const PIECE_BYTES: usize = 16 * 1_024;

/// A form of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Lines,
    Yaml,
    Json,
}

/// The pieces of one page, in order.
pub(super) struct Listing {
    /// `None` if no rules were ever loaded.
    rules: Option<Snapshot>,
    format: Format,
    /// How many limits were listed. `None` when all were.
    listed: Option<usize>,
}

impl Listing {
    /// Lists all limits of `rules`. The first listing of a set sorts them, on a thread of its own.
    pub(super) async fn of(rules: Option<Snapshot>, format: Format) -> Self {
        let sorting = tokio::task::spawn_blocking(move || {
            rules.as_ref().map(Snapshot::by_path);
            rules
        });
        Self { rules: sorting.await.expect("sorting does not panic"), format, listed: Some(0) }
    }
}

impl Iterator for Listing {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let mut listed = self.listed?;
        let order = self.rules.as_ref().map_or(&[][..], Snapshot::by_path);
        let rules = self.rules.as_ref().map_or(&[][..], |rules| rules.rules().rules());
        let (begin, end) = if self.format == Format::Json { ("{\"limits\":[", "]}\n") } else { ("", "") };
        // The first rule of a node is before its ban and its holds.
        let mut is_first = listed == 0;
        let mut piece = if is_first { begin.to_owned() } else { String::new() };
        while let Some(&id) = order.get(listed)
            && piece.len() < PIECE_BYTES
        {
            listed += 1;
            let (rule, path) = (&rules[id], rules[id].path());
            // A ban is a part of the rule that it belongs to, and so are holds.
            if !rule.is_limit() {
                continue;
            }
            let parts = self.rules.as_ref().map_or_else(Parts::default, |set| Parts::of(set.rules(), rule));
            match self.format {
                Format::Lines => piece += &line(&path, rule, &parts),
                Format::Yaml => piece += &yaml(&limit(&path, rule, &parts)),
                Format::Json => {
                    piece += if is_first { "" } else { "," };
                    piece += &json_line(&limit(&path, rule, &parts).to_string());
                }
            }
            is_first = false;
        }
        self.listed = (listed < order.len()).then_some(listed);
        if self.listed.is_none() {
            piece += end;
        }
        Some(piece)
    }
}

/// What a rule has besides its limit.
#[derive(Default)]
struct Parts {
    ban: Option<String>,
    reserve: Option<HoldTerms>,
}

impl Parts {
    fn of(rules: &RuleSet, rule: &Rule) -> Self {
        Self { ban: rules.ban_text(rule), reserve: rules.holds_of(rule) }
    }
}

fn line(path: &str, rule: &Rule, Parts { ban, reserve }: &Parts) -> String {
    let Rule { shadow_mode, quota_mode, .. } = rule;
    let path = one_line(path);
    let (unit, requests, own) = match (&rule.limit, &rule.call_id) {
        (Some(limit), Some(id)) => {
            let own =
                format!("algorithm: {}, ttl: {}, id: {}", limit.algorithm().name(), ttl(limit), one_line(id));
            ("UNKNOWN".to_owned(), limit.requests(), own)
        }
        (Some(limit), None) => {
            let own = format!(
                "unit_multiplier: {}, algorithm: {}{}{}",
                rule.counting.window.multiplier,
                limit.algorithm().name(),
                limit.periods().map(|periods| format!(", period: {periods}")).unwrap_or_default(),
                if limit.carries_debt() { ", carry_debt: true" } else { "" }
            );
            (rule.counting.window.unit.name().to_uppercase(), limit.requests(), own)
        }
        (None, _) => ("UNKNOWN".to_owned(), 0, "unlimited: true".to_owned()),
    };
    let cost = if rule.cost.is_reported() { "" } else { ", cost: asked" };
    let ban = ban.as_ref().map(|ban| format!(", ban: {ban}")).unwrap_or_default();
    let reserve = reserve.map(|terms| format!(", reserve: {{{terms}}}")).unwrap_or_default();
    let prefix =
        rule.prefixes.as_ref().map(|prefixes| format!(", prefix: {{{prefixes}}}")).unwrap_or_default();
    let classes =
        rule.classes.as_ref().map(|classes| format!(", classes: {{{classes}}}")).unwrap_or_default();
    format!(
        "{path}: unit={unit} requests_per_unit={requests}, shadow_mode: {shadow_mode}, \
         quota_mode: {quota_mode}, {own}{cost}{prefix}{classes}{ban}{reserve}\n"
    )
}

/// The `ttl` of slots, as rules write it. They have no unit.
fn ttl(limit: &Limit) -> String {
    format!("{}s", limit.window_nanos() / SECOND_NANOS)
}

/// Everything about a limit.
fn limit(path: &str, rule: &Rule, Parts { ban, reserve }: &Parts) -> Value {
    let written = &rule.written;
    let mut shown = json!({
        "path": path,
        "domain": &*rule.domain,
        "file": &*written.file,
        "line": written.line,
        "unlimited": rule.limit.is_none(),
        "name": &*rule.name,
        "replaces": rule.replaces.iter().map(|name| &**name).collect::<Vec<_>>(),
        "shadow_mode": rule.shadow_mode,
        "quota_mode": rule.quota_mode,
        "metadata": rule.metadata,
    });
    if let Some(limit) = &rule.limit {
        match &rule.call_id {
            Some(id) => {
                shown["ttl"] = ttl(limit).into();
                shown["id"] = (**id).into();
            }
            None => {
                shown["unit"] = rule.counting.window.unit.name().to_uppercase().into();
                shown["unit_multiplier"] = rule.counting.window.multiplier.into();
            }
        }
        shown["requests_per_unit"] = limit.requests().into();
        shown["burst"] = limit.burst().into();
        shown["algorithm"] = limit.algorithm().name().into();
        if let Some(periods) = limit.periods() {
            shown["period"] = periods.to_string().into();
        }
        if limit.carries_debt() {
            shown["carry_debt"] = true.into();
        }
        let cost = if rule.cost.is_reported() { Cost::Reported } else { Cost::Asked };
        shown["cost"] = json!({"said": rule.cost.said().name(), "means": cost.name()});
    }
    if let Some(near) = rule.near {
        shown["near"] = near.into();
    }
    if let Some(classes) = &rule.classes {
        let shares = classes.shares.iter().map(|(name, share)| (name.to_string(), share.as_f64().into()));
        shown["classes"] = json!({"key": &*classes.key, "shares": Value::Object(shares.collect())});
    }
    if let Some(ban) = ban {
        shown["ban"] = ban.as_str().into();
    }
    if let Some(terms) = reserve {
        shown["reserve"] = terms.to_string().into();
    }
    if let Some(prefixes) = &rule.prefixes {
        shown["prefix"] = prefixes.to_string().into();
    }
    if let Some(candidate) = &rule.candidate {
        let limit = &candidate.limit;
        shown["candidate"] = json!({"requests_per_unit": limit.requests(), "burst": limit.burst()});
    }
    shown
}

/// An item of a YAML list. Its values are JSON, which YAML includes.
fn yaml(limit: &Value) -> String {
    let fields = limit.as_object().into_iter().flatten();
    let line = |(index, (name, value)): (usize, (&String, &Value))| {
        format!("{} {name}: {}\n", if index == 0 { "-" } else { " " }, json_line(&value.to_string()))
    };
    fields.enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_serve::service::fixture::{metrics, service};

    const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: hour, requests_per_unit: 10 }
    descriptors:
      - { key: tier, value: gold, rate_limit: { unlimited: true } }
  - key: path
    value: /api*
    shadow_mode: true
    rate_limit: { unit: minute, unit_multiplier: 5, requests_per_unit: 3, algorithm: fixed_window, near: 0.5 }
";

    async fn pieces(rules: Option<&str>, format: Format) -> Vec<String> {
        Listing::of(service(rules, &metrics()).snapshot().ok(), format).await.collect()
    }

    async fn page(format: Format) -> String {
        pieces(Some(RULES), format).await.concat()
    }

    #[tokio::test]
    async fn a_limit_is_a_line() {
        assert_eq!(
            page(Format::Lines).await,
            "shop.path_/api*: unit=MINUTE requests_per_unit=3, shadow_mode: true, quota_mode: false, \
             unit_multiplier: 5, algorithm: fixed_window\n\
             shop.user: unit=HOUR requests_per_unit=10, shadow_mode: false, quota_mode: false, \
             unit_multiplier: 1, algorithm: sliding_window\n\
             shop.user.tier_gold: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false, \
             unlimited: true\n"
        );
    }

    #[tokio::test]
    async fn slots_have_a_ttl_and_an_id_and_no_unit() {
        let rules = "domain: d\ndescriptors: [{key: user, concurrency: {slots: 3, ttl: 90s, id: call}}]";
        assert_eq!(
            pieces(Some(rules), Format::Lines).await.concat(),
            "d.user: unit=UNKNOWN requests_per_unit=3, shadow_mode: false, quota_mode: false, algorithm: concurrency, \
             ttl: 90s, id: call, cost: asked\n"
        );
        let page: Value =
            serde_json::from_str(&pieces(Some(rules), Format::Json).await.concat()).expect("JSON");
        let limit = &page["limits"][0];
        assert_eq!(
            (&limit["ttl"], &limit["id"], &limit["unit"]),
            (&json!("90s"), &json!("call"), &Value::Null)
        );
    }

    #[tokio::test]
    async fn a_ban_is_a_part_of_its_limit() {
        let rules = "domain: d\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 9}, \
                     ban: {after: 5 denials, within: 10m, for: 1h, doubling_to: 24h, on: [user]}}]";
        let terms = "5 denials within 600s, every 1s, for 3600s, doubling to 86400s, on user";
        assert_eq!(
            pieces(Some(rules), Format::Lines).await.concat(),
            format!(
                "d.user: unit=MINUTE requests_per_unit=9, shadow_mode: false, quota_mode: false, unit_multiplier: 1, \
                 algorithm: sliding_window, ban: {terms}\n"
            )
        );
        let page: Value =
            serde_json::from_str(&pieces(Some(rules), Format::Json).await.concat()).expect("JSON");
        assert_eq!(page["limits"].as_array().map(Vec::len), Some(1));
        assert_eq!(page["limits"][0]["ban"], terms);
    }

    #[tokio::test]
    async fn a_limit_of_each_prefix_has_a_line_and_names_classes() {
        let rules = "domain: d\ndescriptors: [{key: ip, prefix: {v4: 24, v6: {64: 1, 48: 3}}, \
                     classes: {key: class, shares: {high: 1.0, low: 0.5}}, rate_limit: {unit: minute, requests_per_unit: 9}}]";
        let line = |requests: u32, prefix: &str| {
            format!(
                "d.ip: unit=MINUTE requests_per_unit={requests}, shadow_mode: false, quota_mode: false, unit_multiplier: 1, \
                 algorithm: sliding_window, prefix: {{level 1: {prefix}}}, classes: {{class: high 1, low 0.5}}\n"
            )
        };
        assert_eq!(
            pieces(Some(rules), Format::Lines).await.concat(),
            line(9, "v4 24, v6 64") + &line(27, "v6 48")
        );
    }

    #[tokio::test]
    async fn without_rules_there_are_no_limits() {
        assert_eq!(pieces(None, Format::Lines).await.concat(), "");
        assert_eq!(pieces(None, Format::Json).await.concat(), "{\"limits\":[]}\n");
    }

    #[tokio::test]
    async fn yaml_and_json_hold_the_same() {
        let json: Value = serde_json::from_str(&page(Format::Json).await).expect("JSON");
        assert_eq!(json["limits"].as_array().map(Vec::len), Some(3));
        let api = &json["limits"][0];
        assert_eq!((&api["path"], &api["line"]), (&json!("shop.path_/api*"), &json!(8)));
        assert_eq!((&api["unit_multiplier"], &api["algorithm"]), (&json!(5), &json!("fixed_window")));
        assert_eq!((&api["near"], json["limits"][1].get("near")), (&json!(0.5), None));
        assert_eq!(json["limits"][2]["unlimited"], true);

        let yaml = page(Format::Yaml).await;
        assert_eq!(yaml.matches("\n- ").count() + usize::from(yaml.starts_with("- ")), 3);
        for limit in json["limits"].as_array().expect("a list") {
            for (name, value) in limit.as_object().expect("a mapping") {
                assert!(yaml.contains(&format!(" {name}: {value}\n")), "{name}: {value} in\n{yaml}");
            }
        }
    }

    #[tokio::test]
    async fn many_limits_come_in_pieces_that_are_rendered_when_they_are_asked_for() {
        let mut rules = "domain: shop\ndescriptors:\n".to_owned();
        for limit in 0..2_000 {
            rules +=
                &format!("  - {{ key: k{limit:04}, rate_limit: {{ unit: hour, requests_per_unit: 1 }} }}\n");
        }
        for format in [Format::Lines, Format::Yaml, Format::Json] {
            let pieces = pieces(Some(&rules), format).await;
            assert!(pieces.len() > 10, "{} pieces", pieces.len());
            assert!(pieces.iter().all(|piece| piece.len() < PIECE_BYTES + 1_024), "{format:?}");
            let page = pieces.concat();
            let paths: Vec<_> = page.split("shop.k").skip(1).map(|rest| &rest[..4]).collect();
            assert!(paths.len() == 2_000 && paths.is_sorted(), "{format:?}");
            if format == Format::Json {
                let limits: Value = serde_json::from_str(&page).expect("JSON");
                assert_eq!(limits["limits"].as_array().map(Vec::len), Some(2_000));
            }
        }
    }
}
