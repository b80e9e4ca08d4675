//! Lua 5.1 as a Redis server offers it to scripts: `redis.call`, `redis.pcall`, `struct` and `bit`.
//!
//! It is LuaJIT with its compiler off: the scripts make new functions in each call, so the compiler's work would never
//! be used again. Its interpreter alone is faster than that of Lua 5.1.
//!
//! In: a script, keys, arguments, a database and the time. Out: a [`Reply`].

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use mlua::state::{GcIncParams, GcMode};
use mlua::{BString, BorrowedBytes, Either, Error, Function, Lua, Table, Value, Variadic};
use smallvec::SmallVec;

use super::database::{Database, Reply};

/// An interpreter, with the scripts that it has compiled.
pub struct Interpreter {
    lua: Lua,
    compiled: HashMap<String, Function>,
    running: Rc<RefCell<Running>>,
}

/// What the script that runs works on.
#[derive(Default)]
struct Running {
    database: Database,
    now_micros: u64,
}

impl Interpreter {
    /// An interpreter without scripts.
    pub fn new() -> mlua::Result<Self> {
        let (lua, running) = (Lua::new(), Rc::<RefCell<Running>>::default());
        lua.load("jit.off()").exec()?;
        // Little lives on after a script: garbage is collected when it is many times as much.
        lua.gc_set_mode(GcMode::Incremental(GcIncParams::default().pause(1_000)));
        let redis = lua.create_table()?;
        for (name, raises) in [("call", true), ("pcall", false)] {
            let running = Rc::clone(&running);
            let call = move |lua: &Lua, arguments: Variadic<Value>| call(lua, &running, &arguments, raises);
            redis.set(name, lua.create_function(call)?)?;
        }
        lua.globals().set("redis", redis)?;
        let structs = lua.create_table()?;
        structs.set("pack", lua.create_function(pack)?)?;
        structs.set("unpack", lua.create_function(unpack)?)?;
        lua.globals().set("struct", structs)?;
        let bits = lua.create_table()?;
        bits.set("band", lua.create_function(|_, (one, other): (f64, f64)| Ok(one as i64 & other as i64))?)?;
        lua.globals().set("bit", bits)?;
        Ok(Self { lua, compiled: HashMap::new(), running })
    }

    /// Compiles a script under a name.
    pub fn load(&mut self, name: &str, text: &str) -> Result<(), Reply> {
        let function = self.lua.load(text).set_name("@user_script").into_function();
        let function = function.map_err(|error| Reply::error("ERR", error.to_string()))?;
        self.compiled.insert(name.to_owned(), function);
        Ok(())
    }

    /// Runs a script that was loaded.
    pub fn run(
        &self,
        name: &str,
        (keys, arguments): (&[&[u8]], &[&[u8]]),
        database: &mut Database,
        now_micros: u64,
    ) -> Reply {
        let Some(function) = self.compiled.get(name) else {
            return Reply::error("NOSCRIPT", "No matching script. Please use EVAL.");
        };
        *self.running.borrow_mut() = Running { database: std::mem::take(database), now_micros };
        let result = self.call(function, keys, arguments);
        *database = std::mem::take(&mut self.running.borrow_mut().database);
        result.unwrap_or_else(|error| Reply::error("ERR", error.to_string()))
    }

    fn call(&self, function: &Function, keys: &[&[u8]], arguments: &[&[u8]]) -> mlua::Result<Reply> {
        let globals = self.lua.globals();
        for (name, values) in [("KEYS", keys), ("ARGV", arguments)] {
            let table = self.lua.create_table_with_capacity(values.len(), 0)?;
            for value in values {
                table.raw_push(self.lua.create_string(value)?)?;
            }
            globals.raw_set(name, table)?;
        }
        to_reply(function.call(())?)
    }
}

/// An argument of a command, as its bytes.
enum Bytes {
    OfLua(BorrowedBytes),
    OfNumber(String),
}

impl Bytes {
    fn of(argument: &Value) -> mlua::Result<Self> {
        match argument {
            Value::String(text) => Ok(Self::OfLua(text.as_bytes())),
            Value::Integer(number) => Ok(Self::OfNumber(number.to_string())),
            Value::Number(number) => Ok(Self::OfNumber(text_of(*number))),
            other => Err(Error::runtime(format!("an argument is a {}", other.type_name()))),
        }
    }

    fn as_slice(&self) -> &[u8] {
        match self {
            Self::OfLua(bytes) => bytes,
            Self::OfNumber(text) => text.as_bytes(),
        }
    }
}

/// What a script is given: bytes, which go to Lua directly, or any other value.
type Given = Either<BString, Value>;

