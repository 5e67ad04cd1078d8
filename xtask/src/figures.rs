//! The page of figures. It is made from the newest file in `docs/figures`, and from the newest
//! files in its folders `mount` and `growth`.
//!
//! # What must hold
//!
//! - The page has only figures of these files: no figure is written by hand.
//! - `--check` fails if the page differs from the generated one.

mod growth;
mod mount;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Deserialize;

/// The page, below the top of the project.
const PAGE: &str = "docs/figures.md";
const FOLDER: &str = "docs/figures";
const GROWTH: &str = "docs/figures/growth";
const MOUNT: &str = "docs/figures/mount";

/// Whether to write the page or to compare it.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Fail if the page is not up to date, and write nothing.
    #[arg(long)]
    check: bool,
    /// Keep this output of `buttress-bench --json growth` as the one of the newest release.
    #[arg(long, value_name = "FILE", conflicts_with = "check")]
    growth: Option<PathBuf>,
    /// Keep this output of `buttress-bench --json mount` as the one of this version.
    #[arg(long, value_name = "FILE", conflicts_with = "check")]
    mount: Option<PathBuf>,
}

/// The figures of one release.
#[derive(Debug, Deserialize)]
struct Release {
    version: String,
    measured: String,
    machine: String,
    method: String,
    rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
struct Row {
    experiment: String,
    unit: String,
    library: Option<Figure>,
    library_on_loop_device: Option<Figure>,
    mount_by_device: Option<Figure>,
    mount_by_io_uring: Option<Figure>,
    asked: Option<String>,
    shortfall: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Figure {
    median: f64,
    min: Option<f64>,
    max: Option<f64>,
    times_btrfs: Option<f64>,
    times_ext4: Option<f64>,
}

/// Writes or compares the page.
pub(crate) fn run(options: &Options) -> ExitCode {
    let top = crate::top::top();
    if let Some(printed) = &options.growth {
        let kept = newest(&top.join(FOLDER)).and_then(|release| {
            let name = release.file_name().unwrap_or_default();
            growth::keep(printed, &top.join(GROWTH).join(name))
        });
        if let Err(error) = kept {
            return fail(&error);
        }
    }
    if let Some(printed) = &options.mount {
        let name = concat!(env!("CARGO_PKG_VERSION"), ".json");
        if let Err(error) = mount::keep(printed, &top.join(MOUNT).join(name)) {
            return fail(&error);
        }
    }
    match page(&top) {
        Ok(text) if options.check => {
            let is_same = fs::read_to_string(top.join(PAGE)).is_ok_and(|page| page == text);
            if !is_same {
                eprintln!("{PAGE} is not what {FOLDER} gives: cargo xtask figures writes it");
            }
            if is_same { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Ok(text) => match fs::write(top.join(PAGE), text) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&format!("{PAGE}: {error}")),
        },
        Err(error) => fail(&error),
    }
}

fn fail(error: &str) -> ExitCode {
    eprintln!("figures: {error}");
    ExitCode::FAILURE
}

/// The last file of a folder, by name.
fn newest(folder: &Path) -> Result<PathBuf, String> {
    let show = |error| format!("{}: {error}", folder.display());
    let files = fs::read_dir(folder).map_err(show)?.flatten().map(|entry| entry.path());
    let is_json = |path: &PathBuf| path.extension().is_some_and(|found| found == "json");
    files.filter(is_json).max().ok_or(format!("{} has no figures", folder.display()))
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, String> {
    let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
}

fn page(top: &Path) -> Result<String, String> {
    let mut page = render(&read::<Release>(&newest(&top.join(FOLDER))?)?);
    let loads: Vec<mount::Load> = read(&newest(&top.join(MOUNT))?)?;
    mount::render(&loads, &mut page);
    let cases: Vec<growth::Case> = read(&newest(&top.join(GROWTH))?)?;
    growth::render(&cases, &mut page);
    Ok(page)
}

fn render(release: &Release) -> String {
    let mut page = format!(
        "# Figures of {}\n\nMeasured {}.\n\n- Machine: {}.\n- Method: {}.\n\n",
        release.version, release.measured, release.machine, release.method
    );
    page.push_str("`cargo xtask figures` writes this page from `docs/figures`.\n\n");
    page.push_str("| experiment | unit | library | on the loop device | mount by the device | mount by io_uring | asked |\n");
    page.push_str("|---|---|---|---|---|---|---|\n");
    for row in &release.rows {
        let cells = [
            &row.library,
            &row.library_on_loop_device,
            &row.mount_by_device,
            &row.mount_by_io_uring,
        ];
        let cells: Vec<_> = cells.iter().map(|figure| cell(figure.as_ref())).collect();
        let asked = row.asked.as_deref().unwrap_or_default();
        // Writing to a string cannot fail.
        let _ = writeln!(
            page,
            "| {} | {} | {} | {asked} |",
            row.experiment,
            row.unit,
            cells.join(" | ")
        );
    }
    page.push_str("\n## Where a figure falls short\n\n");
    for row in &release.rows {
        if let Some(why) = &row.shortfall {
            let _ = writeln!(page, "- {}: {why}", row.experiment);
        }
    }
    page
}

fn cell(figure: Option<&Figure>) -> String {
    let Some(figure) = figure else { return String::new() };
    let mut text = number(figure.median);
    if let (Some(min), Some(max)) = (figure.min, figure.max) {
        let _ = write!(text, " ({}-{})", number(min), number(max));
    }
    if let Some(times) = figure.times_btrfs {
        let _ = write!(text, ", {times}x btrfs");
    }
    if let Some(times) = figure.times_ext4 {
        let _ = write!(text, ", {times}x ext4");
    }
    text
}

/// A number with separated thousands.
fn number(value: f64) -> String {
    if value < 1000.0 {
        return format!("{value}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_thousands_apart() {
        assert_eq!(number(1_590_000.0), "1,590,000");
        assert_eq!(number(416.0), "416");
        assert_eq!(number(1.6), "1.6");
    }
}
