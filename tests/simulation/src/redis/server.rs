//! Redis servers: what each of them has, says of itself, and answers to commands, alone or as a Cluster.
//!
//! In: commands and the time. Out: replies, as Redis gives them. It knows no network.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use super::database::{Database, Reply};
use super::scripts::{RunBy, Scripts};
use crate::world::Time;

/// Unix time when the world begins, in microseconds.
pub const EPOCH_MICROS: u64 = 1_790_035_160_000_000;

/// All slots of a Cluster.
pub const SLOTS: RangeInclusive<u16> = 0..=16_383;

/// Commands that write nothing.
const READS: [&[u8]; 9] =
    [b"GET", b"EXISTS", b"HGET", b"HLEN", b"HGETALL", b"TIME", b"XRANGE", b"XREVRANGE", b"ZRANGEBYLEX"];

/// Why a server refuses commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It reads its data from disk.
    Loading,
    /// It became a replica.
    ReadOnly,
    /// It has no memory left for what is written.
    Full,
}

/// Slots that move from one server to another.
#[derive(Clone, Debug)]
pub struct Moving {
    /// Which.
    pub slots: RangeInclusive<u16>,
    /// Where they go to. `None`: they come to this server.
    pub to: Option<String>,
    /// Their keys are there already.
    pub keys_moved: bool,
}

/// One server.
pub struct Server {
    /// Its name: the host of its address.
    pub name: String,
    /// Slots that it holds, as all servers of the Cluster know it. `None`: it holds them all, alone.
    pub slots: Option<Vec<RangeInclusive<u16>>>,
    /// Slots on their way to it or from it.
    pub moving: Option<Moving>,
    /// It is a replica: it takes no writes.
    pub is_replica: bool,
    /// It is a sentinel: it knows the name of the master.
    pub master: Option<String>,
    /// Why it refuses commands, if it does.
    pub refuses: Option<Refusal>,
    /// Replicas that have everything at once.
    pub replicas: u32,
    /// Its clock is ahead of those of others by so much.
    pub ahead: Time,
    /// Who runs its scripts.
    run_by: RunBy,
    /// How often its process was another one: it was restarted, or somebody else took over.
    restarts: u64,
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
        let ranges =
            |server: &'s Server| server.slots.iter().flatten().map(|range| (range.clone(), &server.name));
        let masters = servers.flat_map(ranges).map(|(range, name)| (range, name.clone()));
        Self { masters: masters.collect() }
    }
}

impl Server {
    /// An empty server.
    pub fn new(name: &str, slots: Option<RangeInclusive<u16>>) -> Self {
        Self {
            name: name.to_owned(),
            slots: slots.map(|slots| vec![slots]),
            moving: None,
            is_replica: false,
            master: None,
            refuses: None,
            replicas: 1,
            ahead: 0,
            run_by: RunBy::default(),
            restarts: 0,
            database: Database::default(),
            known: HashSet::new(),
        }
    }

    /// The replica of a master, whose clock is ahead by so much.
    #[must_use]
    pub fn replica(self, ahead: Time) -> Self {
        Self { is_replica: true, ahead, ..self }
    }

    /// A sentinel that knows a master of this name.
    #[must_use]
    pub fn sentinel(self, master: &str) -> Self {
        Self { master: Some(master.to_owned()), ..self }
    }

    /// One whose scripts are run by these.
    #[must_use]
    pub fn scripts_run_by(self, run_by: RunBy) -> Self {
        Self { run_by, ..self }
    }

    /// Its data, as a replica would have them.
    pub fn copy(&self) -> Database {
        self.database.clone()
    }

    /// Has these data from now on, and no scripts: it was restarted, or somebody else took over.
    pub fn restart(&mut self, mut database: Database) {
        database.take(|key| !self.holds(slot_of(key)));
        self.database = database;
        self.known.clear();
        self.restarts += 1;
    }

    /// Whether the keys of this slot are here.
    fn holds(&self, slot: u16) -> bool {
        let Some(own) = &self.slots else { return true };
        let moved = self.moving.as_ref().filter(|moving| moving.keys_moved && moving.slots.contains(&slot));
        moved.map_or_else(|| own.iter().any(|slots| slots.contains(&slot)), |moved| moved.to.is_none())
    }

    /// Half of its last slots, if there are several.
    pub fn last_half(&self) -> Option<RangeInclusive<u16>> {
        let last = self.slots.as_ref()?.last()?;
        let middle = last.start() + (last.end() - last.start()).div_ceil(2);
        (middle > *last.start()).then(|| middle..=*last.end())
    }

    /// The keys of the slots that move go out.
    pub fn send_keys(&mut self) -> Database {
        let Some(moving) = &mut self.moving else { return Database::default() };
        moving.keys_moved = true;
        self.database.take(|key| moving.slots.contains(&slot_of(key)))
    }

