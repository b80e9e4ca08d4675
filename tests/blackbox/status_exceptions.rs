//! Exceptions on the status page, in a real Chromium.

use serde_json::{Value, json};

use crate::admin::{TOKEN, call, exception, put};
use crate::harness::browser::{Browser, Look};
use crate::harness::eventually_true;
use crate::harness::grpc;
use crate::harness::http::Client;
use crate::harness::tidegate::{Setup, Tidegate};
use crate::status_page::{HOSTILE, await_text, looking_at, page_of};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 3}
";

fn setup() -> Setup {
    Setup::new().rules("shop.yaml", RULES).env("ADMIN_TOKEN", TOKEN)
}

fn passes(limiter: &Tidegate, user: &str) -> bool {
    limiter.client().ask(grpc::question("shop", &[&[("user", user)]])).overall_code == grpc::OK
}

/// A browser in which somebody has given the token, by the keyboard.
pub fn with_token(limiter: &Tidegate) -> Browser {
    let mut browser = looking_at(limiter);
    give_token(&mut browser);
    browser
}

fn give_token(browser: &mut Browser) {
    browser.wait("!document.querySelector('#exceptions').hidden");
    browser.eval("document.querySelector('#exception-token').focus()");
    browser.write(TOKEN);
    browser.press("Enter");
    browser.wait("document.activeElement.id === 'exception-who'");
    // From here on the page shows what is for bearers, and nothing moves beneath the mouse.
    browser.wait("!document.querySelector('#denied-about').innerText.includes('bearers')");
}

fn fill(browser: &mut Browser, field: &str, text: &str) {
    browser.eval(&format!("document.querySelector('#exception-{field}').value = {}", json!(text)));
}

fn send(browser: &mut Browser) {
    browser.click("#except button");
}

/// Waits until the API's error is shown at this field, which then has the focus.
fn await_problem(browser: &mut Browser, field: &str, text: &str) {
    await_text(browser, &format!("#exception-{field}-problem"), text);
    let is_at = format!("document.querySelector('#exception-{field}').contains(document.activeElement)");
    assert_eq!(browser.eval(&is_at), true, "{field}");
    let others = "document.querySelectorAll('[aria-invalid=true]').length";
    assert_eq!(browser.eval(others), 1, "{field}");
}

