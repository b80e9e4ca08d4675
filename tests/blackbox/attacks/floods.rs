//! Frames without an end, of every kind that costs the sender less than the receiver.

use std::io::Write as _;
use std::process::Command;
use std::time::Duration;

use crate::harness::grpc;
use crate::harness::h2::{
    ACK, Attacker, END_HEADERS, END_STREAM, PREFACE, call, call_body, call_head, field, frame, greeting,
    kind, number, settings, streams,
};
use crate::harness::programs::succeed;
use crate::harness::siege::{Front, MIB, Siege, attack, question};
use crate::harness::tidegate::{Ports, Setup};

/// How long a flood lasts, if the server lets it.
const FLOOD: Duration = Duration::from_millis(800);
/// What the lane may take of a flood of small frames and of large ones, what the system holds between the two included.
const SMALL_BYTES_MAX: usize = 24 * MIB as usize;
const LARGE_BYTES_MAX: usize = 48 * MIB as usize;
/// Error codes.
const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const REFUSED_STREAM: usize = 7;
const ENHANCE_YOUR_CALM: u32 = 11;

/// A flood that costs its sender the connection. Returns the code of the GOAWAY.
fn ends_the_connection(siege: &Siege, bytes: &[u8]) -> Option<u32> {
    let mut attacker = Attacker::greeted(siege.grpc_port());
    attacker.flood(bytes, FLOOD);
    attacker.is_closed().goaway
}

/// A flood that is read as fast as it is answered, and one by a peer that does not listen, which stops it by itself.
fn is_kept_within_bounds(bytes: &[u8]) {
    attack(4 * MIB, |siege| {
        let mut attacker = Attacker::greeted(siege.grpc_port());
        attacker.flood(bytes, FLOOD);
        let mut deaf = Attacker::deaf(siege.grpc_port());
        deaf.send(&greeting());
        deaf.flood(bytes, FLOOD);
        siege.client_is_served();
    });
}

/// A header block that is mostly references to the dynamic table, as a patient attacker writes it.
fn heads(streams: impl Iterator<Item = u32>, flags: u8, then: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
    let head = call_head();
    streams.flat_map(|stream| [frame(kind::HEADERS, flags, stream, &head), then(stream)].concat()).collect()
}

#[test]
fn rapid_reset() {
    attack(4 * MIB, |siege| {
        let cancelled = |stream| number(kind::RST_STREAM, stream, 8);
        let mut attacker = Attacker::greeted(siege.grpc_port());
        attacker.send(&heads(streams().take(100_000), END_HEADERS, cancelled));
        assert_eq!(attacker.is_closed().goaway, Some(ENHANCE_YOUR_CALM));
    });
}

/// Streams that the server is made to reset, which the client's own resets do not count: by a window that overflows, by
/// data behind the end.
#[test]
fn made_to_reset() {
    attack(24 * MIB, |siege| {
        let overflow = |stream| number(kind::WINDOW_UPDATE, stream, 0x7fff_ffff);
        let data = |stream| frame(kind::DATA, 0, stream, b"x");
        let overflows = heads(streams().take(100_000), END_HEADERS, overflow);
        let goes_on = heads(streams().take(100_000), END_HEADERS | END_STREAM, data);
        for (calls, codes) in
            [(overflows, [ENHANCE_YOUR_CALM; 2]), (goes_on, [ENHANCE_YOUR_CALM, PROTOCOL_ERROR])]
        {
            let mut attacker = Attacker::greeted(siege.grpc_port());
            attacker.send(&calls);
            let goaway = attacker.is_closed().goaway;
            assert!(goaway.is_some_and(|code| codes.contains(&code)), "{goaway:?}");
        }
    });
}

#[test]
fn ten_thousand_streams_on_one_connection() {
    attack(16 * MIB, |siege| {
        let mut attacker = Attacker::greeted(siege.grpc_port());
        attacker.send(&heads(streams().take(10_000), END_HEADERS, |_| Vec::new()));
        let heard = attacker.is_closed();
        assert_eq!(heard.goaway, Some(ENHANCE_YOUR_CALM));
        assert!(heard.resets[REFUSED_STREAM] > 0, "{heard:?}");
    });
}

#[test]
fn continuation_without_an_end() {
    for fragment in [&b""[..], &[0; 100], &[0x40; 16 * 1024]] {
        attack(4 * MIB, |siege| {
            let mut attacker = Attacker::greeted(siege.grpc_port());
            attacker.send(&frame(kind::HEADERS, 0, 1, &call_head()));
            attacker.flood(&frame(kind::CONTINUATION, 0, 1, fragment), FLOOD);
            attacker.is_closed();
        });
    }
}

