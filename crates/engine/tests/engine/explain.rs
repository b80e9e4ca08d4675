//! Explanations name the rule, the path to it, the counter and the reason.

use tidegate_engine::explain::explain;
use tidegate_engine::plan::Modes;
use tidegate_engine::request::Request;
use tidegate_engine::time::Timestamp;

use crate::asking::store;
use crate::rules::loaded;

const RULES: &str = "domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 5, name: per_user}
  - key: plan
    value: free*
    descriptors:
      - key: path
        value: /api
        shadow_mode: true
        rate_limit: {unit: hour, unit_multiplier: 2, requests_per_unit: 3, algorithm: token_bucket, burst: 1}
  - key: plan
    value: gold
    rate_limit: {unlimited: true}
  - key: vip
    quota_mode: true
    rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: per_user}]}
";

/// The explanation of `hits` hits on these descriptors, after each was hit once: as text and as JSON.
fn explained(descriptors: &[&[(&str, &str)]], hits: u64, modes: Modes) -> (String, serde_json::Value) {
    let rules = loaded(RULES).rules;
    let (store, now) = (store(), Timestamp::from_secs(1_000_000));
    let request = |hits| {
        let request = Request::new("shop", hits);
        descriptors.iter().fold(request, |request, entries| request.descriptor(entries))
    };
    store.apply(&rules.plan(&request(1), modes), now);
    let question = request(hits as u32);
    let plan = rules.plan(&question, modes);
    let explanation = explain(&rules, &question, &plan, store.look(&plan, now));
    (explanation.to_string(), explanation.json())
}

fn text(descriptors: &[&[(&str, &str)]], hits: u64) -> String {
    explained(descriptors, hits, Modes::default()).0
}

#[test]
fn a_limit_that_is_met_is_shown_with_its_place_and_its_counter() {
    let expected = "shop: 4 hits would get OK; nothing was counted

user=alice
  path      user (any value)
  level 1   user=alice
            any value at a.yaml:3:10: fits
  rule      shop.user at a.yaml:3:10
  limit     5 per minute, sliding_window, named per_user
  counter   1 counted, 4 left
            ████░░░░░░░░░░░░░░░░
            |                                       █| the oldest leave in 1 min 1 s, the newest in 1 min 1 s
  capacity  1 hit fits now, 4 hits now; more comes back in 1 min 1 s
  settled   charges 4: the request passes
  answer    OK: there is room
";
    assert_eq!(text(&[&[("user", "alice")]], 4), expected);
}

#[test]
fn hits_that_do_not_fit_now_differ_from_hits_that_never_will() {
    let shown = text(&[&[("user", "alice")]], 5);
    assert!(shown.starts_with("shop: 5 hits would get OVER_LIMIT; "), "{shown}");
    assert!(shown.contains("OVER_LIMIT: there is no room now\n"), "{shown}");
    let shown = text(&[&[("user", "alice")]], 6);
    assert!(shown.contains("OVER_LIMIT: so many never fit\n"), "{shown}");
}

#[test]
fn patterns_shadow_mode_and_buckets_are_shown() {
    let shown = text(&[&[("plan", "freemium"), ("path", "/api")]], 1);
    for line in [
        "shop: 1 hit would get OK;",
        "  path      plan=free* (pattern) > path=/api\n",
        "  rule      shop.plan_free*.path_/api at a.yaml:8:14\n",
        "  limit     3 per 2 hours, token_bucket, burst 1\n",
        "  answer    OK: there is no room now, but shadow_mode lets it pass\n",
    ] {
        assert!(shown.contains(line), "no {line:?} in {shown}");
    }
}

#[test]
fn a_descriptor_that_meets_nothing_shows_where_its_walk_ended() {
    for (entries, why) in [
        (
            &[("usr", "alice")][..],
            "no rule for usr=alice at this level (there is: user, plan=free*, plan=gold, vip)",
        ),
        (&[("plan", "free"), ("path", "/")], "no rule for path=/ at this level (there is: path=/api)"),
        (&[("user", "a"), ("path", "/")], "no rule for path=/ at this level (there is: nothing)"),
        (&[("plan", "free")], "the path ends where no limit is set (below it there is: path=/api)"),
        (&[], "the path ends where no limit is set (below it there is: user, plan=free*, plan=gold, vip)"),
    ] {
        let shown = text(&[entries], 1);
        assert!(shown.contains(&format!("  limit     none\n  answer    OK: {why}\n")), "{shown}");
    }
}

#[test]
fn replaced_and_unlimited_rules_are_shown() {
    let shown = text(&[&[("user", "alice")], &[("vip", "bob")], &[("plan", "gold")]], 1);
    assert!(
        shown.contains(
            "OK: not counted: another rule of this request, shop.vip (descriptor 2), replaces `per_user`"
        ),
        "{shown}"
    );
    assert!(shown.contains("  limit     unlimited\n  answer    OK: the rule has no bound\n"), "{shown}");
    assert!(shown.starts_with("shop: 1 hit would get OVER_LIMIT;"), "{shown}");
    assert!(shown.contains("in quota mode the request is denied only if all"), "{shown}");
}

#[test]
fn the_shadow_mode_of_the_process_is_shown() {
    let (text, json) = explained(&[&[("user", "a")]], 6, Modes { shadow: true, ..Modes::default() });
    assert!(text.starts_with("shop: 6 hits would get OK (OVER_LIMIT, but for SHADOW_MODE);"), "{text}");
    assert_eq!((&json["code"], &json["shadowed"]), (&"OK".into(), &true.into()));
}

#[test]
fn json_holds_what_the_text_does() {
    let (_, json) = explained(&[&[("plan", "freemium"), ("path", "/api")]], 1, Modes::default());
    let descriptor = &json["descriptors"][0];
    assert_eq!(descriptor["rule"]["path"], "shop.plan_free*.path_/api");
    assert_eq!((&descriptor["rule"]["file"], &descriptor["rule"]["line"]), (&"a.yaml".into(), &8.into()));
    assert_eq!(descriptor["path"][0], serde_json::json!({"met": "pattern", "pattern": "free*"}));
    assert_eq!(descriptor["path"][1], serde_json::json!({"met": "value"}));
    assert_eq!(descriptor["limit"]["burst"], 1);
    assert_eq!(descriptor["counter"]["counted"], 1);
    assert_eq!(descriptor["code"], "OK");
}
