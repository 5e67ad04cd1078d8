//! `buttress check`: checks a whole volume independently of the engine, and repairs faults that are
//! safe to repair.

mod mounted;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use buttress_block::Device;
use buttress_check::{Issue, Options, RepairOptions, Repairs, Report, Severity, Step, Totals};
use buttress_format::TreeId;
use buttress_volume::journal::{self, Journal};
use buttress_volume::{Uuid, Volume};
use buttress_words::start::Start;
use buttress_words::users::{Asked, Found};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::json;

use crate::exit::{Context, Exit, Result};
use crate::image::{self, Access, Devices};
use crate::memory;
use crate::size::human;
use crate::ui::{Progress, Tone, Ui};
use mounted::MountedCheck as Place;

/// Check a volume for errors, and change nothing. If the volume is mounted, the mount first commits
/// all changes, and this commit is checked. Exit code 0 means no errors; 1 means errors.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The image or block device of the volume, or a directory where it is mounted.
    #[arg(value_name = "IMG|DIR")]
    pub(crate) image: PathBuf,
    #[command(flatten)]
    devices: Devices,
    /// Also read every copy of all data, and verify the checksums. Compare the parity of data, too.
    /// The parity of nodes is always compared.
    #[arg(long)]
    check_data_csum: bool,
    /// Change nothing. This is the default.
    #[arg(long, conflicts_with = "repair")]
    readonly: bool,
    /// Repair faults that are safe to repair: superblock copies, a log that cannot be replayed,
    /// names, counts, modes and lost inodes, and the used bytes of block groups. A damaged extent
    /// tree is rebuilt from the trees that refer to extents, together with the free-space tree. If
    /// only the free-space tree is wrong, it is marked invalid, and the next mount rebuilds it.
    #[arg(long)]
    repair: bool,
    /// With `--repair`: rebuild the extent tree even if it has no error. A log of fsync is removed.
    #[arg(long, requires = "repair")]
    init_extent_tree: bool,
    /// With `--repair`: rebuild the checksum tree and the extent tree. Checksums are computed from
    /// the present data, so existing damage to data is not found any more.
    #[arg(long, requires = "repair")]
    init_csum_tree: bool,
    /// With `--repair`: save all overwritten bytes in this new file, so that `--undo` can restore
    /// them.
    #[arg(long, value_name = "FILE", requires = "repair")]
    journal: Option<PathBuf>,
    /// Undo a repair with this file, which was the `--journal` of the repair.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["repair", "readonly", "force"])]
    undo: Option<PathBuf>,
    /// Check even if another program has the volume open and cannot keep one commit unchanged
    /// during the check. The writes of that program can then look like damage.
    #[arg(long, conflicts_with = "repair")]
    force: bool,
    /// In place of a check: print the counts of each quota group, counted from the trees and as
    /// recorded. Exit code 1 means that they differ.
    #[arg(short = 'Q', long, conflicts_with_all = ["repair", "undo", "check_data_csum"])]
    qgroup_report: bool,
    /// In place of a check: print the nodes and data extents of the subvolume with this ID, and the
    /// subvolumes that use each.
    #[arg(
        short = 'E',
        long,
        value_name = "ID",
        conflicts_with_all = ["repair", "undo", "check_data_csum"],
    )]
    subvol_extents: Option<u64>,
    /// In place of a check: remove what the inode cache of kernels before 5.11 left in subvolumes.
    #[arg(
        long,
        conflicts_with_all = ["repair", "undo", "readonly", "check_data_csum"],
    )]
    clear_ino_cache: bool,
    /// Where the check begins.
    #[arg(skip)]
    pub(crate) start: Start,
    /// Print sums as btrfs-progs do.
    #[arg(skip)]
    pub(crate) of_btrfs: bool,
}

impl Args {
    fn writes(&self) -> bool {
        self.repair || self.undo.is_some() || self.clear_ino_cache
    }

    /// What to print in place of a check. As in btrfs-progs, subvolume 0 is none.
    fn asked(&self) -> Option<Asked> {
        if self.qgroup_report {
            return Some(Asked::Groups);
        }
        self.subvol_extents.filter(|id| *id > 0).map(|id| Asked::Extents(TreeId(id)))
    }
}

/// The commit that was checked.
#[derive(Serialize)]
struct About {
    uuid: String,
    /// The generation of the commit.
    commit: u64,
    is_mounted: bool,
    #[serde(skip)]
    of_btrfs: bool,
}

/// The JSON document of what is printed in place of a check.
#[derive(Serialize)]
struct UsersDocument {
    #[serde(flatten)]
    about: About,
    #[serde(flatten)]
    found: serde_json::Value,
}