    /// They come in.
    pub fn receive_keys(&mut self, keys: Database) {
        self.moving.iter_mut().for_each(|moving| moving.keys_moved = true);
        self.database.add(keys);
    }

    /// All servers know now where the slots are that have moved.
    pub fn end_move(&mut self) {
        let (Some(Moving { slots, to, .. }), Some(own)) = (self.moving.take(), &mut self.slots) else {
            return;
        };
        if to.is_none() {
            own.push(slots);
        } else if let Some(last) = own.iter_mut().find(|own| own.end() == slots.end()) {
            *last = *last.start()..=slots.start() - 1;
        }
    }

    /// What is under a key, if that is a string.
    pub fn text(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        match self.database.run(EPOCH_MICROS, &[b"GET", key]) {
            Reply::Bulk(text) => Some(text),
            _ => None,
        }
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
        if let Some(reply) = self.says_of_itself(map, name, arguments) {
            return reply;
        }
        if self.refuses == Some(Refusal::Loading) {
            return Reply::error("LOADING", "Redis is loading the dataset in memory");
        }
        match (*name, arguments) {
            (b"PING", []) => Reply::Status("PONG"),
            (b"EVALSHA" | b"EVAL", [script, count, rest @ ..]) => {
                let count = std::str::from_utf8(count).ok().and_then(|count| count.parse().ok()).unwrap_or(0);
                let (keys, arguments) = rest.split_at(count);
                let is_together = |two: &[&[u8]]| slot_of(two[0]) == slot_of(two[1]);
                let is_one_slot = self.slots.is_none() || keys.windows(2).all(is_together);
                assert!(is_one_slot, "a Cluster refuses a call whose keys are in several slots (CROSSSLOT)");
                let moved = keys.first().and_then(|key| self.moved(map, key, asks));
                moved.or_else(|| self.denies_write()).unwrap_or_else(|| {
                    let evaluates = *name == b"EVAL";
                    self.evaluate(scripts, (script, evaluates), (keys, arguments), now_micros)
                })
            }
            _ => {
                let moved = arguments.first().and_then(|key| self.moved(map, key, asks));
                let denied = if READS.contains(name) { None } else { self.denies_write() };
                moved.or(denied).unwrap_or_else(|| self.database.run(now_micros, command))
            }
        }
    }

    /// What it answers about itself, also while it loads.
    fn says_of_itself(&self, map: &Map, name: &[u8], arguments: &[&[u8]]) -> Option<Reply> {
        let text = |text: &str| Reply::Bulk(text.as_bytes().to_vec());
        Some(match (name, arguments) {
            (b"SENTINEL", _) => match &self.master {
                Some(master) => Reply::Array(vec![text(master), text("6379")]),
                None => Reply::error("ERR", "unknown command"),
            },
            (b"INFO", _) => {
                let mode = match (&self.slots, &self.master) {
                    (Some(_), _) => "cluster",
                    (None, Some(_)) => "sentinel",
                    (None, None) => "standalone",
                };
                let (name, restarts) = (&self.name, self.restarts);
                text(&format!(
                    "redis_version:7.2.0\r\nredis_mode:{mode}\r\nrun_id:{name}.{restarts}\r\n\
                     master_replid:{name}\r\nmaster_replid2:0000\r\n"
                ))
            }
            (b"CONFIG", _) => Reply::Array(vec![text("maxmemory-policy"), text("noeviction")]),
            (b"ROLE", _) => Reply::Array(vec![text(if self.is_replica { "slave" } else { "master" })]),
            (b"WAIT", [_, _]) => Reply::Int(self.replicas.into()),
            (b"CLUSTER", _) => slots(map),
            _ => return None,
        })
    }

    fn denies_write(&self) -> Option<Reply> {
        let refusal = if self.is_replica { Some(Refusal::ReadOnly) } else { self.refuses };
        match refusal? {
            Refusal::ReadOnly => {
                Some(Reply::error("READONLY", "You can't write against a read only replica."))
            }
            Refusal::Full => Some(Reply::error("OOM", "command not allowed when used memory > 'maxmemory'.")),
            Refusal::Loading => None,
        }
    }

