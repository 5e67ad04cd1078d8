//! The check from its first step to its report.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use buttress_block::{Device, FileDevice, OpenOptions};
use buttress_format::{CompatRo, Incompat, Superblock, TreeId};
use buttress_sorter::Sorter;
use buttress_volume::{OpenOptions as VolumeOptions, Volume};

use crate::context::{Context, Tree};
use crate::csums::Csums;
use crate::error::Result;
use crate::extents::{Extents, Others};
use crate::facts::Group;
use crate::free_space::FreeSpace;
use crate::inode::{InodeChecker, Span, Sums};
use crate::log_space::LogSpace;
use crate::memo::Memo;
use crate::options::{NoProgress, Options, Progress, Step};
use crate::record::WORDS;
use crate::report::{Findings, Report, Totals};
use crate::roots::Roots;
use crate::stripes::Stripes;
use crate::walk::{Counts, Walk};
use crate::{chunks, data, log, log_items, names, parity, quota, record, roots, superblock};
use buttress_issue::Issue;

/// Checks a volume of one device, in a file or on a block device. This is mainly for tests. The
/// function takes no lock, so a test may call it while the test has the idle volume open. If
/// another program writes meanwhile, the result is worthless.
///
/// # Errors
///
/// The errors of [`check_devices`], and a failure to open the file.
pub fn check_image(path: impl AsRef<Path>, options: &Options) -> Result<Report> {
    check_images(&[path.as_ref().to_owned()], options)
}

/// Checks a volume of several devices as [`check_image`] does.
///
/// # Errors
///
/// The errors of [`check_image`].
pub fn check_images(paths: &[PathBuf], options: &Options) -> Result<Report> {
    let mut devices: Vec<Arc<dyn Device>> = Vec::with_capacity(paths.len());
    for path in paths {
        let options = OpenOptions { lock: false, ..OpenOptions::READ };
        devices.push(Arc::new(FileDevice::open(path, options)?));
    }
    check_devices(devices, options, &NoProgress)
}

