//! The cost of operations and verbs in growing structures, by counts alone: tree steps,
//! allocations, bytes written. `buttress-bench growth` compares the same counts at larger sizes.
//!
//! `growth.txt` has the exponents of each case at the sizes of this test. `BUTTRESS_KEEP=1` writes
//! the file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use buttress_bench::growth::{Case, Plan, Row, all, expect_sound, run, table};
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
/// Exponents may exceed the kept ones by this much.
const DRIFT: f64 = 0.1;
const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/growth.txt");

/// The most memory of a new subvolume at once, in bytes: its node of 16 KiB, and its items before
/// the commit.
const SUBVOLUME_MAX: u64 = 28 << 10;

/// The name of a case in the file.
fn key(case: &Case) -> String {
    format!("{}; {}", case.name, case.grows)
}

/// A line of the file: the exponents of steps, allocations and bytes written, and the case.
fn line(row: &Row) -> String {
    let [steps, allocations, written] = row.exponents();
    format!("{steps:.2} {allocations:.2} {written:.2} {}", key(&row.case))
}

/// The kept exponents, by case.
fn kept() -> BTreeMap<String, [f64; 3]> {
    let text = std::fs::read_to_string(KEPT).unwrap_or_default();
    let of_line = |line: &str| {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        let [steps, allocations, written, case] = words[..] else { panic!("{KEPT}: {line}") };
        let exponents = [steps, allocations, written].map(|word| word.parse().expect("a number"));
        (case.to_owned(), exponents)
    };
    text.lines().map(of_line).collect()
}

/// How often a case on a mount that seems to grow is counted in all. The threads of the server and
/// the kernel add to the counts of any size at any time, and take nothing from them. So the least
/// count of each size is that of the case.
const LOOKS: usize = 3;

/// Compares the exponents with the kept ones. Cases that cannot be measured here keep their lines.
/// `again` counts a case once more.
fn compare(rows: &[Row], again: &dyn Fn(&Case) -> Row) {
    let mut kept = kept();
    if std::env::var_os("BUTTRESS_KEEP").is_some() {
        let new: BTreeMap<String, String> =
            rows.iter().map(|row| (key(&row.case), line(row))).collect();
        let mut text = String::new();
        for case in all() {
            let key = key(&case);
            let old = kept.get(&key).map(|[a, b, c]| format!("{a:.2} {b:.2} {c:.2} {key}"));
            if let Some(line) = new.get(&key).cloned().or(old) {
                writeln!(text, "{line}").expect("memory");
            }
        }
        std::fs::write(KEPT, text).expect("the file");
        return;
    }
    let mut above = Vec::new();
    for row in rows {
        let Some(old) = kept.remove(&key(&row.case)) else {
            above.push(format!("no exponents are kept: {}", line(row)));
            continue;
        };
        let is_above = |row: &Row| {
            row.exponents().iter().zip(old).any(|(new, old)| *new > old.max(0.0) + DRIFT)
        };
        let mut least = row.clone();
        let looks = if row.case.name.contains("mounted") { LOOKS } else { 1 };
        for _ in 1..looks {
            if is_above(&least) {
                for (one, more) in least.counts.iter_mut().zip(again(&row.case).counts) {
                    one.steps = one.steps.min(more.steps);
                    one.allocations = one.allocations.min(more.allocations);
                    one.written = one.written.min(more.written);
                }
            }
        }
        if is_above(&least) {
            above.push(format!("{}, and {old:.2?} are kept", line(&least)));
        }
    }
    assert!(above.is_empty(), "BUTTRESS_KEEP=1 keeps these:\n{}", above.join("\n"));
    let cases: Vec<String> = all().map(|case| key(&case)).collect();
    let gone: Vec<_> = kept.keys().filter(|key| !cases.contains(key)).collect();
    assert!(gone.is_empty(), "{KEPT} has cases that do not exist: {gone:?}");
}

/// There is only one test, because counts are of the whole process.
#[test]
fn costs_grow_with_the_work_and_no_faster() {
    let folder = tempfile::tempdir().expect("a folder");
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { memory.to_owned() } else { folder.path().to_owned() };
    let plan = |only: &[&str]| Plan {
        dir: dir.clone(),
        program: env!("CARGO_BIN_EXE_buttress-bench").into(),
        factors: vec![1, 4, 16],
        divisor: 4,
        only: only.iter().map(|&name| name.to_owned()).collect(),
        look: &look,
    };
    let mut say = |what: &str| {
        if what.starts_with("SKIPPED") {
            eprintln!("{what}");
        }
    };
    let rows = run(&plan(&[]), &mut say).expect("every case runs");
    // A commit has each new node in memory once. A new subvolume has one new node, and an inode.
    let made = rows.iter().find(|row| row.case.name == "create_subvolume").expect("the case");
    let counts = made.counts.last().expect("a size");
    let most = counts.size * SUBVOLUME_MAX;
    assert!(counts.memory < most, "{} bytes for {} subvolumes", counts.memory, counts.size);
    let above: Vec<_> = rows.iter().filter(|row| row.is_above_by(SLACK)).cloned().collect();
    assert!(above.is_empty(), "{}", table(&above));
    compare(&rows, &|case| {
        let rows = run(&plan(&[case.name]), &mut |_| ()).expect("the case runs again");
        rows.into_iter().find(|row| key(&row.case) == key(case)).expect("the case")
    });
}
