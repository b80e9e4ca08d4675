//! Streams of a Redis server: entries in the order of their ids.
//!
//! In: commands about one stream, and the time. Out: replies. `MAXLEN ~` lets a server keep more than it says, so all
//! entries are kept here.

use super::database::Reply;

/// The id of an entry: milliseconds, and a number among those of the same millisecond.
type Id = (u64, u64);

/// A stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stream(Vec<(Id, Vec<Vec<u8>>)>);

impl Stream {
    /// XADD with `*` for an id: adds an entry with these names and values of fields. Ids grow, also when the clock does not.
    pub fn add(&mut self, fields: &[&[u8]], now_micros: u64) -> Reply {
        let now = (now_micros / 1_000, 0);
        let id = self.0.last().map_or(now, |&((millis, number), _)| now.max((millis, number + 1)));
        self.0.push((id, fields.iter().map(|field| field.to_vec()).collect()));
        shown(id)
    }

    /// XRANGE and XREVRANGE: the first so many entries between these ids, both included. `None`: there is no such id.
    pub fn range(&self, least: &[u8], most: &[u8], most_entries: usize, is_reversed: bool) -> Option<Reply> {
        let (least, most) = (id(least)?, id(most)?);
        let within = self.0.iter().filter(|(id, _)| (least..=most).contains(id));
        let reply = |(id, fields): &(Id, Vec<Vec<u8>>)| {
            let fields = fields.iter().map(|field| Reply::Bulk(field.clone()));
            Reply::Array(vec![shown(*id), Reply::Array(fields.collect())])
        };
        Some(Reply::Array(match is_reversed {
            true => within.rev().take(most_entries).map(reply).collect(),
            false => within.take(most_entries).map(reply).collect(),
        }))
    }
}

fn shown((millis, number): Id) -> Reply {
    Reply::Bulk(format!("{millis}-{number}").into_bytes())
}

fn id(text: &[u8]) -> Option<Id> {
    match text {
        b"-" => Some((0, 0)),
        b"+" => Some((u64::MAX, u64::MAX)),
        text => {
            let (millis, number) = std::str::from_utf8(text).ok()?.split_once('-')?;
            Some((millis.parse().ok()?, number.parse().ok()?))
        }
    }
}
