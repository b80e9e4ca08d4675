//! A wire to a Redis that writes down what its script decided, with the time at which Redis says it did: a log that
//! knows nothing of clients' clocks, nor of nodes that die before they answer.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use super::admissions::Admissions;
use super::faulty::relay;

/// Numbers before this are no times in microseconds: no reply but a decision begins with one.
const TIMES_FROM: i64 = 1 << 48;

/// All decisions of some servers.
#[derive(Clone, Default)]
pub struct Recorder(Arc<Mutex<Recorded>>);

/// What was recorded of requests for one counter each.
#[derive(Default)]
pub struct Recorded {
    /// Hits that were charged.
    pub charged: Admissions,
    /// Hits that went into leases.
    pub leased: u64,
    /// By how much a decision's time differed most from this wire's own, in microseconds.
    pub apart_micros: u64,
}

impl Recorder {
    /// A port where this port of loopback is answered for.
    pub fn to(&self, port: u16) -> u16 {
        let recorded = Arc::clone(&self.0);
        relay(port, move || {
            let (recorded, mut unread) = (Arc::clone(&recorded), Vec::new());
            move |bytes: &mut [u8]| {
                unread.extend_from_slice(bytes);
                let mut rest = &unread[..];
                let mut numbers = Vec::new();
                while let Some(behind) = read_value(rest, &mut numbers) {
                    recorded.lock().unwrap_or_else(PoisonError::into_inner).take(&numbers);
                    numbers.clear();
                    rest = behind;
                }
                let read = unread.len() - rest.len();
                unread.drain(..read);
                true
            }
        })
    }

    /// What was recorded since this was asked last.
    pub fn take(&self) -> Recorded {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Recorded {
    /// A decision of one counter: the time, over, before, left, charged, four numbers more; of a lease its hits and stamp.
    fn take(&mut self, numbers: &[i64]) {
        let (&[now, _, _, _, charged, _, _, _, _, ref lease @ ..], true) =
            (numbers, numbers.first().is_some_and(|&first| first > TIMES_FROM))
        else {
            return;
        };
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).expect("past 1970");
        let apart = now.unsigned_abs().abs_diff(since_epoch.as_micros() as u64);
        self.apart_micros = self.apart_micros.max(apart);
        (0..charged).for_each(|_| self.charged.push(now.unsigned_abs(), now.unsigned_abs()));
        self.leased += lease.first().map_or(0, |hits| hits.unsigned_abs());
    }
}

/// Reads one value of Redis' protocol and adds the numbers in it; what is behind it, once all of it is there.
fn read_value<'b>(bytes: &'b [u8], numbers: &mut Vec<i64>) -> Option<&'b [u8]> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")?;
    let (line, mut rest) = (&bytes[1..end], &bytes[end + 2..]);
    let number =
        || std::str::from_utf8(line).ok().and_then(|text| text.parse::<i64>().ok()).expect("a number");
    let before = numbers.len();
    match bytes[0] {
        b':' => numbers.push(number()),
        b'$' if number() >= 0 => rest = rest.get(number() as usize + 2..)?,
        b'*' => {
            for _ in 0..number() {
                let read = read_value(rest, numbers);
                if read.is_none() {
                    numbers.truncate(before);
                }
                rest = read?;
            }
        }
        _ => {}
    }
    Some(rest)
}

#[test]
fn decisions_are_found_among_other_answers_however_they_are_cut() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("past 1970").as_micros();
    let told = format!(
        "+OK\r\n*2\r\n$10\r\n1790000000\r\n$1\r\n5\r\n*9\r\n:{now}\r\n:0\r\n:3\r\n:6\r\n:1\r\n:{now}\r\n:7\r\n:4\r\n:9\r\n\
         *1\r\n:{now}\r\n$-1\r\n*11\r\n:{now}\r\n:0\r\n:3\r\n:6\r\n:2\r\n:{now}\r\n:7\r\n:4\r\n:9\r\n:40\r\n:1\r\n-ERR no\r\n"
    );
    for cut in 0..told.len() {
        let (mut recorded, mut numbers) = (Recorded::default(), Vec::new());
        let (first, second) = told.as_bytes().split_at(cut);
        let mut rest = first;
        while let Some(behind) = read_value(rest, &mut numbers) {
            recorded.take(&numbers);
            numbers.clear();
            rest = behind;
        }
        let left = [rest, second].concat();
        let mut rest = &left[..];
        while let Some(behind) = read_value(rest, &mut numbers) {
            recorded.take(&numbers);
            numbers.clear();
            rest = behind;
        }
        assert_eq!((rest.len(), recorded.charged.len(), recorded.leased), (0, 3, 40), "cut at {cut}");
    }
}
