//! A webhook: a small HTTP server that takes events, refuses them, or hangs; and a proxy in front of it.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;

use super::pki::Identity;

/// What it does with a request.
#[derive(Clone, Copy, Debug)]
pub enum Mood {
    Takes,
    /// Answers with this status.
    Says(u16),
    /// Never answers.
    Hangs,
}

/// A running server. Its threads end with their connections.
pub struct Webhook {
    pub port: u16,
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    mood: Mood,
    requests: Vec<Received>,
}

/// A request, and whether it was taken.
#[derive(Clone, Debug)]
pub struct Received {
    pub taken: bool,
    /// The target of its first line.
    pub target: String,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

impl Webhook {
    /// On a port of its own.
    pub fn start(mood: Mood) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").expect("a port is free"), mood, None)
    }

    /// On this port.
    pub fn start_on(port: u16, mood: Mood) -> Self {
        Self::on(TcpListener::bind(("127.0.0.1", port)).expect("it is free"), mood, None)
    }

    /// With TLS.
    pub fn with_tls(identity: &Identity, mood: Mood) -> Self {
        let chain = CertificateDer::from_pem_slice(identity.chain.as_bytes()).expect("our own");
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).expect("our own");
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has ciphers for every version")
            .with_no_client_auth()
            .with_single_cert(vec![chain], key)
            .expect("they belong together");
        Self::on(TcpListener::bind("127.0.0.1:0").expect("a port is free"), mood, Some(Arc::new(config)))
    }

    fn on(listener: TcpListener, mood: Mood, tls: Option<Arc<ServerConfig>>) -> Self {
        let port = listener.local_addr().expect("it is bound").port();
        let shared = Arc::new(Mutex::new(Shared { mood, requests: Vec::new() }));
        let own = Arc::clone(&shared);
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (shared, tls) = (Arc::clone(&own), tls.clone());
                // An error is the end of the connection.
                thread::spawn(move || match tls {
                    None => serve(socket, &shared),
                    Some(config) => {
                        let session = ServerConnection::new(config).map_err(io::Error::other)?;
                        serve(StreamOwned::new(session, socket), &shared)
                    }
                });
            }
        });
        Self { port, shared }
    }

    /// From now on it is like this.
    pub fn become_(&self, mood: Mood) {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).mood = mood;
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Received> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).requests.clone()
    }

    /// All events that were taken so far.
    pub fn events(&self) -> Vec<Value> {
        let taken = self.requests().into_iter().filter(|request| request.taken);
        taken.flat_map(|request| request.events()).collect()
    }
}

impl Received {
    /// The events in it.
    pub fn events(&self) -> Vec<Value> {
        let body: Value = serde_json::from_str(&self.body).expect("JSON");
        body["events"].as_array().expect("a list").clone()
    }
}

/// Answers requests that have a body with a length.
fn serve(stream: impl Read + Write, shared: &Mutex<Shared>) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let Some((first, headers)) = read_head(&mut stream)? else { return Ok(()) };
        let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        stream.read_exact(&mut body)?;
        let body = String::from_utf8_lossy(&body).into_owned();
        let target = first.split(' ').nth(1).unwrap_or_default().to_owned();
        let mood = {
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let mood = shared.mood;
            shared.requests.push(Received { taken: matches!(mood, Mood::Takes), target, headers, body });
            mood
        };
        let status = match mood {
            Mood::Takes => 200,
            Mood::Says(status) => status,
            // Until the client has enough of it.
            Mood::Hangs => return stream.read_until(b'\n', &mut Vec::new()).map(drop),
        };
        write!(stream.get_mut(), "HTTP/1.1 {status} x\r\ncontent-length: 2\r\n\r\nok")?;
        stream.get_mut().flush()?;
    }
}

/// The first line of a request, and its headers. `None`: there is no other.
fn read_head(stream: &mut impl BufRead) -> io::Result<Option<(String, BTreeMap<String, String>)>> {
    let (mut first, mut headers) = (String::new(), BTreeMap::new());
    if stream.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { return Ok(Some((first, headers))) };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
}

/// A proxy that connects for others (CONNECT). Returns its port, and where it was asked to connect to.
pub fn connect_proxy() -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let (port, asked) = (listener.local_addr().expect("it is bound").port(), Arc::<Mutex<_>>::default());
    let own = Arc::clone(&asked);
    thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let asked = Arc::clone(&own);
            thread::spawn(move || connect(&socket, &asked));
        }
    });
    (port, asked)
}

fn connect(mut socket: &TcpStream, asked: &Mutex<Vec<String>>) -> io::Result<()> {
    let Some((first, _)) = read_head(&mut BufReader::new(socket))? else { return Ok(()) };
    let place = first.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next()).expect("CONNECT");
    asked.lock().unwrap_or_else(PoisonError::into_inner).push(place.to_owned());
    let server = TcpStream::connect(place)?;
    socket.write_all(b"HTTP/1.1 200 Connected\r\n\r\n")?;
    thread::scope(|scope| {
        scope.spawn(|| io::copy(&mut &server, &mut &*socket));
        io::copy(&mut &*socket, &mut &server)
    })?;
    Ok(())
}
