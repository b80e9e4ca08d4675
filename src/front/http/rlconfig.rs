//! `/rlconfig`: the limits in force, a line each, in the form that `envoyproxy/ratelimit` gives them; sorted, and with
//! our own fields at the end. Or all that is known of them, as YAML or as JSON.

use serde_json::{Value, json};

use crate::engine::rules::{Rule, RuleSet};
use crate::engine::text::{json_line, one_line};

/// A form of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Lines,
    Yaml,
    Json,
}

/// All limits. `None`: no rules were ever loaded.
pub(super) fn render(rules: Option<&RuleSet>, format: Format) -> String {
    let rules = rules.map_or(&[][..], RuleSet::rules).iter();
    let mut paths: Vec<_> = rules.map(|rule| (rule.path(), rule)).collect();
    paths.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    let limits = paths.iter();
    match format {
        Format::Lines => limits.map(|(path, rule)| line(path, rule)).collect(),
        Format::Yaml => limits.map(|(path, rule)| yaml(&limit(path, rule))).collect(),
        Format::Json => {
            let limits: Vec<_> = limits.map(|(path, rule)| limit(path, rule)).collect();
            format!("{}\n", json_line(&json!({ "limits": limits }).to_string()))
        }
    }
}

fn line(path: &str, rule: &Rule) -> String {
    let Rule { shadow_mode, quota_mode, .. } = rule;
    let path = one_line(path);
    let (unit, requests, own) = match &rule.limit {
        Some(limit) => {
            let own =
                format!("unit_multiplier: {}, algorithm: {}", rule.unit_multiplier, limit.algorithm().name());
            (rule.unit.name().to_uppercase(), limit.requests(), own)
        }
        None => ("UNKNOWN".to_owned(), 0, "unlimited: true".to_owned()),
    };
    format!(
        "{path}: unit={unit} requests_per_unit={requests}, shadow_mode: {shadow_mode}, \
         quota_mode: {quota_mode}, {own}\n"
    )
}

/// All that is known of a limit.
fn limit(path: &str, rule: &Rule) -> Value {
    let written = &rule.written;
    let mut told = json!({
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
        told["unit"] = rule.unit.name().to_uppercase().into();
        told["unit_multiplier"] = rule.unit_multiplier.into();
        told["requests_per_unit"] = limit.requests().into();
        told["burst"] = limit.burst().into();
        told["algorithm"] = limit.algorithm().name().into();
    }
    told
}

/// An item of a list. Its values are JSON, which YAML holds.
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
    use crate::engine::key::KeySecret;
    use crate::engine::limit::Algorithm;
    use crate::engine::rules::{Cost, LoadOptions, SourceFile, load};

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
    rate_limit: { unit: minute, unit_multiplier: 5, requests_per_unit: 3, algorithm: fixed_window }
";

    fn options() -> LoadOptions {
        LoadOptions {
            default_algorithm: Algorithm::SlidingWindow,
            default_cost: Cost::default(),
            merge_domains: false,
            strict: false,
            max_file_bytes: 1 << 20,
            secret: KeySecret::new([7; 16]),
        }
    }

    #[test]
    fn a_limit_is_a_line() {
        let file =
            SourceFile { name: "shop.yaml".to_owned(), bytes: RULES.as_bytes().to_vec(), presumed: false };
        let rules = load(&[file], &options()).expect("good rules").rules;
        assert_eq!(
            render(Some(&rules), Format::Lines),
            "shop.path_/api*: unit=MINUTE requests_per_unit=3, shadow_mode: true, quota_mode: false, \
             unit_multiplier: 5, algorithm: fixed_window\n\
             shop.user: unit=HOUR requests_per_unit=10, shadow_mode: false, quota_mode: false, \
             unit_multiplier: 1, algorithm: sliding_window\n\
             shop.user.tier_gold: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false, \
             unlimited: true\n"
        );
        assert_eq!(render(None, Format::Lines), "");
    }

    #[test]
    fn yaml_and_json_hold_the_same() {
        let file =
            SourceFile { name: "shop.yaml".to_owned(), bytes: RULES.as_bytes().to_vec(), presumed: false };
        let rules = load(&[file], &options()).expect("good rules").rules;
        let json: Value = serde_json::from_str(&render(Some(&rules), Format::Json)).expect("JSON");
        assert_eq!(json["limits"].as_array().map(Vec::len), Some(3));
        let api = &json["limits"][0];
        assert_eq!((&api["path"], &api["line"]), (&json!("shop.path_/api*"), &json!(8)));
        assert_eq!((&api["unit_multiplier"], &api["algorithm"]), (&json!(5), &json!("fixed_window")));
        assert_eq!(json["limits"][2]["unlimited"], true);

        let yaml = render(Some(&rules), Format::Yaml);
        assert_eq!(yaml.matches("\n- ").count() + usize::from(yaml.starts_with("- ")), 3);
        for limit in json["limits"].as_array().expect("a list") {
            for (name, value) in limit.as_object().expect("a mapping") {
                assert!(yaml.contains(&format!(" {name}: {value}\n")), "{name}: {value} in\n{yaml}");
            }
        }
    }
}