#[test]
fn an_exception_is_made_and_ended_by_the_keyboard_alone() {
    let limiter = setup().start();
    assert_eq!([0; 4].map(|_| passes(&limiter, "alice")), [true, true, true, false]);
    let mut browser = with_token(&limiter);
    let texts = ["jane", "", "", "shop", "", "user=alice", "", "5", "", "", "", "a launch"];
    let mut seen = Vec::new();
    for (at, text) in texts.iter().enumerate() {
        if at > 0 {
            browser.press("Tab");
        }
        // A date has several fields of its own.
        while browser.eval("document.activeElement.id").as_str() == seen.last().map(String::as_str) {
            browser.press("Tab");
        }
        seen.push(browser.eval("document.activeElement.id").as_str().unwrap_or_default().to_owned());
        browser.write(text);
    }
    let order = "who find - domain id entries - requests_per_unit burst from until why";
    let order = order.split(' ').map(|name| format!("exception-{name}"));
    let seen = seen.iter().map(|id| if id.starts_with("exception") { id } else { "exception--" });
    assert!(seen.eq(order), "{:?}", browser.eval("document.activeElement.id"));
    browser.press("Enter");
    await_text(&mut browser, "#exceptions-said", "user-alice is made. It ends with this process");
    await_text(&mut browser, "#exception-rows", "shop: user=alice");
    await_text(&mut browser, "#exception-rows", "5 per unit");
    await_text(&mut browser, "#exceptions-count", "1 in all");
    eventually_true("a hit to pass", || passes(&limiter, "alice"));
    assert_eq!(limiter.metric("tidegate_exceptions"), 1.0);

    browser.eval("document.querySelector('#lock').focus()");
    ["Tab", "Enter"].iter().for_each(|key| browser.press(key));
    await_text(&mut browser, "#exceptions-said", "Press again to end user-alice.");
    browser.press("Enter");
    await_text(&mut browser, "#exceptions-said", "user-alice has ended.");
    browser.wait("document.querySelector('#exception-rows').hidden");
    eventually_true("the limit of before", || !passes(&limiter, "alice"));
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn the_token_is_in_the_memory_of_the_page_only() {
    let limiter = setup().start();
    put(&limiter, "press", &exception(Some("press"), &json!({"unlimited": true})));
    let mut browser = with_token(&limiter);
    await_text(&mut browser, "#exception-rows", "unlimited");
    let kept = "JSON.stringify([document.documentElement.outerHTML, location.href, document.cookie, {...localStorage},
        {...sessionStorage}, performance.getEntries().map(({ name }) => name),
        [...document.querySelectorAll('input')].map(({ value }) => value), history.state])";
    let kept = browser.eval(kept);
    assert!(!kept.as_str().expect("a text").contains(TOKEN), "{kept}");
    browser.click("#lock");
    browser.wait(
        "document.querySelector('#exception-rows').hidden && document.activeElement.id === 'exception-token'",
    );
    assert_eq!(browser.eval("document.querySelectorAll('#exception-rows tbody tr').length"), 0);
    browser.open(&page_of(&limiter));
    browser.wait("document.querySelector('#liveness').innerText === 'live'");
    assert_eq!(browser.eval("document.querySelector('#unlocked').hidden"), true, "another page has no token");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn without_a_token_there_is_nothing_and_a_wrong_one_is_refused() {
    let bare = Setup::new().rules("shop.yaml", RULES).start();
    let mut browser = looking_at(&bare);
    browser.click("#ask button");
    await_text(&mut browser, "#ask-answer", "there is room");
    let shown = browser.text("body").to_lowercase();
    assert!(!shown.contains("exception") && !shown.contains("token"), "{shown}");
    let state = Client::new(bare.ports().debug).send("GET", "/status", &[("host", "localhost")], "");
    assert!(state.expect("an answer").body.contains("\"exceptions\":null"));
    assert_eq!(browser.complaints(), [""; 0]);

    let limiter = setup().start();
    let mut browser = looking_at(&limiter);
    browser.wait("!document.querySelector('#exceptions').hidden");
    for (wrong, problem) in [
        ("wrong", "this is not the admin token"),
        ("", "and none came"),
        ("schlüssel ✓", "this is not the admin token"),
    ] {
        fill(&mut browser, "token", wrong);
        browser.click("#unlock button");
        await_problem(&mut browser, "token", problem);
        browser.wait("!document.querySelector('#unlock button').disabled");
        assert_eq!(browser.eval("document.querySelector('#unlocked').hidden"), true);
    }
    let refused = limiter.metric("tidegate_admin_refused_total");
    assert_eq!(refused, 3.0);
}

