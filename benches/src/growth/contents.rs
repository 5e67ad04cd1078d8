//! Steps of cases on the content of one file: extents and holes, and references of one extent.

use std::error::Error;

use buttress_fs::{Defragment, FallocateMode, Inode, SetAttr};

use super::Done;
use super::bed::{Bed, SECTOR, spread};

/// How far apart extents begin: there is a hole between any two extents.
const PITCH: u64 = 2 * SECTOR;

fn sector(at: u64) -> [u8; SECTOR as usize] {
    [at as u8 | 1; SECTOR as usize]
}

/// Makes a file of `size` extents.
pub(super) fn scattered(bed: &Bed, size: u64) -> Done {
    let file = bed.make("scattered")?;
    (0..size).try_for_each(|at| Ok(file.write_at(at * PITCH, &sector(at)).map(drop)?))
}

/// Makes two files of `size` extents.
pub(super) fn scattered_twice(bed: &Bed, size: u64) -> Done {
    scattered(bed, size)?;
    let file = bed.make("other")?;
    (0..size).try_for_each(|at| Ok(file.write_at(at * PITCH, &sector(at)).map(drop)?))
}

fn set_size(file: &Inode, len: u64) -> Done {
    let set = SetAttr { size: Some(len), ..SetAttr::default() };
    Ok(file.set_attr(&set).map(drop)?)
}

fn found(bed: &Bed) -> Result<Inode, Box<dyn Error>> {
    bed.at("scattered")
}

pub(super) fn write_new(bed: &Bed, size: u64) -> Done {
    scattered(bed, size)
}

pub(super) fn write_direct(bed: &Bed, size: u64) -> Done {
    let file = bed.make("direct")?;
    (0..size).try_for_each(|at| Ok(file.write_direct(at * PITCH, &sector(at)).map(drop)?))
}

pub(super) fn append_and_sync(bed: &Bed, size: u64) -> Done {
    let file = bed.make("log")?;
    for at in 0..size {
        file.write_at(at * SECTOR, &sector(at))?;
        file.sync()?;
    }
    Ok(())
}

pub(super) fn read_all(bed: &Bed, size: u64) -> Done {
    let (file, mut buf) = (found(bed)?, vec![0; 1 << 17]);
    let end = size * PITCH;
    let step = buf.len() as u64;
    (0..end.div_ceil(step)).try_for_each(|at| Ok(file.read_at(at * step, &mut buf).map(drop)?))
}

pub(super) fn read_each(bed: &Bed, size: u64) -> Done {
    let (file, mut buf) = (found(bed)?, sector(0));
    (0..size).try_for_each(|at| Ok(file.read_direct(at * PITCH, &mut buf).map(drop)?))
}

pub(super) fn overwrite(bed: &Bed, size: u64) -> Done {
    let file = found(bed)?;
    (0..size).try_for_each(|at| Ok(file.write_at(at * PITCH, &sector(at + 1)).map(drop)?))
}

pub(super) fn cut(bed: &Bed, _: u64) -> Done {
    set_size(&found(bed)?, 0)
}

pub(super) fn cut_by_steps(bed: &Bed, size: u64) -> Done {
    let file = found(bed)?;
    (0..size).rev().try_for_each(|at| set_size(&file, at * PITCH))
}

pub(super) fn remove(bed: &Bed, _: u64) -> Done {
    Ok(bed.root().unlink(b"scattered")?)
}

pub(super) fn punch_all(bed: &Bed, size: u64) -> Done {
    Ok(found(bed)?.fallocate(0, size * PITCH, FallocateMode::PunchHole)?)
}

pub(super) fn punch_each(bed: &Bed, size: u64) -> Done {
    let file = found(bed)?;
    (0..size).try_for_each(|at| Ok(file.fallocate(at * PITCH, SECTOR, FallocateMode::PunchHole)?))
}

