//! Redis servers: what each of them has, says of itself, and answers to commands, alone or as a Cluster.
//!
//! In: commands and the time. Out: replies, as Redis gives them. It knows no network.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use super::database::{Database, Reply};
use super::lua::Scripts;

/// Unix time when the world begins, in microseconds.
pub const EPOCH_MICROS: u64 = 1_790_000_000_000_000;

/// What a server does to every command, if it does not answer them as usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It reads its data from disk.
    Loading,
    /// It became a replica.
    ReadOnly,
    /// It has no memory left for what is written.
    Full,
}

/// One server.
pub struct Server {
    /// Its name: the host of its address.
    pub name: String,
    /// Slots that it holds, as all servers of the Cluster know it. `None`: it holds them all, alone.
    pub slots: Option<RangeInclusive<u16>>,
    /// What is the matter with it.
    pub trouble: Option<Trouble>,
    /// Replicas that have everything at once.
    pub replicas: u32,
    database: Database,
    known: HashSet<String>,
}

/// What all servers look like to one of them.
pub struct Map {
    /// The slots and the name of each master of a Cluster.
    pub masters: Vec<(RangeInclusive<u16>, String)>,
}

impl Map {
    /// Of these servers.
    pub fn of<'s>(servers: impl Iterator<Item = &'s Server>) -> Self {
        let masters = servers.filter_map(|server| Some((server.slots.clone()?, server.name.clone())));
        Self { masters: masters.collect() }
    }
}

impl Server {
    /// An empty server.
    pub fn new(name: String, slots: Option<RangeInclusive<u16>>) -> Self {
        Self { name, slots, trouble: None, replicas: 1, database: Database::default(), known: HashSet::new() }
    }

    /// Its data, as a replica would have them.
    pub fn copy(&self) -> Database {
        self.database.clone()
    }

    /// Has these data from now on, and no scripts: it was restarted, or somebody else took over.
    pub fn restart(&mut self, database: Database) {
        self.database = database;
        self.known.clear();
    }

    /// FLUSHALL.
    pub fn flush(&mut self) {
        self.database.clear();
    }

    /// Answers a command. `asks`: it was sent right after ASKING.
    pub fn run(
        &mut self,
        scripts: &mut Scripts,
        map: &Map,
        now_micros: u64,
        command: &[&[u8]],
        asks: bool,
    ) -> Reply {
        let Some((name, arguments)) = command.split_first() else {
            return Reply::error("ERR", "empty command");
        };
        let text = |text: &str| Reply::Bulk(text.as_bytes().to_vec());
        match (*name, arguments) {
            (b"PING", []) => return self.when_loaded(Reply::Status("PONG")),
            (b"INFO", _) => {
                let mode = if self.slots.is_some() { "cluster" } else { "standalone" };
                return text(&format!("redis_version:7.2.0\r\nredis_mode:{mode}\r\n"));
            }
            (b"CONFIG", _) => return Reply::Array(vec![text("maxmemory-policy"), text("noeviction")]),
            (b"ROLE", _) => return Reply::Array(vec![text("master")]),
            (b"WAIT", [_, _]) => return Reply::Int(self.replicas.into()),
            (b"CLUSTER", _) => return slots(map),
            _ => {}
        }
        if self.trouble == Some(Trouble::Loading) {
            return Reply::error("LOADING", "Redis is loading the dataset in memory");
        }
        match (*name, arguments) {
            (b"EVALSHA" | b"EVAL", [script, count, rest @ ..]) => {
                let count = std::str::from_utf8(count).ok().and_then(|count| count.parse().ok()).unwrap_or(0);
                let (keys, arguments) = rest.split_at(count);
                let denied = self.denies_write();
                let moved = keys.iter().find_map(|key| self.moved(map, key, asks));
                moved.or(denied).unwrap_or_else(|| {
                    let evaluates = *name == b"EVAL";
                    self.evaluate(scripts, (script, evaluates), (keys, arguments), now_micros)
                })
            }
            (b"GET" | b"TIME", _) => {
                let key = arguments.first();
                let moved = key.and_then(|key| self.moved(map, key, asks));
                moved.unwrap_or_else(|| self.database.run(now_micros, command))
            }
            _ => {
                let moved = arguments.first().and_then(|key| self.moved(map, key, asks));
                let refused = moved.or_else(|| self.denies_write());
                refused.unwrap_or_else(|| self.database.run(now_micros, command))
            }
        }
    }

    fn when_loaded(&self, reply: Reply) -> Reply {
        match self.trouble {
            Some(Trouble::Loading) => Reply::error("LOADING", "Redis is loading the dataset in memory"),
            _ => reply,
        }
    }

    fn denies_write(&self) -> Option<Reply> {
        match self.trouble? {
            Trouble::ReadOnly => {
                Some(Reply::error("READONLY", "You can't write against a read only replica."))
            }
            Trouble::Full => Some(Reply::error("OOM", "command not allowed when used memory > 'maxmemory'.")),
            Trouble::Loading => None,
        }
    }

    /// Where this key is, if it is not here.
    fn moved(&self, map: &Map, key: &[u8], asks: bool) -> Option<Reply> {
        let own = self.slots.as_ref()?;
        let slot = slot_of(key);
        if own.contains(&slot) || asks {
            return None;
        }
        let (_, name) = map.masters.iter().find(|(slots, _)| slots.contains(&slot))?;
        Some(Reply::error("MOVED", format!("{slot} {name}:6379")))
    }

    fn evaluate(
        &mut self,
        scripts: &mut Scripts,
        (script, evaluates): (&[u8], bool),
        arguments: (&[&[u8]], &[&[u8]]),
        now_micros: u64,
    ) -> Reply {
        let Ok(script) = std::str::from_utf8(script) else { return Reply::error("ERR", "no text") };
        if evaluates {
            let name = match scripts.load(script) {
                Ok(name) => name,
                Err(error) => return error,
            };
            let reply = scripts.run(&name, arguments, &mut self.database, now_micros);
            self.known.insert(name);
            return reply;
        }
        if !self.known.contains(script) {
            return Reply::error("NOSCRIPT", "No matching script. Please use EVAL.");
        }
        scripts.run(script, arguments, &mut self.database, now_micros)
    }
}

fn slots(map: &Map) -> Reply {
    let line = |(slots, name): &(RangeInclusive<u16>, String)| {
        let master = Reply::Array(vec![
            Reply::Bulk(name.clone().into_bytes()),
            Reply::Int(6379),
            Reply::Bulk(b"id".to_vec()),
        ]);
        Reply::Array(vec![Reply::Int((*slots.start()).into()), Reply::Int((*slots.end()).into()), master])
    };
    Reply::Array(map.masters.iter().map(line).collect())
}

/// The slot of a key: CRC-16/XMODEM of its hash tag, or of all of it.
fn slot_of(key: &[u8]) -> u16 {
    let open = key.iter().position(|&byte| byte == b'{');
    let tag = open.and_then(|open| {
        let length = key[open + 1..].iter().position(|&byte| byte == b'}').filter(|&length| length > 0)?;
        Some(&key[open + 1..open + 1 + length])
    });
    let crc =
        tag.unwrap_or(key).iter().fold(0_u16, |crc, &byte| {
            (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
            })
        });
    crc % 16_384
}
