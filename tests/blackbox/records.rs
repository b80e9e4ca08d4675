//! Records: the admin API and the commands, what survives, and what is refused.

use std::fs;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::admin::{TOKEN, call};
use crate::harness::http::{Answer, Client};
use crate::harness::tidegate::{Setup, Tidegate, binary};

const RULES: &str = "
domain: shop
descriptors:
  - key: tenant
    rate_limit: {unit: day, requests_per_unit: 3}
    limits_from: store
";

pub fn setup() -> Setup {
    let setup = Setup::new().rules("shop.yaml", RULES).env("ADMIN_TOKEN", TOKEN);
    let [folder, audit] = ["limits", "audit"].map(|name| setup.outside().join(name).display().to_string());
    setup.env("LIMITS_DIR", &folder).env("AUDIT_LOG", &audit)
}

pub fn record(tenant: &str, requests: u64) -> Value {
    json!({"domain": "shop", "entries": [{"key": "tenant", "value": tenant}], "requests_per_unit": requests})
}

pub fn put(limiter: &Tidegate, record: &Value) -> Answer {
    let mut body = record.clone();
    (body["who"], body["why"]) = ("jane".into(), "a contract".into());
    call(limiter, "PUT", "/admin/records", &body)
}

pub fn get(limiter: &Tidegate, tenant: &str) -> Answer {
    let mut asked = record(tenant, 0);
    asked.as_object_mut().expect("an object").remove("requests_per_unit");
    call(limiter, "POST", "/admin/records/get", &asked)
}

pub fn load(limiter: &Tidegate, format: &str, text: &str) -> Answer {
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("host", "limiter"), ("authorization", bearer.as_str())];
    let path = format!("/admin/records/load?format={format}&who=jane&why=a%20move");
    Client::new(limiter.ports().debug).send("POST", &path, &headers, text).expect("an answer")
}

pub fn json(answer: &Answer) -> Value {
    serde_json::from_str(&answer.body).expect("JSON")
}

/// All records, page by page.
pub fn all(limiter: &Tidegate, most: usize) -> Vec<Value> {
    let (mut found, mut asked) = (Vec::new(), json!({"most": most}));
    loop {
        let page = json(&call(limiter, "POST", "/admin/records/list", &asked));
        let records = page["records"].as_array().expect("records");
        assert!(records.len() <= most);
        found.extend(records.iter().cloned());
        match &page["next"] {
            Value::Null => return found,
            next => asked["after"] = next.clone(),
        }
    }
}

#[test]
fn a_record_is_put_got_listed_and_deleted_and_survives_a_kill() {
    let limiter = setup().start();
    assert_eq!(put(&limiter, &record("acme", 5)).status, 201);
    // No rule here reads records: each answer warns of that.
    let done = |requests| json(&put(&limiter, &record("acme", requests)))["done"].clone();
    assert_eq!([done(5), done(7)], ["unchanged", "replaced"]);
    for tenant in ["b", "c", "d"] {
        assert_eq!(put(&limiter, &record(tenant, 1)).status, 201);
    }
    assert_eq!(json(&get(&limiter, "acme")), record("acme", 7));
    assert_eq!(get(&limiter, "nobody").status, 404);
    let expected = [record("acme", 7), record("b", 1), record("c", 1), record("d", 1)];
    for most in [1, 2, 3, 4, 5] {
        assert_eq!(all(&limiter, most), expected, "{most} a page");
    }
    let mut gone = record("b", 0);
    gone.as_object_mut().expect("an object").remove("requests_per_unit");
    gone["who"] = "joe".into();
    assert_eq!(call(&limiter, "DELETE", "/admin/records", &gone).status, 200);
    assert_eq!(call(&limiter, "DELETE", "/admin/records", &gone).status, 404);

    let limiter = limiter.restart();
    assert_eq!(all(&limiter, 10), [record("acme", 7), record("c", 1), record("d", 1)]);
    let audit = fs::read_to_string(limiter.setup.outside().join("audit")).expect("an audit");
    let lines: Vec<Value> = audit.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let did: Vec<_> = lines.iter().filter_map(|line| line["does"].as_str()).collect();
    assert_eq!(did, [&["record_put"; 5][..], &["record_delete"]].concat());
    assert_eq!(lines.iter().filter(|line| line["outcome"] == "done").count(), 6, "{audit}");
    assert_eq!(lines[2]["what"]["before"], record("acme", 5));
    assert_eq!(lines[2]["what"]["after"], record("acme", 7));
    assert!(lines[2]["who"] == "jane" && lines[2]["what"]["why"] == "a contract", "{audit}");
}

