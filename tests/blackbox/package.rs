//! The Debian package of the server and the RPM made of it, installed and started; that of the module, loaded by Envoy; and
//! the binary as it runs in a container: as nobody, with a read-only root, without a capability.
//!
//! The server and the binary run on a copy-on-write view of this machine's files (overlayfs in a mount namespace of its own,
//! which takes root), so nothing of the machine changes.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::harness::envoy::Envoy;
use crate::harness::grpc::question;
use crate::harness::process::Process;
use crate::harness::tidegate::{CHECKED_BINARY, Setup, Tidegate, binary};

const USER: &[(&str, &str)] = &[("user", "alice")];
const RULES: &str =
    "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {unit: day, requests_per_unit: 7}\n";

/// A view of this machine's files, of which the changes go to `folder`; then `then`, inside it.
fn inside_a_view(folder: &Path, then: &str) -> Command {
    let script = format!(
        "set -e; cd '{folder}'; mkdir -p upper work root
         mount -t tmpfs tmpfs work; mkdir work/upper work/work
         mount -t overlay overlay -o lowerdir=/,upperdir=work/upper,workdir=work/work root
         mount --bind '{folder}' \"root{folder}\"; mount -t proc proc root/proc
         {then}",
        folder = folder.display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--", "/bin/sh", "-c", &script]);
    command
}

/// `command`, in the view, as nobody: read-only, without capabilities and without a way to get any.
fn as_nobody(command: &str) -> String {
    format!(
        "mount -o remount,ro root
         exec chroot root setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set=-all --inh-caps=-all \
         --no-new-privs -- {command}"
    )
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    let shown =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{shown}", output.status);
    shown
}

/// Starts `binary` as nobody, with the settings of `setup`, once `before` is done to the view.
pub fn start_as_nobody(setup: Setup, before: &str, binary: &str) -> Tidegate {
    let mut command = inside_a_view(setup.outside(), &format!("{before}\n{}", as_nobody(binary)));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).envs(setup.variables());
    Tidegate::of(Process::spawn(&mut command), setup)
}

/// What /proc says of the process that answers.
fn status(limiter: &Tidegate, line: &str) -> String {
    // The shell that made the view has become the limiter.
    let text = fs::read_to_string(format!("/proc/{}/status", limiter.id())).expect("it runs");
    let value = text.lines().find_map(|known| known.strip_prefix(line)).expect("Linux reports it");
    value.trim_start_matches(':').split_whitespace().next().unwrap_or_default().to_owned()
}

fn asserted_to_be_nobody(limiter: &Tidegate) {
    assert_eq!(status(limiter, "Uid"), "65534");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(status(limiter, set), "0000000000000000", "{set}");
    }
    let answer = limiter.client().ask(question("shop", &[USER]));
    assert_eq!(answer.statuses[0].limit_remaining, 6);
}

#[test]
fn it_runs_as_nobody_with_a_read_only_root_and_no_capabilities() {
    let setup = Setup::new().rules("shop.yaml", RULES);
    let limiter = start_as_nobody(setup, "", binary());
    asserted_to_be_nobody(&limiter);
    let root = fs::read_to_string(format!("/proc/{}/mounts", limiter.id())).expect("it runs");
    let root = root.lines().find(|line| line.split(' ').nth(1) == Some("/")).expect("there is a root");
    assert!(root.split(' ').nth(3).is_some_and(|options| options.starts_with("ro")), "{root}");
}

/// The profile that the binary under test was built with, and the target folder.
fn profile_and_target() -> (&'static str, &'static Path) {
    let binary = Path::new(CHECKED_BINARY);
    let profile = binary.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    let profile = match profile.expect("a binary lies in the folder of its profile") {
        "debug" => "dev",
        name => name,
    };
    (profile, binary.ancestors().nth(2).expect("that lies in the target folder"))
}

/// Builds the package around the binary under test. cargo-deb has one temporary folder in the target folder.
fn package(folder: &Path) -> PathBuf {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _held = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (profile, target) = profile_and_target();
    let mut script = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/deb"));
    script.args(["--no-build", "--fast", "--output"]).arg(folder);
    run(script.env("CARGO_TARGET_DIR", target).env("PROFILE", profile));
    let written = fs::read_dir(folder).expect("the folder is ours").map(|file| file.expect("a file").path());
    let (symbols, package) = written
        .filter(|path| path.extension().is_some_and(|kind| kind == "deb" || kind == "ddeb"))
        .partition::<Vec<_>, _>(|path| path.to_string_lossy().contains("-dbgsym_"));
    assert_eq!((symbols.len(), package.len()), (1, 1), "{symbols:?} {package:?}");
    package.into_iter().next().expect("there is one")
}

