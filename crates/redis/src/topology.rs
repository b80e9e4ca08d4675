//! Which server holds which slots. Sentinels or the nodes of a Cluster know; a single server holds all.

use std::ops::RangeInclusive;
use std::sync::Arc;

use futures_util::future::join_all;
use redis::{Cmd, FromRedisValue};

use crate::address::{Access, Address, Servers};
use crate::connect_error::ConnectError;
use crate::connection::{Connection, ask};
use crate::runtime::Runtime;
use crate::state::Shared;

/// The slots of a Cluster.
pub(super) const SLOTS: u16 = 16_384;

/// A master and its slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Master {
    pub(super) address: Address,
    pub(super) slots: RangeInclusive<u16>,
}

impl Master {
    fn of_all(address: Address) -> Self {
        Self { address, slots: 0..=SLOTS - 1 }
    }
}

/// The slot of a key. Keys of this crate have no braces, which would limit it to a part of the key.
pub(super) fn slot_of(key: &[u8]) -> u16 {
    crc16(tag(key).unwrap_or(key)) % SLOTS
}

/// The part of a key in braces, if its slot follows from that alone.
fn tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|&byte| byte == b'{')?;
    let close = key[open..].iter().position(|&byte| byte == b'}')?;
    Some(&key[open + 1..open + close]).filter(|tag| !tag.is_empty())
}

/// CRC-16/XMODEM, as in the Cluster specification. The key of every counter goes through it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, &byte| crc << 8 ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)])
}

/// What each byte adds.
const CRC16: [u16; 256] = {
    let (mut table, mut byte) = ([0; 256], 0);
    while byte < table.len() {
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

/// Names for a key that has to be on one server, in order: of `most` names those in slots that the server has, by
/// `holds`. All nodes find the same ones. Outside of a Cluster there is one server, and one name.
pub(super) fn names_on<'k>(
    kind: &Servers,
    name: String,
    most: usize,
    holds: impl Fn(u16) -> bool + 'k,
) -> impl Iterator<Item = String> + 'k {
    let is_cluster = matches!(kind, Servers::Cluster(_));
    // All keys are in one slot then.
    let is_tagged = tag(name.as_bytes()).is_some();
    let nth = move |number| if is_cluster { format!("{name}:{number}") } else { name.clone() };
    let most = if is_cluster && !is_tagged { most } else { 1 };
    (0..most).map(nth).filter(move |name| !is_cluster || holds(slot_of(name.as_bytes())))
}

/// The masters now. Asks the `known` connections first, then the configured addresses.
pub(super) async fn masters<R: Runtime>(
    shared: &Shared<R>,
    known: &[Arc<Connection<R>>],
) -> Result<Vec<Master>, ConnectError> {
    match &shared.options.kind {
        Servers::Single(address) => Ok(vec![Master::of_all(address.clone())]),
        Servers::Sentinel(name, sentinels) => {
            let master = master(shared, name, sentinels).await;
            Ok(vec![Master::of_all(master.map_err(ConnectError::of_a_sentinel)?)])
        }
        Servers::Cluster(seeds) => cluster(shared, known, seeds).await,
    }
}

/// The master of this name, from the first sentinel that answers.
async fn master<R: Runtime>(
    shared: &Shared<R>,
    name: &str,
    sentinels: &[Address],
) -> Result<Address, ConnectError> {
    let options = &shared.options;
    let (login, tls) = (options.sentinel_login.clone(), options.access.tls.clone());
    let access = Access { login, database: 0, tls };
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let (_, known): (_, Option<(String, u16)>) = ask_any(shared, sentinels, &access, &command).await?;
    let known = known.map(|(host, port)| Address::Tcp(host, port));
    known.ok_or_else(|| ConnectError::UnknownMaster(name.to_owned()))
}

/// The masters of a Cluster, from an open connection if one answers.
async fn cluster<R: Runtime>(
    shared: &Shared<R>,
    known: &[Arc<Connection<R>>],
    seeds: &[Address],
) -> Result<Vec<Master>, ConnectError> {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    let (first, others) = known.split_at(known.len().min(1));
    // Connections may be lost together, and without a sign: when the first hangs, the others are found out in the time of one.
    for connections in [first, others] {
        let alive = connections.iter().filter(|connection| !connection.wire.is_broken());
        let asking = alive.map(async |connection| (connection, connection.ask(shared, &command).await));
        for (connection, asked) in join_all(asking).await {
            if let Ok::<Vec<SlotRange>, _>(ranges) = asked {
                return of_ranges(ranges, &connection.wire.address);
            }
        }
    }
    let mut addresses = seeds.to_vec();
    addresses.extend(known.iter().map(|connection| connection.wire.address.clone()));
    let (answered_by, ranges) = ask_any(shared, &addresses, &shared.options.access, &command).await?;
    of_ranges(ranges, answered_by)
}

