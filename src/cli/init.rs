//! `tidegate init`: writes a first set of rules with the configuration of a proxy, ready to run.
//!
//! In: the name of a proxy, and a folder. Out: the files of an example of this repository, which its tests run with
//! the real proxy. A file that is there already is never replaced.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, value_parser};

use super::{Done, print_error};

/// What one proxy needs.
struct Example {
    proxy: &'static str,
    /// Names relative to the folder, and contents.
    files: &'static [(&'static str, &'static str)],
    /// The commands that start both, within the folder, and the first request.
    next: &'static str,
}

const EXAMPLES: [Example; 2] = [
    Example {
        proxy: "envoy",
        files: &[
            ("envoy.yaml", include_str!("../../examples/envoy/envoy.yaml")),
            ("rules/edge.yaml", include_str!("../../examples/envoy/rules/edge.yaml")),
        ],
        next: "tidegate rules\nenvoy -c envoy.yaml\ncurl -i localhost:10000/api/things",
    },
    Example {
        proxy: "nginx",
        files: &[
            ("nginx.conf", include_str!("../../examples/nginx/nginx.conf")),
            ("rules/edge.yaml", include_str!("../../examples/nginx/rules/edge.yaml")),
        ],
        next: "tidegate rules\nnginx -c \"$PWD/nginx.conf\" -g 'daemon off;'\ncurl -i localhost:10000/",
    },
];

pub(super) fn command() -> Command {
    Command::new("init")
        .about("Writes first rules and the configuration of a proxy, ready to run")
        .arg(
            Arg::new("proxy")
                .value_name("PROXY")
                .value_parser(EXAMPLES.map(|example| example.proxy))
                .required(true)
                .help("the proxy that asks"),
        )
        .arg(
            Arg::new("folder")
                .value_name("FOLDER")
                .value_parser(value_parser!(PathBuf))
                .default_value(".")
                .help("where to write; a file that is there already is an error, and nothing is written"),
        )
}

/// The output of the command: what was written, and what to type next.
pub(super) fn run(matches: &ArgMatches) -> Done {
    let named =
        |example: &&Example| matches.get_one::<String>("proxy").is_some_and(|name| name == example.proxy);
    let folder = matches.get_one::<PathBuf>("folder").map_or(Path::new("."), PathBuf::as_path);
    let Some(example) = EXAMPLES.iter().find(named) else { return Ok((String::new(), ExitCode::FAILURE)) };
    let paths = example.files.iter().map(|(name, _)| folder.join(name));
    let written = match paths.clone().find(|path| path.exists()) {
        Some(path) => Err((path, io::ErrorKind::AlreadyExists.into())),
        None => paths
            .clone()
            .zip(example.files)
            .try_for_each(|(path, (_, text))| write(&path, text).map_err(|error| (path, error))),
    };
    Ok(match written {
        Ok(()) => {
            let list: String = paths.map(|path| format!("wrote {}\n", path.display())).collect();
            (format!("{list}\nNext, in {}:\n{}\n", folder.display(), example.next), ExitCode::SUCCESS)
        }
        Err((path, error)) => {
            print_error(format_args!("{}: {error}", path.display()));
            (String::new(), ExitCode::FAILURE)
        }
    })
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    OpenOptions::new().write(true).create_new(true).open(path)?.write_all(text.as_bytes())
}
