//! `buttress-bench`: see the library of this package.

use std::process::ExitCode;

use buttress_bench::heap::Counting;

/// The allocator of the shipped program, because the experiments measure that program. For
/// `growth`, it also counts.
#[global_allocator]
static MEMORY: Counting<mimalloc::MiMalloc> = Counting(mimalloc::MiMalloc);

fn main() -> ExitCode {
    buttress_bench::run(std::env::args_os())
}
