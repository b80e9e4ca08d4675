//! argv → cli → exit code.

use std::process::ExitCode;

use mimalloc::MiMalloc;
use rustix::thread::disable_transparent_huge_pages;

// Measured with `cargo bench --bench front`: a call costs less CPU than with the system's allocator.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    // The allocator asks for huge pages, and zeroing one holds up whoever touches it first for as long as thousands of
    // decisions. Without them these take no longer. A kernel that knows none has nothing to switch off.
    let _ = disable_transparent_huge_pages(true);
    tidegate::cli::main(std::env::args_os(), |name| {
        std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
    })
}
