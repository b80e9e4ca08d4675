//! A denial says what decided, wherever somebody reads of it: in the log, in events, in `tidegate ask` and on the status
//! page.

use std::fs;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::admin::{TOKEN, exception, put};
use crate::commands::tidegate;
use crate::harness::grpc::{OVER_LIMIT, question};
use crate::harness::programs::succeed;
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{eventually, eventually_true};
use crate::looked_up;
use crate::status_exceptions::with_token;
use crate::status_page::{await_text, looking_at};

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 3, candidate: {requests_per_unit: 2}}}
  - {key: tenant, limits_from: store, rate_limit: {unit: day, requests_per_unit: 3}}
";
const UNTIL: &str = "2099-11-30T08:00:00Z";

/// A limiter with an exception that denies mallory, and a record by which acme has nothing; both were denied.
fn denying() -> Tidegate {
    denying_and_telling("true")
}

/// The same, which shows values of requests or not.
fn denying_and_telling(values: &str) -> Tidegate {
    let setup = Setup::new().rules("shop.yaml", RULES).env("ADMIN_TOKEN", TOKEN);
    let setup = setup.env("LOG_VALUES", values).env("KEEP_KEYS", values);
    let [limits, events] = ["limits", "events"].map(|name| setup.outside().join(name).display().to_string());
    let limiter = setup.env("LIMITS_DIR", &limits).env("EVENTS_LOG", &events).start();
    put(&limiter, "abuse", &exception(Some("mallory"), &json!({"deny": true, "until": UNTIL})));
    looked_up::put(&limiter, "acme", &json!({"requests_per_unit": 0}));
    let client = limiter.client();
    for (key, value) in [("user", "mallory"), ("tenant", "acme")] {
        eventually_true("a denial", || {
            client.ask(question("shop", &[&[(key, value)]])).overall_code == OVER_LIMIT
        });
    }
    limiter
}

/// The events of both denials.
fn denials_in_events(limiter: &Tidegate) -> Vec<Value> {
    let file = limiter.setup.outside().join("events");
    eventually("two events", || {
        let text = fs::read_to_string(&file).ok()?;
        let events: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let denials = events.into_iter().filter(|event| event["event"] == "denied").collect::<Vec<_>>();
        (denials.len() == 2).then_some(denials)
    })
}

#[test]
fn a_denial_names_the_exception_or_the_record_that_decided() {
    let limiter = denying();
    for denial in [
        format!(
            "OVER_LIMIT by shop.user (0 per day), exception abuse: nothing passes, until {UNTIL}, made by jane: a launch"
        ),
        "OVER_LIMIT by shop.tenant (0 per day), record 0 instead of 3".to_owned(),
    ] {
        eventually_true(&denial, || limiter.lines_with(&denial) > 0);
    }
    let events = denials_in_events(&limiter);
    let of = |rule: &str| events.iter().find(|event| event["rule"] == rule).expect(rule);
    assert_eq!(of("shop.user")["exception"]["id"], "abuse", "{events:?}");
    let exception = &of("shop.user")["exception"];
    assert_eq!(
        (&exception["until"], &exception["who"], &exception["why"]),
        (&json!(UNTIL), &json!("jane"), &json!("a launch"))
    );
    assert_eq!(of("shop.tenant")["record"]["requests_per_unit"], 0, "{events:?}");
    assert_eq!((of("shop.user").get("record"), of("shop.tenant").get("exception")), (None, None));
}

#[test]
fn where_values_are_hidden_so_is_whom_an_exception_is_for() {
    let limiter = denying_and_telling("false");
    let denial = "OVER_LIMIT by shop.user (0 per day), exception nothing passes";
    eventually_true(denial, || limiter.lines_with(denial) > 0);
    let events = denials_in_events(&limiter);
    let exception = events.iter().find_map(|event| event.get("exception")).expect("an exception");
    assert_eq!((&exception["effect"], &exception["id"]), (&json!("deny"), &Value::Null));
    assert_eq!((exception.get("who"), exception.get("why")), (None, None));
    let shown = ["abuse", "jane", "a launch"].map(|text| limiter.lines_with(text));
    assert_eq!(shown, [0; 3]);
}