pub(super) fn allocate_all(bed: &Bed, size: u64) -> Done {
    let mode = FallocateMode::Allocate { keep_size: true };
    Ok(found(bed)?.fallocate(0, size * PITCH, mode)?)
}

pub(super) fn zero_all(bed: &Bed, size: u64) -> Done {
    let mode = FallocateMode::ZeroRange { keep_size: true };
    Ok(found(bed)?.fallocate(0, size * PITCH, mode)?)
}

pub(super) fn seek_all(bed: &Bed, size: u64) -> Done {
    let (file, mut at) = (found(bed)?, 0);
    for _ in 1..size {
        at = file.seek_data(file.seek_hole(at)?)?;
    }
    Ok(())
}

pub(super) fn clone_all(bed: &Bed, size: u64) -> Done {
    Ok(found(bed)?.clone_range(0, &bed.make("clone")?, 0, size * PITCH - SECTOR)?)
}

pub(super) fn dedupe_all(bed: &Bed, size: u64) -> Done {
    let is_same = found(bed)?.dedupe_range(0, &bed.at("other")?, 0, size * PITCH - SECTOR)?;
    if is_same { Ok(()) } else { Err("the files differ".into()) }
}

pub(super) fn copy_all(bed: &Bed, size: u64) -> Done {
    Ok(found(bed)?.copy_range(0, &bed.make("copy")?, 0, size * PITCH).map(drop)?)
}

pub(super) fn defragment(bed: &Bed, size: u64) -> Done {
    let file = found(bed)?;
    for at in 0..size {
        file.write_at(at * PITCH + SECTOR, &sector(at))?;
    }
    Ok(file.defragment(0..u64::MAX, &Defragment::default()).map(drop)?)
}

pub(super) fn write_and_sync(bed: &Bed, size: u64) -> Done {
    scattered(bed, size)?;
    Ok(found(bed)?.sync()?)
}

/// Reads, writes, cuts, punches and seeks a few times in a file of many extents.
pub(super) fn few_extents(bed: &Bed, size: u64) -> Done {
    let (file, mut buf) = (found(bed)?, sector(0));
    for at in spread(size) {
        file.read_at(at * PITCH, &mut buf)?;
        file.write_at(at * PITCH, &sector(at))?;
        file.fallocate(at * PITCH + SECTOR, SECTOR, FallocateMode::PunchHole)?;
        file.seek_data(file.seek_hole(at * PITCH)?).or_else(|_| file.seek_hole(0))?;
        file.sync()?;
    }
    set_size(&file, size * PITCH - SECTOR)
}

/// Makes a file of one sector, and a file with that sector `size` times.
pub(super) fn shared(bed: &Bed, size: u64) -> Done {
    bed.make("one")?.write_at(0, &sector(0))?;
    clones(bed, size)
}

pub(super) fn one_sector(bed: &Bed, _: u64) -> Done {
    Ok(bed.make("one")?.write_at(0, &sector(0)).map(drop)?)
}

pub(super) fn clones(bed: &Bed, size: u64) -> Done {
    let (one, many) = (bed.at("one")?, bed.make("scattered")?);
    (0..size).try_for_each(|at| Ok(one.clone_range(0, &many, at * PITCH, SECTOR)?))
}

pub(super) fn clones_and_sync(bed: &Bed, size: u64) -> Done {
    clones(bed, size)?;
    Ok(found(bed)?.sync()?)
}

/// Adds a reference, removes one, and overwrites one, a few times.
pub(super) fn few_references(bed: &Bed, size: u64) -> Done {
    let (one, many) = (bed.at("one")?, found(bed)?);
    for at in spread(size) {
        one.clone_range(0, &many, (size + at) * PITCH, SECTOR)?;
        many.write_at(at * PITCH, &sector(at))?;
        many.fallocate((size + at) * PITCH, SECTOR, FallocateMode::PunchHole)?;
        many.sync()?;
    }
    Ok(())
}