#[test]
fn the_debian_package_of_the_module_has_a_library_that_envoy_loads() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let (package, root) = (folder.path().join("module.deb"), folder.path().join("root"));
    let (profile, target) = profile_and_target();
    let mut cargo_deb = Command::new("cargo-deb");
    cargo_deb.args(["--no-build", "--fast", "--package", "tidegate-envoy", "--profile", profile, "--output"]);
    cargo_deb.arg(&package).env("CARGO_TARGET_DIR", target).current_dir(env!("CARGO_MANIFEST_DIR"));
    run(&mut cargo_deb);
    run(Command::new("dpkg-deb").arg("--extract").args([&package, &root]));

    let examples = root.join("usr/share/doc/tidegate-envoy/examples");
    let example = fs::read_to_string(examples.join("envoy.yaml")).expect("it is packed");
    let module = root.join("usr/lib/tidegate/libtidegate.so");
    let by_path = format!("{{ module: {{ local: {{ filename: {} }} }}, do_not_close", module.display());
    let config = example
        .replace("{ name: tidegate, do_not_close", &by_path)
        .replace("examples/inside", &examples.to_string_lossy());
    assert_eq!(config.matches(&*by_path).count(), 3, "{config}");
    let envoy = Envoy::start_config(&config);
    let statuses = [(); 6]
        .map(|()| envoy.client().send("GET", "/", &[("x-user", "ann")], "").expect("Envoy answers").status);
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
}

#[test]
fn the_debian_package_installs_and_its_service_starts() {
    let setup = Setup::new();
    let package = package(setup.outside());
    let rules = setup.outside().join("shop.yaml");
    fs::write(&rules, RULES).expect("the folder is ours");

    let unit = run(inside_a_view(
        setup.outside(),
        &format!(
            "chroot root dpkg --install '{package}' >dpkg.log 2>&1 || {{ cat dpkg.log; exit 1; }}
             test -x root/usr/bin/tidegate; test -f root/etc/tidegate/shop.yaml
             test \"$(stat -c %a root/etc/default/tidegate)\" = 640
             test \"$(readlink root/usr/bin/ratelimit)\" = tidegate
             test \"$(readelf --sections root/usr/bin/tidegate | grep -c -e debug_info -e symtab)\" = 0
             for page in tidegate tidegate-check tidegate-ask tidegate-replay tidegate-exception tidegate-exception-put; do test -f root/usr/share/man/man1/$page.1.gz; done
             test -f root/usr/share/bash-completion/completions/tidegate
             test -f root/usr/share/zsh/vendor-completions/_tidegate
             test -f root/usr/share/fish/vendor_completions.d/tidegate.fish
             chroot root systemd-analyze verify /lib/systemd/system/tidegate.service 2>&1 | grep tidegate && exit 1
             cat root/lib/systemd/system/tidegate.service root/etc/default/tidegate",
            package = package.display()
        ),
    )
    .env("DEBIAN_FRONTEND", "noninteractive"));
    assert!(unit.contains("ExecStart=/usr/bin/tidegate\n"), "{unit}");
    assert!(unit.contains("\nCONFIG_PATH=/etc/tidegate\n"), "{unit}");
    assert!(unit.contains("\nEnvironment=ADMIN_TOKEN_FILE=%S/tidegate/admin-token\n"), "{unit}");

    let install = format!(
        "chroot root dpkg --install '{package}' >dpkg.log 2>&1; cp '{rules}' root/etc/tidegate/shop.yaml",
        package = package.display(),
        rules = rules.display()
    );
    let setup = setup.env("CONFIG_PATH", "/etc/tidegate");
    asserted_to_be_nobody(&start_as_nobody(setup, &install, "/usr/bin/tidegate"));
}

/// The files that a package has, without folders.
fn files_of(command: &mut Command, path: impl Fn(&str) -> Option<String>) -> BTreeSet<String> {
    run(command).lines().filter_map(path).collect()
}

#[test]
fn the_rpm_has_the_files_of_the_debian_package_and_its_program_starts() {
    let setup = Setup::new();
    let deb = package(setup.outside());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/rpm");
    run(Command::new(script).arg(&deb).arg(setup.outside()));
    let written = fs::read_dir(setup.outside()).expect("the folder is ours");
    let mut written = written.map(|file| file.expect("a file").path());
    let rpm = written.find(|path| path.extension().is_some_and(|kind| kind == "rpm")).expect("it is there");

    // Both list one file a line, with its mode first; a link has its target behind it.
    let listed = |line: &str, word: usize| {
        let path = line.split_whitespace().nth(word).filter(|_| !line.starts_with('d'))?;
        let path = path.trim_start_matches('.').replace("vendor-completions", "site-functions");
        Some(format!("{} {path}", line.split_whitespace().next()?))
    };
    let expected = files_of(Command::new("dpkg-deb").arg("--contents").arg(&deb), |line| listed(line, 5));
    let shipped = files_of(Command::new("rpm").args(["-qplv"]).arg(&rpm), |line| listed(line, 8));
    assert_eq!(shipped, expected);
    let kept = run(Command::new("rpm").args(["-qpc"]).arg(&rpm));
    assert_eq!(kept, "/etc/default/tidegate\n/etc/tidegate/shop.yaml\n");

    // Debian's packages are not in the database of rpm, so it cannot know that there is a C library.
    let rules = setup.outside().join("shop.yaml");
    fs::write(&rules, RULES).expect("the folder is ours");
    let install = format!(
        "chroot root rpm --install --nodeps '{rpm}' >rpm.log 2>&1 || {{ cat rpm.log; exit 1; }}
         cp '{rules}' root/etc/tidegate/shop.yaml",
        rpm = rpm.display(),
        rules = rules.display()
    );
    let setup = setup.env("CONFIG_PATH", "/etc/tidegate");
    asserted_to_be_nobody(&start_as_nobody(setup, &install, "/usr/bin/tidegate"));
}