/// The JSON document for scripts.
#[derive(Serialize)]
struct Document<'r> {
    #[serde(flatten)]
    about: About,
    clean: bool,
    errors: u64,
    issues: &'r [Issue],
    /// The number of further issues of each kind, beyond the listed ones.
    more: &'r std::collections::BTreeMap<&'static str, u64>,
    totals: Totals,
    #[serde(skip_serializing_if = "Option::is_none")]
    repairs: Option<&'r Repairs>,
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    args.devices.expect_no_rescue()?;
    let options = Options {
        check_data_csum: args.check_data_csum,
        memory_bytes: args.devices.memory.unwrap_or_else(memory::by_default),
        ..Options::default()
    };
    let found = match args.start.is_usual() {
        true => mounted::check(&args, &options, ui)?,
        // Only the last commit of a mount stays unchanged.
        false => Place::AtRest(args.image.clone()),
    };
    let image = match found {
        Place::Checked(exit) => return Ok(exit),
        Place::AtRest(image) => image,
    };
    let name = image.display().to_string();
    if args.clear_ino_cache {
        return clear_ino_cache(&args, &image, ui);
    }
    let access = match (args.writes(), args.force) {
        (true, _) => Access::Write,
        (false, true) => Access::Peek,
        (false, false) => Access::Read,
    };
    let mut devices = image::open_devices(&image, &args.devices, access)?;
    if !args.start.is_usual() {
        devices = args.start.show(&devices)?;
    }
    let superblock = Volume::read_superblock(&*devices[0]).context(|| &name)?;
    let about = About {
        uuid: Uuid(superblock.fsid).to_string(),
        commit: superblock.generation.0,
        is_mounted: false,
        of_btrfs: args.of_btrfs,
    };
    if !ui.json() {
        ui.line(format!("Checking filesystem on {name}\nUUID: {}", about.uuid))?;
    }
    if let Some(asked) = args.asked() {
        return answer_users(&asked.find(devices, None, &options, &name)?, about, &args, ui);
    }
    if let Some(file) = &args.undo {
        let bytes = journal::undo(&devices, file).context(|| &name)?;
        if !ui.json() {
            ui.line(format!("{} {} put back", ui.tint(Tone::Good, "undone:"), human(bytes)))?;
        }
        let report = check(devices, &options, ui, &name)?;
        return answer(&report, None, about, ui);
    }
    let report = check(devices.clone(), &options, ui, &name)?;
    if !args.repair || report.issues.is_empty() && !(args.init_extent_tree || args.init_csum_tree) {
        return answer(&report, None, about, ui);
    }
    print_issues(&report, ui)?;
    let repairs = repair(&args, &devices, &report, options.clone(), ui, &name)?;
    if !ui.json() {
        for left in &repairs.left {
            ui.line(format!("{} {left}", ui.tint(Tone::Bad, "not repaired:")))?;
        }
    }
    let report = check(devices, &options, ui, &name)?;
    answer(&report, Some(&repairs), about, ui)
}

/// Prints what was found in place of a check.
fn answer_users(found: &Found, about: About, args: &Args, ui: &Ui) -> Result<Exit> {
    let exit = found.exit();
    if ui.json() {
        ui.document(&UsersDocument { about, found: found.to_json() })?;
    } else {
        found.print(&args.image.display().to_string(), &about.uuid, ui)?;
    }
    Ok(exit)
}

/// Removes what the inode cache left, with a line for each subvolume.
fn clear_ino_cache(args: &Args, image: &Path, ui: &Ui) -> Result<Exit> {
    let name = image.display();
    let fs = image::open(image, &args.devices, Access::Write)?;
    let uuid = Uuid(fs.superblock().fsid);
    if !ui.json() {
        ui.line(format!("Checking filesystem on {name}\nUUID: {uuid}"))?;
    }
    let mut subvolumes = Vec::new();
    let items = fs.clear_inode_caches(|tree| subvolumes.push(tree.0));
    let items = items.context(|| name.to_string())?;
    image::close(fs, image)?;
    if ui.json() {
        ui.document(&json!({ "items": items, "subvolumes": subvolumes }))?;
        return Ok(Exit::Success);
    }
    for id in subvolumes {
        ui.line(format!("Successfully cleaned up ino cache for root id: {id}"))?;
    }
    Ok(Exit::Success)
}

