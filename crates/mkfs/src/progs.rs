//! The program under the name `mkfs.btrfs`: the command line of btrfs-progs.
//!
//! # Place
//!
//! Programs that make disks call `mkfs.btrfs`. A link to this program with that name accepts the
//! same command lines, makes the same kind of volume, and prints the same table.
//!
//! # Invariants
//!
//! - **PG1** As with btrfs-progs, the exit status is 0 or 1. Errors begin with `ERROR: `.
//! - **PG2** Without options, a volume has the features that btrfs-progs of [`SPOKEN`] give it, so
//!   that the same kernels mount it.
//! - **PG3** An image file that does not exist is made only with `--rootdir`.
//! - **PG4** Standard output decides nothing. If it is full, or its reader is gone, the volume is
//!   made as ever.

mod features;
mod held;
mod line;
mod refuse;
mod report;
mod said;

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use buttress_block::probe;
use buttress_fs::make::{MakeOptions, MakeReport};
use buttress_remote::{host_file, is_remote};
use clap::Parser;

use self::line::Line;
use self::refuse::{check_count, check_len, check_profiles, expect_there, holds, least_len, warn};
use self::said::Said;
use crate::args::Args;
use crate::exit::{Context, Exit, Failure, Result};
use crate::fill;
use crate::log;
use crate::plan::Plan;
use crate::ui::Ui;

/// The release of btrfs-progs that this command line follows.
const SPOKEN: &str = "6.2";
const MIB: u64 = 1 << 20;

/// If the program is called `mkfs.btrfs`, runs the command line and returns the exit status.
#[must_use]
pub fn run(words: &[OsString]) -> Option<u8> {
    if Path::new(words.first()?).file_name()? != "mkfs.btrfs" {
        return None;
    }
    let line = match Line::try_parse_from(words) {
        Ok(line) => line,
        Err(parsed) if parsed.exit_code() == 0 => {
            // Standard output may be closed.
            let _ = parsed.print();
            return Some(0);
        }
        Err(parsed) => {
            let text = parsed.to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            // Standard error may be closed. The lines below the first one are no errors (PG1).
            let _ = write!(std::io::stderr(), "ERROR: {text}");
            return Some(1);
        }
    };
    let ui = Ui::new(false).quiet(line.quiet).silent(line.quiet);
    match log::start(false, false).and_then(|()| carry_out(&line, &ui)) {
        Ok(()) => Some(0),
        Err(failure) if failure.is_closed_pipe() => Some(0),
        Err(failure) => {
            error(&failure.to_string());
            Some(1)
        }
    }
}

/// Prints an error, of which each line is one.
fn error(text: &str) {
    for line in text.lines() {
        // Standard error may be closed.
        let _ = writeln!(std::io::stderr(), "ERROR: {line}");
    }
}

fn carry_out(line: &Line, ui: &Ui) -> Result<()> {
    let own = env!("CARGO_PKG_VERSION");
    if line.version {
        return ui.line(format!("mkfs.btrfs, part of btrfs-progs v{SPOKEN} (buttress {own})"));
    }
    if line.lists_features() {
        features::list();
        return Ok(());
    }
    let (args, chosen) = line.read()?;
    let said = Said::new(ui);
    said.line(format!("btrfs-progs v{SPOKEN} (buttress {own})"));
    said.line("See https://btrfs.readthedocs.io for more information.\n");
    line.check(&args, &chosen)?;
    let options = MakeOptions {
        features: chosen.features(),
        device_uuid: line.device_uuid()?,
        discard: !line.nodiscard,
        ..crate::args::options(&args)?
    };
    let mut plan = Plan::of(&args, options)?;
    plan.counting = chosen.counting();
    if args.rootdir.is_some() {
        plan.options.size = size_of_image(&args, &plan);
    }
    plan.carry_out(|| make(&args, &plan, &chosen, &said))?;
    if let Some(failure) = said.failure().filter(|failure| !failure.is_closed_pipe()) {
        warn(&format!("the filesystem was made, but not everything was printed: {failure}"));
    }
    Ok(())
}

/// The size of a volume that is filled. A file is made as long as the content needs, and a longer
/// one, or a device, keeps its length.
fn size_of_image(args: &Args, plan: &Plan<'_>) -> Option<u64> {
    let first = plan.places.paths[0];
    let there = host_file(first).metadata();
    let may_grow = match &there {
        Ok(metadata) => metadata.is_file() && host_file(first) == first,
        Err(_) => true,
    };
    if args.size.is_some() || !may_grow || is_remote(first) {
        return args.size;
    }
    let census = plan.census.unwrap_or_default();
    let needed = (least_len(args) + fill::content_bytes(census)).next_multiple_of(MIB);
    Some(needed.max(there.map_or(0, |metadata| metadata.len())))
}

fn make(args: &Args, plan: &Plan<'_>, chosen: &features::Chosen, said: &Said<'_>) -> Result<()> {
    let paths = &plan.places.paths;
    let makes_file = args.rootdir.is_some();
    buttress_remote::check_alone(paths.iter().copied(), true).map_err(Failure::of_remote)?;
    for path in paths {
        if !makes_file {
            expect_there(path, args.force)?;
        }
        if !args.force
            && let Some(found) = buttress_remote::overwritten(path).map_err(Failure::of_remote)?
        {
            return Err(holds(path, &found));
        }
    }
    check_profiles(args)?;
    // A caller's lock excludes no second opening.
    let there = plan.places.identities();
    if there.iter().collect::<HashSet<_>>().len() < there.len() {
        return Err(Failure::new(Exit::Failure, "a device is in use: it is given twice"));
    }
    let callers = held::Callers::find();
    let mut held = Vec::with_capacity(paths.len());
    for path in paths {
        let size = plan.options.size.filter(|_| makes_file || is_remote(path));
        let one = held::open(path, size, &callers)?;
        let name = || path.display().to_string();
        if !args.force
            && let Some(found) = probe::identify(&*one).context(name)?
        {
            return Err(holds(path, &found));
        }
        check_len(path, one.len(), args)?;
        held.push(one);
    }
    check_count(args)?;
    let lens: Vec<u64> = held.iter().map(|one| one.len()).collect();
    for (path, len) in paths.iter().zip(&lens) {
        if plan.options.discard && report::is_block_device(path) {
            let (path, len) = (path.display(), crate::size::human(*len));
            said.line(format!("Performing full device TRIM {path} ({len}) ..."));
        }
    }
    // The devices stay open, and locked, until the table is printed.
    let made = plan.make(held.clone(), args, said.ui)?;
    if makes_file {
        said.line("Making image is completed.");
    }
    print(args, plan, chosen, (&made, &lens), said);
    Ok(())
}

fn print(
    args: &Args,
    plan: &Plan<'_>,
    chosen: &features::Chosen,
    (made, lens): (&MakeReport, &[u64]),
    said: &Said<'_>,
) {
    let is_cut = args.rootdir.is_some() && made.size < lens.iter().sum();
    let len = |len: &u64| match is_cut {
        true => made.size,
        false => plan.options.size.unwrap_or(*len),
    };
    let lens: Vec<u64> = lens.iter().map(len).collect();
    report::print(args, (&plan.places.paths, &lens), chosen, made, said);
}
