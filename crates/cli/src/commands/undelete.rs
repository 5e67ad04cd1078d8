//! `buttress undelete`: finds files that older trees have and newer trees do not have.

use std::path::PathBuf;

use buttress_rescue::{Entry, Glob, Since, Summary, UndeleteOptions};
use serde::Serialize;

use crate::exit::{Context, Exit, Result};
use crate::salvage::{self, Opening};
use crate::ui::Ui;

/// Find deleted files, directories and subvolumes, and show whether their data was overwritten
/// since. With --to, copy them to a directory. Writes nothing to the volume, which must not be
/// mounted. Exit code 3 means that some of them are incomplete.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The devices of the volume.
    #[arg(value_name = "VOLUME", required = true, num_args = 1..)]
    volumes: Vec<PathBuf>,
    #[command(flatten)]
    opening: Opening,
    /// Copy the found files to this directory.
    #[arg(long, value_name = "FOLDER")]
    to: Option<PathBuf>,
    /// Only files that match this pattern, with everything below them. Can be given several times.
    /// `*` stays within one directory; `**` does not.
    #[arg(long, value_name = "GLOB")]
    path: Vec<String>,
    /// Only files that still existed at this transaction or later. A date such as 2026-11-27 or
    /// 2026-11-27T18:30 (UTC) means the first transaction after it.
    #[arg(long, value_name = "GENERATION|TIME", value_parser = since)]
    since: Option<Since>,
    /// Also older versions of files that still exist. A version is named after its file and the
    /// transaction that wrote it: `thesis.~17~`.
    #[arg(long)]
    versions: bool,
    /// Include data that has lost its checksums.
    #[arg(long)]
    unverified: bool,
}

/// The JSON document for scripts.
#[derive(Serialize)]
struct Document<'d> {
    notes: &'d [String],
    summary: Summary,
    files: Vec<Entry>,
}

fn since(text: &str) -> std::result::Result<Since, String> {
    if let Ok(number) = text.parse() {
        return Ok(Since::Generation(number));
    }
    let time = text.parse::<jiff::civil::DateTime>().map_err(|error| error.to_string())?;
    let first = jiff::civil::DateTime::constant(1970, 1, 1, 0, 0, 0, 0);
    Ok(Since::Time(time.duration_since(first).as_secs()))
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    let (opened, bars) = salvage::open(&args.volumes, &args.opening, ui)?;
    let name = args.volumes[0].display().to_string();
    let mut options = UndeleteOptions::default();
    options.paths = args.path.iter().map(|glob| Glob::new(glob.as_bytes())).collect();
    options.since = args.since;
    options.versions = args.versions;
    options.unverified = args.unverified;
    let mut files = Vec::new();
    let mut each = |entry: &Entry| {
        if ui.json() {
            files.push(entry.clone());
        } else {
            bars.above(|| salvage::print(entry, true, ui));
        }
    };
    let summary = buttress_rescue::undelete(&opened, &options, args.to.as_deref(), &mut each);
    bars.end();
    let summary = summary.context(|| &name)?;
    if ui.json() {
        ui.document(&Document { notes: opened.notes(), summary, files })?;
    } else {
        salvage::print_summary(&summary, ui)?;
    }
    Ok(salvage::exit(&summary))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number is a transaction, and a date is a time.
    #[test]
    fn since_takes_numbers_and_dates() {
        assert_eq!(since("17"), Ok(Since::Generation(17)));
        assert_eq!(since("1970-01-02"), Ok(Since::Time(86_400)));
        assert_eq!(since("1970-01-01T01:00"), Ok(Since::Time(3600)));
        since("yesterday").expect_err("no date");
    }
}
