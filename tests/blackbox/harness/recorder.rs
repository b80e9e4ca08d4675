//! A wire to a Redis that writes down what its script decided, with the time at which Redis says it did: a log that
//! knows nothing of clients' clocks, nor of nodes that die before they answer.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use super::admissions::Admissions;
use super::faulty::relay;

/// Numbers outside of these are no times in microseconds: no reply but a decision begins with one.
const TIMES: std::ops::Range<i64> = 1 << 48..1 << 53;
/// Bytes of a decision of one counter: nine numbers of eight bytes each, or two more with a lease.
const DECISION_BYTES: [usize; 2] = [72, 88];

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
                let mut decisions = Vec::new();
                while let Some(behind) = read_value(rest, &mut decisions) {
                    rest = behind;
                }
                let mut recorded = recorded.lock().unwrap_or_else(PoisonError::into_inner);
                decisions.iter().for_each(|numbers| recorded.take(numbers));
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
            (numbers, numbers.first().is_some_and(|first| TIMES.contains(first)))
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

/// Reads one value of Redis' protocol and adds what may be decisions in it, by their numbers; what is behind it, once all
/// of it is there. Calls that share a command have their decisions in one array.
fn read_value<'b>(bytes: &'b [u8], decisions: &mut Vec<Vec<i64>>) -> Option<&'b [u8]> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")?;
    let (line, mut rest) = (&bytes[1..end], &bytes[end + 2..]);
    let number =
        || std::str::from_utf8(line).ok().and_then(|text| text.parse::<i64>().ok()).expect("a number");
    let before = decisions.len();
    match bytes[0] {
        b'$' if number() >= 0 => {
            let (text, behind) = rest.split_at_checked(number() as usize)?;
            rest = behind.get(2..)?;
            if DECISION_BYTES.contains(&text.len()) {
                let doubles = text.as_chunks().0.iter();
                decisions.push(doubles.map(|&double| f64::from_le_bytes(double) as i64).collect());
            }
        }
        b'*' => {
            for _ in 0..number() {
                let read = read_value(rest, decisions);
                if read.is_none() {
                    decisions.truncate(before);
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
    let reply = |numbers: &[u64]| {
        let doubles = numbers.iter().flat_map(|&number| (number as f64).to_le_bytes());
        [format!("${}\r\n", numbers.len() * 8).into_bytes(), doubles.collect(), b"\r\n".to_vec()].concat()
    };
    let now = now as u64;
    let shown = [
        b"+OK\r\n*2\r\n$10\r\n1790000000\r\n$1\r\n5\r\n".to_vec(),
        reply(&[now, 0, 3, 6, 1, now, 7, 4, 9]),
        reply(&[now]),
        b"$-1\r\n".to_vec(),
        reply(&[now, 0, 3, 6, 2, now, 7, 4, 9, 40, 1]),
        b"-ERR no\r\n*3\r\n".to_vec(),
        reply(&[now, 0, 3, 6, 4, now, 7, 4, 9]),
        b"-ERR no\r\n".to_vec(),
        reply(&[now, 0, 3, 6, 8, now, 7, 4, 9, 2, 1]),
    ]
    .concat();
    for cut in 0..shown.len() {
        let (mut recorded, mut decisions) = (Recorded::default(), Vec::new());
        let (first, second) = shown.split_at(cut);
        let mut rest = first;
        while let Some(behind) = read_value(rest, &mut decisions) {
            rest = behind;
        }
        let left = [rest, second].concat();
        let mut rest = &left[..];
        while let Some(behind) = read_value(rest, &mut decisions) {
            rest = behind;
        }
        decisions.iter().for_each(|numbers| recorded.take(numbers));
        assert_eq!((rest.len(), recorded.charged.len(), recorded.leased), (0, 15, 42), "cut at {cut}");
    }
}
