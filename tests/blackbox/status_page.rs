//! The status page, in a real Chromium.

use std::process::Command;

use crate::harness::browser::{Browser, Look};
use crate::harness::http::{Client, get};
use crate::harness::programs::succeed;
use crate::harness::prometheus::Prometheus;
use crate::harness::redis::Redis;
use crate::harness::tidegate::{Ports, Setup, Tidegate};
use crate::harness::{eventually_true, grpc};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 3}
  - key: path
    value: /search
    rate_limit: {unit: day, requests_per_unit: 1000000}
";

/// What would run if it were taken for markup.
pub const HOSTILE: &str = "<img src=x onerror=\"document.title='taken'\"><b>&amp;";

/// A browser that looks at the page of this limiter.
pub fn looking_at(limiter: &Tidegate) -> Browser {
    let mut browser = Browser::start();
    browser.look(Look::LIGHT);
    assert_eq!(browser.open(&page_of(limiter)), 200);
    browser.wait("document.querySelector('#liveness').innerText === 'live'");
    browser
}

pub fn page_of(limiter: &Tidegate) -> String {
    format!("http://127.0.0.1:{}/", limiter.ports().debug)
}

/// What the page's data are now.
pub fn state(limiter: &Tidegate) -> serde_json::Value {
    let answer = Client::new(limiter.ports().debug).send("GET", "/status", &[("host", "localhost")], "");
    serde_json::from_str(&answer.expect("an answer").body).expect("JSON")
}

/// What the page says that is wrong, in one text.
pub fn troubles(limiter: &Tidegate) -> String {
    state(limiter)["troubles"].to_string()
}

/// Asks this often whether a user may pass.
fn ask(limiter: &Tidegate, user: &str, times: usize) {
    let client = limiter.client();
    (0..times).for_each(|_| drop(client.ask(grpc::question("shop", &[&[("user", user)]]))));
}

/// Waits until an element holds this text.
pub fn await_text(browser: &mut Browser, selector: &str, text: &str) {
    let (selector, text) = (serde_json::json!(selector), serde_json::json!(text));
    browser.wait(&format!("document.querySelector({selector})?.innerText.includes({text})"));
}

