//! TLS: what makes a good identity, and clients that stop in the middle of a handshake.

use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair, date_time_ymd, generate_simple_self_signed};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{TIMEOUT, bind};
use crate::front::connections::{Identity, Port, Tls, TlsError};
use crate::front::{DrainSwitch, Life};

/// In 2026, in seconds of unix time.
const NOW: u64 = 1_780_000_000;

/// A certificate and its key.
fn pem() -> (String, String) {
    let made = generate_simple_self_signed(["localhost".to_owned()]).expect("a name");
    (made.cert.pem(), made.signing_key.serialize_pem())
}

#[test]
fn what_is_wrong_with_an_identity_is_reported_for_its_part() {
    let ((chain, key), (_, other_key)) = (pem(), pem());
    let identity = Identity {
        chain: chain.as_bytes(),
        key: key.as_bytes(),
        client_ca: Some(chain.as_bytes()),
        client_name: Some("a.example"),
    };
    let tls = Tls::new(Port::Grpc, &identity).expect("good");
    let part = |identity: &Identity<'_>| match tls.replace(identity, NOW) {
        Ok(()) => "none",
        Err(TlsError::Chain(_)) => "chain",
        Err(TlsError::Key(_)) => "key",
        Err(TlsError::ClientCa(_)) => "client_ca",
        Err(TlsError::ClientName(_)) => "client_name",
    };
    assert_eq!(part(&identity), "none");
    let cut = &chain.as_bytes()[..chain.len() / 2];
    let broken = chain.replacen(|char: char| char.is_ascii_lowercase(), "%", 3);
    for bad in [b"", cut, broken.as_bytes(), key.as_bytes()] {
        assert_eq!(part(&Identity { chain: bad, ..identity }), "chain", "{}", String::from_utf8_lossy(bad));
        assert_eq!(part(&Identity { client_ca: Some(bad), ..identity }), "client_ca");
    }
    for bad in [b"", cut, chain.as_bytes(), other_key.as_bytes()] {
        assert_eq!(part(&Identity { key: bad, ..identity }), "key");
    }
    assert_eq!(part(&Identity { client_name: Some("no name"), ..identity }), "client_name");
    let both = format!("{chain}{key}");
    let in_one_file = Identity { chain: both.as_bytes(), key: both.as_bytes(), ..identity };
    assert_eq!(part(&in_one_file), "none");
}

#[test]
fn an_expired_certificate_replaces_only_one_that_is_expired_too() {
    let until = |year| {
        let mut params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        params.not_after = date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().expect("randomness");
        (params.self_signed(&key).expect("sound parameters").pem(), key.serialize_pem())
    };
    let (good, expired, chained) = (until(2040), until(2020), until(2041));
    // An old certificate of an authority at the end of a chain is no reason.
    let chained = (chained.0 + &expired.0, chained.1);
    let of = |(chain, key): &(String, String)| {
        let (chain, key) = (chain.clone(), key.clone());
        move |tls: Option<&Tls>| {
            let identity =
                Identity { chain: chain.as_bytes(), key: key.as_bytes(), client_ca: None, client_name: None };
            match tls {
                None => Tls::new(Port::Grpc, &identity).map(Some),
                Some(tls) => tls.replace(&identity, NOW).map(|()| None),
            }
        }
    };
    let (good, expired, chained) = (of(&good), of(&expired), of(&chained));
    let tls = good(None).expect("good").expect("made");
    let refused = expired(Some(&tls)).expect_err("expired").to_string();
    assert!(refused.contains("expired"), "{refused}");
    assert!(chained(Some(&tls)).is_ok() && good(Some(&tls)).is_ok());
    let tls = expired(None).expect("nothing better is known").expect("made");
    assert!(expired(Some(&tls)).is_ok() && good(Some(&tls)).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stops_in_a_handshake_is_not_kept_and_is_counted() {
    let (chain, key) = pem();
    let identity =
        Identity { chain: chain.as_bytes(), key: key.as_bytes(), client_ca: None, client_name: None };
    let tls = Arc::new(Tls::new(Port::Http, &identity).expect("good"));
    let (listener, address) = bind().await;
    let listener = listener.with_tls(Some(Arc::clone(&tls)));
    let switch = DrainSwitch::new();
    // Nothing; the beginning of a record; something else.
    for (counted, sent) in (1..).zip([&b""[..], b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n"]) {
        let mut client = TcpStream::connect(address).await.expect("it listens");
        client.write_all(sent).await.expect("buffered");
        let mut life = Life::until(switch.drain());
        let greeted = listener.accept().await.greeted(&mut life);
        let greeted = tokio::time::timeout(Duration::from_secs(11), greeted).await.expect("in time");
        assert!(greeted.is_none());
        assert_eq!(tls.handshakes_failed(), counted);
        let closed = tokio::time::timeout(TIMEOUT, client.read_to_end(&mut Vec::new())).await;
        assert!(closed.is_ok(), "the connection is closed");
    }
}
