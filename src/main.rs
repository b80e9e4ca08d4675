//! argv → cli → exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidegate::cli::main(std::env::args_os(), |name| {
        std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
    })
}
