//! `buttress-bench`: see the library of this package.

use std::process::ExitCode;

use buttress_bench::heap::Counting;

/// As the shipped program has it: the experiments measure that. `growth` has it count.
#[global_allocator]
static MEMORY: Counting<mimalloc::MiMalloc> = Counting(mimalloc::MiMalloc);

fn main() -> ExitCode {
    buttress_bench::run(std::env::args_os())
}
