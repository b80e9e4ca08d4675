//! Programs that others have written: found, run to their end, and what they said.

use std::path::Path;
use std::process::{Command, Output};

/// What `tests/run` has put on the PATH, or where it installs it.
pub fn installed(name: &str) -> Command {
    let path = format!("{}/tests/.work/bin/{name}", env!("CARGO_MANIFEST_DIR"));
    Command::new(if Path::new(&path).exists() { path } else { name.to_owned() })
}

/// Python, with the packages that `tests/run` installs.
pub fn python() -> Command {
    let python = std::env::var_os("TIDEGATE_PYTHON");
    Command::new(python.expect("TIDEGATE_PYTHON is set by tests/run, which installs it"))
}

/// Runs a program; how it ended, and all that it said.
pub fn run(command: &mut Command) -> (Output, String) {
    let output = command.output().unwrap_or_else(|error| panic!("{:?}: {error}", command.get_program()));
    let said = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
    (output, said)
}

/// Runs a program that has to end well; all that it said.
pub fn succeed(command: &mut Command) -> String {
    let (output, said) = run(command);
    assert!(output.status.success(), "{command:?}\n{said}");
    said
}