#[test]
fn numbers_on_the_page_are_those_of_metrics() {
    let limiter = Setup::new().rules("shop.yaml", RULES).start();
    let mut browser = looking_at(&limiter);
    ask(&limiter, "alice", 8);
    ask(&limiter, "bob", 2);
    await_text(&mut browser, "#tile-requests-more", "10 in all");
    let scrape = limiter.scrape();
    let over = scrape.sum("tidegate_requests_total", &[("code", "OVER_LIMIT")]);
    assert_eq!(browser.text("#tile-denied-more"), format!("{over} in all"));
    browser.wait("document.querySelectorAll('#rules tbody tr').length === 1");
    let cells =
        browser.eval("[...document.querySelector('#rules tbody tr').cells].map((cell) => cell.innerText)");
    let cell = |at: usize| cells[at].as_str().unwrap_or_default();
    let of_rule = |stat: &str| {
        let family = format!("ratelimit_service_rate_limit_{stat}");
        scrape.sum(&family, &[("domain", "shop"), ("key1", "user")]).to_string()
    };
    assert!(cell(0).starts_with("shop.user") && cell(0).contains("shop.yaml:4"), "{cells}");
    assert!(cell(1).starts_with("3 per day"), "{cells}");
    assert_eq!((cell(6), cell(7)), (&*of_rule("total_hits"), &*of_rule("over_limit")));
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn plots_move_under_load() {
    let limiter = Setup::new().rules("shop.yaml", RULES).start();
    let mut browser = looking_at(&limiter);
    let shape = "document.querySelector('#traffic path.ok').getAttribute('d')";
    browser.wait(&format!("{shape} !== ''"));
    let height = |browser: &mut Browser| browser.eval("document.querySelector('#traffic .top').innerText");
    assert_eq!(height(&mut browser), "1");
    ask(&limiter, "alice", 400);
    browser.wait("Number(document.querySelector('#traffic .top').innerText.replaceAll(',', '')) > 20");
    let areas = browser.eval(
        "['ok', 'over'].map((kind) => document.querySelector(`#traffic path.${kind}`).getBBox().height)",
    );
    assert!(areas[1].as_f64() > areas[0].as_f64(), "3 pass, the others are denied: {areas}");
}

/// Adds what was half an hour ago to each answer: 600 requests in a minute.
const OLD: &str = "
    window.fetchNow = window.fetch;
    window.fetch = async (...asked) => {
        const state = await (await fetchNow(...asked)).json();
        const at = state.now - 1800000;
        return { ok: true, json: async () => ({ ...state, minutes: [[at, 60000, 600, 0, 0, 0, 0, 0, 0, 0, 0, 0]] }) };
    };
    null";

#[test]
fn a_plot_of_hours_shows_what_the_minutes_before_were() {
    let limiter = Setup::new().rules("shop.yaml", RULES).start();
    let mut browser = looking_at(&limiter);
    browser.eval(OLD);
    browser.wait("minutes.length > 0");
    let top = "document.querySelector('#traffic .top').innerText";
    let from = "document.querySelector('#traffic .from').innerText";
    for (length, ago, most) in [(5, "5 min ago", "1"), (60, "1 h ago", "10"), (1_440, "1 d ago", "10")] {
        browser.eval(&format!("document.querySelector('#lengths input[value=\"{length}\"]').click()"));
        browser.wait(&format!("{from} === '{ago}' && {top} === '{most}'"));
    }
    let label = browser.eval("document.querySelector('#traffic').getAttribute('aria-label')");
    assert!(
        label.as_str().is_some_and(|label| label.contains("last 1 d: at most 10 a second pass")),
        "{label}"
    );
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn requests_that_meet_no_rule_or_no_domain_are_said() {
    let limiter = Setup::new().rules("shop.yaml", RULES).start();
    ask(&limiter, "alice", 3);
    assert_eq!(state(&limiter)["troubles"], serde_json::json!([]));
    limiter.client().ask(grpc::question("shop", &[&[("usr", "alice")]]));
    limiter.client().ask(grpc::question("shpo", &[&[("user", "alice")]]));
    for trouble in [
        "Descriptors of the last minute that met no rule of their domain: 1.",
        "Descriptors of the last minute whose domain has no rules: 1.",
    ] {
        eventually_true(trouble, || troubles(&limiter).contains(trouble));
    }
}

#[test]
fn a_question_is_answered_by_the_keyboard_alone() {
    let limiter = Setup::new().rules("shop.yaml", RULES).start();
    ask(&limiter, "alice", 3);
    let mut browser = looking_at(&limiter);
    assert_eq!(browser.eval("document.querySelector('#ask-entries').value"), "user=alice", "an example");
    let focus = "document.activeElement.id || document.activeElement.value";
    let mut seen = Vec::new();
    while seen.last().is_none_or(|id| id != "ask-entries") {
        assert!(seen.len() < 20, "{seen:?}");
        browser.press("Tab");
        seen.push(browser.eval(focus).as_str().unwrap_or_default().to_owned());
    }
    assert_eq!(seen, ["pause", "5", "denied", "find", "ask-domain", "ask-hits", "ask-entries"]);
    browser.press("Tab");
    browser.press("Enter");
    await_text(&mut browser, "#ask-answer", "OVER_LIMIT");
    let answer = browser.text("#ask-answer");
    for part in ["user=alice", "there is no room now", "shop.user at ", "3 per day", "3 counted, 0 left"] {
        assert!(answer.contains(part), "{part}: {answer}");
    }
    assert_eq!(limiter.metric("tidegate_requests_total"), 3.0, "nothing was counted");
    browser.press("Home");
    browser.eval("document.querySelector('#ask-domain').value = 'nowhere'");
    browser.press("Enter");
    await_text(&mut browser, "#ask-answer", "domain nowhere has no rules (there are: shop)");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn nobody_is_kept_out_and_nothing_overflows() {
    let limiter = Setup::new().rules("shop.yaml", RULES).env("KEEP_KEYS", "true").start();
    ask(&limiter, "alice", 8);
    limiter.setup.write("shop.yaml", &RULES.replace("rate_limit", "rate_limits_of"));
    let mut browser = looking_at(&limiter);
    await_text(&mut browser, "#troubles", "The last change of the rules was refused.");
    await_text(&mut browser, "#denied", "user=alice");
    browser.click("#ask button");
    await_text(&mut browser, "#ask-answer", "OVER_LIMIT");
    for look in [Look::LIGHT, Look::DARK, Look::PHONE, Look { scheme: "dark", ..Look::PHONE }] {
        browser.look(look);
        assert_eq!(browser.audit(), [""; 0], "{look:?}");
        let beyond = browser.eval("document.documentElement.scrollWidth - window.innerWidth");
        assert!(beyond.as_f64().is_some_and(|pixels| pixels <= 0.0), "{look:?}: {beyond} pixels");
    }
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn texts_of_rules_requests_and_errors_stay_text() {
    let name = serde_json::json!(HOSTILE);
    let rules = format!("{RULES}  - key: {name}\n    rate_limit: {{unit: day, requests_per_unit: 3}}\n");
    let limiter = Setup::new().rules("shop.yaml", &rules).env("KEEP_KEYS", "true").start();
    ask(&limiter, HOSTILE, 5);
    limiter.client().ask(grpc::question("shop", &[&[(HOSTILE, "x")]]));
    limiter.setup.write("shop.yaml", &format!("{rules}  - {name}: {name}\n"));
    let mut browser = looking_at(&limiter);
    await_text(&mut browser, "#denied", &format!("user={HOSTILE}"));
    await_text(&mut browser, "#rules", &format!("shop.{HOSTILE}"));
    await_text(&mut browser, "#reloads", HOSTILE);
    await_text(&mut browser, "#troubles", "The last change of the rules was refused.");
    browser.eval(&format!("document.querySelector('#ask-domain').value = {name}"));
    browser.click("#ask button");
    await_text(&mut browser, "#ask-answer", &format!("domain {HOSTILE} has no rules"));
    browser.eval("document.querySelector('#find').focus()");
    browser.write("<img");
    browser.wait("document.querySelectorAll('#rules tbody tr').length === 1");
    await_text(&mut browser, "#rules", HOSTILE);
    let markup = browser.eval("document.querySelectorAll('main img, main b b, main script').length");
    assert_eq!((markup, browser.eval("document.title")), (0.into(), "(1) Tidegate".into()));
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn other_origins_and_other_names_get_nothing() {
    let limiter = Setup::new().rules("shop.yaml", RULES).start();
    let port = limiter.ports().debug;
    let mut client = Client::new(port);
    let mut status = |path: &str, headers: &[(&str, &str)]| {
        client.send("GET", path, headers, "").expect("an answer").status
    };
    let (own, evil) = (format!("127.0.0.1:{port}"), format!("evil.example:{port}"));
    assert_eq!(status("/status", &[("host", &own), ("sec-fetch-site", "same-origin")]), 200);
    assert_eq!(status("/status", &[("host", &own), ("sec-fetch-site", "cross-site")]), 403);
    assert_eq!(status("/status", &[("host", &own), ("origin", "http://evil.example")]), 403);
    assert_eq!(status("/status", &[("host", &evil)]), 403);
    assert_eq!(status("/", &[("host", &evil), ("accept", "text/html")]), 403);
    let list = get(port, "/").expect("a page").body;
    assert!(list.starts_with("/  ") && list.contains("/rlconfig"), "programs get the list: {list}");

    // A page of another port is another origin.
    let mut browser = Browser::start();
    browser.open(&format!("http://127.0.0.1:{}/metrics", limiter.ports().metrics));
    for url in [page_of(&limiter), format!("{}status", page_of(&limiter))] {
        let fetched = format!("fetch('{url}').then((answer) => answer.text(), (error) => error.name)");
        assert_eq!(browser.eval(&fetched), "TypeError", "{url}");
        let opaque = format!(
            "fetch('{url}', {{mode: 'no-cors'}}).then((answer) => answer.text(), (error) => error.name)"
        );
        assert_eq!(browser.eval(&opaque), "", "{url}");
    }
}

/// A page whose name was made to lead here. Chromium resolves every name below `localhost` to loopback by itself.
#[test]
fn a_page_that_was_rebound_reads_nothing() {
    let limiter = Setup::new().rules("shop.yaml", RULES).env("PAGE_HOSTS", "limiter.localhost").start();
    let Ports { debug, metrics, .. } = limiter.ports();
    let mut browser = Browser::start();
    let mut status = |url: &str| browser.open(url);
    for page in ["rlconfig", "stats", "metrics", "status", "logging", ""] {
        assert_eq!(status(&format!("http://evil.localhost:{debug}/{page}")), 403, "{page}");
        assert_eq!(status(&format!("http://limiter.localhost:{debug}/{page}")), 200, "{page}");
        assert_eq!(status(&format!("http://localhost:{debug}/{page}")), 200, "{page}");
    }
    assert_eq!(status(&format!("http://evil.localhost:{metrics}/metrics")), 403);
    assert_eq!(status(&format!("http://localhost:{metrics}/metrics")), 200);
    browser.open(&format!("http://evil.localhost:{debug}/rlconfig"));
    let question = r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "a"}]}]}"#;
    let asked =
        format!("fetch('/ask', {{method: 'POST', body: '{question}'}}).then((answer) => answer.status)");
    assert_eq!(browser.eval(&asked), 403);
    browser.open(&format!("http://localhost:{debug}/rlconfig"));
    assert_eq!(browser.eval(&asked), 200);
}