/// `redis.call` and `redis.pcall`.
fn call(lua: &Lua, running: &RefCell<Running>, arguments: &[Value], raises: bool) -> mlua::Result<Given> {
    let texts: SmallVec<[Bytes; 6]> = arguments.iter().map(Bytes::of).collect::<mlua::Result<_>>()?;
    let command: SmallVec<[&[u8]; 6]> = texts.iter().map(Bytes::as_slice).collect();
    let Running { database, now_micros } = &mut *running.borrow_mut();
    match database.run(*now_micros, &command) {
        Reply::Error(code, text) if raises => Err(Error::runtime(format!("{code} {text}"))),
        Reply::Bulk(bytes) => Ok(Either::Left(bytes.into())),
        reply => to_lua(lua, reply).map(Either::Right),
    }
}

/// A number as Redis writes it into an argument: `%.17g`. Tidegate's scripts hand over whole numbers only.
fn text_of(number: f64) -> String {
    assert!(number.fract() == 0.0 && number.abs() < 1e17, "a script made a text of {number}");
    (number as i64).to_string()
}

fn to_lua(lua: &Lua, reply: Reply) -> mlua::Result<Value> {
    let one_field = |name: &str, text: String| {
        let table = lua.create_table()?;
        table.raw_set(name, text)?;
        Ok(Value::Table(table))
    };
    match reply {
        Reply::Nil => Ok(Value::Boolean(false)),
        Reply::Int(number) => Ok(Value::Number(number as f64)),
        Reply::Bulk(bytes) => Ok(Value::String(lua.create_string(bytes)?)),
        Reply::Status(text) => one_field("ok", text.to_owned()),
        Reply::Error(code, text) => one_field("err", format!("{code} {text}")),
        Reply::Array(replies) => {
            let table = lua.create_table_with_capacity(replies.len(), 0)?;
            for reply in replies {
                table.raw_push(to_lua(lua, reply)?)?;
            }
            Ok(Value::Table(table))
        }
    }
}

/// What a script returns, as it is answered.
fn to_reply(value: Value) -> mlua::Result<Reply> {
    Ok(match value {
        Value::String(text) => Reply::Bulk(text.as_bytes().to_vec()),
        Value::Integer(number) => Reply::Int(number),
        Value::Number(number) => Reply::Int(number as i64),
        Value::Boolean(true) => Reply::Int(1),
        Value::Table(table) => return table_reply(&table),
        Value::Error(error) => Reply::error("ERR", error.to_string()),
        _ => Reply::Nil,
    })
}

fn table_reply(table: &Table) -> mlua::Result<Reply> {
    match table.raw_get("err")? {
        Value::Nil => {}
        Value::String(error) => {
            let text = error.to_string_lossy();
            let (code, rest) = text.split_once(' ').unwrap_or((&text, ""));
            return Ok(Reply::error(code, rest));
        }
        other => return to_reply(other),
    }
    let mut replies = Vec::new();
    for place in 1.. {
        match table.raw_get(place)? {
            Value::Nil => break,
            value => replies.push(to_reply(value)?),
        }
    }
    Ok(Reply::Array(replies))
}

/// The fields of a format of the `struct` library: little-endian doubles, and unsigned integers of 1 and 4 bytes.
fn fields(format: &[u8]) -> impl Iterator<Item = mlua::Result<Field>> {
    let mut letters = format.iter().filter(|letter| !matches!(letter, b'<' | b' '));
    std::iter::from_fn(move || {
        Some(match letters.next()? {
            b'd' => Ok(Field::Double),
            b'B' => Ok(Field::Byte),
            b'I' if letters.next() == Some(&b'4') => Ok(Field::Four),
            other => Err(Error::runtime(format!("the format {} is not in this model", char::from(*other)))),
        })
    })
}

#[derive(Clone, Copy)]
enum Field {
    Double,
    Byte,
    Four,
}

fn pack(_: &Lua, (format, values): (BString, Variadic<f64>)) -> mlua::Result<BString> {
    let (mut packed, mut values) = (Vec::with_capacity(8 * values.len()), values.iter());
    for field in fields(&format) {
        let value = *values.next().ok_or_else(|| Error::runtime("a value is missing"))?;
        match field? {
            Field::Double => packed.extend(value.to_le_bytes()),
            Field::Byte => packed.push(value as i64 as u8),
            Field::Four => packed.extend((value as i64 as u32).to_le_bytes()),
        }
    }
    Ok(packed.into())
}

fn unpack(_: &Lua, (format, text, from): (BString, BString, Option<usize>)) -> mlua::Result<Variadic<f64>> {
    let mut at = from.unwrap_or(1) - 1;
    let mut values = Variadic::with_capacity(format.len());
    let mut take = |length: usize| {
        let bytes = text.get(at..at + length).ok_or_else(|| Error::runtime("data string too short"))?;
        at += length;
        Ok::<_, Error>(bytes)
    };
    for field in fields(&format) {
        values.push(match field? {
            Field::Double => f64::from_le_bytes(take(8)?.try_into().expect("eight bytes")),
            Field::Byte => f64::from(take(1)?[0]),
            Field::Four => f64::from(u32::from_le_bytes(take(4)?.try_into().expect("four bytes"))),
        });
    }
    values.push((at + 1) as f64);
    Ok(values)
}
