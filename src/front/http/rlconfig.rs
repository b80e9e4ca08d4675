//! `/rlconfig`: the limits in force, a line each, in the form that `envoyproxy/ratelimit` gives them; sorted, and with
//! our own fields at the end.

use crate::engine::rules::{Rule, RuleSet};

/// All lines. `None`: no rules were ever loaded.
pub(super) fn lines(rules: Option<&RuleSet>) -> String {
    let rules = rules.map_or(&[][..], RuleSet::rules).iter();
    let mut paths: Vec<_> = rules.map(|rule| (path(rule), rule)).collect();
    paths.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    paths.iter().map(|(path, rule)| line(path, rule)).collect()
}

fn path(rule: &Rule) -> String {
    format!("{}.{}", rule.domain, rule.metric_name.rolled_up().join("."))
}

fn line(path: &str, rule: &Rule) -> String {
    let Rule { shadow_mode, quota_mode, .. } = rule;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::key::KeySecret;
    use crate::engine::limit::Algorithm;
    use crate::engine::rules::{LoadOptions, SourceFile, load};

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

    #[test]
    fn a_limit_is_a_line() {
        let file =
            SourceFile { name: "shop.yaml".to_owned(), bytes: RULES.as_bytes().to_vec(), presumed: false };
        let options = LoadOptions {
            default_algorithm: Algorithm::SlidingWindow,
            merge_domains: false,
            strict: false,
            max_file_bytes: 1 << 20,
            secret: KeySecret::new([7; 16]),
        };
        let rules = load(&[file], &options).expect("good rules").rules;
        assert_eq!(
            lines(Some(&rules)),
            "shop.path_/api*: unit=MINUTE requests_per_unit=3, shadow_mode: true, quota_mode: false, \
             unit_multiplier: 5, algorithm: fixed_window\n\
             shop.user: unit=HOUR requests_per_unit=10, shadow_mode: false, quota_mode: false, \
             unit_multiplier: 1, algorithm: sliding_window\n\
             shop.user.tier_gold: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false, \
             unlimited: true\n"
        );
        assert_eq!(lines(None), "");
    }
}