/// Programs use the names of services, which nobody lists.
#[test]
fn programs_read_by_any_name() {
    let limiter = Setup::new().rules("shop.yaml", RULES).start();
    let Ports { debug, metrics, .. } = limiter.ports();
    let resolved = format!("limiter.monitoring.svc:{debug}:127.0.0.1");
    for page in ["rlconfig", "stats", "metrics", ""] {
        let url = format!("http://limiter.monitoring.svc:{debug}/{page}");
        succeed(Command::new("curl").args(["-sSf", "--noproxy", "*", "--resolve", &resolved, &url]));
    }
    // It calls the limiter by the name of the target, through what it takes for a proxy.
    let through = format!("http://127.0.0.1:{metrics}");
    let prometheus = Prometheus::start_through(&through, "limiter.monitoring.svc:9090");
    eventually_true("a scrape", || prometheus.query("up") == [1.0]);
    // `--to` sends what a program sends: no name of an agent, and the Host as it was written.
    let mut client = Client::new(debug);
    let question = r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "a"}]}]}"#;
    let asked = client.send("POST", "/ask", &[("host", "limiter:6070")], question).expect("an answer");
    assert_eq!(asked.status, 200);
}

#[test]
fn a_page_that_nobody_looks_at_asks_for_nothing() {
    let limiter = Setup::new().rules("shop.yaml", RULES).start();
    let mut browser = looking_at(&limiter);
    browser.click("#pause");
    browser.wait("document.querySelector('#liveness').innerText === 'paused'");
    let asked = browser.eval("asked");
    let taken = || state(&limiter)["taken"].as_u64().expect("a number");
    let before = taken();
    crate::harness::eventually_true("three more seconds", || taken() > before + 3);
    assert_eq!(browser.eval("asked"), asked);
    browser.click("#pause");
    browser.wait("document.querySelector('#liveness').innerText === 'live'");
    browser.wait(&format!("asked > {asked}"));
}

