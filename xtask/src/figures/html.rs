//! The kept figures as a page to look at: bars beside Linux, with the range of the runs.
//!
//! # What must hold
//!
//! - The page has only figures of the kept files, or of the outputs that it was asked to draw.

use std::path::Path;

use buttress_bench_page::{growing, is_time, page, parts};
use serde_json::{Value, json};

use super::growth;
use super::kept::{Figure, Release, Row, read};
use super::mount::Load;

/// The columns of the experiments, in the colours 0 to 3 of the page.
const EXPERIMENTS: [&str; 4] =
    ["library", "library on a loop device", "mount by /dev/fuse", "mount by io_uring"];

/// The page of the kept figures.
pub(super) fn kept(release: &Release, loads: &[Load], cases: &[growth::Case]) -> String {
    let rows: Vec<_> = release.rows.iter().map(experiment).collect();
    let experiments = json!({
        "kind": "bars", "title": "Experiments", "base": "Linux",
        "about": [format!("Bars begin at Linux's btrfs: to the right is better. Figures are {}.", release.method)],
        "legend": EXPERIMENTS.iter().enumerate().collect::<Vec<_>>(),
        "rows": rows,
    });
    let everyday = json!({
        "kind": "bars", "title": "Everyday loads by a mount", "base": "Linux",
        "about": ["The band is the range of Linux's own runs. A diamond is an empty server on the same \
                   transport, which answers from memory."],
        "legend": [[2, EXPERIMENTS[2]], [3, EXPERIMENTS[3]],
                   ["limit", "empty server"]],
        "rows": loads.iter().map(Load::drawn).collect::<Vec<_>>(),
    });
    let cases: Vec<_> = cases.iter().map(|case| json!(case)).collect();
    page(
        &format!("Figures of Buttress {}", release.version),
        &[format!("Measured {}: {}.", release.measured, release.machine)],
        &[experiments, everyday, growing(&cases)],
    )
}

/// The page of outputs of `buttress-bench --json`.
///
/// # Errors
///
/// In words: an output cannot be read, or has no figures.
pub(super) fn printed(files: &[impl AsRef<Path>]) -> Result<String, String> {
    let mut all = Vec::new();
    for file in files.iter().map(AsRef::as_ref) {
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        let output: Value = read(file)?;
        let none = || format!("{}: no figures", file.display());
        all.extend(parts(&name, &output).ok_or_else(none)?);
    }
    Ok(page("Figures of buttress-bench", &[], &all))
}

/// An experiment of a release.
fn experiment(row: &Row) -> Value {
    let columns =
        [&row.library, &row.library_on_loop_device, &row.mount_by_device, &row.mount_by_io_uring];
    let bars = columns.iter().enumerate().filter_map(|(at, figure)| {
        let figure: &Figure = figure.as_ref()?;
        let more = figure.times_ext4.map(|times| format!("{times} × ext4"));
        Some(json!({
            "subject": EXPERIMENTS[at], "colour": at, "median": figure.median, "min": figure.min,
            "max": figure.max, "ratio": figure.times_btrfs, "more": more.into_iter().collect::<Vec<_>>(),
        }))
    });
    json!({
        "name": row.experiment, "unit": row.unit, "less": is_time(&row.unit), "asked": row.asked,
        "note": row.shortfall, "bars": bars.collect::<Vec<_>>(),
    })
}
