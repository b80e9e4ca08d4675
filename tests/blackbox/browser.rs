//! What tests ask of the browser, tried on a page that has everything wrong: else a test that finds nothing proves
//! nothing.

use crate::harness::browser::{Browser, Look};

/// An image without a text, grey on grey, no language; a script that fails, and one that is refused.
const BAD: &str = r#"<!doctype html>
<meta http-equiv="content-security-policy" content="script-src 'sha256-vx4d2fdFaS7jUPXb0cJU+cRQO91pzK/v5FR0oFJAWDk='">
<meta name="viewport" content="width=device-width"><title>bad</title>
<main style="background: #fff; color: #eee"><h1>pale</h1><img src="http://127.0.0.1:9/none.png"></main>
<input id="name"><button onclick="this.textContent = 'clicked'">press</button>
<script>console.error('broken')</script>"#;

#[test]
fn a_bad_page_is_found_out() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let (page, picture) = (folder.path().join("bad.html"), folder.path().join("bad.png"));
    std::fs::write(&page, BAD).expect("a file can be written");
    let mut browser = Browser::start();
    browser.look(Look::PHONE);
    browser.open(&format!("file://{}", page.display()));
    assert_eq!(browser.text("h1"), "pale");
    assert_eq!(browser.wait("window.innerWidth < 500"), true);

    let found = browser.audit();
    for rule in ["html-has-lang", "image-alt", "color-contrast"] {
        assert!(found.iter().any(|finding| finding.starts_with(&format!("{rule}:"))), "{rule}: {found:#?}");
    }
    browser.click("#name");
    browser.write("abc");
    browser.press("Backspace");
    assert_eq!(browser.eval("document.querySelector('#name').value"), "ab");
    browser.click("button");
    assert_eq!(browser.text("button"), "press", "the policy allows no handler in the markup");

    let said = browser.complaints();
    for complaint in ["foreign: http://127.0.0.1:9/", "failed: http://127.0.0.1:9/", "console: "] {
        assert!(said.iter().any(|one| one.starts_with(complaint)), "{complaint}: {said:#?}");
    }
    assert!(said.iter().any(|one| one.contains("Content Security Policy")), "{said:#?}");
    assert_eq!(browser.complaints(), Vec::<String>::new());

    for look in [Look::LIGHT, Look::DARK] {
        browser.look(look);
        let is_dark = browser.eval("matchMedia('(prefers-color-scheme: dark)').matches");
        assert_eq!(is_dark, look.scheme == "dark");
    }
    browser.screenshot(&picture, true);
    assert!(std::fs::read(&picture).expect("a picture").starts_with(b"\x89PNG"));
}
