//! Settings: one table with a row per setting. The command line, the environment, `--help` and the typed [`Settings`]
//! come from it. `configuration` resolves what they mean together.
//!
//! In: the command line's flags and an environment (a parameter, so that tests never touch the process's own). Out:
//! [`Settings`], and every [`Problem`] at once. A flag wins over a variable, a variable over the default. A variable
//! that is in no row is ignored, except those of `refused`, which would change behaviour. One that looks like a mistake
//! is a warning ([`misspelt`]).

mod backend;
mod misspelt;
mod page;
mod refused;
mod switching;
mod table;
mod together;
pub mod value;

pub use misspelt::misspelt;
pub use page::markdown;
pub use table::{Row, Settings, TABLE};

use crate::settings::refused::refused;
use crate::settings::together::{authorities_refused, ignored, incomplete, token_twice};

/// Something wrong with one setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {what}")]
pub struct Problem {
    /// The variable's name.
    pub name: String,
    /// What is wrong and what was expected.
    pub what: String,
}

/// The texts of settings, as they are given to the program.
#[derive(Clone, Copy)]
pub struct Texts<'t> {
    /// The flag of a row, if the command line has it.
    pub flag: &'t dyn Fn(&Row) -> Option<String>,
    /// The variable of this name, if the environment has it.
    pub variable: &'t dyn Fn(&str) -> Option<String>,
}

impl Texts<'_> {
    /// The text of a setting: its flag if the command line has it, else its variable.
    pub fn of(self, row: &Row) -> Option<String> {
        (self.flag)(row).or_else(|| (self.variable)(row.name))
    }
}

impl Row {
    /// The setting's flag, without dashes: `grpc-port` for GRPC_PORT.
    pub fn flag(&self) -> String {
        match self.name {
            "CONFIG_PATH" => "config".to_owned(),
            name => name.to_lowercase().replace('_', "-"),
        }
    }
}

impl Settings {
    /// Reads every setting: its text, else the default.
    /// Adds what is wrong to `problems`. `None` if a setting has no value because of that.
    pub fn read(texts: Texts<'_>, problems: &mut Vec<Problem>) -> Option<Self> {
        let (refused, mut unread) = (refused(texts.variable), Vec::new());
        let settings = Self::read_table(texts, &mut unread);
        // The reason why a value is refused is more useful than the message that there is none.
        unread.retain(|problem| refused.iter().all(|other| other.name != problem.name));
        problems.extend(refused.into_iter().chain(unread));
        problems.extend(incomplete(|name| {
            TABLE.iter().find(|row| row.name == name).and_then(|row| texts.of(row))
        }));
        let mut settings = settings?;
        settings.backend_type = settings.backend_type.or_else(|| backend::backend(texts));
        settings.warnings = ignored(&settings, texts.variable);
        settings.warnings.extend(token_twice(&settings));
        settings.warnings.extend(authorities_refused(&settings));
        Some(settings)
    }
}

/// Settings of an environment, for tests.
#[cfg(test)]
pub mod fixture {
    use super::{Problem, Settings, Texts};

    /// An environment of these variables.
    pub fn variables(pairs: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        |name| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.to_owned())
    }

    /// Its settings.
    pub fn read(pairs: &[(&str, &str)]) -> Result<Settings, Vec<Problem>> {
        let mut problems = Vec::new();
        let texts = Texts { flag: &|_| None, variable: &variables(pairs) };
        let settings = Settings::read(texts, &mut problems);
        settings.filter(|_| problems.is_empty()).ok_or(problems)
    }
}

#[cfg(test)]
mod tests {
    use super::fixture::read;
    use super::value::Secrecy;
    use super::*;

    #[test]
    fn every_default_is_a_good_value() {
        let settings = read(&[]).expect("defaults are good");
        assert_eq!((settings.grpc_port, settings.port, settings.debug_port), (8081, 8080, 6070));
    }

