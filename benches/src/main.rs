//! `buttress-bench`: see the library of this package.

use std::process::ExitCode;

/// As the shipped program has it: the experiments measure that.
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    buttress_bench::run(std::env::args_os())
}
