//! The bytes that a client sends on the gRPC port: HTTP/2, HPACK and messages, without sockets. Nothing panics,
//! wherever they are cut.

#![no_main]

use std::cell::OnceCell;

use libfuzzer_sys::fuzz_target;
use tidegate::{BareConnection, lane};
use tidegate_serve::service::fixture;

const RULES: &str = "
domain: d
descriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 4000000000, algorithm: fixed_window}}]
";
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

thread_local! {
    static CONNECT: OnceCell<Box<dyn Fn() -> BareConnection>> = const { OnceCell::new() };
}

/// Serves a client whose bytes come in two pieces, cut before `cut`.
fn serve(connect: &dyn Fn() -> BareConnection, bytes: &[u8], cut: usize) {
    let (mut connection, mut input, mut output) = (connect(), Vec::new(), Vec::new());
    for piece in [PREFACE, &bytes[..cut], &bytes[cut..]] {
        input.extend_from_slice(piece);
        let taken = connection(&input, &mut output);
        input.drain(..taken);
    }
}

fuzz_target!(|data: (u16, &[u8])| {
    let (cut, bytes) = data;
    CONNECT.with(|connect| {
        let connect = connect.get_or_init(|| {
            let metrics = fixture::metrics();
            Box::new(lane(fixture::service(Some(RULES), &metrics), metrics))
        });
        serve(connect, bytes, usize::from(cut) % (bytes.len() + 1));
    });
});
