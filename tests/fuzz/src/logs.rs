//! Access logs in all formats: replayed or refused, and each of their lines is counted once.

#![no_main]

use std::cell::OnceCell;
use std::fs;
use std::path::{Path, PathBuf};

use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;
use tidegate_engine::key::KeySecret;
use tidegate_engine::rules::{LoadOptions, RuleSet, SourceFile, load};
use tidegate_engine::time::{SECOND_NANOS, Timestamp};
use tidegate_trial::replay::{About, Options, ReplayError, Totals, replay};

const RULES: &str = "
domain: d
rate_limits:
  - actions: [remote_address: {}]
  - actions: [request_headers: {header_name: ':path', descriptor_key: path}]
descriptors:
  - {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: path, rate_limit: {unit: second, requests_per_unit: 1, algorithm: token_bucket}}
";

/// Formats, and maps for those that say too little for `rate_limits`. A log that begins with `8` has the second one.
const FORMATS: [(&str, Option<&str>); 5] = [
    ("envoy", Some("remote_address=$http_x_forwarded_for;path=$request_uri")),
    ("combined", None),
    ("json", Some("remote_address=$client;path=$request_uri")),
    (r#"$msec "$request" $remote_addr $status"#, None),
    ("[%START_TIME(%s.%3f)%] %REQ(:PATH)% %RESPONSE_CODE%", Some("path=$request_uri")),
];

thread_local! {
    static REPLAYER: OnceCell<(RuleSet, TempDir)> = const { OnceCell::new() };
}

fn replayer() -> (RuleSet, TempDir) {
    let file = SourceFile { name: "rules.yaml".to_owned(), bytes: RULES.into(), presumed: false };
    let loaded = load(&[file], &LoadOptions::new(KeySecret::new([1; 16]))).expect("good rules");
    (loaded.rules, tempfile::tempdir().expect("a folder can be made"))
}

/// What a replay counted, of which all forms of the report can be made. `None`: the log cannot be replayed.
fn counted(rules: &RuleSet, options: &Options, logs: &[PathBuf]) -> Option<Totals> {
    let report = match replay(rules, None, options, logs, |_| {}) {
        Ok(report) => report,
        Err(ReplayError::Io { .. } | ReplayError::NoLine(_) | ReplayError::Unknown(_)) => return None,
        Err(error) => panic!("{options:?}: {error}"),
    };
    let (rules, made) = (Path::new("rules.yaml"), Timestamp::from_secs(0));
    let page = report.html(&About { logs, options, rules, against: None, made });
    assert!(page.ends_with("</html>\n") && !report.to_string().is_empty());
    serde_json::from_str::<serde_json::Value>(&report.json()).expect("JSON");
    Some(report.totals)
}

fuzz_target!(|data: (u8, &[u8])| {
    let (format, bytes) = data;
    let (format, map) = FORMATS[usize::from(format) % FORMATS.len()];
    let options = Options {
        format: format.to_owned(),
        time: (format == "json").then(|| "time".to_owned()),
        map: map.map(str::to_owned),
        without_status: vec!["429".to_owned()],
        out_of_order_nanos: 60 * SECOND_NANOS,
        ..Options::default()
    };
    REPLAYER.with(|replayer_of_thread| {
        let (rules, folder) = replayer_of_thread.get_or_init(replayer);
        let log = folder.path().join("log");
        fs::write(&log, bytes).expect("the folder is ours");
        if let Some(totals) = counted(rules, &options, &[log]) {
            let Totals { lines, unreadable, left_out, not_asked, requests, .. } = totals;
            assert_eq!(lines, unreadable + left_out + not_asked + requests, "{totals:?}");
            assert!(totals.denied + totals.unlimited <= requests, "{totals:?}");
        }
    });
});
