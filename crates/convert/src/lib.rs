//! Turns an ext2, ext3 or ext4 file system into btrfs in place, and back.
//!
//! # How
//!
//! Content stays where it is. The data chunks of the new volume cover all bytes that the file
//! system uses. Their logical addresses equal their offsets on the device. Trees lie in free space.
//! A read-only subvolume, `ext2_saved`, has a file `image` with each used block at its place on the
//! device. Files share their extents with this image. Content in ranges that btrfs needs is copied.
//!
//! # Failure
//!
//! Until the last step, no byte that the file system uses is changed ([`guard`], G1). The last step
//! writes the superblocks, the first copy first. A program that is killed leaves either the file
//! system or the volume.

#![forbid(unsafe_code)]

mod copy;
mod error;
mod ext4;
mod guard;
mod items;
mod plan;
mod rollback;

use std::sync::Arc;

use buttress_block::Device;
use buttress_check::NoProgress;
use buttress_format::{BlockGroupFlags, CsumType, Extent, Profile};
use buttress_fs::{Filesystem, MakeOptions, MountOptions, NewInode};

pub use self::copy::Tally;
pub use self::error::{Error, Result};
pub use self::rollback::{Back, rollback};

use self::copy::Copy;
use self::ext4::{BLOCK, Ext4};
use self::guard::Guard;
use self::plan::{Content, Used};

/// The subvolume that keeps the old file system, and the image file in it.
const SAVED: &str = "ext2_saved";
const IMAGE: &str = "image";

/// An upper estimate of the bytes of trees that an inode needs: its items, its name twice, an
/// extent.
const INODE_BYTES: u64 = 1024;

/// Free bytes that a conversion leaves for further commits.
const SPARE_BYTES: u64 = 16 << 20;

/// How to convert.
#[derive(Clone, Debug)]
pub struct Options {
    /// The label of the new volume.
    pub label: Label,
    /// Whether data has checksums.
    pub has_sums: bool,
    /// The checksum of the new volume.
    pub csum: CsumType,
    /// Bytes of a tree node.
    pub nodesize: u32,
    /// How the new volume is opened to be filled: the limits of memory.
    pub mount: MountOptions,
    /// Memory of the check at the end, in bytes.
    pub check_bytes: u64,
}

/// The label of the new volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Label {
    /// No label.
    #[default]
    None,
    /// The label of the file system.
    Same,
    /// This label.
    New(Vec<u8>),
}

/// Steps of a conversion, for a progress bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Finds the bytes in use.
    Looking,
    /// Takes the used bytes into the volume. The field is their number.
    Content(u64),
    /// Copies names: the number of inodes done, and about how many there are.
    Names(u64, u64),
    /// Checks the new volume.
    Checking,
}

/// Converts the file system on a device. No other program may have the device open.
///
/// # Errors
///
/// [`Error::NotExt`], [`Error::Feature`] and [`Error::NotClean`] for a file system that cannot be
/// converted, [`Error::NoRoom`] for a file system that is too full. After these errors, the file
/// system is as it was.
pub fn convert(
    device: Arc<dyn Device>,
    options: &Options,
    progress: &mut dyn FnMut(Step),
) -> Result<Tally> {
    progress(Step::Looking);
    if buttress_volume::Volume::read_superblock(&*device).is_ok() {
        return Err(Error::Already);
    }
    let ext4 = Ext4::open(Arc::clone(&device))?;
    let len = device.len() / BLOCK * BLOCK;
    let used = Used::find(&ext4, len)?;
    check_room(&ext4, &used, options)?;
    let mut all = used.stays.clone();
    used.moves.iter().for_each(|range| all.insert(range));
    let guard = Arc::new(Guard::new(Arc::clone(&device), all.clone()));
    let on_guard: Arc<dyn Device> = Arc::clone(&guard) as Arc<dyn Device>;
    let make = MakeOptions {
        label: match &options.label {
            Label::None => Vec::new(),
            Label::Same => ext4.superblock.label.clone(),
            Label::New(label) => label.clone(),
        },
        csum: options.csum,
        nodesize: options.nodesize,
        metadata: Some(Profile::Single),
        data: Some(Profile::Single),
        kept: all.iter().collect(),
        ..MakeOptions::default()
    };
    Filesystem::make(&*on_guard, &make)?;
    let fs = Filesystem::open(vec![Arc::clone(&on_guard)], options.mount.clone())?;
    let filled = fill(&ext4, (&device, &fs), &used, options, progress);
    let filled = match (filled, fs.close()) {
        (Ok(tally), Ok(())) => tally,
        (Err(error), _) => return Err(out_of_room(error)),
        (Ok(_), Err(error)) => return Err(out_of_room(error.into())),
    };
    progress(Step::Checking);
    let check = buttress_check::Options { memory_bytes: options.check_bytes, ..Default::default() };
    let report = buttress_check::check_devices(vec![on_guard], &check, &NoProgress);
    let report = report.map_err(|error| Error::Damaged(error.to_string()))?;
    if let Some(issue) = report.issues.first().filter(|_| !report.is_clean()) {
        return Err(Error::Damaged(issue.to_string()));
    }
    guard.put_in_place()?;
    Ok(filled)
}