#[test]
fn a_load_takes_whole_batches_and_tells_bad_lines() {
    let limiter = setup().start();
    let line = |at: usize| record(&format!("t{at:05}"), at as u64).to_string();
    let mut lines: Vec<_> = (0..30_000).map(line).collect();
    lines[15_000] = r#"{"domain":"shop"}"#.to_owned();
    lines[19_999] = "no JSON".to_owned();
    let answer = load(&limiter, "json", &lines.join("\n"));
    assert_eq!(answer.status, 400, "{answer:?}");
    let said = json(&answer);
    assert_eq!([&said["loaded"], &said["not_loaded"], &said["bad"]], [20_000, 9_998, 2]);
    assert_eq!([&said["problems"][0]["line"], &said["problems"][1]["line"]], [15_001, 20_000]);
    let found = all(&limiter, 10_000);
    let expected: Vec<_> =
        (0..10_000).chain(20_000..30_000).map(|at| record(&format!("t{at:05}"), at)).collect();
    assert!(found == expected, "{} records", found.len());

    let csv = "domain,entry.tenant,requests_per_unit,unit\nshop,\"a,b\",9,hour\nshop,t00000,8,\n";
    let answer = load(&limiter, "csv", csv);
    assert_eq!((answer.status, &json(&answer)["loaded"]), (200, &json!(2)), "{answer:?}");
    assert_eq!(json(&get(&limiter, "a,b"))["unit"], "hour");
    assert_eq!(json(&get(&limiter, "t00000"))["requests_per_unit"], 8);
    let audit = call(&limiter, "GET", "/admin/audit", &Value::Null).body;
    assert!(audit.contains("20000 loaded, 9998 not, 2 bad lines"), "{audit}");
}

#[test]
fn what_is_no_record_is_refused_and_hostile_names_stay_text() {
    let limiter = setup().start();
    let hostile = "<script>\u{2028}\n\u{0}{\"who\":\"root\"}";
    assert_eq!(put(&limiter, &record(hostile, 1)).status, 201);
    let shown = get(&limiter, hostile);
    assert!(shown.status == 200 && !shown.body.contains('\u{2028}'), "{shown:?}");
    assert_eq!(json(&shown), record(hostile, 1));
    let mut bad = vec![json!([]), record(&"x".repeat(5_000), 1), record("a", 1 << 53)];
    for (name, value) in
        [("unlimited", json!(1)), ("unit", json!("fortnight")), ("id", json!("a")), ("entries", json!([]))]
    {
        let mut one = record("a", 1);
        one[name] = value;
        bad.push(one);
    }
    for body in bad {
        let mut asked = body.clone();
        if asked.is_object() {
            (asked["who"], asked["why"]) = ("jane".into(), "why not".into());
        }
        let answer = call(&limiter, "PUT", "/admin/records", &asked);
        assert!(answer.status == 400 && answer.body.starts_with("{\"error\":"), "{body} {answer:?}");
    }
    for (path, body) in [
        ("/admin/records/list", json!({"most": 0})),
        ("/admin/records/list", json!({"after": {"domain": "shop"}})),
        ("/admin/records/list", json!({"entries": [{"key": "a"}]})),
        ("/admin/records/get", json!({"domain": "shop"})),
        ("/admin/records/load?who=a&why=b&format=xml", json!({})),
        ("/admin/records/load?who=a", json!({})),
    ] {
        assert_eq!(call(&limiter, "POST", path, &body).status, 400, "{path} {body}");
    }
    assert_eq!(call(&limiter, "PUT", "/admin/records", &record("a", 1)).status, 400, "nobody asks");
    assert_eq!(all(&limiter, 10).len(), 1);

    let rules = RULES.replace("limits_from: store", "");
    let bare = Setup::new().rules("shop.yaml", &rules).env("ADMIN_TOKEN", TOKEN).start();
    let nowhere = put(&bare, &record("a", 1));
    assert!(nowhere.status == 409 && nowhere.body.contains("LIMITS_DIR"), "{nowhere:?}");
}

fn tidegate(words: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.env_clear().env("ADMIN_TOKEN", TOKEN).args(words).output().expect("it runs")
}

