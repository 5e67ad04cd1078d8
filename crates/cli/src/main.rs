//! The `buttress` program: btrfs volumes without the kernel.

use std::process::ExitCode;

/// The allocator of the program. The library leaves this choice to the program that it is part of.
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    buttress_cli::run(std::env::args_os())
}
