//! Fills a new volume from a folder or an archive, and cuts it.
//!
//! # Invariants
//!
//! - **F2** An image is cut only after its volume was closed, and never before the offset at which
//!   its last chunk ends.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use buttress_block::Device;
use buttress_format::DeviceId;
use buttress_fs::{ErrorKind, Filesystem};
use buttress_remote::{Inside, is_remote};

use crate::args::Args;
use crate::brings;
use crate::exit::{Context, Result};
use crate::memory;
use crate::recipe::Recipe;
use crate::source::{Source, open};
use crate::transfer::{Census, Clones, Import, Job, Keep, Unpack, open_dir};
use crate::ui::{self, Ui};

/// The least size of a device in bytes.
const LEAST: u64 = 16 << 20;

/// A source, its census, and the recipe if two runs are to be equal.
pub(crate) struct Brings<'a> {
    pub(crate) source: Source<'a>,
    pub(crate) census: Census,
    pub(crate) recipe: Option<Recipe>,
    /// If set, the image shares the data of the folder's files.
    pub(crate) clones: Option<&'a Clones>,
}

/// Copies the source into the volume. Returns the new size of the volume in bytes, if the volume
/// was cut.
pub(crate) fn fill(
    devices: Vec<Arc<dyn Device>>,
    args: &Args,
    brings: &Brings<'_>,
    image: &Path,
    ui: &Ui,
) -> Result<Option<u64>> {
    let Brings { source, census, recipe, clones } = *brings;
    let name = || image.display().to_string();
    let mut options = match args.memory {
        Some(_) => memory::options(args.memory),
        // If two runs are to be equal, the points at which commits end must not depend on the
        // machine.
        None => memory::to_fill(recipe.is_some()),
    };
    options.compress = args.compress.and_then(|packing| packing.0);
    // Background threads would write in an order that differs from run to run.
    options.background = recipe.is_none();
    let special = brings::special(&args.subvol, &args.inode_flags)?;
    let fs = Filesystem::open(devices, options).context(name)?;
    let bar = match source {
        Source::Stream => ui.stream_bar("filling"),
        _ => ui.bytes_bar("filling", census.file_bytes),
    };
    bar.tick();
    let keep = Keep { attributes: true, everything: true };
    let mut job = Job::new(keep, true, &bar);
    job.leave_out(image);
    job.canonical = recipe.map(|recipe| recipe.epoch.unwrap_or(i64::MAX));
    job.special = special;
    job.clones = clones;
    let unpack = |job: &mut Job<'_>, input: &mut dyn Read| -> Result<()> {
        for note in Unpack::new(job, &fs).all(input)? {
            ui::note(note);
        }
        Ok(())
    };
    match source {
        Source::Folder(dir) => Import::new(&mut job, &fs).contents(open_dir(dir)?, &fs.root())?,
        Source::Archive(path) => unpack(&mut job, &mut open(path)?)?,
        Source::Stream => {
            unpack(&mut job, &mut BufReader::with_capacity(1 << 20, std::io::stdin().lock()))?;
        }
    }
    brings::finish(&job.special, &fs, &args.subvol)?;
    bar.set_message("writing the last of it");
    if !args.shrink {
        fs.close().context(name)?;
        return Ok(None);
    }
    let least = shrink(&fs).context(name)?;
    fs.close().context(name)?;
    cut(image, least)?;
    Ok(Some(least))
}

/// Makes the volume smaller, as long as its last block groups fit into other block groups. Returns
/// its size in bytes.
fn shrink(fs: &Filesystem) -> buttress_fs::Result<u64> {
    let only = DeviceId(1);
    let sector = u64::from(fs.info()?.superblock.sectorsize);
    fs.sync()?;
    loop {
        let least = fs.least_device_len(only)?.max(LEAST);
        fs.resize_device(only, least, &mut |_| true)?;
        // Shrinking the device by one sector moves the content of the last block group, if the
        // other groups have room.
        match fs.resize_device(only, least - sector, &mut |_| true) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NoSpace || least == LEAST => {
                fs.resize_device(only, fs.least_device_len(only)?.max(LEAST), &mut |_| true)?;
                return fs.least_device_len(only).map(|least| least.max(LEAST));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Cuts the file of an image (F2). A block device or a part of a disk keeps its length.
fn cut(image: &Path, len: u64) -> Result<()> {
    if is_remote(image) || Inside::of(image).is_some() {
        return Ok(());
    }
    let name = || image.display().to_string();
    let file = File::options().write(true).open(image).context(name)?;
    if file.metadata().context(name)?.is_file() {
        file.set_len(len).context(name)?;
    }
    Ok(())
}

/// Returns a size for a tree of files, with room to spare. The file is sparse, so unused space
/// costs nothing. A volume that is cut afterwards begins with a smaller size. Its
/// chunks, each up to a tenth of the volume, are then smaller, too.
pub(crate) fn estimate(census: Census, is_cut: bool) -> u64 {
    const LEAST: u64 = 256 << 20;
    /// Bytes of the first metadata chunk and the first system chunk, with all copies.
    const FIRST: u64 = 96 << 20;
    let total = content_bytes(census).saturating_add(if is_cut { FIRST } else { 0 });
    let spare = if is_cut { 0 } else { LEAST };
    total.max(LEAST).next_multiple_of(64 << 20).saturating_add(spare)
}

/// Bytes that the content of a source takes, with a quarter to spare. For each entry, an inode, two
/// directory items, a reference and one extent with its records take about 500 bytes. The estimate
/// doubles this number because nodes are half full, and doubles it again for DUP.
pub(crate) fn content_bytes(census: Census) -> u64 {
    const PER_ENTRY: u64 = 2048;
    let metadata = census.entries.saturating_mul(PER_ENTRY).saturating_add(4 * census.name_bytes);
    let checksums = census.data_bytes / 512;
    let total = census.data_bytes.saturating_add(metadata).saturating_add(checksums);
    total.saturating_add(total / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The estimate holds the data, and an empty folder still gets a volume that can be used.
    #[test]
    fn estimates_leave_room() {
        assert!(estimate(Census::default(), false) >= 256 << 20);
        let census = Census { entries: 50_000, data_bytes: 2 << 30, ..Census::default() };
        assert!(estimate(census, false) > (2 << 30) + 50_000 * 1024);
    }
}