#[test]
fn what_the_api_refuses_is_said_beside_the_field() {
    let limiter = setup().start();
    put(&limiter, "taken", &exception(Some("carol"), &json!({"deny": true})));
    let mut browser = with_token(&limiter);
    let steps = [
        ("domain", "", "is missing"),
        ("domain", "shop", ""),
        ("entries", "", "expected a list of 1 to 32 objects"),
        ("entries", "user=alice\n=gold", "entry 2: key is missing"),
        ("entries", "user=alice", ""),
        ("who", "", "is missing"),
        ("who", "jane", ""),
        ("why", "", "is missing"),
        ("why", "a launch", ""),
        ("effect", "", "expected exactly one of"),
        ("requests_per_unit", "many", "expected a whole number"),
        ("requests_per_unit", "7", ""),
        ("burst", "4294967296", "expected a whole number, 0 to 4294967295"),
        ("burst", "", ""),
        ("id", "a/b", "expected 1 to 128 letters"),
        ("id", "taken", "there is taken already. Press again to replace it."),
    ];
    for (field, text, problem) in steps {
        if field != "effect" {
            fill(&mut browser, field, text);
        }
        if !problem.is_empty() {
            send(&mut browser);
            await_problem(&mut browser, field, problem);
        }
    }
    // Long after anybody runs this.
    fill(&mut browser, "from", "2130-01-02T10:00");
    fill(&mut browser, "until", "2130-01-02T09:00");
    send(&mut browser);
    await_problem(&mut browser, "until", "is not after `from`");
    fill(&mut browser, "until", "2131-01-02T09:00");
    send(&mut browser);
    await_text(&mut browser, "#exceptions-said", "taken is replaced.");
    await_text(&mut browser, "#exception-rows", "not yet in force");
    assert_eq!(browser.eval("document.querySelectorAll('[aria-invalid]').length"), 0);
}

#[test]
fn exceptions_keep_nobody_out_and_their_texts_stay_text() {
    let limiter = setup().start();
    let long = "x".repeat(900);
    for (id, text) in [("hostile", HOSTILE), ("long", &long)] {
        put(&limiter, id, &exception(Some(text), &json!({"deny": true, "why": text, "who": text})));
    }
    let mut browser = looking_at(&limiter);
    for look in [Look::LIGHT, Look::DARK, Look::PHONE, Look { scheme: "dark", ..Look::PHONE }] {
        browser.look(look);
        // Another kind of screen may load the page again.
        browser.open(&page_of(&limiter));
        browser.wait("!document.querySelector('#exceptions').hidden");
        assert_eq!(browser.audit(), [""; 0], "{look:?}, without the token");
        give_token(&mut browser);
        await_text(&mut browser, "#exception-rows", &format!("shop: user={HOSTILE}"));
        await_text(&mut browser, "#exception-rows", &format!("{HOSTILE}, "));
        ["domain", "entries", "requests_per_unit"]
            .iter()
            .for_each(|field| fill(&mut browser, field, HOSTILE));
        send(&mut browser);
        await_text(&mut browser, "#exception-requests_per_unit-problem", "<img src=x");
        assert_eq!(browser.eval("document.querySelectorAll('main img').length"), 0);
        assert_eq!(browser.audit(), [""; 0], "{look:?}");
        let beyond = browser.eval("document.documentElement.scrollWidth - window.innerWidth");
        assert!(beyond.as_f64().is_some_and(|pixels| pixels <= 0.0), "{look:?}: {beyond} pixels");
    }
}

/// What a reader with these headers gets of the denied keys on the page, and of one in an explanation.
fn denied_for(limiter: &Tidegate, headers: &[(&str, &str)]) -> [Value; 2] {
    let mut client = Client::new(limiter.ports().debug);
    let headers = [headers, &[("host", "localhost")]].concat();
    let mut read = |method, path, body| -> Value {
        let answer = client.send(method, path, &headers, body).expect("an answer");
        serde_json::from_str(&answer.body).unwrap_or_else(|_| panic!("{answer:?}"))
    };
    let question = r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "alice"}]}]}"#;
    let explained = read("POST", "/ask?format=json", question);
    [read("GET", "/status", "")["denied"].clone(), explained["descriptors"][0]["denials"].clone()]
}