/// Refuses a file system that has too little free space for the trees.
fn check_room(ext4: &Ext4, used: &Used, options: &Options) -> Result<()> {
    let superblock = &ext4.superblock;
    let inodes = u64::from(superblock.inodes - superblock.free_inodes.min(superblock.inodes));
    let sums = match options.has_sums {
        true => used.stays.total() / BLOCK * options.csum.size() as u64,
        false => 0,
    };
    let needed = inodes * INODE_BYTES + sums + used.moves.total() * 2 + SPARE_BYTES;
    let free = superblock.free_blocks * BLOCK;
    if needed > free {
        return Err(Error::NoRoom(format!("{free} bytes are free, and about {needed} are needed")));
    }
    Ok(())
}

/// Turns a lack of space in the new volume into [`Error::NoRoom`].
fn out_of_room(error: Error) -> Error {
    match error {
        Error::Volume(error) if error.kind() == buttress_fs::ErrorKind::NoSpace => {
            Error::NoRoom(error.to_string())
        }
        other => other,
    }
}

/// Fills the new volume.
fn fill(
    ext4: &Ext4,
    (device, fs): (&Arc<dyn Device>, &Filesystem),
    used: &Used,
    options: &Options,
    progress: &mut dyn FnMut(Step),
) -> Result<Tally> {
    let extents = used.extents(&data_chunks(fs)?)?;
    let top = fs.root();
    let root =
        ext4.inode(ext4::ROOT)?.ok_or_else(|| Error::NotClean("it has no top".to_owned()))?;
    if ext4.list(&root)?.iter().any(|entry| entry.name == SAVED.as_bytes()) {
        return Err(Error::Taken);
    }
    let saved = top.create_subvolume(SAVED.as_bytes(), 0o755, 0, 0)?;
    let image = saved.create(IMAGE.as_bytes(), NewInode::file(0o400))?;
    let about = u64::from(ext4.superblock.inodes - ext4.superblock.free_inodes);
    progress(Step::Content(used.stays.total()));
    let mut saw = |inodes: u64| {
        if inodes.is_multiple_of(256) {
            progress(Step::Names(inodes, about));
        }
    };
    let mut copy =
        Copy::new((ext4, device), fs, (&extents, &used.moves), options.has_sums, &mut saw);
    // The image comes first. Until the image refers to all used bytes, new data could be allocated
    // over them, and the guard would refuse the write.
    let mut content = Content::default();
    for range in used.stays.iter().chain(used.moves.iter()) {
        content.add(range.start, range, &extents);
    }
    copy.fill(&image, &content, ext4.superblock.blocks * BLOCK)?;
    let kept = copy.tally;
    (copy.saw)(0);
    copy.all()?;
    let tally = copy.finish()?;
    fs.sync()?;
    fs.set_subvolume_read_only(saved.id().tree, true)?;
    Ok(Tally { kept_bytes: kept.kept_bytes, copied_bytes: tally.copied_bytes, ..tally })
}

/// The data chunks of the volume, ascending.
fn data_chunks(fs: &Filesystem) -> Result<Vec<Extent>> {
    let chunks = items::chunks(fs)?.into_iter();
    let data = chunks.filter(|(_, chunk)| chunk.flags.has(BlockGroupFlags::DATA));
    Ok(data.map(|(at, chunk)| Extent::new(at, chunk.len)).collect())
}