#[test]
fn settings_without_an_end() {
    is_kept_within_bounds(&settings(&[]));
}

#[test]
fn settings_that_change_without_an_end() {
    let every: Vec<(u16, u32)> = (0..500).map(|value| (4, 1000 + value)).collect();
    is_kept_within_bounds(&settings(&every));
}

#[test]
fn pings_without_an_end() {
    is_kept_within_bounds(&frame(kind::PING, 0, 0, b"12345678"));
}

#[test]
fn frames_that_mean_nothing_without_an_end() {
    is_kept_within_bounds(&frame(kind::PING, ACK, 0, b"12345678"));
    is_kept_within_bounds(&frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 0, 16]));
    is_kept_within_bounds(&frame(99, 0, 0, &[0; 100]));
}

/// Every port: the ones that hyper serves too. An attacker of any of them is cut off within the same bound.
#[test]
fn frames_that_ask_for_nothing_end_the_connection_on_every_port() {
    let floods = [
        frame(kind::PING, 0, 0, b"12345678"),
        settings(&[]),
        number(kind::WINDOW_UPDATE, 0, 1),
        frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 0, 16]),
        frame(99, 0, 0, &[0; 100]),
    ];
    attack(4 * MIB, |siege| {
        let Ports { grpc, http, debug, metrics } = siege.limiter.ports();
        for port in [grpc, http, debug, metrics] {
            for flood in &floods {
                let mut attacker = Attacker::connect(port);
                // Windows stay small, so that updates do not make them overflow.
                attacker.send(&[PREFACE, &settings(&[])].concat());
                let sent = attacker.flood(flood, FLOOD);
                assert!(sent <= SMALL_BYTES_MAX, "{sent} bytes of {:?}", &flood[..9]);
                attacker.is_closed();
            }
        }
    });
}

/// Frames on a stream, or about one, that needs none of them. hyper takes large ones for as long as they come.
#[test]
fn frames_that_nobody_needs_end_the_connection() {
    let posts = [0x83, 0x86];
    let path = |path| field(0, ":path", path);
    let grpc = field(0, "content-type", "application/grpc");
    let watch = [&posts[..], &path("/grpc.health.v1.Health/Watch"), &grpc].concat();
    let watch =
        [frame(kind::HEADERS, END_HEADERS, 1, &watch), frame(kind::DATA, END_STREAM, 1, &[0; 5])].concat();
    let page = frame(kind::HEADERS, END_HEADERS, 1, &[&posts[..], &path("/")].concat());
    let unknown =
        frame(kind::HEADERS, END_HEADERS, 1, &[&posts[..], &path("/no.Such/Method"), &grpc].concat());
    let (byte, much) = (frame(kind::DATA, 0, 1, b"x"), frame(kind::DATA, 0, 1, &[0; 16 * 1024]));
    attack(8 * MIB, |siege| {
        for (opening, flood) in [
            (Vec::new(), frame(kind::SETTINGS, ACK, 0, &[])),
            (watch.clone(), number(kind::WINDOW_UPDATE, 1, 1)),
            (page.clone(), byte.clone()),
            (page.clone(), much.clone()),
            (unknown.clone(), byte.clone()),
        ] {
            let mut attacker = Attacker::greeted(siege.grpc_port());
            attacker.send(&opening);
            let sent = attacker.flood(&flood, FLOOD / 2);
            let is_small = flood.len() < 1024;
            if matches!(siege.front, Front::Lane) || is_small {
                let most = if is_small { SMALL_BYTES_MAX } else { LARGE_BYTES_MAX };
                assert!(sent <= most, "{sent} bytes of {:?}", &flood[..9]);
                let goaway = attacker.is_closed().goaway;
                let codes = [Some(ENHANCE_YOUR_CALM), Some(PROTOCOL_ERROR)];
                assert!(matches!(siege.front, Front::Tonic) || codes.contains(&goaway), "{goaway:?}");
            }
        }
    });
}

#[test]
fn windows_that_overflow() {
    attack(4 * MIB, |siege| {
        let update = number(kind::WINDOW_UPDATE, 0, 0x7fff_ffff);
        assert_eq!(ends_the_connection(siege, &update), Some(FLOW_CONTROL_ERROR));
        let nothing = number(kind::WINDOW_UPDATE, 0, 0);
        assert_eq!(ends_the_connection(siege, &nothing), Some(PROTOCOL_ERROR));
    });
}