#[test]
fn commands_do_the_same_and_what_is_exported_can_be_loaded() {
    let (one, two) = (setup().start(), setup().start());
    let [first, second] = [&one, &two].map(|limiter| format!("127.0.0.1:{}", limiter.ports().debug));
    let both = format!("{first},{second}");
    let put = tidegate(&[
        "limit",
        "put",
        "shop",
        "tenant=acme",
        "--requests-per-unit",
        "9",
        "--unit",
        "hour",
        "--who",
        "jane",
        "--why",
        "x",
        "--to",
        &both,
    ]);
    assert!(put.status.success(), "{put:?}");
    let mut acme = record("acme", 9);
    acme["unit"] = "hour".into();
    assert_eq!([&one, &two].map(|limiter| json(&get(limiter, "acme"))), [acme.clone(), acme]);

    let file = one.setup.outside().join("more.csv");
    fs::write(&file, "domain,entry.tenant,requests_per_unit\nshop,a,1\nshop,b,many\n").expect("writable");
    let file = file.display().to_string();
    let load = || tidegate(&["limit", "load", &file, "--who", "jane", "--why", "a move", "--to", &both]);
    let refused = load();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        refused.status.code() == Some(1) && said.contains("more.csv:3: `requests_per_unit` is \"many\""),
        "{said}"
    );
    assert_eq!(get(&one, "a").status, 404, "nothing is loaded");
    fs::write(&file, "domain,entry.tenant,requests_per_unit\nshop,a,1\nshop,b,2\n").expect("writable");
    let loaded = load();
    let said = String::from_utf8_lossy(&loaded.stdout);
    assert_eq!(said, format!("{first}: loaded 2 records\n{second}: loaded 2 records\n"), "{loaded:?}");

    let exported = tidegate(&["limit", "export", "--to", &first]);
    let three = setup().start();
    assert_eq!(self::load(&three, "json", &String::from_utf8_lossy(&exported.stdout)).status, 200);
    assert_eq!(all(&three, 10), all(&one, 10));
    let listed = tidegate(&["limit", "list", "shop", "tenant", "--most", "2", "--to", &first]);
    assert_eq!(
        String::from_utf8_lossy(&listed.stdout),
        "PATH              LIMIT\nshop tenant=a     1\nshop tenant=acme  9 per hour\n"
    );
    assert!(
        tidegate(&["limit", "delete", "shop", "tenant=a", "--who", "joe", "--to", &first]).status.success()
    );
    assert_eq!(tidegate(&["limit", "get", "shop", "tenant=a", "--to", &first]).status.code(), Some(1));
}

/// Many change one record at a time. What the audit says was there before is what the change before it left: a number that
/// is unlike all others is replaced once.
#[test]
fn the_audit_of_changes_that_meet_says_what_was_there() {
    const CALLERS: u64 = 6;
    const CHANGES: u64 = 15;
    let limiter = setup().start();
    let delete = json!({"domain": "shop", "entries": [{"key": "tenant", "value": "t"}], "who": "jane"});
    let (limiter, delete) = (&limiter, &delete);
    let deleted: usize = std::thread::scope(|scope| {
        let caller = |caller: u64| {
            let change = move |number: u64| {
                if number % 5 == 4 {
                    return call(limiter, "DELETE", "/admin/records", delete);
                }
                put(limiter, &record("t", caller * CHANGES + number + 1))
            };
            let changes = move || (0..CHANGES).map(change).map(|answer| answer.status).collect::<Vec<_>>();
            scope.spawn(changes)
        };
        let callers: Vec<_> = (0..CALLERS).map(caller).collect();
        let statuses = callers.into_iter().flat_map(|caller| caller.join().expect("no panic"));
        let statuses: Vec<u16> = statuses.collect();
        assert!(statuses.iter().all(|status| [200, 201, 404].contains(status)), "{statuses:?}");
        (CALLERS * CHANGES) as usize / 5 - statuses.iter().filter(|status| **status == 404).count()
    });
    let audit = fs::read_to_string(limiter.setup.outside().join("audit")).expect("the audit");
    let lines: Vec<Value> = audit.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let is_done = |id: &Value| lines.iter().any(|line| line["id"] == *id && line["outcome"] == "done");
    let done: Vec<_> =
        lines.iter().filter(|line| line.get("does").is_some() && is_done(&line["id"])).collect();
    let numbers = |side: &str| -> Vec<u64> {
        let numbers = done.iter().filter_map(|line| line["what"][side]["requests_per_unit"].as_u64());
        let mut numbers: Vec<_> = numbers.collect();
        numbers.sort_unstable();
        numbers
    };
    let (before, after) = (numbers("before"), numbers("after"));
    let mut replaced = before.clone();
    replaced.dedup();
    assert_eq!(before, replaced, "replaced twice");
    assert!(before.iter().all(|number| after.contains(number)), "{before:?} of {after:?}");
    let removed = done.iter().filter(|line| line["does"] == "record_delete");
    assert_eq!(removed.count(), deleted, "each answer is true");
}

/// A client that changes only what it has read must not think that it did.
#[test]
fn a_change_on_a_condition_that_cannot_be_checked_is_refused() {
    let limiter = setup().start();
    let bearer = format!("Bearer {TOKEN}");
    let mut body = record("t", 5);
    (body["who"], body["why"]) = ("jane".into(), "a contract".into());
    for (name, value) in [("if-match", "\"1\""), ("if-match", "*"), ("if-unmodified-since", "yesterday")] {
        let headers = [("host", "limiter"), ("authorization", bearer.as_str()), (name, value)];
        let mut client = Client::new(limiter.ports().debug);
        let put = client.send("PUT", "/admin/records", &headers, &body.to_string()).expect("an answer");
        assert!(put.status == 412 && put.body.contains("ETag"), "{put:?}");
    }
    assert_eq!(get(&limiter, "t").status, 404);
}