/// Holds every answer back until `late` gives it, or says that there is none. Nothing waits any more when `late` is done.
const HOLD: &str = "
    window.fetchNow ??= window.fetch;
    window.late = null;
    window.fetch = async (...asked) => {
        const state = await (await fetchNow(...asked)).json();
        return new Promise((answer, refuse) => {
            window.late = (comes) => new Promise((done) => {
                if (comes) answer({ ok: true, json: async () => state });
                else refuse(new TypeError('there is none'));
                setTimeout(done);
            });
        });
    };
    null";

#[test]
fn an_answer_that_comes_after_the_pause_changes_nothing() {
    let limiter = Setup::new().rules("shop.yaml", RULES).start();
    let mut browser = looking_at(&limiter);
    let liveness = "document.querySelector('#liveness').innerText";
    for comes in [true, false] {
        browser.eval(HOLD);
        browser.wait("late !== null");
        browser.click("#pause");
        assert_eq!(browser.eval(liveness), "paused");
        browser.eval(&format!("late({comes})"));
        assert_eq!(browser.eval(liveness), "paused", "an answer: {comes}");
        browser.eval("window.fetch = fetchNow");
        browser.click("#pause");
        browser.wait(&format!("{liveness} === 'live'"));
    }
    assert_eq!(browser.complaints(), [""; 0]);
}

