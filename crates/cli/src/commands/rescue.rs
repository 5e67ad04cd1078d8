//! `buttress rescue`: repairs that let a volume be opened again, with the names of btrfs-progs.

use std::path::PathBuf;

use buttress_rescue::{Mend, SalvageOptions};
use serde_json::json;

use crate::exit::{Context, Exit, Result};
use crate::image::{self, Access, Devices};
use crate::memory::Memory;
use crate::salvage;
use crate::ui::{Tone, Ui};

/// Repair a part of a volume. Each command lists the writes that it would make; with --yes it makes
/// them. Exit code 6 means that there are writes to make and --yes is missing.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// Replace damaged and outdated superblock copies by the newest good copy on the same device.
    SuperRecover(Args),
    /// Remove the log tree. Data that fsync wrote since the last commit is lost.
    ZeroLog(Args),
    /// Correct recorded device sizes that are not whole sectors or exceed the device, and their
    /// sum.
    FixDeviceSize(Args),
    /// Clear the free space cache, v1 (files) or v2 (a tree). The next mount rebuilds it.
    ClearSpaceCache(Cache),
    /// Rebuild the chunk tree from tree nodes that a scan of the devices finds.
    ChunkRecover(Args),
    /// Delete the items of the UUID tree. Linux builds the tree anew at its next mount.
    ClearUuidTree(Args),
}

/// The volume.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The devices of the volume, which must not be mounted.
    #[arg(value_name = "VOLUME", required = true, num_args = 1..)]
    volumes: Vec<PathBuf>,
    /// Make the listed writes.
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    memory: Memory,
}

/// The volume, and the version of the free space cache.
#[derive(Debug, clap::Args)]
pub(crate) struct Cache {
    /// Version of the cache: v1 or v2.
    #[arg(value_name = "VERSION", value_parser = ["v1", "v2"])]
    version: String,
    #[command(flatten)]
    args: Args,
}

impl Verb {
    /// Clears the free space cache of this version, without a question.
    pub(crate) fn clearing(version: String, volumes: Vec<PathBuf>) -> Self {
        Self::ClearSpaceCache(Cache { version, args: Args::at_once(volumes) })
    }
}

impl Args {
    /// Returns arguments for these devices, with which the writes are made without a question.
    pub(crate) fn at_once(volumes: Vec<PathBuf>) -> Self {
        Self { volumes, yes: true, memory: Memory::default() }
    }

    fn others(&self) -> Devices {
        Devices {
            devices: self.volumes[1..].to_vec(),
            memory: self.memory.asked,
            ..Devices::default()
        }
    }

    fn access(&self) -> Access {
        if self.yes { Access::Write } else { Access::Read }
    }
}

pub(crate) fn run(verb: Verb, ui: &Ui) -> Result<Exit> {
    let (fixes, is_written) = mended(verb, ui)?;
    answer(&fixes, is_written, ui)
}

/// Lists the writes, and makes them if the user said so. Returns their descriptions, and whether
/// they were made.
pub(crate) fn mended(verb: Verb, ui: &Ui) -> Result<(Vec<String>, bool)> {
    let (args, mend) = match verb {
        Verb::SuperRecover(args) => (args, Mend::SuperRecover),
        Verb::ZeroLog(args) => (args, Mend::ZeroLog),
        Verb::FixDeviceSize(args) => (args, Mend::FixDeviceSize),
        Verb::ClearSpaceCache(Cache { version, args }) if version == "v1" => {
            (args, Mend::ClearSpaceCacheV1)
        }
        Verb::ClearSpaceCache(Cache { args, .. }) => (args, Mend::ClearSpaceCacheV2),
        Verb::ChunkRecover(args) => (args, Mend::ChunkRecover),
        Verb::ClearUuidTree(args) => return clear_uuid_tree(&args),
    };
    let name = || args.volumes[0].display().to_string();
    let devices = image::open_devices(&args.volumes[0], &args.others(), args.access())?;
    let mut options = SalvageOptions::default();
    options.node_cache_bytes = args.memory.nodes();
    let progress = salvage::progress(ui)?;
    let fixes = buttress_rescue::plan(&devices, mend, options, progress).context(name)?;
    if args.yes {
        buttress_rescue::apply(&devices, &fixes).context(name)?;
    }
    Ok((fixes.into_iter().map(|fix| fix.what).collect(), args.yes))
}

/// The engine deletes the items, so the volume must be one that can be opened.
fn clear_uuid_tree(args: &Args) -> Result<(Vec<String>, bool)> {
    let first = &args.volumes[0];
    let name = || first.display().to_string();
    let fs = image::open(first, &args.others(), args.access())?;
    let count = match args.yes {
        true => fs.clear_uuid_tree(),
        false => fs.uuid_items(),
    };
    let count = count.context(name)?;
    image::close(fs, first)?;
    let line = format!("{}: {count} items of the UUID tree are deleted", name());
    Ok((if count > 0 { vec![line] } else { Vec::new() }, args.yes))
}

pub(crate) fn answer(fixes: &[String], is_written: bool, ui: &Ui) -> Result<Exit> {
    let exit = if is_written || fixes.is_empty() { Exit::Success } else { Exit::Refused };
    if ui.json() {
        ui.document(&json!({ "fixes": fixes, "written": is_written }))?;
        return Ok(exit);
    }
    if fixes.is_empty() {
        ui.line("nothing to mend")?;
        return Ok(exit);
    }
    let (tone, word) =
        if is_written { (Tone::Good, "written:") } else { (Tone::Heading, "would write:") };
    for fix in fixes {
        ui.line(format!("{} {fix}", ui.tint(tone, word)))?;
    }
    if !is_written {
        ui.line("nothing was written; --yes writes it")?;
    }
    Ok(exit)
}