/// Makes the repairs, with a line before each repair, and with a journal if one was asked for.
fn repair(
    args: &Args,
    devices: &[Arc<dyn Device>],
    report: &Report,
    check: Options,
    ui: &Ui,
    name: &str,
) -> Result<Repairs> {
    let Args { init_extent_tree, init_csum_tree, .. } = *args;
    let options = RepairOptions { check, init_extent_tree, init_csum_tree };
    let mut announce = |line: &str| {
        if !ui.json() {
            // If standard output is closed, the program reports this when it prints the answer.
            let _ = ui.line(format!("{} {line}", ui.tint(Tone::Good, "repairing:")));
        }
    };
    let Some(path) = &args.journal else {
        return buttress_check::repair_with(devices, report, &options, &mut announce)
            .context(|| name);
    };
    let (_, journaled) = Journal::create(path, devices).context(|| path.display().to_string())?;
    let repairs = buttress_check::repair_with(&journaled, report, &options, &mut announce);
    let repairs = repairs.context(|| name)?;

    Ok(repairs)
}

fn check(devices: Vec<Arc<dyn Device>>, options: &Options, ui: &Ui, name: &str) -> Result<Report> {
    let steps = Steps::new(ui, options);
    buttress_check::check_devices(devices, options, &steps).context(|| name)
}

fn answer(report: &Report, repairs: Option<&Repairs>, about: About, ui: &Ui) -> Result<Exit> {
    let errors = report.errors();
    if ui.json() {
        ui.document(&Document {
            about,
            clean: report.is_clean(),
            errors,
            issues: &report.issues,
            more: &report.more,
            totals: report.totals,
            repairs,
        })?;
    } else {
        print_issues(report, ui)?;
        print_totals(report, about.of_btrfs, ui)?;
    }
    Ok(if report.is_clean() { Exit::Success } else { Exit::Failure })
}

fn print_issues(report: &Report, ui: &Ui) -> Result<()> {
    if ui.json() {
        return Ok(());
    }
    for issue in &report.issues {
        let tone = match issue.severity() {
            Severity::Error => Tone::Bad,
            Severity::Warning => Tone::Heading,
            Severity::Note => Tone::Dim,
        };
        let word = ui.tint(tone, &format!("{}:", issue.severity().name()));
        ui.line(format!("{word} {issue} [{}]", issue.code()))?;
    }
    for (code, count) in &report.more {
        ui.line(format!("... and {count} more of {code}"))?;
    }
    Ok(())
}

fn print_totals(report: &Report, of_btrfs: bool, ui: &Ui) -> Result<()> {
    let totals = &report.totals;
    let verdict = match report.errors() {
        0 => ui.tint(Tone::Good, "no error found"),
        1 => ui.tint(Tone::Bad, "1 error found"),
        errors => ui.tint(Tone::Bad, &format!("{errors} errors found")),
    };
    ui.line(format!("found {} bytes used, {verdict}", totals.bytes_used))?;
    let of_trees = [
        ("csum", totals.csum_bytes),
        ("tree", totals.tree_bytes),
        ("fs tree", totals.fs_tree_bytes),
        ("extent tree", totals.extent_tree_bytes),
    ];
    if of_btrfs {
        let mut sums = of_trees.iter();
        return sums.try_for_each(|(what, bytes)| ui.line(format!("total {what} bytes: {bytes}")));
    }
    for (what, bytes) in of_trees.into_iter().chain([
        ("file data", totals.data_bytes),
        ("verified", totals.verified_bytes),
        ("compared parity", totals.parity_bytes),
    ]) {
        ui.line(format!("total {what} bytes: {bytes} ({})", human(bytes)))?;
    }
    ui.line(format!("total inodes: {}", totals.inodes))
}

/// Prints steps as lines, and a bar below them.
struct Steps<'u> {
    ui: &'u Ui,
    verifies: bool,
    /// Unranked: no other lock is taken under it, except the terminal's.
    bar: Mutex<Option<Progress>>,
}

impl<'u> Steps<'u> {
    fn new(ui: &'u Ui, options: &Options) -> Self {
        Self { ui, verifies: options.check_data_csum, bar: Mutex::new(None) }
    }
}

impl buttress_check::Progress for Steps<'_> {
    fn step(&self, step: Step, total_bytes: u64) {
        let mut bar = self.bar.lock();
        // The bar is removed before the line is printed, so that the two do not mix.
        *bar = None;
        if !self.ui.json() {
            let how = match (step, self.verifies) {
                (Step::Csums, true) => " against data",
                (Step::Csums, false) => " (without verifying data)",
                _ => "",
            };
            let (number, count) = (step.number(), Step::ALL.len());
            // If standard output is closed, the program reports this when it prints the answer.
            let _ = self.ui.line(format!("[{number}/{count}] checking {}{how}", step.title()));
        }
        if total_bytes > 0 {
            let new = self.ui.bytes_bar(step.title(), total_bytes);
            new.tick();
            *bar = Some(new);
        }
    }

    fn advance(&self, bytes: u64) {
        if let Some(bar) = &*self.bar.lock() {
            bar.add(bytes);
        }
    }
}
