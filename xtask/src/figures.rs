//! The page of figures. It is made from the newest file in `docs/figures`, and from the newest
//! files in its folders `mount` and `growth`.
//!
//! # What must hold
//!
//! - The page has only figures of these files: no figure is written by hand.
//! - `--check` fails if the page differs from the generated one, or if a case of growth has no
//!   reason.

mod growth;
mod html;
mod kept;
mod mount;
mod release;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use self::kept::{Figure, Release, newest, number, read};

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
    /// Keep these outputs of `buttress-bench --json EXPERIMENT --mount` as the figures of this
    /// version.
    #[arg(long, value_name = "FILE", conflicts_with = "check", num_args = 1.., requires = "measured")]
    release: Vec<PathBuf>,
    /// The month in which the release was measured, as in 2026-11.
    #[arg(long, value_name = "MONTH", requires = "release")]
    measured: Option<String>,
    /// Draw the kept figures as a page of bars, in one file that needs no network.
    #[arg(long, value_name = "FILE", conflicts_with = "check")]
    html: Option<PathBuf>,
    /// Draw these outputs of `buttress-bench --json` instead.
    #[arg(long, value_name = "FILE", requires = "html")]
    of: Vec<PathBuf>,
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
    if let Some(when) = &options.measured {
        let version = env!("CARGO_PKG_VERSION");
        let folder = top.join(FOLDER);
        let to = folder.join(format!("{version}.json"));
        let kept = newest(&folder)
            .and_then(|former| release::keep(&options.release, &former, &to, version, when));
        if let Err(error) = kept {
            return fail(&error);
        }
    }
    if let Some(to) = &options.html {
        let drawn = draw(&top, &options.of).and_then(|text| {
            fs::write(to, text).map_err(|error| format!("{}: {error}", to.display()))
        });
        return drawn.map_or_else(|error| fail(&error), |()| ExitCode::SUCCESS);
    }
    match page(&top) {
        Ok(text) if options.check => {
            let is_same = fs::read_to_string(top.join(PAGE)).is_ok_and(|page| page == text);
            if !is_same {
                eprintln!("{PAGE} is not what {FOLDER} gives: cargo xtask figures writes it");
            }
            let is_explained = !text.contains(growth::NO_REASON);
            if !is_explained {
                eprintln!("{PAGE}: a case grows too fast and has no reason ({GROWTH})");
            }
            if is_same && is_explained { ExitCode::SUCCESS } else { ExitCode::FAILURE }
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

fn page(top: &Path) -> Result<String, String> {
    let mut page = render(&read::<Release>(&newest(&top.join(FOLDER))?)?);
    let loads: Vec<mount::Load> = read(&newest(&top.join(MOUNT))?)?;
    mount::render(&loads, &mut page);
    let cases: Vec<growth::Case> = read(&newest(&top.join(GROWTH))?)?;
    growth::render(&cases, &mut page);
    Ok(page)
}

/// The page of bars, of the kept figures or of outputs of `buttress-bench --json`.
///
/// # Errors
///
/// In words: a file cannot be read, or has no figures.
pub(crate) fn draw(top: &Path, printed: &[PathBuf]) -> Result<String, String> {
    if !printed.is_empty() {
        return html::printed(printed);
    }
    let release = read::<Release>(&newest(&top.join(FOLDER))?)?;
    let loads: Vec<mount::Load> = read(&newest(&top.join(MOUNT))?)?;
    let cases: Vec<growth::Case> = read(&newest(&top.join(GROWTH))?)?;
    Ok(html::kept(&release, &loads, &cases))
}

fn render(release: &Release) -> String {
    let mut page = format!(
        "# Figures of {}\n\nMeasured {}.\n\n- Machine: {}.\n- Method: {}.\n\n",
        release.version, release.measured, release.machine, release.method
    );
    page.push_str("`cargo xtask figures` writes this page from `docs/figures`. With `--html FILE` it draws a page of\n\
                   bars, with `--of` from any output of `buttress-bench --json`.\n\n");
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