    /// Where this key is, if it is not here.
    fn moved(&self, map: &Map, key: &[u8], asks: bool) -> Option<Reply> {
        let own = self.slots.as_ref()?;
        let slot = slot_of(key);
        let moving = self.moving.as_ref().filter(|moving| moving.slots.contains(&slot));
        if own.iter().any(|slots| slots.contains(&slot)) {
            let to = moving.filter(|moving| moving.keys_moved)?.to.as_ref()?;
            return Some(Reply::error("ASK", format!("{slot} {to}:6379")));
        }
        if asks && moving.is_some() {
            return None;
        }
        let master = map.masters.iter().find(|(slots, _)| slots.contains(&slot));
        Some(match master {
            Some((_, name)) => Reply::error("MOVED", format!("{slot} {name}:6379")),
            None => Reply::error("CLUSTERDOWN", "Hash slot not served"),
        })
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
            let reply = scripts.run(self.run_by, &name, arguments, &mut self.database, now_micros);
            self.known.insert(name);
            return reply;
        }
        if !self.known.contains(script) {
            return Reply::error("NOSCRIPT", "No matching script. Please use EVAL.");
        }
        scripts.run(self.run_by, script, arguments, &mut self.database, now_micros)
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

/// What a byte adds to CRC-16/XMODEM.
const CRC: [u16; 256] = {
    let (mut table, mut byte) = ([0; 256], 0);
    while byte < 256 {
        let (mut crc, mut bit) = ((byte as u16) << 8, 0);
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// The slot of a key: CRC-16/XMODEM of its hash tag, or of all of it.
fn slot_of(key: &[u8]) -> u16 {
    let open = key.iter().position(|&byte| byte == b'{');
    let tag = open.and_then(|open| {
        let length = key[open + 1..].iter().position(|&byte| byte == b'}').filter(|&length| length > 0)?;
        Some(&key[open + 1..open + 1 + length])
    });
    let step = |crc: u16, &byte: &u8| crc << 8 ^ CRC[usize::from((crc >> 8) as u8 ^ byte)];
    let crc = tag.unwrap_or(key).iter().fold(0, step);
    crc % 16_384
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: u16 = 16_384;

    #[test]
    fn slots_are_those_of_redis() {
        // From the specification of Redis Cluster.
        assert_eq!(slot_of(b"123456789"), 0x31C3);
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"{user1000}.followers"));
    }

    /// Two masters, of which the first has all slots but one, and a key that moves when half of them do.
    fn masters() -> (Server, Server, Vec<u8>) {
        let (from, to) =
            (Server::new("from", Some(0..=SLOTS - 2)), Server::new("to", Some(SLOTS - 1..=SLOTS - 1)));
        let moving = from.last_half().expect("there are many");
        let key = (0..).map(|number: u32| number.to_string().into_bytes());
        let key = key.into_iter().find(|key| moving.contains(&slot_of(key))).expect("half of all keys");
        (from, to, key)
    }

    #[test]
    fn slots_move_with_their_keys() {
        let mut scripts = Scripts::new().expect("Lua starts");
        let (mut from, mut to, key) = masters();
        let mut get =
            |server: &mut Server, map: &Map, asks| server.run(&mut scripts, map, 0, &[b"GET", &key], asks);
        let slot = slot_of(&key);
        let redirect = |code, name| Reply::error(code, format!("{slot} {name}:6379"));
        let (here, map) = (Reply::Bulk(b"1".to_vec()), Map::of([&from, &to].into_iter()));
        from.database.run(0, &[b"SET", &key, b"1"]);
        let slots = from.last_half().expect("there are many");
        from.moving = Some(Moving { slots: slots.clone(), to: Some("to".to_owned()), keys_moved: false });
        to.moving = Some(Moving { slots, to: None, keys_moved: false });
        assert_eq!(get(&mut from, &map, false), here);
        assert_eq!(get(&mut to, &map, false), redirect("MOVED", "from"));

        to.receive_keys(from.send_keys());
        assert_eq!(get(&mut from, &map, false), redirect("ASK", "to"));
        assert_eq!(get(&mut to, &map, false), redirect("MOVED", "from"));
        assert_eq!(get(&mut to, &map, true), here);

        from.end_move();
        to.end_move();
        let map = Map::of([&from, &to].into_iter());
        assert_eq!(get(&mut from, &map, false), redirect("MOVED", "to"));
        assert_eq!(get(&mut to, &map, false), here);
    }

    /// It was run by a server that had given the slot away, as if it were its own.
    #[test]
    fn a_slot_of_a_server_that_is_gone_is_served_by_nobody() {
        let mut scripts = Scripts::new().expect("Lua starts");
        let (mut from, _, key) = masters();
        from.slots = Some(vec![0..=from.last_half().expect("there are many").start() - 1]);
        let map = Map::of([&from].into_iter());
        let reply = from.run(&mut scripts, &map, 0, &[b"GET", &key], false);
        assert_eq!(reply, Reply::error("CLUSTERDOWN", "Hash slot not served"));
    }

    #[test]
    fn a_server_that_comes_back_has_no_keys_of_slots_that_went() {
        let (mut from, mut to, key) = masters();
        from.database.run(0, &[b"SET", &key, b"1"]);
        let (copy, slots) = (from.copy(), from.last_half().expect("there are many"));
        from.moving = Some(Moving { slots: slots.clone(), to: Some("to".to_owned()), keys_moved: false });
        to.moving = Some(Moving { slots, to: None, keys_moved: false });
        to.receive_keys(from.send_keys());
        from.restart(copy.clone());
        assert_eq!((from.database.count(), to.database.count()), (0, 1));
        to.restart(copy);
        assert_eq!(to.database.count(), 1);
    }
}
