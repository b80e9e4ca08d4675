//! A small HTTP/1.1 client: one connection, one request at a time, exactly the bytes that a test wants.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;

use tokio::net::TcpSocket;

/// One keep-alive connection.
pub struct Client {
    port: u16,
    /// Its own address.
    from: Ipv4Addr,
    stream: Option<BufReader<TcpStream>>,
}

/// An answer, header names in lower case.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// A header that has to be there, as a number.
    pub fn number(&self, name: &str) -> u64 {
        let value = self.header(name).unwrap_or_else(|| panic!("no {name} in {self:?}"));
        value.parse().unwrap_or_else(|_| panic!("{name} is no number: {value}"))
    }
}

/// One GET on a connection of its own.
pub fn get(port: u16, path: &str) -> io::Result<Answer> {
    Client::new(port).send("GET", path, &[], "")
}

/// One GET over a unix socket.
pub fn get_unix(socket: &Path, path: &str) -> io::Result<Answer> {
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: tests\r\n\r\n").as_bytes())?;
    read_answer(&mut BufReader::new(stream), false)
}

impl Client {
    pub fn new(port: u16) -> Self {
        Self::at(Ipv4Addr::LOCALHOST, port)
    }

    /// A client whose own address is this one, of loopback's sixteen million.
    pub fn at(from: Ipv4Addr, port: u16) -> Self {
        Self { port, from, stream: None }
    }

    /// A GET that has to be answered.
    pub fn get(&mut self, path: &str) -> Answer {
        self.send("GET", path, &[], "").unwrap_or_else(|error| panic!("GET {path} on {}: {error}", self.port))
    }

    pub fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> io::Result<Answer> {
        let answer = self.exchange(method, path, headers, body);
        let closes = |answer: &Answer| answer.header("connection").is_some_and(|value| value == "close");
        if answer.as_ref().map_or(true, closes) {
            self.stream = None;
        }
        answer
    }

    fn exchange(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> io::Result<Answer> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => none.insert(BufReader::new(connect_from(self.from, self.port)?)),
        };
        let mut request = format!("{method} {path} HTTP/1.1\r\n");
        if headers.iter().all(|(name, _)| *name != "host") {
            request += "host: tests\r\n";
        }
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        request += &format!("content-length: {}\r\n\r\n{body}", body.len());
        stream.get_mut().write_all(request.as_bytes())?;
        read_answer(stream, method == "HEAD")
    }
}

pub fn connect(port: u16) -> io::Result<TcpStream> {
    connect_from(Ipv4Addr::LOCALHOST, port)
}

fn connect_from(from: Ipv4Addr, port: u16) -> io::Result<TcpStream> {
    let connect = async {
        let socket = TcpSocket::new_v4()?;
        // To bind takes a port that is free for every peer, and tests that run at the same time have thousands.
        if from != Ipv4Addr::LOCALHOST {
            socket.bind((from, 0).into())?;
        }
        socket.connect((Ipv4Addr::LOCALHOST, port).into()).await?.into_std()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let stream = runtime.block_on(connect)?;
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(super::DEADLINE))?;
    stream.set_write_timeout(Some(super::DEADLINE))?;
    Ok(stream)
}

pub fn read_answer(stream: &mut impl BufRead, head_only: bool) -> io::Result<Answer> {
    let status_line = read_line(stream)?;
    let status = status_line.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.ok_or_else(|| io::Error::other(format!("no status in {status_line:?}")))?;
    let mut headers = Vec::new();
    loop {
        let line = read_line(stream)?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let mut answer = Answer { status, headers, body: String::new() };
    if !head_only {
        answer.body = String::from_utf8_lossy(&read_body(stream, &answer)?).into_owned();
    }
    Ok(answer)
}

fn read_body(stream: &mut impl BufRead, answer: &Answer) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    if answer.header("transfer-encoding") == Some("chunked") {
        loop {
            let size = read_line(stream)?;
            let size = u64::from_str_radix(&size, 16).map_err(io::Error::other)?;
            stream.take(size).read_to_end(&mut body)?;
            read_line(stream)?;
            if size == 0 {
                return Ok(body);
            }
        }
    }
    let length =
        answer.header("content-length").map_or(Ok(0), |value| value.parse().map_err(io::Error::other))?;
    stream.take(length).read_to_end(&mut body)?;
    Ok(body)
}

/// A line without its end. The end of the stream is an error: an answer was expected.
fn read_line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}
