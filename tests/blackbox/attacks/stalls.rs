//! Clients that are slow, that stop, or that never begin.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use crate::harness::h2::{
    Attacker, END_HEADERS, INITIAL_WINDOW_SIZE, PREFACE, call, call_body, call_head, frame, kind, number,
    settings, streams,
};
use crate::harness::siege::{MIB, Siege, attack, question};
use crate::harness::{eventually_true, grpc, http};

/// What the server gives a client to say which protocol it speaks, and to send a call.
const PATIENCE: Duration = Duration::from_secs(10);
const FRAME_BYTES_MAX: usize = 16 * 1024;
/// Longer than any bound of the server, on a machine that other tests keep busy.
const LONG: Duration = Duration::from_secs(25);

fn connections(port: u16, count: usize) -> Vec<TcpStream> {
    (0..count).map(|_| http::connect(port).expect("it listens")).collect()
}

/// Whether the server has closed it: it has nothing to say on it.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(1))).expect("a valid timeout");
    match stream.read(&mut [0; 1024]) {
        Ok(length) => length == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// Says a little, again and again, on all of them until the server has closed them all.
fn drip_until_closed(streams: &mut Vec<TcpStream>, bytes: &[u8]) {
    let began = Instant::now();
    for byte in bytes.iter().cycle() {
        streams.retain_mut(|stream| stream.write_all(&[*byte]).is_ok() && !is_closed(stream));
        if streams.is_empty() {
            return;
        }
        assert!(began.elapsed() < LONG, "{} are still open", streams.len());
        std::thread::sleep(PATIENCE / 20);
    }
}

#[test]
fn a_preface_that_does_not_come() {
    attack(8 * MIB, |siege| {
        let mut silent = connections(siege.grpc_port(), 200);
        let mut slow = connections(siege.grpc_port(), 100);
        siege.client_is_served();
        drip_until_closed(&mut slow, PREFACE);
        eventually_true("the silent to be closed", || silent.iter_mut().all(is_closed));
    });
}

#[test]
fn garbage_before_the_preface() {
    attack(4 * MIB, |siege| {
        let long = [b'x'; 100_000];
        for garbage in [
            &b"\0"[..],
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01",
            b"PRI * HTTP/1.1\r\n\r\n",
            &long,
        ] {
            let mut stream = http::connect(siege.grpc_port()).expect("it listens");
            // Fails when the server has closed it before all was written.
            let _ = stream.write_all(garbage);
            let _ = stream.write_all(&[PREFACE, &settings(&[]), &call(1, &question())].concat());
            eventually_true("the connection to be closed", || is_closed(&mut stream));
        }
    });
}

/// Half a frame, and then nothing: a peer that is gone, as far as the server can see, costs a connection and no more.
#[test]
fn half_of_a_frame() {
    attack(16 * MIB, |siege| {
        let left: Vec<_> = (0..200)
            .map(|_| {
                let mut attacker = Attacker::greeted(siege.grpc_port());
                assert!(attacker.send(&call(1, &question())[..60]));
                attacker
            })
            .collect();
        siege.client_is_served();
        assert!(left.iter().all(|attacker| !attacker.heard().closed));
    });
}

/// In HTTP/2 half a connection is none: a client that has ended its half is gone, with all its calls.
#[test]
fn a_connection_that_is_half_closed() {
    attack(4 * MIB, |siege| {
        for _ in 0..50 {
            let mut attacker = Attacker::greeted(siege.grpc_port());
            for stream in streams().take(10) {
                assert!(attacker.send(&frame(kind::HEADERS, END_HEADERS, stream, &call_head())));
            }
            attacker.finish();
            attacker.is_closed();
        }
    });
}

/// Calls whose bodies never end: after a while each is answered, without its body.
#[test]
fn bodies_that_do_not_end() {
    attack(16 * MIB, |siege| {
        let mut attacker = Attacker::greeted(siege.grpc_port());
        let (body, calls) = (call_body(&question()), siege.front.calls_at_a_time());
        for stream in streams().take(calls) {
            attacker.send(&frame(kind::HEADERS, END_HEADERS, stream, &call_head()));
            attacker.send(&frame(kind::DATA, 0, stream, &body[..7]));
        }
        siege.client_is_served();
        let late = || {
            let outcome = [("code", "DEADLINE_EXCEEDED")];
            siege.limiter.scrape().sum("tidegate_requests_total", &outcome) == calls as f64
        };
        eventually_true("the calls to be given up", late);
        let heard = attacker.hears("the answers", |heard| heard.ended == calls as u64);
        assert_eq!(heard.frames(kind::DATA), 0, "{heard:?}");
    });
}

/// Bodies as large as they may be, all but their last byte: what a connection holds is bounded, not only what a call
/// does.
#[test]
fn large_bodies_that_do_not_end() {
    attack(24 * MIB, |siege| {
        let value = "x".repeat(60_000);
        let body = call_body(&grpc::question("shop", &[&[("user", &value)]]));
        let all_but_a_byte = &body[..body.len() - 1];
        for _ in 0..2 {
            let mut attacker = Attacker::greeted(siege.grpc_port());
            let mut sent = 0;
            for stream in streams().take(1_000) {
                sent += all_but_a_byte.len() as u64;
                attacker.hears("room for a body", |heard| heard.granted >= sent || heard.closed);
                let mut said = frame(kind::HEADERS, END_HEADERS, stream, &call_head());
                for piece in all_but_a_byte.chunks(FRAME_BYTES_MAX) {
                    said.extend(frame(kind::DATA, 0, stream, piece));
                }
                if !attacker.send(&said) {
                    break;
                }
            }
            // Who goes on with bodies of calls that were refused may lose the connection.
            let refused = attacker.hears("refusals", |heard| heard.ended >= 900 || heard.closed);
            assert!(refused.ended > 100 && refused.frames(kind::DATA) == 0, "{refused:?}");
        }
    });
}

/// Calls whose answers may not be sent, as the client's window is 0 or a byte and stays so.
#[test]
fn windows_that_stay_closed() {
    for window in [0, 1] {
        attack(64 * MIB, |siege| {
            let (mut attackers, calls_at_a_time) = (Vec::new(), siege.front.calls_at_a_time());
            for _ in 0..4 {
                let mut attacker = Attacker::connect(siege.grpc_port());
                attacker.send(&[PREFACE, &settings(&[(INITIAL_WINDOW_SIZE, window)])].concat());
                let calls: Vec<u8> =
                    streams().take(calls_at_a_time).flat_map(|stream| call(stream, &question())).collect();
                assert!(attacker.send(&calls));
                attackers.push(attacker);
            }
            siege.client_is_served();
            for attacker in &mut attackers {
                let heard = attacker
                    .hears("the heads", |heard| heard.frames(kind::HEADERS) == calls_at_a_time as u64);
                assert_eq!(heard.ended, 0, "{heard:?}");
                // The answers are there: they come when the window opens.
                for stream in streams().take(calls_at_a_time) {
                    attacker.send(&number(kind::WINDOW_UPDATE, stream, 1_000));
                }
                attacker.hears("the answers", |heard| heard.ended == calls_at_a_time as u64);
            }
        });
    }
}

/// HTTP/1 heads that never end, on the HTTP port.
#[test]
fn slow_loris() {
    attack(32 * MIB, |siege| {
        let mut slow = connections(siege.limiter.ports().http, 500);
        let head = b"GET /livez HTTP/1.1\r\nhost: t\r\nx-header: ";
        for stream in &mut slow {
            stream.write_all(head).expect("it is open");
        }
        for _ in 0..20 {
            slow.retain_mut(|stream| stream.write_all(b"x").is_ok());
            assert_eq!(http::get(siege.limiter.ports().http, "/livez").expect("it serves").status, 200);
        }
        siege.client_is_served();
        siege_by_large_heads(siege);
    });
}

/// Heads of HTTP/1 beyond what a connection may buffer.
fn siege_by_large_heads(siege: &Siege) {
    for _ in 0..20 {
        let mut stream = http::connect(siege.limiter.ports().http).expect("it listens");
        let _ = stream.write_all(b"GET /livez HTTP/1.1\r\n");
        let _ = stream.write_all(format!("x: {}\r\n", "y".repeat(1_000)).repeat(1_000).as_bytes());
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        // An end or a reset, when the server leaves something unread.
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 200"));
    }
}
