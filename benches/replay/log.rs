//! The logs and cases that are measured: always the same for the same shape.

use std::fmt::Write as _;
use std::io::{self, BufWriter, Write};

use clap::ValueEnum;
use flate2::Compression;
use flate2::write::GzEncoder;

/// The most that a line's stamp lies behind the one before it, in seconds.
const BACK_SECS: u64 = 3;

/// Days are all in May.
const DAYS: u64 = 31;

const PATHS: [&str; 8] = [
    "/",
    "/cart/checkout?step=payment&session=",
    "/products/shoes/running/42?color=blue&ref=",
    "/api/v2/orders?page=3&limit=50&cursor=",
    "/images/logos/hubpages.png?v=",
    "/presentations/logstash-monitorama-2013/images/kibana-dashboard.png?t=",
    "/search?q=rate+limiter&sort=price&id=",
    "/static/app.js?build=",
];

const AGENTS: [&str; 5] = [
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_9_1) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/32.0.1700.77 Safari/537.36",
    "Mozilla/5.0 (X11; Ubuntu; Linux x86_64; rv:27.0) Gecko/20100101 Firefox/27.0",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 6_0 like Mac OS X) AppleWebKit/536.26 (KHTML, like Gecko) Version/6.0 Mobile/10A5376e Safari/8536.25",
    "curl/8.5.0",
    "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
];

tidegate_engine::named! {
    /// What a log is written as.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
    pub(crate) enum Kind {
        Plain = "plain",
        Gzip = "gzip",
        Zstd = "zstd",
        Json = "JSON",
    }
}

impl Kind {
    /// The flags with which `tidegate replay` reads it.
    pub(crate) fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Json => &["--format", "json", "--time", "time"],
            _ => &["--format", "combined"],
        }
    }
}

/// How much is logged.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) lines: u64,
    /// Lines for each second of the log's time.
    pub(crate) per_second: u64,
    pub(crate) keys: u64,
}

/// Writes a log.
pub(crate) fn write(kind: Kind, shape: Shape, file: impl Write) -> io::Result<()> {
    let file = BufWriter::with_capacity(1 << 20, file);
    match kind {
        Kind::Plain => write_lines(shape, combined, file)?.flush(),
        Kind::Json => write_lines(shape, json, file)?.flush(),
        Kind::Gzip => {
            write_lines(shape, combined, GzEncoder::new(file, Compression::default()))?.finish()?.flush()
        }
        Kind::Zstd => write_lines(shape, combined, zstd::Encoder::new(file, 3)?)?.finish()?.flush(),
    }
}

/// One request.
struct Line {
    address: u64,
    day: u64,
    /// Of the day.
    second: u64,
    random: u64,
}

fn write_lines<W: Write>(shape: Shape, form: fn(&Line, &mut String), mut out: W) -> io::Result<W> {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut text = String::new();
    for number in 0..shape.lines {
        // Most requests are those of few addresses.
        let part = random.next() as u32 as f64 / f64::from(u32::MAX);
        let address = (part.powi(3) * (shape.keys - 1) as f64) as u64;
        let back = random.next() % (BACK_SECS + 1);
        let at = number / shape.per_second + BACK_SECS - back;
        let (day, second) = (at / 86_400 % DAYS + 1, at % 86_400);
        text.clear();
        form(&Line { address, day, second, random: random.next() }, &mut text);
        out.write_all(text.as_bytes())?;
    }
    Ok(out)
}

impl Line {
    fn address(&self) -> String {
        // Neighbours are not busy together.
        let mixed = (self.address + 1).wrapping_mul(2_654_435_761) as u32;
        std::net::Ipv4Addr::from(mixed).to_string()
    }

    fn time(&self) -> String {
        let (hour, minute, second) = (self.second / 3_600, self.second / 60 % 60, self.second % 60);
        format!("{hour:02}:{minute:02}:{second:02}")
    }

    fn path(&self) -> &'static str {
        PATHS[(self.random % PATHS.len() as u64) as usize]
    }

    fn agent(&self) -> &'static str {
        AGENTS[(self.random >> 8) as usize % AGENTS.len()]
    }
}

fn combined(line: &Line, text: &mut String) {
    let (address, time, path, agent) = (line.address(), line.time(), line.path(), line.agent());
    let _ = writeln!(
        text,
        "{address} - - [{:02}/May/2015:{time} +0000] \"GET {path}{:x} HTTP/1.1\" 200 {} \"http://shop.example/presentations/\" \"{agent}\"",
        line.day,
        line.random >> 40,
        line.random >> 48,
    );
}

fn json(line: &Line, text: &mut String) {
    let (address, time, path, agent) = (line.address(), line.time(), line.path(), line.agent());
    let _ = writeln!(
        text,
        "{{\"time\":\"2015-05-{:02}T{time}Z\",\"remote_addr\":\"{address}\",\"method\":\"GET\",\"path\":\"{path}{:x}\",\"status\":200,\"bytes\":{},\"referer\":\"http://shop.example/presentations/\",\"agent\":\"{agent}\"}}",
        line.day,
        line.random >> 40,
        line.random >> 48,
    );
}

/// A file of so many cases, as people write them: a few steps each.
pub(crate) fn cases(number: usize) -> String {
    let mut text = "rules: rules.yaml\ncases:\n".to_owned();
    for case in 0..number {
        let _ = write!(
            text,
            "  - name: address {case} has 60 requests a minute\n    steps:\n      \
             - {{every: 100ms x 60, request: {{remote_address: a{case}}}, expect: OK}}\n      \
             - {{after: 1s, request: {{remote_address: a{case}}}, expect: {{code: OVER_LIMIT, remaining: 0}}}}\n      \
             - {{at: 62s, request: {{remote_address: a{case}}}, expect: OK}}\n"
        );
    }
    text
}

/// Xorshift: its numbers are random enough for logs, and the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
