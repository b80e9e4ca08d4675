//! `/reserve` over HTTP: lists of reservations, and what is shown of limits.

use serde_json::{Value, json};

use super::Server;
use super::http::status_and_body;

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 10}, reserve: {ttl: 60s}}
";

fn reservation(id: &str, amount: u64, users: &[&str]) -> Value {
    let of_user = |user: &&str| json!({"entries": [{"key": "user", "value": user}]});
    let descriptors: Vec<Value> = users.iter().map(of_user).collect();
    json!({"domain": "shop", "id": id, "amount": amount, "descriptors": descriptors})
}

async fn reserved(server: &Server, body: &Value) -> Value {
    let (status, answer) = status_and_body(server.http, "POST /reserve", &body.to_string()).await;
    assert_eq!(status, 200, "{answer}");
    serde_json::from_str(&answer).expect("JSON")
}

#[tokio::test]
async fn each_reservation_of_a_list_is_decided_by_itself() {
    let server = Server::with_rules(Some(RULES)).await;
    let of_alice = |id, amount| reservation(id, amount, &["alice"]);
    let list = json!([of_alice("1", 6), {"domain": "shop"}, of_alice("2", 6), of_alice("3", 4)]);
    let answers = reserved(&server, &list).await;
    let answers = answers.as_array().expect("a list");
    let statuses: Vec<_> = answers.iter().map(|answer| answer["status"].as_u64()).collect();
    assert_eq!(statuses, [200, 400, 429, 200].map(Some), "{answers:?}");
}

#[tokio::test]
async fn what_others_hold_is_shown_for_each_descriptor() {
    let server = Server::with_rules(Some(RULES)).await;
    reserved(&server, &reservation("1", 6, &["bob"])).await;
    let answer = reserved(&server, &reservation("2", 1, &["alice", "bob"])).await;
    let held = [0, 1].map(|limit| answer["limits"][limit]["held_by_others"].as_u64());
    assert_eq!(held, [Some(0), Some(6)], "{answer}");
}
