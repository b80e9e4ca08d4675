//! Scripts, and who runs them: the model, Lua, or both, which have to agree then.
//!
//! In: a script, keys, arguments, a database and the time. Out: a [`Reply`]. Scripts that the model does not know are run
//! by Lua in any case.

use std::collections::HashMap;

use redis::{Arg, Cmd};
use tidegate_redis::script::{Purpose, source};

use super::database::{Database, Reply};
use super::lua::Interpreter;
use super::model::{self, Script};

/// Who runs the scripts that decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunBy {
    /// The model: fast.
    #[default]
    Model,
    /// Lua: the scripts themselves.
    Lua,
    /// Lua and the model: every reply of both has to be the same, and the counters afterwards.
    Both,
}

/// All scripts that were ever loaded.
pub struct Scripts {
    lua: Interpreter,
    /// Text and name of each, few as they are.
    loaded: Vec<(String, String)>,
    /// Those that the model knows, by name.
    modelled: HashMap<String, Script>,
}

/// Keys and arguments of a call.
type Arguments<'a> = (&'a [&'a [u8]], &'a [&'a [u8]]);

impl Scripts {
    /// No scripts.
    pub fn new() -> mlua::Result<Self> {
        let modelled = Script::all()
            .map(|script| (name_of(&source(script.purpose, script.clock, script.lost)), script))
            .collect();
        Ok(Self { lua: Interpreter::new()?, loaded: Vec::new(), modelled })
    }

    /// Loads a script, and returns its name: the SHA-1 of its text.
    pub fn load(&mut self, text: &str) -> Result<String, Reply> {
        if let Some((_, name)) = self.loaded.iter().find(|(known, _)| known == text) {
            return Ok(name.clone());
        }
        let name = name_of(text);
        self.lua.load(&name, text)?;
        self.loaded.push((text.to_owned(), name.clone()));
        Ok(name)
    }

    /// Runs a script that was loaded.
    pub fn run(
        &self,
        run_by: RunBy,
        name: &str,
        arguments: Arguments<'_>,
        database: &mut Database,
        now_micros: u64,
    ) -> Reply {
        match (run_by, self.modelled.get(name)) {
            (RunBy::Model, Some(&script)) => model::run(script, arguments, database, now_micros),
            (RunBy::Both, Some(&script)) => self.run_both((name, script), arguments, database, now_micros),
            _ => self.lua.run(name, arguments, database, now_micros),
        }
    }

    /// Whether a command calls a script that decides.
    pub fn decides(&self, command: &Cmd) -> bool {
        let mut arguments = command.args_iter();
        let name = match (arguments.next(), arguments.next()) {
            (Some(Arg::Simple(b"EVALSHA")), Some(Arg::Simple(name))) => {
                str::from_utf8(name).ok().map(str::to_owned)
            }
            (Some(Arg::Simple(b"EVAL")), Some(Arg::Simple(text))) => str::from_utf8(text).ok().map(name_of),
            _ => None,
        };
        let script = name.and_then(|name| self.modelled.get(&name));
        script.is_some_and(|script| script.purpose != Purpose::GiveBack)
    }

    /// # Panics
    /// Where the model does not do what the script does.
    fn run_both(
        &self,
        (name, script): (&str, Script),
        arguments: Arguments<'_>,
        database: &mut Database,
        now_micros: u64,
    ) -> Reply {
        let algorithms = model::algorithms(script, arguments.0, arguments.1);
        let counters = || {
            let keys = arguments.0.iter().zip(&algorithms);
            keys.filter_map(|(key, algorithm)| Some((*key, (*algorithm)?)))
        };
        let mut modelled = database.with_counters(counters());
        let expected = self.lua.run(name, arguments, database, now_micros);
        let reply = model::run(script, arguments, &mut modelled, now_micros);
        assert_eq!(reply, expected, "{script:?}: the model answers on the left, the script on the right");
        assert_eq!(modelled, database.with_counters(counters()), "{script:?}: the model is left");
        expected
    }
}

fn name_of(text: &str) -> String {
    sha1_smol::Sha1::from(text).digest().to_string()
}