/// The masters in these lines of CLUSTER SLOTS, which this server answered.
fn of_ranges(ranges: Vec<SlotRange>, answered_by: &Address) -> Result<Vec<Master>, ConnectError> {
    if ranges.is_empty() {
        return Err(ConnectError::NoSlots);
    }
    Ok(ranges.into_iter().map(|range| range.master(answered_by)).collect())
}

/// Checks that the server is a master. A master that was replaced may not know it yet.
pub(super) async fn check_role<R: Runtime>(
    shared: &Shared<R>,
    connection: &Connection<R>,
) -> Result<(), ConnectError> {
    let role: Vec<redis::Value> = connection.ask(shared, &redis::cmd("ROLE")).await?;
    match role.first() {
        Some(redis::Value::BulkString(role)) if role == b"master" => Ok(()),
        _ => Err(ConnectError::NotMaster(connection.wire.address.clone())),
    }
}

/// The first answer, and the address that it came from.
async fn ask_any<'a, T: FromRedisValue, R: Runtime>(
    shared: &Shared<R>,
    addresses: &'a [Address],
    access: &Access,
    command: &Cmd,
) -> Result<(&'a Address, T), ConnectError> {
    let budget = shared.connect_timeout();
    let mut last = ConnectError::NoAddress;
    for address in addresses {
        let asking = async { ask(&shared.runtime.connect(address, access).await?, command).await };
        match shared.runtime.timeout(budget, asking).await {
            Some(Ok(answer)) => return Ok((address, answer)),
            Some(Err(error)) => last = ConnectError::from(error),
            None => last = ConnectError::Timeout(budget),
        }
    }
    Err(last)
}

/// A line of CLUSTER SLOTS: the first slot, the last, the master, its replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SlotRange {
    slots: RangeInclusive<u16>,
    /// Empty, absent or `?`: the server that was asked, at the address that was used to ask it.
    host: Option<String>,
    port: u16,
}

impl SlotRange {
    fn master(self, answered_by: &Address) -> Master {
        let own = match answered_by {
            Address::Tcp(host, _) => host.clone(),
            Address::Unix(_) => "localhost".to_owned(),
        };
        let host = self.host.filter(|host| !host.is_empty() && host != "?").unwrap_or(own);
        Master { address: Address::Tcp(host, self.port), slots: self.slots }
    }
}

impl FromRedisValue for SlotRange {
    fn from_redis_value(value: redis::Value) -> Result<Self, redis::ParsingError> {
        type Line = (u16, u16, Vec<redis::Value>);
        let mut parts = Vec::from_redis_value(value)?;
        parts.truncate(3);
        let (first, last, master): Line = redis::from_redis_value(redis::Value::Array(parts))?;
        let [host, port, ..] = &master[..] else {
            return Err(redis::ParsingError::from("a master has no address"));
        };
        let (host, port) = (redis::from_redis_value(host.clone())?, redis::from_redis_value(port.clone())?);
        Ok(Self { slots: first..=last, host, port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot_of(b"foo"), 12_182);
        assert_eq!(slot_of(b"{foo}.bar"), slot_of(b"foo"));
        assert_eq!(slot_of(b"a{}b"), crc16(b"a{}b") % SLOTS);
    }

    #[test]
    fn a_master_without_a_host_has_the_host_that_was_asked() {
        use redis::Value::{self, Array, BulkString, Int, Nil};
        let answered_by = Address::Tcp("redis.test".to_owned(), 7_000);
        let line = |host: Value| {
            let replica =
                Array(vec![BulkString(b"10.0.0.9".to_vec()), Int(7_009), BulkString(b"id".to_vec())]);
            let master = Array(vec![host, Int(7_001), BulkString(b"id".to_vec()), Array(vec![])]);
            let ranges: Vec<SlotRange> =
                redis::from_redis_value(Array(vec![Array(vec![Int(0), Int(99), master, replica])]))
                    .expect("a line");
            of_ranges(ranges, &answered_by).expect("one")
        };
        for (host, known) in [
            (BulkString(b"10.0.0.1".to_vec()), "10.0.0.1"),
            (Nil, "redis.test"),
            (BulkString(vec![]), "redis.test"),
            (BulkString(b"?".to_vec()), "redis.test"),
        ] {
            let address = Address::Tcp(known.to_owned(), 7_001);
            assert_eq!(line(host), [Master { address, slots: 0..=99 }]);
        }
    }
}
