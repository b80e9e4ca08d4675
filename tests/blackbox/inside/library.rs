//! What the module needs of the C library of Envoy's image.

use std::process::Command;

/// `packaging/module` builds for this GLIBC.
const GLIBC: (u32, u32) = (2, 28);

/// Functions that older GLIBCs have too: built on a newer one, the module asks for their newer version. So are those of
/// threads.
const HAVE_NEWER_VERSIONS: [&str; 6] = ["dlsym", "fstat64", "fstatat64", "lstat64", "pow", "stat64"];

#[test]
fn the_module_needs_nothing_that_an_older_glibc_lacks() {
    let module = std::env::current_exe().expect("a test has a path").with_file_name("libtidegate.so");
    let output = Command::new("readelf").args(["--dyn-syms", "--wide"]).arg(module).output();
    let symbols = String::from_utf8(output.expect("readelf runs").stdout).expect("UTF-8");
    let mut of_glibc = 0;
    for line in symbols.lines().filter(|line| line.contains("@GLIBC_")) {
        let name = line.split_whitespace().find(|word| word.contains("@GLIBC_")).expect("it has one");
        let (function, version) = name.split_once("@GLIBC_").expect("it has one");
        let mut numbers = version.split('.').map(|number| number.parse().expect("a number"));
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        of_glibc += 1;
        // A weak one may be missing.
        let may_be_used = version <= GLIBC || line.contains(" WEAK ");
        let is_older = HAVE_NEWER_VERSIONS.contains(&function) || function.starts_with("pthread_");
        assert!(may_be_used || is_older, "{name}");
    }
    assert!(of_glibc > 50, "{of_glibc} symbols: {symbols}");
}
