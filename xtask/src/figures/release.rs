//! The figures of a release, from outputs of `buttress-bench --json EXPERIMENT --mount`.
//!
//! # What must hold
//!
//! - Machine, method, rows, units, what was asked and the sentences about shortfalls come from
//!   the former release. They are checked by hand, and so is the number of runs in the method.
//! - A row that was not measured has no figures: none of a former release stands beside new ones.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::kept::{Figure, Release, Row, read, short};

/// The experiment of a row, as `buttress-bench` prints it, and what the experiment measures.
const ROWS: [(&str, &str, &str); 11] = [
    ("nocow, blocks of 64 KiB", "nocow", "64 KiB random direct"),
    ("nocow, blocks of 4 KiB", "nocow", "4 KiB random direct"),
    ("cow, blocks of 4 KiB", "cow", "4 KiB random direct"),
    ("cow, blocks of 64 KiB", "cow", "64 KiB random direct"),
    ("enospc, metadata full, through memory", "enospc", "written, through memory"),
    ("enospc, the same, p99.9 of a write", "enospc", "p99.9 of a write, through memory"),
    ("enospc, metadata full, direct", "enospc", "written, direct"),
    ("read, 4 threads", "read", "read by 4, cold"),
    ("read, 1 thread", "read", "read by 1, cold"),
    ("allocate, 64 workers", "allocate", "allocations by 64"),
    ("allocate, 64 workers, fragmented", "allocate, fragmented", "allocations by 64"),
];

/// An output of the program.
#[derive(Debug, Deserialize)]
struct Printed {
    experiment: String,
    figures: Vec<PrintedRow>,
}

#[derive(Debug, Deserialize)]
struct PrintedRow {
    what: String,
    unit: String,
    subject: String,
    median: f64,
    values: Vec<f64>,
}

/// Medians and ranges by experiment, by what was measured, and by subject.
type Measured = BTreeMap<(String, String), BTreeMap<String, PrintedRow>>;

/// Keeps outputs of the program as the release `version`, which was measured in the month `when`.
///
/// # Errors
///
/// In words: a file cannot be read or written, or is no output of this program.
pub(super) fn keep(
    printed: &[PathBuf],
    former: &Path,
    to: &Path,
    version: &str,
    when: &str,
) -> Result<(), String> {
    let mut measured = Measured::new();
    for path in printed {
        let Printed { experiment, figures } = read(path)?;
        for row in figures {
            let rows = measured.entry((experiment.clone(), row.what.clone())).or_default();
            rows.insert(row.subject.clone(), row);
        }
    }
    let mut release: Release = read(former)?;
    release.version = version.to_owned();
    release.measured = when.to_owned();
    for row in &mut release.rows {
        fill(row, &measured);
    }
    let text = serde_json::to_string_pretty(&release).map_err(|error| error.to_string())?;
    fs::write(to, text + "\n").map_err(|error| format!("{}: {error}", to.display()))
}

/// Gives a row the figures of its experiment.
fn fill(row: &mut Row, measured: &Measured) {
    let source = ROWS.iter().find(|(name, ..)| *name == row.experiment);
    let found = source.and_then(|(_, experiment, what)| {
        measured.get(&((*experiment).to_owned(), (*what).to_owned()))
    });
    let empty = BTreeMap::new();
    let found = found.unwrap_or(&empty);
    row.library = figure(found, &["buttress", "clamp"]);
    row.library_on_loop_device = figure(found, &["buttress on loop", "clamp on loop"]);
    row.mount_by_device = figure(found, &["buttress mount", "clamp mount"]);
    row.mount_by_io_uring =
        figure(found, &["buttress mount by io_uring", "clamp mount by io_uring"]);
}

/// The figure of the first of these subjects that was measured.
fn figure(found: &BTreeMap<String, PrintedRow>, subjects: &[&str]) -> Option<Figure> {
    let row = subjects.iter().find_map(|subject| found.get(*subject))?;
    let times = |peer: &str| {
        let peer = found.get(peer)?.median;
        let more = row.median / peer;
        let is_better = if row.unit.contains("/s") { more } else { more.recip() };
        is_better.is_finite().then(|| short(is_better))
    };
    Some(Figure {
        median: short(row.median),
        min: row.values.iter().copied().reduce(f64::min).map(short),
        max: row.values.iter().copied().reduce(f64::max).map(short),
        times_btrfs: times("kernel btrfs"),
        times_ext4: times("kernel ext4"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_release_come_from_the_outputs() {
        let dir = std::env::temp_dir().join(format!("figures-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a folder");
        let (former, output, to) = (dir.join("1.json"), dir.join("out.json"), dir.join("2.json"));
        let old = r#"{"version":"1","measured":"then","machine":"m","method":"m","rows":[
            {"experiment":"read, 1 thread","unit":"MiB/s","library":{"median":1},"asked":"2x"},
            {"experiment":"cow, blocks of 4 KiB","unit":"1/s","library":{"median":1}}]}"#;
        let new = r#"{"experiment":"read","figures":[
            {"what":"read by 1, cold","unit":"MiB/s","subject":"kernel btrfs","median":200,
             "values":[200]},
            {"what":"read by 1, cold","unit":"MiB/s","subject":"buttress","median":300,
             "values":[250,300,310]}]}"#;
        fs::write(&former, old).and_then(|()| fs::write(&output, new)).expect("written");
        keep(std::slice::from_ref(&output), &former, &to, "2", "now").expect("kept");
        let release: Release = read(&to).expect("a release");
        assert_eq!((release.version.as_str(), release.measured.as_str()), ("2", "now"));
        let found = release.rows[0].library.as_ref().expect("measured");
        assert_eq!((found.median, found.min, found.max), (300.0, Some(250.0), Some(310.0)));
        assert_eq!((found.times_btrfs, found.times_ext4), (Some(1.5), None));
        assert_eq!(release.rows[0].asked.as_deref(), Some("2x"));
        assert!(release.rows[1].library.is_none(), "nothing of the former release stays");
        fs::remove_dir_all(dir).expect("removed");
    }
}
