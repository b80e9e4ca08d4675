//! Which processes serve, and what nodes write into their marks.

use std::time::Duration;

use redis::Value;

/// The processes behind the names of servers.
#[derive(Default)]
pub(crate) struct Primaries {
    /// How often all servers were restarted. Connections from before are closed.
    pub(crate) restarts: u64,
    /// Connections from before the last restart hang instead: nothing says that they are closed.
    pub(crate) is_silent: bool,
    /// So many further servers share the last slots of a Cluster.
    pub(crate) further: u16,
    /// The host that sentinels name, and how much longer it takes to connect to it.
    pub(crate) master: (String, Duration),
    /// That host is a replica, though sentinels do not know it.
    pub(crate) is_replica: bool,
    /// The next so many marks are not written.
    pub(crate) marks_to_refuse: usize,
    /// What was to be written into marks before a connection was used.
    pub(crate) marks: Vec<ToMark>,
    /// When each host was last asked to decide.
    pub(crate) asked: Vec<(String, Duration)>,
    /// The host that has nodes ask another one, `second`, to decide, and the word by which it says so.
    pub(crate) redirects: Option<(String, &'static str)>,
    /// How often servers were asked for the slots of all.
    pub(crate) looks: usize,
}

/// What a node writes into the mark of a server.
#[derive(Clone, Debug)]
pub(crate) struct ToMark {
    pub(crate) host: String,
    /// When the node last used another primary.
    pub(crate) used_other: Option<Duration>,
}

impl Primaries {
    /// How much longer it takes to connect to this host.
    pub(super) fn slowness(&self, host: &str) -> Duration {
        let (master, slowness) = &self.master;
        if host == master { *slowness } else { Duration::ZERO }
    }

    /// The reply of a server, if processes matter for it.
    pub(super) fn reply(&mut self, host: &str, args: &[&[u8]], now: Duration) -> Option<Value> {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        match *args {
            [b"INFO", b"replication"] => Some(bulk(&format!("run_id:{host}{}\r\n", self.restarts))),
            [b"SENTINEL", ..] => Some(Value::Array(vec![bulk(&self.master.0), bulk("1")])),
            [b"CLUSTER", b"SLOTS"] => {
                self.looks += 1;
                let range = |first: u16, last: u16, host: &str| {
                    let master = Value::Array(vec![bulk(host), Value::Int(1)]);
                    Value::Array(vec![Value::Int(first.into()), Value::Int(last.into()), master])
                };
                let more = 16_384 - self.further;
                let ranges = [(0, 4_095, "redis"), (4_096, 12_287, "second"), (12_288, more - 1, "redis")];
                let usual = ranges.map(|(first, last, host)| range(first, last, host));
                let further = (more..16_384).map(|slot| range(slot, slot, &format!("further{slot}")));
                Some(Value::Array(usual.into_iter().chain(further).collect()))
            }
            [b"ROLE"] => {
                let is_replica = self.is_replica && host == self.master.0;
                Some(Value::Array(vec![bulk(if is_replica { "slave" } else { "master" })]))
            }
            // The key, four arguments, and two that say since when the data is complete.
            [b"EVAL", _, b"1", key, _, _, lease, _, _, _, used_other_ago, life] if is_mark(key) => {
                let (used_other_ago, lease) = (number(used_other_ago), number(lease).unwrap_or_default());
                if number(life) > Some(0) {
                    let used_other = used_other_ago.map(|ago| now - Duration::from_micros(ago));
                    self.marks.push(ToMark { host: host.to_owned(), used_other });
                    if let Some(left) = self.marks_to_refuse.checked_sub(1) {
                        self.marks_to_refuse = left;
                        return Some(super::loading());
                    }
                }
                Some(super::numbers(&[now.as_micros() as u64, 0, lease, 0]))
            }
            [b"EVALSHA", ..] => {
                self.asked.retain(|(known, _)| known != host);
                self.asked.push((host.to_owned(), now));
                let (_, word) = self.redirects.as_ref().filter(|(from, _)| from == host)?;
                Some(super::error(format!("-{word} 7 second:1\r\n").as_bytes()))
            }
            _ => None,
        }
    }
}

fn is_mark(key: &[u8]) -> bool {
    key.windows(6).any(|part| part == b":mark:")
}

/// The number that this text says, unless it is negative.
fn number(text: &[u8]) -> Option<u64> {
    str::from_utf8(text).ok()?.parse().ok()
}
