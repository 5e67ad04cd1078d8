//! The cost of operations and verbs in growing structures, by counts alone: tree steps,
//! allocations, bytes written. `buttress-bench growth` compares the same counts at larger sizes.

use std::path::{Path, PathBuf};
use std::process::Command;

use buttress_bench::growth::{Plan, expect_sound, run, table};
use buttress_bench::heap::Counting;

#[global_allocator]
static MEMORY: Counting<std::alloc::System> = Counting(std::alloc::System);

/// Our checker, and `btrfs check` where it is installed.
fn look(images: &[PathBuf]) -> Result<(), String> {
    expect_sound(images)?;
    if images.len() > 1 {
        // `btrfs check` finds the other devices of a volume only among block devices.
        return Ok(());
    }
    let mut command = Command::new("btrfs");
    command.args(["check", "--check-data-csum", "--force"]).args(images);
    let Ok(out) = command.output() else { return Ok(()) };
    if out.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&out.stderr).into()) }
}

/// Exponents may exceed their limits by this much at these small sizes. Quadratic growth still
/// exceeds the limit by more.
const SLACK: f64 = 0.4;

/// The most memory of a new subvolume at once, in bytes: its node of 16 KiB, and its items before
/// the commit.
const SUBVOLUME_MAX: u64 = 28 << 10;

/// There is only one test, because counts are of the whole process.
#[test]
fn costs_grow_with_the_work_and_no_faster() {
    let folder = tempfile::tempdir().expect("a folder");
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { memory.to_owned() } else { folder.path().to_owned() };
    let plan = Plan {
        dir,
        program: env!("CARGO_BIN_EXE_buttress-bench").into(),
        factors: vec![1, 4, 16],
        divisor: 4,
        only: Vec::new(),
        look: &look,
    };
    let mut say = |what: &str| {
        if what.starts_with("SKIPPED") {
            eprintln!("{what}");
        }
    };
    let rows = run(&plan, &mut say).expect("every case runs");
    // A commit has each new node in memory once. A new subvolume has one new node, and an inode.
    let made = rows.iter().find(|row| row.case.name == "create_subvolume").expect("the case");
    let counts = made.counts.last().expect("a size");
    let most = counts.size * SUBVOLUME_MAX;
    assert!(counts.memory < most, "{} bytes for {} subvolumes", counts.memory, counts.size);
    let above: Vec<_> = rows.iter().filter(|row| row.is_above_by(SLACK)).cloned().collect();
    assert!(above.is_empty(), "{}", table(&above));
}