#[test]
fn data_without_content() {
    attack(4 * MIB, |siege| {
        let mut attacker = Attacker::greeted(siege.grpc_port());
        attacker.send(&frame(kind::HEADERS, END_HEADERS, 1, &call_head()));
        attacker.flood(&frame(kind::DATA, 0, 1, b""), FLOOD);
        assert_eq!(attacker.is_closed().goaway, Some(ENHANCE_YOUR_CALM));
    });
}

/// A call's body goes on behind its end: at once, and behind its answer. hyper ignores what comes behind an answer, for
/// some time, so that only the lane has to end both.
#[test]
fn data_behind_the_end_of_a_call() {
    let data = frame(kind::DATA, END_STREAM, 1, &call_body(&question()));
    attack(4 * MIB, |siege| {
        for answered_before in [false, true] {
            let mut attacker = Attacker::greeted(siege.grpc_port());
            if answered_before {
                attacker.send(&call(1, &question()));
                attacker.hears("the answer", |heard| heard.ended == 1);
            } else {
                attacker.send(&[call(1, &question()), data.clone()].concat());
            }
            attacker.flood(&data, FLOOD / 2);
            if let Front::Lane = siege.front {
                assert_eq!(attacker.is_closed().goaway, Some(ENHANCE_YOUR_CALM));
            }
        }
    });
}

/// Calls by the thousand from a client that takes no answer off its socket: what cannot be sent stops what is read.
#[test]
fn calls_of_which_nobody_reads_the_answers() {
    attack(24 * MIB, |siege| {
        let mut attacker = Attacker::deaf(siege.grpc_port());
        assert!(attacker.send(&greeting()));
        // An answer is several times as long as its question.
        let many: Vec<&[(&str, &str)]> = vec![&[("user", "")]; 64];
        let question = grpc::question("shop", &many);
        let mut streams = streams();
        let stopped = (0..500).any(|_| {
            let calls: Vec<u8> =
                streams.by_ref().take(60).flat_map(|stream| call(stream, &question)).collect();
            // By then the server has read what it was sent, or has stopped reading.
            siege.client_is_served();
            !attacker.send(&calls)
        });
        assert!(stopped, "the server has read it all");
    });
}

/// What ordinary clients send that asks for nothing: pings to keep a connection, updates of small windows by the thousand.
#[test]
fn ordinary_clients_are_not_cut_off() {
    let rules: String = (0..20_000)
        .map(|user| {
            format!("  - {{key: user, value: u{user}, rate_limit: {{unit: day, requests_per_unit: 9}}}}\n")
        })
        .collect();
    let rules = format!("domain: shop\ndescriptors:\n{rules}");
    let limiter = Setup::new().env("GRPC_FRONT", "tonic").rules("shop.yaml", &rules).start();
    let Ports { grpc, http, debug, .. } = limiter.ports();

    let mut pinging = Attacker::greeted(grpc);
    for stream in streams().take(200) {
        pinging.send(&[frame(kind::PING, 0, 0, b"12345678"), call(stream, &question())].concat());
        pinging.hears("the answer", |heard| heard.ended == u64::from(stream / 2 + 1));
    }
    assert!(!pinging.heard().closed);

    let mut question_file = tempfile::NamedTempFile::new().expect("a file can be made");
    question_file.write_all(&call_body(&question())).expect("it is ours");
    let asks =
        format!("-d {} -H content-type:application/grpc -H te:trailers", question_file.path().display());
    let call = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    for (calls, arguments, url) in [
        (20_000, asks.as_str(), format!("http://127.0.0.1:{grpc}/{call}")),
        (20_000, "", format!("http://127.0.0.1:{http}/livez")),
        // Pages of megabytes through windows of 4 KiB.
        (20, "-w 12 -W 12", format!("http://127.0.0.1:{debug}/rlconfig")),
    ] {
        let mut h2load = Command::new("h2load");
        h2load.args(["-n", &calls.to_string(), "-c", "2", "-m", "8"]);
        let said = succeed(h2load.args(arguments.split_whitespace()).arg(&url));
        assert!(
            said.contains(&format!("{calls} succeeded, 0 failed, 0 errored, 0 timeout")),
            "{url}: {said}"
        );
    }
    let page = format!("http://127.0.0.1:{debug}/rlconfig");
    let shown = succeed(Command::new("curl").args(["-sS", "--http2-prior-knowledge", &page]));
    assert!(shown.contains("u19999"), "{} bytes", shown.len());
}
