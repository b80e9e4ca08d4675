//! A real Chromium with one page. In: addresses, scripts, keys. Out: what the page holds, what it complains about,
//! what axe-core finds wrong with it, pictures. `browser.js` in the same folder does the work.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// A running browser. Ended when dropped.
pub struct Browser {
    node: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// How the page is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub scheme: &'static str,
    pub width: u32,
    pub height: u32,
}

impl Look {
    pub const LIGHT: Self = Self { scheme: "light", width: 1280, height: 900 };
    pub const DARK: Self = Self { scheme: "dark", ..Self::LIGHT };
    pub const PHONE: Self = Self { scheme: "light", width: 390, height: 844 };
}

impl Browser {
    pub fn start() -> Self {
        let tests = format!("{}/tests", env!("CARGO_MANIFEST_DIR"));
        let mut node = Command::new("node")
            .env("NODE_PATH", format!("{tests}/.work/js/node_modules"))
            .arg(format!("{tests}/blackbox/harness/browser.js"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("node is installed by tests/run");
        let answers = BufReader::new(node.stdout.take().expect("it is piped"));
        Self { commands: node.stdin.take(), node, answers }
    }

    /// Opens a page; the status of the answer.
    pub fn open(&mut self, url: &str) -> u64 {
        self.run(&json!({"do": "open", "url": url})).as_u64().unwrap_or(0)
    }

    /// The value of an expression in the page.
    pub fn eval(&mut self, script: &str) -> Value {
        self.run(&json!({"do": "eval", "script": script}))
    }

    /// The text of an element.
    pub fn text(&mut self, selector: &str) -> String {
        let found = self.eval(&format!("document.querySelector({}).innerText", json!(selector)));
        found.as_str().unwrap_or_else(|| panic!("{selector}: {found}")).to_owned()
    }

    /// Waits until an expression in the page is true, and returns its value.
    pub fn wait(&mut self, script: &str) -> Value {
        self.run(&json!({"do": "wait", "script": script}))
    }

    pub fn look(&mut self, Look { scheme, width, height }: Look) {
        self.run(&json!({"do": "look", "scheme": scheme, "width": width, "height": height}));
    }

    /// Presses a key, by its name: `Tab`, `Enter`, `a`.
    pub fn press(&mut self, key: &str) {
        self.run(&json!({"do": "press", "key": key}));
    }

    /// Types where the focus is.
    pub fn write(&mut self, text: &str) {
        self.run(&json!({"do": "type", "text": text}));
    }

    pub fn click(&mut self, selector: &str) {
        self.run(&json!({"do": "click", "selector": selector}));
    }

    /// Takes a picture of what is in view, or of the whole page.
    pub fn screenshot(&mut self, file: &Path, whole: bool) {
        self.run(&json!({"do": "screenshot", "file": file, "whole": whole}));
    }

    /// What axe-core finds wrong.
    pub fn audit(&mut self) -> Vec<String> {
        texts(&self.run(&json!({"do": "audit"})))
    }

    /// What the page complained about since the last call: errors, refused and failed requests, requests to elsewhere.
    pub fn complaints(&mut self) -> Vec<String> {
        texts(&self.run(&json!({"do": "complaints"})))
    }

    fn run(&mut self, command: &Value) -> Value {
        let commands = self.commands.as_mut().expect("it runs until it is dropped");
        writeln!(commands, "{command}").expect("the browser reads");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the browser answers");
        let mut answer: Value =
            serde_json::from_str(&line).unwrap_or_else(|error| panic!("{command}: {line:?}: {error}"));
        assert!(answer.get("error").is_none(), "{command}: {answer}");
        answer["ok"].take()
    }
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().map(|text| text.as_str().unwrap_or_default().to_owned()).collect()
}

impl Drop for Browser {
    /// The end of its input makes it close Chromium, which then leaves no files behind.
    fn drop(&mut self) {
        drop(self.commands.take());
        let _ = self.node.wait();
    }
}