/// Checks the volume on these devices. Reads only.
///
/// # Errors
///
/// When the devices hold no volume with a usable superblock, or a temporary file fails. Faults of
/// the volume are in the report.
pub fn check_devices(
    devices: Vec<Arc<dyn Device>>,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Report> {
    report(options, progress, |findings, opening| {
        let (volume, newest) = Volume::open(devices.clone(), opening)?;
        superblock::check_copies(findings, &devices, &newest);
        Ok((volume, newest))
    })
}

/// Checks one commit while another process goes on writing to these devices. That process keeps the
/// space of the commit unchanged meanwhile. `superblock` belongs to the commit; the devices may
/// have a newer superblock. Reads only.
///
/// # Errors
///
/// The errors of [`check_devices`].
pub fn check_held(
    devices: Vec<Arc<dyn Device>>,
    superblock: &Superblock,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Report> {
    report(options, progress, |findings, opening| {
        let volume = Volume::open_at(devices.clone(), superblock, opening)?;
        superblock::check_live_copies(findings, &devices, superblock);
        Ok((volume, superblock.clone()))
    })
}

/// Runs all steps. `open` does the first step: it opens the volume and checks its superblocks.
fn report(
    options: &Options,
    progress: &dyn Progress,
    open: impl FnOnce(&Findings, VolumeOptions) -> Result<(Volume, Superblock)>,
) -> Result<Report> {
    progress.step(Step::Superblocks, 0);
    let findings = Findings::new();
    let opening = VolumeOptions { degraded: true, ..VolumeOptions::default() };
    let (volume, newest) = open(&findings, opening)?;
    let totals = {
        let context = Context::new(&findings, &volume, &newest, options, progress);
        run(&context)?
    };
    Ok(findings.into_report(totals, options.check_data_csum))
}

fn run(context: &Context<'_>) -> Result<Totals> {
    let superblock = context.superblock;
    let progress = context.progress;

    progress.step(Step::Chunks, 0);
    let devices = chunks::load(context);
    // The log is checked after the chunks were loaded, since nodes of the log may lie in any chunk.
    // The results that the walk remembers have a quarter of the memory, and the logs an eighth.
    let records = Sorter::<WORDS>::new(context.sort_bytes() / 8 * 5, context.threads + 1);
    let (mut writer, mut outcome) = (records.writer(), Ok(()));
    let logged = log::check(context, &mut |extent| {
        if outcome.is_ok() {
            outcome = writer.put(record::logged(extent));
        }
    });
    outcome?;
    writer.finish();

    progress.step(Step::Roots, 0);
    let roots = roots::load(context);
    let trees = roots.trees(context);
    let find = |id| trees.iter().find(|tree| tree.id == id);
    if let Some(tree) = find(TreeId::DEV) {
        chunks::check_dev_extents(context, tree, &devices)?;
    }

    let logs = log_items::check(context, &logged.trees, &trees)?;

    if let Some(tree) = find(TreeId::QUOTA) {
        quota::prepare(context, tree);
    }

    progress.step(Step::Trees, roots.tree_bytes());
    let memo = Memo::new(context.sort_bytes() / 4);
    let counts = Counts::default();
    let walk = Walk { records: &records, memo: &memo, counts: &counts };
    let sums = walk_trees(context, &walk, &trees)?;
    drop(memo);
    let mut inodes = 0;
    for (tree, sums) in &sums {
        inodes += sums.inodes;
        if !tree.is_cut() && !agree(sums) {
            names::explain(context, tree, sums)?;
        }
    }

    let sorted = records.merge()?;
    progress.step(Step::Extents, sorted.total_bytes());
    let groups = chunks::load_groups(context, &trees);
    let free_space = free_space(context, &groups, &trees);
    let log_space = LogSpace::new(context, &groups, logs.data, &logged.nodes)?;
    let csums = find(TreeId::CSUM).map(|tree| Csums::new(context, tree));
    let csum_bytes = csums.as_ref().map(Csums::bytes_cell);
    let has_stripes = superblock.incompat.has(Incompat::RAID_STRIPE_TREE);
    let stripes = find(TreeId::RAID_STRIPE).filter(|_| has_stripes);
    let stripes = stripes.map(|tree| Stripes::new(context, tree));
    let others = Others { free_space, csums, stripes, log_space };
    let sizes = Extents::new(context, &groups, &trees, others).run(sorted)?;
    if superblock.bytes_used != sizes.used {
        let (field, found, expected) = ("bytes_used", superblock.bytes_used, sizes.used);
        context.add(Issue::SuperField { field, found, expected });
    }

    let csum_bytes = csum_bytes.map_or(0, |bytes| bytes.load(Ordering::Relaxed));
    let (data_bytes, parity_bytes) = verify_data(context, &trees, &groups, csum_bytes);
    let verified_bytes = logs.verified_bytes + data_bytes;

    progress.step(Step::RootRefs, 0);
    check_roots(context, &roots, &trees);

    progress.step(Step::Quotas, 0);
    if let Some(tree) = find(TreeId::QUOTA) {
        quota::check(context, tree, &trees);
    }
    Ok(Totals {
        bytes_used: sizes.used,
        tree_bytes: counts.tree_bytes.load(Ordering::Relaxed),
        fs_tree_bytes: counts.fs_tree_bytes.load(Ordering::Relaxed),
        extent_tree_bytes: counts.extent_tree_bytes.load(Ordering::Relaxed),
        csum_bytes,
        data_bytes: sizes.data,
        inodes,
        verified_bytes,
        parity_bytes,
    })
}

/// Walks the extent tree first, because it says how nodes refer to their children. Then walks the
/// other trees.
fn walk_trees<'t>(
    context: &Context<'_>,
    walk: &Walk<'_>,
    trees: &'t [Tree],
) -> Result<Vec<(&'t Tree, Sums)>> {
    let after = trees.partition_point(|tree| tree.id == TreeId::EXTENT);
    let (extent_tree, others) = trees.split_at(after);
    walk.run(context, extent_tree, &mut |_, _| {})?;
    let mut sums: Vec<(&'t Tree, Sums)> = Vec::new();
    walk.run(context, others, &mut |tree: &'t Tree, whole: Span| {
        if tree.has_files() {
            sums.push((tree, whole.finish(&mut InodeChecker::new(context, tree))));
        }
    })?;
    Ok(sums)
}

/// Walks all trees only to count the bytes that subvolumes own, for simple quotas.
pub(crate) fn walk_for_owners(context: &Context<'_>, trees: &[Tree]) -> Result<()> {
    let records = Sorter::<WORDS>::new(context.sort_bytes() / 4 * 3, context.threads + 1);
    let memo = Memo::new(context.sort_bytes() / 4);
    let counts = Counts::default();
    walk_trees(context, &Walk { records: &records, memo: &memo, counts: &counts }, trees)?;
    Ok(())
}

fn agree(sums: &Sums) -> bool {
    sums.entries == sums.references && sums.odd_dirs == 0 && sums.nameless == sums.orphans
}

/// Returns the check of free space. `None` if the volume has no free-space tree, or marks it
/// invalid.
fn free_space<'f, 'c>(
    context: &'f Context<'c>,
    groups: &'f [Group],
    trees: &[Tree],
) -> Option<FreeSpace<'f, 'c>> {
    let flags = context.superblock.compat_ro;
    let tree = trees.iter().find(|tree| tree.id == TreeId::FREE_SPACE)?;
    if !flags.has(CompatRo::FREE_SPACE_TREE) {
        return None;
    }
    if !flags.has(CompatRo::FREE_SPACE_TREE_VALID) {
        context.add(Issue::FreeSpaceInvalid { tree: TreeId::FREE_SPACE });
        return None;
    }
    Some(FreeSpace::new(context, groups, tree))
}

/// Reads and verifies data, if the options ask for it. Compares parity. Returns the bytes of both.
fn verify_data(context: &Context<'_>, trees: &[Tree], groups: &[Group], sums: u64) -> (u64, u64) {
    let sums = sums / context.superblock.csum_type.size() as u64;
    let wanted = context.options.check_data_csum;
    let total = if wanted { sums.saturating_mul(context.sectorsize()) } else { 0 };
    context.progress.step(Step::Csums, total.saturating_add(parity::bytes(context, groups)));
    let tree = trees.iter().find(|tree| tree.id == TreeId::CSUM).filter(|_| wanted);
    let verified = tree.map_or(0, |tree| data::verify_all(context, tree));
    (verified, parity::compare_all(context, trees))
}

fn check_roots(context: &Context<'_>, roots: &Roots, trees: &[Tree]) {
    roots.check_references(context, trees);
    if let Some(tree) = trees.iter().find(|tree| tree.id == TreeId::UUID) {
        roots.check_uuids(context, tree);
    }
}
