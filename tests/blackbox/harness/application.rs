//! An application behind a proxy, as lenient about paths as any that there is: it serves its login for every path that
//! some framework would take for one.

use std::collections::HashSet;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

/// What it answers a login, and everything else.
pub const LOGIN: &str = "login";
const OTHER: &str = "other";

/// Starts it. Returns its port; it serves as long as the tests run.
pub fn start() -> u16 {
    serving(serve)
}

/// Starts an application that answers each connection like this. Returns its port.
pub fn serving(serve: fn(&TcpStream) -> io::Result<()>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // An error is the end of the connection.
            std::thread::spawn(move || serve(&stream));
        }
    });
    port
}

/// Answers requests without a body.
fn serve(mut stream: &TcpStream) -> io::Result<()> {
    let mut lines = BufReader::new(stream).split(b'\n');
    while let Some(request) = lines.next() {
        let request = String::from_utf8_lossy(&request?).into_owned();
        for header in lines.by_ref() {
            if header?.trim_ascii().is_empty() {
                break;
            }
        }
        let target = request.split(' ').nth(1).unwrap_or_default();
        let body = if is_login(target) { LOGIN } else { OTHER };
        write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())?;
    }
    Ok(())
}

/// Some way of reading the target leads to `/login`, or to what begins so. Escapes are decoded once; what else is done
/// to a path, before that or after it, may be done in any order.
fn is_login(target: &str) -> bool {
    let target = target.strip_prefix("http://tests").unwrap_or(target);
    let path = target.split('?').next().unwrap_or_default();
    let fragments = [path, path.split('#').next().unwrap_or_default()];
    let undecoded = readings(fragments.map(str::to_owned).into());
    let decoded = readings(undecoded.iter().map(|path| decoded(path)).collect());
    undecoded.union(&decoded).any(|path| path.starts_with("/login"))
}

/// These paths, and all that they become.
fn readings(mut paths: HashSet<String>) -> HashSet<String> {
    let steps: [fn(&str) -> String; 3] = [|path| path.replace('\\', "/"), with_merged_slashes, without_dots];
    for _ in 0..steps.len() {
        let further: Vec<_> = paths.iter().flat_map(|path| steps.map(|step| step(path))).collect();
        paths.extend(further);
    }
    paths
}

fn with_merged_slashes(path: &str) -> String {
    path.split('/').filter(|part| !part.is_empty()).fold(String::new(), |path, part| path + "/" + part)
}

fn decoded(path: &str) -> String {
    let mut parts = path.split('%');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => text.extend([&*char::from(byte).to_string(), &part[2..]]),
            None => text.extend(["%", part]),
        }
    }
    text
}

fn without_dots(path: &str) -> String {
    let mut kept = Vec::new();
    for part in path.split('/').skip(1) {
        match part.split(';').next() {
            Some(".") => {}
            Some("..") => drop(kept.pop()),
            _ => kept.push(part),
        }
    }
    format!("/{}", kept.join("/"))
}