/// The files that cargo would pack of this crate.
fn packed(name: &str) -> Vec<String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["package", "--list", "--allow-dirty", "--offline", "--package", name]);
    let listed = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo runs");
    let listed = String::from_utf8(listed.stdout).expect("UTF-8");
    listed.lines().map(str::to_owned).collect()
}

#[test]
fn a_crate_holds_what_builds_it_and_no_tests() {
    let crates: [(&str, &[&str], &[&str]); 12] = [
        (
            "tidegate",
            &[
                "README.md",
                "build.rs",
                "src/main.rs",
                "proto/envoy/service/ratelimit/v3/rls.proto",
                "docs/settings.md",
                "examples/embed.rs",
            ],
            &["src/", "proto/", "docs/", "config/", "examples/"],
        ),
        ("tidegate-disk", &["src/lib.rs"], &["src/"]),
        ("tidegate-engine", &["README.md", "src/lib.rs"], &["src/"]),
        ("tidegate-redis", &["src/lib.rs", "src/lua/window.lua"], &["src/"]),
        ("tidegate-envoy", &["src/lib.rs"], &["src/"]),
        ("tidegate-grpc", &["src/lib.rs"], &["src/"]),
        (
            "tidegate-operate",
            &["src/lib.rs", "src/api/openapi.json", "src/debug/status/page.html"],
            &["src/"],
        ),
        ("tidegate-records", &["src/lib.rs"], &["src/"]),
        ("tidegate-serve", &["src/lib.rs"], &["src/"]),
        ("tidegate-state", &["src/lib.rs"], &["src/"]),
        (
            "tidegate-trial",
            &["src/lib.rs", "src/replay/report/page.css", "src/replay/report/page.js"],
            &["src/"],
        ),
        ("tidegate-yaml", &["src/lib.rs"], &["src/"]),
    ];
    let all = fs::read_dir("crates").expect("ours").count();
    assert_eq!(crates.len(), all + 1, "each crate, and the program");
    for (name, needed, folders) in crates {
        let packed = packed(name);
        let has = |file: &str| packed.iter().any(|packed| packed == file);
        for needed in needed.iter().chain(&["Cargo.toml", "Cargo.lock", "LICENSE"]) {
            assert!(has(needed), "no {needed} in {name}: {packed:?}");
        }
        for file in packed.iter().filter(|file| file.contains('/')) {
            assert!(folders.iter().any(|folder| file.starts_with(folder)), "{file} in {name}");
        }
        assert!(!has("Dockerfile") && !has(".ci/run"), "{packed:?}");
    }
}

/// Each with those that it stands on, as a registry would hand them out. `tests/soak/run packages` builds them too.
#[test]
fn all_crates_can_be_packed() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([
        "package",
        "--workspace",
        "--exclude",
        "tidegate-simulation",
        "--exclude",
        "tidegate-fuzz",
        "--offline",
        "--allow-dirty",
        "--no-verify",
    ]);
    cargo.arg("--target-dir").arg(folder.path()).current_dir(env!("CARGO_MANIFEST_DIR"));
    let shown = run(&mut cargo);
    let crates = fs::read_dir("crates").expect("ours").count();
    assert_eq!(shown.matches("Packaged ").count(), crates + 1, "{shown}");
}

#[test]
fn a_release_is_stripped_and_its_symbols_can_be_had() {
    let manifest =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).expect("it is there");
    let profile = |name: &str| {
        let (_, after) = manifest.split_once(&format!("\n[profile.{name}]\n")).expect("it is there");
        after.split("\n\n").next().expect("a paragraph").to_owned()
    };
    assert!(profile("release").contains("strip = \"symbols\""));
    let symbols = profile("release-debug");
    assert!(symbols.contains("inherits = \"release\"") && symbols.contains("strip = \"none\""), "{symbols}");
}