#[test]
fn who_is_denied_is_for_bearers_of_the_token_unless_everybody_may_know() {
    let bearer = [("authorization", &*format!("Bearer {TOKEN}"))];
    for (setup, is_for_all) in [(setup(), false), (setup().env("KEEP_KEYS", "true"), true)] {
        let limiter = setup.start();
        (0..5).for_each(|_| _ = passes(&limiter, "alice"));
        let [shown, explained] = denied_for(&limiter, &bearer);
        let key = &shown["keys"][0];
        assert_eq!((&key["entries"], &key["rule"]), (&json!("user=alice"), &json!("shop.user")));
        assert_eq!((&key["denials"]["count"], &key["denials"]), (&json!(2), &explained));
        let entries = json!([{"key": "user", "value": "alice"}]);
        assert_eq!(key["question"], json!({"domain": "shop", "entries": entries}));
        let [shown, explained] = denied_for(&limiter, &[]);
        assert_eq!((shown.is_null(), explained), (!is_for_all, Value::Null));
    }
    let limiter = Setup::new().rules("shop.yaml", RULES).start();
    (0..5).for_each(|_| _ = passes(&limiter, "alice"));
    assert_eq!(denied_for(&limiter, &[]), [Value::Null, Value::Null], "nobody may see it, so it is not kept");
}

#[test]
fn a_denied_key_is_explained_and_its_counter_reset_from_its_row() {
    let limiter = setup().start();
    (0..5).for_each(|_| _ = passes(&limiter, "alice"));
    let mut browser = looking_at(&limiter);
    await_text(&mut browser, "#denied-about", "Names of keys are for bearers of the admin token");
    give_token(&mut browser);
    await_text(&mut browser, "#denied-rows", "user=alice");
    let cells = "[...document.querySelector('#denied-rows tbody tr').cells].map((cell) => cell.innerText)";
    let cells = browser.eval(cells);
    assert_eq!((cells[0].as_str(), cells[1].as_str()), (Some("user=alice\nshop.user"), Some("2")));
    assert!([2, 3].iter().all(|at| cells[*at].as_str().is_some_and(|time| time.len() == 8)), "{cells}");

    browser.click("#denied-rows .actions button:first-child");
    await_text(&mut browser, "#ask-answer", "OVER_LIMIT");
    await_text(&mut browser, "#ask-answer", "2 times in the last ten minutes; first ");
    assert_eq!(browser.eval("document.activeElement.id"), "ask-answer");

    browser.click("#denied-rows .actions button:last-child");
    assert_eq!(browser.eval("document.activeElement.id"), "exception-requests_per_unit");
    fill(&mut browser, "who", "jane");
    browser.click("#reset");
    await_problem(&mut browser, "why", "is");
    assert!(!passes(&limiter, "alice"));
    fill(&mut browser, "why", "a mistake of ours");
    browser.click("#reset");
    await_text(&mut browser, "#exceptions-said", "The counter of user=alice was reset.");
    assert!(passes(&limiter, "alice"));

    browser.click("#lock");
    browser.wait("document.querySelector('#denied-rows').hidden");
    assert_eq!(browser.eval("document.querySelectorAll('#denied-rows tbody tr').length"), 0);
}

