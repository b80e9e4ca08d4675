//! argv → cli → exit code.

use std::ffi::OsString;
use std::process::ExitCode;

use mimalloc::MiMalloc;
use rustix::thread::disable_transparent_huge_pages;

// Measured with `cargo bench --bench front`: a call costs less CPU than with the system's allocator.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    // The allocator asks for huge pages. Zeroing one delays the thread that touches it first for as long as thousands
    // of decisions take, and decisions are no faster with them. A kernel without huge pages has nothing to switch off.
    let _ = disable_transparent_huge_pages(true);
    let text = |bytes: OsString| bytes.to_string_lossy().into_owned();
    let environment = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
    tidegate::cli::main(std::env::args_os().collect(), environment.collect())
}