#[test]
fn no_wait_is_promised_to_whom_nothing_passes() {
    let limiter = denying();
    let to = format!("127.0.0.1:{}", limiter.ports().debug);
    for entry in ["user=mallory", "tenant=acme"] {
        let (code, shown, _) = tidegate(&["ask", "--to", &to, "shop", entry], &[]);
        assert!(code == 0 && shown.contains("  capacity  none: the limit is 0\n"), "{shown}");
        let token = [("ADMIN_TOKEN", TOKEN)];
        let (code, shown, _) = tidegate(&["counter", "peek", "--to", &to, "shop", entry], &token);
        assert!(code == 0 && !shown.contains("room again"), "{shown}");
    }
}

#[test]
fn who_made_an_exception_and_why_is_for_those_who_may_list_them() {
    let limiter = denying();
    let to = format!("127.0.0.1:{}", limiter.ports().debug);
    for format in ["text", "json"] {
        let ask = |token: &[(&str, &str)]| {
            tidegate(&["ask", "--to", &to, "--format", format, "shop", "user=mallory"], token)
        };
        let (bearer, stranger) = (ask(&[("ADMIN_TOKEN", TOKEN)]), ask(&[]));
        assert!(bearer.0 == 0 && bearer.1.contains("jane") && bearer.1.contains("a launch"), "{bearer:?}");
        assert!(stranger.0 == 0 && stranger.1.contains("abuse"), "{stranger:?}");
        assert!(!stranger.1.contains("jane") && !stranger.1.contains("a launch"), "{stranger:?}");
        let mistaken = ask(&[("ADMIN_TOKEN", "wrong")]);
        assert!(mistaken.0 != 0 && mistaken.2.contains("token"), "{mistaken:?}");
    }
    let refused = limiter.scrape().sum("tidegate_admin_refused_total", &[]);
    assert_eq!(refused, 2.0, "guesses are counted here too");
    let mut browser = with_token(&limiter);
    browser.eval("document.querySelector('#ask-entries').value = 'user=mallory'");
    browser.click("#ask button");
    await_text(&mut browser, "#ask-answer", "made by jane: a launch");
}

#[test]
fn whom_an_exception_denies_is_asked_to_wait_until_it_ends() {
    let limiter = denying();
    let client = limiter.client();
    let wait = |user: &str| {
        let answer = client.ask(question("shop", &[&[("user", user)]]));
        answer.statuses[0].duration_until_reset.as_ref().map_or(0, |wait| wait.seconds)
    };
    assert_eq!(wait("mallory"), 3_600, "somebody may end it before 2099");
    let soon = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() + 1_800;
    let text = succeed(Command::new("date").args(["-u", "-d", &format!("@{soon}"), "+%Y-%m-%dT%H:%M:%SZ"]));
    put(&limiter, "soon", &exception(Some("eve"), &json!({"deny": true, "until": text.trim()})));
    eventually_true("half an hour to wait", || (1_500..=1_801).contains(&wait("eve")));
    put(&limiter, "ever", &exception(Some("oscar"), &json!({"deny": true})));
    eventually_true("nobody knows how long", || wait("oscar") == 3_600);
}

#[test]
fn the_page_shows_exceptions_records_candidates_and_what_is_charged() {
    let limiter = denying();
    let mut browser = looking_at(&limiter);
    for (entry, parts) in [
        (
            "user=mallory",
            &["abuse: nothing passes, until 30 Nov 2099", "none: the limit is 0", "charges nothing"][..],
        ),
        ("user=bob", &["2 instead: 0 counted, the request would pass", "charges 1: the request passes"]),
        ("tenant=acme", &["0 instead of 3", "none: the limit is 0"]),
        ("tenant=other", &["none: the limit is the rule’s"]),
    ] {
        browser.eval(&format!("document.querySelector('#ask-entries').value = '{entry}'"));
        browser.click("#ask button");
        await_text(&mut browser, "#ask-answer", entry);
        parts.iter().for_each(|part| await_text(&mut browser, "#ask-answer", part));
        let shown = browser.text("#ask-answer");
        assert!(!shown.contains("comes back in"), "{shown}");
    }
    assert_eq!(browser.complaints(), [""; 0]);
}
