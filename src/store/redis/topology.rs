//! Which servers hold which slots: asked of sentinels or of the nodes of a Cluster. One server holds them all.

use std::ops::RangeInclusive;
use std::time::Duration;

use redis::{Cmd, FromRedisValue};

use super::address::{Address, Kind};
use super::connect::{Access, open};
use super::link::LinkError;
use super::state::Shared;

/// Slots of a Cluster.
const SLOTS: u16 = 16_384;

/// A master, and the slots that it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) address: Address,
    pub(super) slots: RangeInclusive<u16>,
}

impl Server {
    fn of_all(address: Address) -> Self {
        Self { address, slots: 0..=SLOTS - 1 }
    }
}

/// The slot of a key. Keys hold no braces that would mean a part of them.
pub(super) fn slot_of(key: &[u8]) -> u16 {
    let open = key.iter().position(|&byte| byte == b'{');
    let tagged = open.and_then(|open| {
        let close = key[open..].iter().position(|&byte| byte == b'}')?;
        Some(&key[open + 1..open + close]).filter(|tag| !tag.is_empty())
    });
    crc16(tagged.unwrap_or(key)) % SLOTS
}

/// CRC-16/XMODEM, as the Cluster specification has it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, &byte| {
        (0..8).fold(
            crc ^ u16::from(byte) << 8,
            |crc, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
            },
        )
    })
}

/// The masters now. `known` are those of before: any of them may tell.
pub(super) async fn servers<'a>(
    shared: &'a Shared,
    known: impl Iterator<Item = &'a Address>,
) -> Result<Vec<Server>, LinkError> {
    let (options, patience) = (&shared.options, shared.connect_patience());
    match &options.kind {
        Kind::Single(address) => Ok(vec![Server::of_all(address.clone())]),
        Kind::Sentinel(name, sentinels) => {
            let access = Access {
                login: options.sentinel_login.clone(),
                database: 0,
                tls: options.access.tls.clone(),
            };
            let mut command = redis::cmd("SENTINEL");
            command.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
            let asked: Option<(String, u16)> = ask_any(sentinels.iter(), &access, &command, patience).await?;
            let (host, port) = asked
                .ok_or_else(|| LinkError::Topology(format!("the sentinels know no master named {name}")))?;
            let master = Address::Tcp(host, port);
            check_role(&master, &options.access, patience).await?;
            Ok(vec![Server::of_all(master)])
        }
        Kind::Cluster(seeds) => {
            let mut command = redis::cmd("CLUSTER");
            command.arg("SLOTS");
            let asked: Vec<SlotRange> =
                ask_any(known.chain(seeds), &options.access, &command, patience).await?;
            match asked.is_empty() {
                true => Err(LinkError::Topology("the cluster serves no slots".to_owned())),
                false => Ok(asked.into_iter().map(|range| range.0).collect()),
            }
        }
    }
}

/// A master that was put down may not know it yet.
async fn check_role(address: &Address, access: &Access, patience: Duration) -> Result<(), LinkError> {
    let role: Vec<redis::Value> =
        ask_any(std::iter::once(address), access, &redis::cmd("ROLE"), patience).await?;
    match role.first() {
        Some(redis::Value::BulkString(role)) if role == b"master" => Ok(()),
        _ => Err(LinkError::Topology(format!("{address} is no master"))),
    }
}

/// The first answer of these.
async fn ask_any<'a, T: FromRedisValue>(
    addresses: impl Iterator<Item = &'a Address>,
    access: &Access,
    command: &Cmd,
    patience: Duration,
) -> Result<T, LinkError> {
    let mut last = LinkError::Topology("there is nobody to ask".to_owned());
    for address in addresses {
        let asking = async {
            let opened = open(address, access).await?;
            let value = opened.connection.clone().send_packed_command(command).await?.extract_error()?;
            Ok(redis::from_redis_value(value).map_err(redis::RedisError::from)?)
        };
        match tokio::time::timeout(patience, asking).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => last = error,
            Err(_) => last = LinkError::Silent(patience),
        }
    }
    Err(last)
}

/// One line of CLUSTER SLOTS: the first slot, the last, the master, its replicas.
struct SlotRange(Server);

impl FromRedisValue for SlotRange {
    fn from_redis_value(value: redis::Value) -> Result<Self, redis::ParsingError> {
        let parts: Vec<redis::Value> = redis::from_redis_value(value)?;
        let mut parts = parts.into_iter();
        let mut next =
            || parts.next().ok_or_else(|| redis::ParsingError::from("a line of CLUSTER SLOTS is short"));
        let (first, last) = (redis::from_redis_value(next()?)?, redis::from_redis_value(next()?)?);
        let master: Vec<redis::Value> = redis::from_redis_value(next()?)?;
        let mut master = master.into_iter();
        let mut next = || master.next().ok_or_else(|| redis::ParsingError::from("a master has no address"));
        let address = Address::Tcp(redis::from_redis_value(next()?)?, redis::from_redis_value(next()?)?);
        Ok(Self(Server { address, slots: first..=last }))
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
}
