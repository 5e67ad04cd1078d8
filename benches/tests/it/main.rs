//! The built program, run as a user runs it, and the costs that must not grow with the number of
//! block groups.

mod command;
mod every;
mod groups;
mod published;
mod remote;

use std::path::Path;

use buttress_test_program::Bench;

/// A folder of its own for every test.
fn bench() -> Bench {
    Bench::of(env!("CARGO_BIN_EXE_buttress-bench"))
}

/// Whether the programs and the device are here. In CI, all of them must be here.
fn has(programs: &[&str], device: Option<&str>) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_here =
        |program: &&&str| std::env::split_paths(&path).any(|folder| folder.join(program).exists());
    let lacking: Vec<_> = programs.iter().filter(|program| !is_here(program)).collect();
    let device = device.filter(|device| !Path::new(device).exists());
    let is_all = lacking.is_empty() && device.is_none();
    let what = format!("{lacking:?} {device:?}");
    assert!(is_all || std::env::var_os("BUTTRESS_REQUIRE_LINUX").is_none(), "lacking: {what}");
    if !is_all {
        eprintln!("SKIPPED: lacking: {what}");
    }
    is_all
}
