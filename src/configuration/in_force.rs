//! Each setting with its value in force and where that comes from.
//!
//! In: the command line's flags and an environment. Out: a value for each row of the table, without secrets.

use std::fmt;

use super::detected;
use crate::settings::value::Secrecy;
use crate::settings::{Row, TABLE, Texts};
use crate::url::{HIDDEN, Url};

/// A setting with its value in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InForce {
    pub name: &'static str,
    /// The value. Empty: it has none.
    pub value: String,
    /// `flag`, `variable`, `default` or `unset`.
    pub origin: &'static str,
    /// Whether it differs from its default.
    pub is_changed: bool,
}

/// Every setting. `all_are_good`: none of them was refused.
pub fn in_force(texts: Texts<'_>, all_are_good: bool) -> impl Iterator<Item = InForce> {
    TABLE.iter().map(move |row| InForce::of(row, texts, all_are_good))
}

/// The settings that differ from their defaults, all of which are valid. It costs less than [`in_force`], because
/// settings that nobody set are skipped.
pub(super) fn changed(texts: Texts<'_>) -> Vec<InForce> {
    let set = TABLE.iter().filter(|row| texts.of(row).is_some());
    let set = set.map(|row| InForce::of(row, texts, true));
    set.filter(|setting| setting.is_changed).collect()
}

impl fmt::Display for InForce {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}={:?} ({})", self.name, self.value, self.origin)
    }
}

impl InForce {
    fn of(row: &Row, texts: Texts<'_>, all_are_good: bool) -> Self {
        let Texts { flag, variable } = texts;
        let set = |value: &String| !(value.is_empty() && row.empty_is_unset);
        let given = flag(row).map(|value| (value, "flag"));
        let given = given.or_else(|| variable(row.name).map(|value| (value, "variable")));
        // If it is not set, the program finds it out.
        let found = || {
            let flag = |other: &Row| if other.name == row.name { None } else { flag(other) };
            let variable = |name: &str| if name == row.name { None } else { variable(name) };
            detected(Texts { flag: &flag, variable: &variable }, row.name)
        };
        let default = row.default.map(str::to_owned).or_else(found);
        match (given.filter(|(value, _)| set(value)), default) {
            (Some((value, origin)), default) => {
                let is_changed = default.is_none_or(|default| !(row.are_equal)(&value, &default));
                Self { name: row.name, value: row.shown(value, all_are_good), origin, is_changed }
            }
            (None, Some(value)) => Self { name: row.name, value, origin: "default", is_changed: false },
            (None, None) => Self { name: row.name, value: String::new(), origin: "unset", is_changed: false },
        }
    }
}

impl Row {
    /// The value without secrets.
    fn shown(&self, value: String, all_are_good: bool) -> String {
        match self.secrecy {
            _ if value.is_empty() => value,
            Secrecy::None => value,
            Secrecy::Login if all_are_good => Url(value).to_string(),
            // A value that is no URL may be a password in the wrong setting.
            Secrecy::Login | Secrecy::Whole => HIDDEN.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::Configuration;

    fn in_force(name: &str, flags: &[(&str, &str)], variables: &[(&str, &str)]) -> InForce {
        let of = |pairs: &[(&str, &str)], name: &str| {
            pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.to_owned())
        };
        let (flag, variable) = (|row: &Row| of(flags, row.name), |name: &str| of(variables, name));
        let texts = Texts { flag: &flag, variable: &variable };
        let all_are_good = Configuration::read(texts).is_ok();
        let row = TABLE.iter().find(|row| row.name == name).expect("a setting");
        InForce::of(row, texts, all_are_good)
    }

    fn line(name: &str, flags: &[(&str, &str)], variables: &[(&str, &str)]) -> String {
        format!("{}\n", in_force(name, flags, variables))
    }

    #[test]
    fn a_flag_wins_over_a_variable_and_a_variable_over_the_default() {
        let variables = [("PORT", "7"), ("GRPC_PORT", "7")];
        assert_eq!(line("PORT", &[("PORT", "8")], &variables), "PORT=\"8\" (flag)\n");
        assert_eq!(line("GRPC_PORT", &[], &variables), "GRPC_PORT=\"7\" (variable)\n");
        assert_eq!(line("DEBUG_PORT", &[], &variables), "DEBUG_PORT=\"6070\" (default)\n");
        assert_eq!(line("DEBUG_PORT", &[], &[("DEBUG_PORT", "")]), "DEBUG_PORT=\"6070\" (default)\n");
    }

    #[test]
    fn what_the_program_finds_out_is_shown() {
        let redis = [("REDIS_URL", "redis:6379")];
        assert_eq!(line("BACKEND_TYPE", &[], &[]), "BACKEND_TYPE=\"memory\" (default)\n");
        assert_eq!(line("BACKEND_TYPE", &[], &redis), "BACKEND_TYPE=\"redis\" (default)\n");
        assert_eq!(line("STATSD_PORT", &[], &[]), "STATSD_PORT=\"8125\" (default)\n");
        assert_eq!(line("GRPC_UDS", &[], &[]), "GRPC_UDS=\"\" (unset)\n");
        let bytes = in_force("MAX_COUNTER_BYTES", &[], &[]).value;
        assert!(bytes.parse().is_ok_and(|bytes: u64| bytes > 0), "{bytes}");
    }

    #[test]
    fn only_secrets_are_hidden() {
        for name in ["ADMIN_TOKEN", "OTEL_EXPORTER_OTLP_HEADERS", "EVENTS_WEBHOOK_URL"] {
            assert_eq!(line(name, &[], &[(name, "a=hunter2")]), format!("{name}=\"…\" (variable)\n"));
        }
        for (name, url, shown) in [
            ("REDIS_URL", "redis:6379", "redis:6379"),
            ("REDIS_URL", "redis://u:hun@ter2@redis:6379/1", "redis://…@redis:6379/1"),
            ("REDIS_URL", "redis://redis:6379?password=hunter2", "redis://redis:6379?…"),
            ("CONFIG_GRPC_XDS_SERVER_URL", "plane:18000", "plane:18000"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://u:hunter2@tempo:4318", "http://…@tempo:4318"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://hunter?2@tempo:4318", "http://…@tempo:4318"),
        ] {
            assert_eq!(line(name, &[], &[(name, url)]), format!("{name}={shown:?} (variable)\n"));
        }
        assert_eq!(line("REDIS_URL", &[], &[("REDIS_URL", "hunter2")]), "REDIS_URL=\"…\" (variable)\n");
    }

    #[test]
    fn what_equals_its_default_is_not_changed() {
        let is_changed = |name: &str, value: &str| in_force(name, &[], &[(name, value)]).is_changed;
        assert!(is_changed("GRPC_PORT", "8082") && is_changed("GRPC_UDS", "/socket"));
        assert!(!is_changed("GRPC_PORT", "8081") && !is_changed("GRPC_PORT", ""));
        assert!(!is_changed("GRPC_MAX_CONNECTION_AGE", "1440m"), "24h in other words");
        assert!(!is_changed("BACKEND_TYPE", "memory") && is_changed("BACKEND_TYPE", "redis"));
    }
}
