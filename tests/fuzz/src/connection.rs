//! The bytes that a client sends on the gRPC port: HTTP/2, HPACK and messages, without sockets. However they are cut, the
//! answer is the same.

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

/// What the client gets for its bytes, which come cut before `cut`.
fn answer(connect: &dyn Fn() -> BareConnection, bytes: &[u8], cut: usize) -> Vec<u8> {
    let (mut connection, mut input, mut output) = (connect(), Vec::new(), Vec::new());
    for piece in [PREFACE, &bytes[..cut], &bytes[cut..]] {
        input.extend_from_slice(piece);
        let taken = connection(&input, &mut output);
        input.drain(..taken);
    }
    output
}

fuzz_target!(|data: (u16, &[u8])| {
    let (cut, bytes) = data;
    CONNECT.with(|connect| {
        let connect = connect.get_or_init(|| {
            let metrics = fixture::metrics();
            Box::new(lane(fixture::service(Some(RULES), &metrics), metrics))
        });
        // 0 hits are asked about: nothing that is counted tells the two apart.
        let whole = answer(connect, bytes, 0);
        let cut = usize::from(cut) % (bytes.len() + 1);
        assert_eq!(answer(connect, bytes, cut).is_empty(), whole.is_empty(), "cut before byte {cut}");
    });
});
