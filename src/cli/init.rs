//! `tidegate init`: writes a first set of rules with the configuration of a proxy, for Docker too, or the values of the Helm
//! chart, ready to run.
//!
//! In: the name of a proxy, compose, or helm, and a folder. Out: the files of an example of this repository, which its tests run with
//! the real proxy or the real helm. A file that is there already is never replaced.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, value_parser};

use super::{Done, print_error};

/// What one of them needs.
struct Example {
    name: &'static str,
    /// Names relative to the folder, and contents.
    files: &'static [(&'static str, &'static str)],
    /// The commands that start all of it, within the folder, and the first request.
    next: &'static str,
}

const ENVOY: (&str, &str) = ("envoy.yaml", include_str!("../../examples/envoy/envoy.yaml"));
const ENVOYS_RULES: (&str, &str) = ("rules/edge.yaml", include_str!("../../examples/envoy/rules/edge.yaml"));

const EXAMPLES: [Example; 4] = [
    Example {
        name: "envoy",
        files: &[ENVOY, ENVOYS_RULES],
        next: "tidegate rules                        # in a terminal of its own\n\
               envoy -c envoy.yaml                   # in another\n\
               curl -i localhost:10000/api/things    # the 6th within a minute gets 429",
    },
    Example {
        name: "nginx",
        files: &[
            ("nginx.conf", include_str!("../../examples/nginx/nginx.conf")),
            ("rules/edge.yaml", include_str!("../../examples/nginx/rules/edge.yaml")),
        ],
        next: "tidegate rules                                  # in a terminal of its own\n\
               nginx -c \"$PWD/nginx.conf\" -g 'daemon off;'    # in another\n\
               curl -i localhost:10000/                        # the 21st within a minute gets 429",
    },
    Example {
        name: "compose",
        files: &[("compose.yaml", include_str!("../../examples/envoy/compose.yaml")), ENVOY, ENVOYS_RULES],
        next: "export TIDEGATE=~/tidegate    # where the repository of Tidegate is, for its image\n\
               docker compose up --build --detach\n\
               curl -i localhost:10000/api/things    # the 6th within a minute gets 429",
    },
    Example {
        name: "helm",
        files: &[("values.yaml", include_str!("../../examples/kubernetes/values/first.yaml"))],
        next: "CHART=~/tidegate/packaging/helm/tidegate    # where the repository of Tidegate is\n\
               helm upgrade --install tidegate $CHART --namespace limits --create-namespace --values values.yaml\n\
               kubectl --namespace limits port-forward deployment/tidegate 8080    # in a terminal of its own\n\
               # The 11th within an hour gets 429.\n\
               curl -i localhost:8080/json -d '{\"domain\": \"edge\", \"descriptors\": [{\"entries\": \
               [{\"key\": \"user\", \"value\": \"alice\"}]}]}'",
    },
];

pub(super) fn command() -> Command {
    Command::new("init")
        .about("Writes first rules for a proxy, Docker or Helm, ready to run")
        .arg(
            Arg::new("name")
                .value_name("NAME")
                .value_parser(EXAMPLES.map(|example| example.name))
                .required(true)
                .help("the proxy that asks; compose: Envoy, with Docker; or helm"),
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
        |example: &&Example| matches.get_one::<String>("name").is_some_and(|name| name == example.name);
    let folder = matches.get_one::<PathBuf>("folder").map_or(Path::new("."), PathBuf::as_path);
    let Some(example) = EXAMPLES.iter().find(named) else { return Ok((String::new(), ExitCode::FAILURE)) };
    let paths = example.files.iter().map(|(name, _)| folder.join(name));
    let written = match paths.clone().find(|path| path.exists()) {
        Some(path) => {
            Err((path, io::Error::other("is there already; nothing was written (name another folder)")))
        }
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
