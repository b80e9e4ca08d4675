//! The name that the program was called by: names and flags of `envoyproxy/ratelimit`, and those of Limitador.
//!
//! In: the arguments from the system, the first of which is the program's name. Out: the arguments of our command
//! line.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::limitador;
use crate::settings::Problem;

/// The name of the server of `envoyproxy/ratelimit`. It parses no arguments, so under this name this program takes none.
const SERVER_NAME: &str = "ratelimit";

/// The name of its rule checker. Under this name, this program checks rules too.
const CHECK_NAME: &str = "ratelimit_config_check";

/// The arguments that have an effect.
pub(super) struct Called {
    pub(super) words: Vec<OsString>,
    /// The arguments that have none, if there are any.
    pub(super) warning: Option<Problem>,
}

/// Reads the arguments. `is_own` says whether a path is the one of this program.
/// Fails on arguments that another program's name does not allow.
///
/// If this program is the entry point of an image, and a manifest names `/bin/ratelimit` as the command, that is the
/// first argument. Then it is the name.
pub(super) fn read(arguments: Vec<OsString>, is_own: impl Fn(&Path) -> bool) -> Result<Called, clap::Error> {
    let mut words = arguments;
    if words.get(1).is_some_and(|word| is_own(Path::new(word))) {
        words.remove(0);
    }
    let name = words.first().and_then(|path| Path::new(path).file_name()).unwrap_or_default();
    if name == OsStr::new(SERVER_NAME) {
        let warning = ignored(&words[1..]);
        words.truncate(1);
        return Ok(Called { words, warning });
    }
    if name == OsStr::new(limitador::NAME) {
        return limitador::read(words).map(|(words, warning)| Called { words, warning });
    }
    if name == OsStr::new(CHECK_NAME) {
        words.insert(1, "check".into());
    }
    if words.get(1).is_some_and(|word| word == "check") {
        words.iter_mut().skip(2).for_each(respell);
    }
    Ok(Called { words, warning: None })
}

/// Whether a path leads to the running program.
pub(super) fn is_this_program(path: &Path) -> bool {
    // A word without a slash is the name of a command, even if there is a file with that name.
    let is_path = path.components().count() > 1;
    let same = || Some(path.canonicalize().ok()? == std::env::current_exe().ok()?.canonicalize().ok()?);
    is_path && same().unwrap_or(false)
}

/// The warning about arguments that have no effect. Shows the first without its value, which may be a secret.
fn ignored(arguments: &[OsString]) -> Option<Problem> {
    let first = arguments.first()?.to_string_lossy();
    let first = first.split('=').next().unwrap_or_default();
    let what = format!(
        "arguments are ignored under this name, as envoyproxy/ratelimit parses none: {}, the first is {first:?} (expected settings \
         in the environment, or a call as tidegate)",
        arguments.len()
    );
    Some(Problem { name: SERVER_NAME.to_owned(), what })
}

/// Rewrites a flag in the Go form of `envoyproxy/ratelimit` (`-config_dir X`) to ours.
fn respell(word: &mut OsString) {
    let flags = [("config_dir", "--config-dir"), ("merge_domain_configs", "--merge-domain-config")];
    let Some(text) = word.to_str() else { return };
    let Some(bare) = text.strip_prefix("--").or_else(|| text.strip_prefix('-')) else { return };
    let (name, value) = bare.split_once('=').map_or((bare, None), |(name, value)| (name, Some(value)));
    if let Some((_, ours)) = flags.iter().find(|(theirs, _)| *theirs == name) {
        *word = value.map_or_else(|| (*ours).into(), |value| format!("{ours}={value}").into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The command line, and the warning.
    fn called(words: &[&str]) -> (String, String) {
        let own = |path: &Path| path == Path::new("/bin/ratelimit") || path == Path::new("/bin/tidegate");
        let Called { words, warning } = read(words.iter().map(Into::into).collect(), own).expect("good");
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        (words.join(" "), warning.map(|problem| problem.to_string()).unwrap_or_default())
    }

    #[test]
    fn what_go_spells_is_understood() {
        let ours = "x/ratelimit_config_check check --config-dir a --merge-domain-config";
        let spelled = |words: &[&str]| called(words).0;
        assert_eq!(spelled(&["x/ratelimit_config_check", "-config_dir", "a", "-merge_domain_configs"]), ours);
        assert_eq!(spelled(&["tidegate", "check", "--config_dir=a"]), "tidegate check --config-dir=a");
        assert_eq!(spelled(&["tidegate", "-config_dir", "a"]), "tidegate -config_dir a", "only to check");
    }

    #[test]
    fn its_own_path_is_its_name() {
        for own in ["/bin/tidegate", "/bin/ratelimit"] {
            assert_eq!(called(&["/bin/tidegate", own]), (own.to_owned(), String::new()));
        }
        assert_eq!(called(&["tidegate", "/bin/tidegate", "check", "a"]).0, "/bin/tidegate check a");
        assert_eq!(called(&["tidegate", "/etc/rules"]).0, "tidegate /etc/rules");
        assert_eq!(called(&["tidegate", "check", "/bin/tidegate"]).0, "tidegate check /bin/tidegate");
    }

    #[test]
    fn under_the_name_of_the_reference_arguments_are_ignored_and_no_value_is_shown() {
        for words in [&["/bin/ratelimit"][..], &["/bin/tidegate", "/bin/ratelimit"]] {
            let (line, warning) = called(&[words, &["--quotaAuth=hunter2", "check", "--version"]].concat());
            assert_eq!(line, "/bin/ratelimit");
            assert!(warning.contains("3, the first is \"--quotaAuth\""), "{warning}");
            assert!(!warning.contains("hunter2"), "{warning}");
        }
        assert_eq!(called(&["ratelimit"]), ("ratelimit".to_owned(), String::new()));
    }
}