/// It shows with the next look: the page takes two at most after the limiter itself has noticed.
#[test]
fn an_outage_of_redis_shows_at_once_and_goes() {
    let mut redis = Redis::start(&[]);
    let limiter = Setup::new().rules("shop.yaml", RULES).env("REDIS_URL", &redis.url()).start();
    let mut browser = looking_at(&limiter);
    await_text(&mut browser, "#store", "answers");
    redis.kill();
    crate::harness::eventually_true("the limiter to notice", || {
        limiter.metric("tidegate_redis_breaker_open") == 1.0
    });
    let asked = browser.eval("asked").as_u64().expect("a number");
    // How often it had asked when it showed that: the browser hears of it later.
    let shows =
        "document.querySelector('#troubles').innerText.includes('requests for counters there get an error')";
    let looks = browser.wait(&format!("{shows} && asked")).as_u64().expect("a number") - asked;
    assert!(looks <= 2, "{looks} looks");
    await_text(&mut browser, "#store", "does not answer");
    await_text(&mut browser, "#tile-redis", "no answer");
    redis.restart();
    browser.wait("document.querySelector('#troubles').innerText.startsWith('All is well.')");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn very_many_rules_are_searched_by_the_limiter_and_not_sent() {
    let mut rules = "domain: many\ndescriptors:\n".to_owned();
    for tenant in 0..100_000 {
        rules += &format!("  - {{key: t{tenant}, rate_limit: {{unit: day, requests_per_unit: 1}}}}\n");
    }
    let limiter = Setup::new().rules("many.yaml", &rules).start();
    let mut browser = looking_at(&limiter);
    assert_eq!(browser.text("#rules-count"), "100,000 limits in 1 domain");
    assert_eq!(browser.text("#rules-hash"), state(&limiter)["rules"]["hash"]);
    browser.eval("document.querySelector('#find').focus()");
    browser.write("many.t99998");
    browser.wait("document.querySelectorAll('#rules tbody tr').length === 1");
    limiter.client().ask(grpc::question("many", &[&[("t99998", "")]]));
    browser.wait("document.querySelector('#rules tbody tr').cells[6].innerText === '1'");
    browser.eval("document.querySelector('#find').select()");
    browser.write("many.t9");
    browser.wait("document.querySelectorAll('#rules tbody tr').length === 15");
    let bytes = state(&limiter).to_string().len();
    assert!(bytes < 50_000, "{bytes} bytes");
    assert_eq!(browser.complaints(), [""; 0]);
}