    #[test]
    fn a_flag_wins_over_a_variable() {
        let flag = |row: &Row| (row.name == "GRPC_PORT").then(|| "1".to_owned());
        let variable = |name: &str| (name == "GRPC_PORT" || name == "PORT").then(|| "2".to_owned());
        let texts = Texts { flag: &flag, variable: &variable };
        let settings = Settings::read(texts, &mut Vec::new()).expect("good");
        assert_eq!((settings.grpc_port, settings.port), (1, 2));
    }

    #[test]
    fn all_bad_settings_are_reported_at_once_with_name_value_and_what_was_expected() {
        let problems =
            read(&[("GRPC_PORT", "tcp://10.0.0.1:8081"), ("SHADOW_MODE", "yes")]).expect_err("bad");
        let texts: Vec<_> = problems.iter().map(Problem::to_string).collect();
        assert_eq!(
            texts,
            [
                "GRPC_PORT: \"tcp://10.0.0.1:8081\" is not a port (expected a number from 0 to 65535; Kubernetes sets \
                 such a value for a Service of that name: set enableServiceLinks: false, or the variable itself)",
                "SHADOW_MODE: \"yes\" is not a boolean (expected one of 1 t T TRUE true True 0 f F FALSE false False)",
            ]
        );
    }

    #[test]
    fn an_empty_number_is_as_unset_and_an_empty_text_replaces_the_default() {
        let settings = read(&[("GRPC_PORT", ""), ("RUNTIME_APPDIRECTORY", "")]).expect("good");
        assert_eq!(settings.grpc_port, 8081);
        assert_eq!(settings.runtime_appdirectory.as_deref(), Some(""));
        assert_eq!(read(&[]).expect("good").runtime_appdirectory, None);
    }

    #[test]
    fn a_variable_that_would_change_behaviour_is_refused_by_name() {
        let problems = read(&[("BACKEND_TYPE", "memcache"), ("REDIS_POOL_ON_EMPTY_BEHAVIOR", "ERROR")])
            .expect_err("refused");
        assert!(
            problems.iter().any(|problem| problem.name == "REDIS_POOL_ON_EMPTY_BEHAVIOR"),
            "{problems:?}"
        );
        assert!(problems.iter().any(|problem| problem.name == "BACKEND_TYPE"), "{problems:?}");
    }

    #[test]
    fn a_secret_is_in_no_debug_output_and_no_problem_and_all_else_is() {
        let texts = ["hunter2", "a=hunter2", "a:hunter2", "redis://u:hunter2@redis:6379", "hunter2\n"];
        for row in TABLE {
            let shown = texts.map(|text| {
                let mut problems = Vec::new();
                let of_row = |other: &Row| (other.name == row.name).then(|| text.to_owned());
                format!(
                    "{:?} {problems:?}",
                    Settings::read_table(Texts { flag: &of_row, variable: &|_| None }, &mut problems)
                )
            });
            let is_seen = shown.iter().any(|shown| shown.contains("hunter2"));
            assert_eq!(is_seen, row.secrecy == Secrecy::None, "{}", row.name);
        }
        let [problem] = &read(&[("ADMIN_TOKEN", "hunter2\n")]).expect_err("it could never match")[..] else {
            panic!("one problem")
        };
        assert!(problem.what.contains("control characters"), "{problem}");
    }

    /// A new setting may be given another type than that of a secret by mistake.
    #[test]
    fn a_setting_with_the_name_of_a_secret_is_one() {
        // The path of a webhook is often a token.
        let whole = ["_TOKEN", "_AUTH", "_HEADERS", "_SECRET", "_PASSWORD", "_CREDENTIALS", "_WEBHOOK_URL"];
        let login = ["_URL", "_ENDPOINT", "_WEBHOOK_PROXY"];
        for row in TABLE {
            let ends_with = |ends: &[&str]| ends.iter().any(|end| row.name.ends_with(end));
            let named = match () {
                () if ends_with(&whole) => Secrecy::Whole,
                () if ends_with(&login) => Secrecy::Login,
                () => Secrecy::None,
            };
            assert_eq!(row.secrecy, named, "{}", row.name);
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = TABLE.iter().map(|row| row.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TABLE.len());
    }
}
