//! The hash in which a server has epochs, as `src/lua/epochs.lua` changes it.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::Value;

/// How a server answers commands for its epochs.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Answers {
    #[default]
    All,
    /// It refuses writes, because its memory is full.
    Reads,
    /// Its clock is far behind: all numbers that are written are too far ahead of it.
    Behind,
    /// Commands get no answer, and do nothing.
    Nothing,
}

/// The epochs of one server.
#[derive(Default)]
pub(crate) struct EpochHash {
    pub(crate) fields: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) answers: Answers,
    /// So long a node stands still before it reads the next reply.
    pub(crate) stands_still: Duration,
    /// How often all fields were read.
    pub(crate) full_reads: usize,
}

impl EpochHash {
    /// A hash with these fields, one of which is the text of changes.
    pub(crate) fn with(fields: &[(&str, &str)]) -> Self {
        let bytes = |&(field, number): &(&str, &str)| (field.into(), number.into());
        Self { fields: fields.iter().map(bytes).collect(), ..Self::default() }
    }

    pub(crate) fn get(&self, field: &str) -> Option<&str> {
        self.fields.get(field.as_bytes()).map(|number| str::from_utf8(number).expect("text"))
    }

    /// The reply to a command for the hash. `None`: there is none, because the server does not answer.
    pub(super) fn reply(&mut self, args: &[&[u8]]) -> Option<Value> {
        let bulk = |bytes: &[u8]| Value::BulkString(bytes.to_vec());
        match (self.answers, args) {
            (Answers::Nothing, _) => None,
            (_, [b"HGET", _, field]) => Some(self.fields.get(*field).map_or(Value::Nil, |it| bulk(it))),
            (_, [b"HLEN", _]) => Some(Value::Int(self.fields.len().try_into().expect("few"))),
            (_, [b"HGETALL", _]) => {
                self.full_reads += 1;
                Some(Value::Array(
                    self.fields.iter().flat_map(|(field, it)| [bulk(field), bulk(it)]).collect(),
                ))
            }
            (Answers::Behind, [b"EVAL", _, _, _, _, _, numbers @ ..]) => {
                let refused = numbers.chunks(2).flat_map(|pair| [bulk(pair[0]), bulk(b"")]);
                Some(Value::Array([Value::Int(0)].into_iter().chain(refused).collect()))
            }
            (Answers::Reads, _) => Some(super::error(b"-OOM command not allowed\r\n")),
            (Answers::All, [b"EVAL", _, b"1", _, changed, may_create, numbers @ ..]) => {
                Some(self.raise(changed, *may_create == b"1", numbers))
            }
            _ => panic!("another command for epochs"),
        }
    }

    fn raise(&mut self, changed: &[u8], may_create: bool, numbers: &[&[u8]]) -> Value {
        let is_there = self.fields.contains_key(&b""[..]);
        if !is_there && !may_create {
            return Value::Nil;
        }
        let (mut raised, mut greater) = (!is_there, Vec::new());
        for pair in numbers.chunks(2) {
            match self.fields.get(pair[0]) {
                Some(known) if known[..] > *pair[1] => greater.extend([pair[0].to_vec(), known.clone()]),
                Some(known) if known[..] == *pair[1] => {}
                _ => {
                    self.fields.insert(pair[0].to_vec(), pair[1].to_vec());
                    raised = true;
                }
            }
        }
        if raised {
            self.fields.insert(Vec::new(), changed.to_vec());
        }
        let greater = greater.into_iter().map(Value::BulkString);
        Value::Array([Value::Int(raised.into())].into_iter().chain(greater).collect())
    }
}
