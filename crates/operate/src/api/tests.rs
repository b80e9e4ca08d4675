//! Calls of the API without a socket.

use std::fmt::Write as _;

use http_body_util::BodyExt as _;
use serde_json::json;

use super::*;
use crate::audit::Audit;
use crate::gate::Hosts;
use tidegate_serve::service::fixture;

/// The API of a node with these rules.
pub(super) fn api(rules: &str) -> AdminApi {
    let service = Arc::new(fixture::service(Some(rules), &fixture::metrics()));
    let book = Arc::new(Book::new(Audit::in_memory(wall())));
    let resets = Arc::new(Resets::new(Arc::clone(&service)));
    let gate = Gate::new(Hosts::new("127.0.0.1", &[]), None);
    AdminApi::new((book, resets), service, Bounds::default(), gate)
}

/// So many rules with limits.
pub(super) fn rules(count: usize) -> String {
    let mut rules = "domain: shop\ndescriptors:\n".to_owned();
    for number in 0..count {
        writeln!(rules, "  - {{key: k{number}, rate_limit: {{unit: day, requests_per_unit: 3}}}}")
            .expect("text");
    }
    rules
}

#[tokio::test]
async fn the_fullest_counters_of_all_rules_say_how_many_rules_are_left_out() {
    for (count, left) in [(7, 0), (8, 0), (9, 1), (20, 12)] {
        let page = api(&rules(count)).top(serde_json::from_value(json!({})).expect("a body")).await;
        let body = page.expect("rules").into_body().collect().await.expect("infallible").to_bytes();
        let lines = std::str::from_utf8(&body).expect("text").lines();
        let lines: Vec<Value> = lines.map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(lines.len(), count.min(8) + usize::from(left > 0), "{count} rules");
        let left_out = lines.iter().filter_map(|line| line["rules_left_out"].as_u64());
        assert_eq!(left_out.collect::<Vec<_>>(), Vec::from_iter((left > 0).then_some(left)), "{count} rules");
    }
}