#[test]
fn a_ban_is_made_by_hand_listed_and_lifted_and_both_are_audited() {
    let ban = "    ban: {after: 3 denials, within: 60s, every: 0, for: 1h}\n";
    let limiter = setup().rules("shop.yaml", &format!("{RULES}{ban}")).start();
    let mut browser = looking_at(&limiter);
    assert_eq!(browser.eval("document.querySelector('#bans').hidden"), true, "there is none");
    (0..6).for_each(|_| _ = passes(&limiter, HOSTILE));
    await_text(&mut browser, "#bans-about", "1 in force");
    await_text(&mut browser, "#bans-about", "shown to those who may see values of requests");
    assert_eq!(browser.eval("document.querySelectorAll('#ban-rows tbody tr').length"), 0);

    give_token(&mut browser);
    await_text(&mut browser, "#ban-rows", &format!("shop: user={HOSTILE}"));
    for (field, text) in [("domain", "shop"), ("entries", "user=eve"), ("who", "jane"), ("why", "ticket 17")]
    {
        fill(&mut browser, field, text);
    }
    browser.click("#ban");
    await_problem(&mut browser, "for", "is no time from 1 second");
    assert_eq!(browser.complaints().len(), 1, "the console notes an answer of 400");
    fill(&mut browser, "for", "2h");
    browser.click("#ban");
    await_text(&mut browser, "#exceptions-said", "user=eve is banned for 2h.");
    assert!(!passes(&limiter, "eve"));
    await_text(&mut browser, "#bans-about", "2 in force");
    let first = "document.querySelector('#ban-rows tbody th').innerText";
    browser.wait(&format!("{first}.includes('shop: user=eve')"));
    for look in [Look::LIGHT, Look::DARK] {
        browser.look(look);
        assert_eq!(browser.audit(), [""; 0], "{look:?}");
    }

    browser.click("#ban-rows tbody tr:first-child button");
    await_text(&mut browser, "#exceptions-said", "Press again to lift the ban of user=eve.");
    assert!(!passes(&limiter, "eve"), "one press lifts nothing");
    browser.click("#ban-rows tbody tr:first-child button");
    await_text(&mut browser, "#exceptions-said", "The ban of user=eve is lifted.");
    assert!(passes(&limiter, "eve"));
    await_text(&mut browser, "#bans-about", "1 in force");
    assert_eq!(browser.complaints(), [""; 0]);

    let audit = call(&limiter, "GET", "/admin/audit", &Value::Null).body;
    for does in ["\"does\":\"ban\"", "\"does\":\"lift_ban\""] {
        let is_hers =
            |line: &&str| line.contains(does) && line.contains("jane") && line.contains("ticket 17");
        assert_eq!(audit.lines().filter(is_hers).count(), 1, "{audit}");
    }

    browser.click("#lock");
    browser.wait("document.querySelector('#ban-rows').hidden");
    assert_eq!(browser.eval("document.querySelectorAll('#ban-rows tbody tr').length"), 0);
}

#[test]
fn a_token_that_was_replaced_is_forgotten_at_once() {
    let limiter = setup().start();
    let mut browser = with_token(&limiter);
    // As if the limiter had another one by now.
    browser.eval("admin.headers = () => ({ authorization: 'Bearer another' })");
    await_text(
        &mut browser,
        "#exception-token-problem",
        "The token is not the one of this limiter any more.",
    );
    assert_eq!(browser.eval("document.querySelector('#unlocked').hidden"), true);
}

#[test]
fn a_few_of_many_are_shown_the_search_finds_others_and_changes_of_others_appear() {
    let limiter = setup().start();
    for number in 0..60 {
        let value = format!("u{number:02}");
        put(&limiter, &value, &exception(Some(&value), &json!({"deny": true})));
    }
    let mut browser = with_token(&limiter);
    let rows = "document.querySelectorAll('#exception-rows tbody tr').length";
    browser.wait(&format!("{rows} === 50"));
    await_text(&mut browser, "#exceptions-none", "These are the first 50. The search finds others.");
    browser.eval("document.querySelector('#exception-find').focus()");
    browser.write("user=u5");
    browser.wait(&format!("{rows} === 10"));
    put(&limiter, "another", &exception(Some("u5x"), &json!({"unlimited": true})));
    browser.wait(&format!("{rows} === 11"));
    await_text(&mut browser, "#exceptions-count", "61 in all");
}

#[test]
fn what_a_question_was_about_goes_into_the_form() {
    let limiter = setup().start();
    let mut browser = with_token(&limiter);
    browser.eval("document.querySelector('#ask-entries').value = 'user=dave'");
    browser.click("#ask button");
    await_text(&mut browser, "#ask-answer", "there is room");
    browser.click("#ask-answer button");
    assert_eq!(browser.eval("document.activeElement.id"), "exception-requests_per_unit");
    let filled = browser
        .eval("['domain', 'entries'].map((name) => document.querySelector(`#exception-${name}`).value)");
    assert_eq!(filled, json!(["shop", "user=dave"]));
}
