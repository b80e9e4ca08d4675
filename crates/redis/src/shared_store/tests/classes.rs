//! Classes of importance while a node decides alone: their shares are those of the node's share of the limit.

use super::*;

/// Every way to count that has classes.
const WAYS: [&str; 6] = [
    "unit: day",
    "unit: day, algorithm: sliding_log",
    "unit: day, algorithm: sliding_window_weighted",
    "unit: day, algorithm: token_bucket",
    "unit: day, algorithm: leaky_bucket",
    "period: {calendar: year}",
];

/// 40 hits, of which a node with the share 0.5 has 20. Then 12 are for `batch`, and 17 for `standard` and `batch` together.
fn rules_with(way: &str) -> RuleSet {
    let limit = format!("{{{way}, requests_per_unit: 40}}");
    let classes = "{key: priority, shares: {critical: 1.0, standard: 0.85, batch: 0.6}}";
    rules_of(&format!(
        "domain: shop\ndescriptors:\n  - {{key: user, rate_limit: {limit}, classes: {classes}}}\n"
    ))
}

/// Whether so many hits of a class pass, and how many remain to it.
async fn ask(store: &SharedStore, rules: &RuleSet, class: Option<&str>, hits: u32) -> (bool, u64) {
    let mut request = Request::new("shop", hits);
    let class = class.map(|value| Entry { key: "priority", value });
    request.push([Entry { key: "user", value: "x" }].into_iter().chain(class), DescriptorOptions::default());
    let plan = rules.plan(&request, Modes::default());
    let applied = store.apply(&request, &plan, None).await.expect("it decides alone");
    (conclude(&plan, &applied.verdicts).code == Code::Ok, applied.verdicts[0].expect("a verdict").remaining)
}

#[tokio::test]
async fn alone_no_class_takes_the_sum_beyond_its_share() {
    for way in WAYS {
        let (store, rules) = (store_with_share(0.5), rules_with(way));
        let lower: [&[_]; 3] =
            [&[None, Some("unknown")], &[Some("batch"), None], &[Some("standard"), Some("batch"), None]];
        for ((class, share), lower) in
            [("batch", 12), ("standard", 5), ("critical", 3)].into_iter().zip(lower)
        {
            assert_eq!(
                ask(&store, &rules, Some(class), share as u32 + 1).await,
                (false, share),
                "{way} {class}"
            );
            for left in (0..share).rev() {
                assert_eq!(ask(&store, &rules, Some(class), 1).await, (true, left), "{way} {class}");
            }
            for class in [Some(class)].iter().chain(lower) {
                assert_eq!(ask(&store, &rules, *class, 1).await, (false, 0), "{way} {class:?}");
            }
        }
        assert_eq!(unsynced(&store, &rules, "user"), 20, "{way}: Redis gets all of them");
    }
}

/// A report is charged beyond the share of its class, at the cost of higher ones.
#[tokio::test]
async fn alone_a_reported_cost_takes_from_higher_classes() {
    let (store, rules) = (store_with_share(0.5), rules_with(WAYS[0]));
    let mut request = Request::new("shop", 1);
    let entries = [("user", "x"), ("priority", "batch")].map(|(key, value)| Entry { key, value });
    request.push(entries, DescriptorOptions { hits_addend: Some(18), ..DescriptorOptions::default() });
    let mut plan = rules.plan(&request, Modes::default());
    let check = *check_at(&plan, 0).expect("a rule");
    plan.steps[0] = Step::Check(Check { reported: true, ..check });
    store.apply(&request, &plan, None).await.expect("it decides alone");
    assert_eq!(ask(&store, &rules, Some("standard"), 1).await, (false, 0));
    assert_eq!(ask(&store, &rules, Some("critical"), 2).await, (true, 0));
    assert_eq!(unsynced(&store, &rules, "user"), 20);
}
