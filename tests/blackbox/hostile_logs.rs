//! Logs that are hostile: they end in a clear message or in a bounded report, and take bounded memory. `tests/soak/run logs`
//! makes them a hundred times as large.

use std::fs;
use std::io::{Read as _, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::commands::folder;
use crate::harness::tidegate::binary;

/// The most memory that any log may take here, in MiB: of counters up to 1 GiB, of everything else far less.
const MIB_MAX: u64 = 256;

const RULES: &str = "domain: shop\ndescriptors:\n  - key: remote_address\n    rate_limit: {unit: second, requests_per_unit: 2}\n";

/// How large hostile logs are here: 1, and 100 in a soak.
fn scale() -> u64 {
    std::env::var("TIDEGATE_HOSTILE_SCALE").map_or(1, |scale| scale.parse().expect("a number"))
}

/// A line of this address at this second of a day.
fn line(address: u64, second: u64) -> String {
    let (hour, minute, second) = (second / 3_600 % 24, second / 60 % 60, second % 60);
    format!(
        "{address:x} - - [17/May/2015:{hour:02}:{minute:02}:{second:02} +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"-\"\n"
    )
}

/// What a replay said about what `write` wrote to its standard input: exit code, report, complaints. Its memory is held to
/// the bound.
fn replayed(write: impl FnOnce(&mut dyn Write)) -> (i32, String, String) {
    let (_folder, path) = folder(&[("rules.yaml", RULES)]);
    let rules = format!("{path}/rules.yaml");
    let arguments = ["replay", "--rules", &rules, "--map", "remote_address=$remote_addr", "-"];
    let mut child = Command::new(binary())
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut input = child.stdin.take().expect("it is piped");
    write(&mut input);
    let mib = peak_mib(&child, input);
    let (mut report, mut complaints) = (String::new(), String::new());
    child.stdout.take().expect("it is piped").read_to_string(&mut report).expect("UTF-8");
    child.stderr.take().expect("it is piped").read_to_string(&mut complaints).expect("UTF-8");
    let code = child.wait().expect("it ends").code().expect("no signal ends it");
    println!("peak memory: {mib} MiB");
    assert!(mib < MIB_MAX, "{mib} MiB\n{report}{complaints}");
    (code, report, complaints)
}

/// The most memory that a child has had so far. It still waits for the end of its input.
fn peak_mib(child: &Child, input: ChildStdin) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it runs");
    drop(input);
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux says it");
    let kib = line.trim().strip_suffix(" kB").expect("in KiB");
    kib.trim().parse::<u64>().expect("a number") >> 10
}

#[test]
fn a_line_without_an_end_is_never_held() {
    let (code, report, _) = replayed(|input| {
        let block = vec![b'x'; 1 << 20];
        let mut write = |bytes: &[u8]| input.write_all(bytes).expect("it reads");
        write(line(1, 1).as_bytes());
        (0..11 * scale()).for_each(|_| write(&block));
        write(b"\n");
        write(line(1, 2).as_bytes());
    });
    assert_eq!(code, 0);
    assert!(
        report.contains("lines 3, unreadable 1;") && report.contains("requests 2, admitted 2,"),
        "{report}"
    );
    assert!(report.contains(":2:1: expected at most 65536 bytes"), "{report}");
}

#[test]
fn millions_of_keys_become_a_sample() {
    // Each address once, and one that comes again and again.
    let keys = 120_000 * scale();
    let (code, report, _) = replayed(|input| {
        for first in (0..keys).step_by(1_000) {
            let lines =
                (first..first + 1_000).flat_map(|key| [line(key + 1_000, key / 2_000), line(7, key / 2_000)]);
            input.write_all(lines.collect::<String>().as_bytes()).expect("it reads");
        }
    });
    assert_eq!(code, 0);
    assert!(report.contains(&format!("requests {}, ", 2 * keys)), "{report}");
    assert!(report.contains("keys about ") && report.contains("counts of keys are estimates"), "{report}");
    assert!(report.contains("remote_address=7 "), "the key denied most is known: {report}");
    assert!(
        !report.contains("denied at least once about 0"),
        "it is not in the sample, and was denied: {report}"
    );
}

#[test]
fn times_from_far_ahead_hold_nothing_back() {
    let far = line(1, 1).replace("2015", "2400");
    let (code, report, _) = replayed(|input| {
        for second in 0..30_000 * scale() {
            let text = if second % 3 == 0 { line(2, second) + &far } else { line(2, second) };
            input.write_all(text.as_bytes()).expect("it reads");
        }
    });
    assert_eq!(code, 0);
    assert!(report.contains(&format!("lines {}", 40_000 * scale())), "{report}");
}

#[test]
fn a_bomb_of_gzip_is_unpacked_bit_by_bit() {
    let mut member = GzEncoder::new(Vec::new(), Compression::best());
    let zeros = vec![0; 1 << 20];
    (0..100).for_each(|_| member.write_all(&zeros).expect("memory takes all"));
    let member = member.finish().expect("memory takes all");
    assert!(member.len() < 200 << 10, "{}", member.len());
    let (code, _, complaints) = replayed(|input| {
        (0..scale()).for_each(|_| input.write_all(&member).expect("it reads"));
    });
    assert_eq!(code, 1);
    assert!(
        complaints
            .contains("no line has the format of --format; the first: -:1:1: expected at most 65536 bytes")
    );
}

#[test]
fn what_is_no_text_at_all_is_counted_and_shown_safely() {
    let (code, report, complaints) = replayed(|input| {
        let mut state = 1_u32;
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        for _ in 0..scale() {
            // The first byte is none of a compressed file.
            let block: Vec<u8> = (0..1 << 20).map(|at| if at == 0 { b'x' } else { noise() }).collect();
            input.write_all(&block).expect("it reads");
        }
    });
    assert_eq!((code, report.as_str()), (1, ""));
    assert!(
        complaints.starts_with("tidegate: no line has the format of --format; the first: -:1:1: "),
        "{complaints}"
    );
    assert!(!complaints.trim_end().contains(char::is_control), "{complaints:?}");
}
