//! Steps of cases on whole volumes: sizes, block groups, devices, and work on all of them.

use buttress_fs::{BalanceOptions, FallocateMode, Filter, NewInode, ScrubOptions, TrimOptions};

use super::Done;
use super::bed::{Bed, OPERATIONS, SECTOR, name};

/// Adds a device of `gib` GiB, and a file for each GiB that fills four fifths of it.
pub(super) fn groups(bed: &Bed, gib: u64) -> Done {
    size(bed, gib)?;
    let mode = FallocateMode::Allocate { keep_size: false };
    (0..gib).try_for_each(|at| {
        let file = bed.root().create(&name(at), NewInode::file(0o644))?;
        Ok(file.fallocate(0, 800 << 20, mode)?)
    })
}

/// Adds an empty device of `gib` GiB.
pub(super) fn size(bed: &Bed, gib: u64) -> Done {
    bed.add_device(gib)
}

/// Adds `size` devices.
pub(super) fn devices(bed: &Bed, size: u64) -> Done {
    (0..size).try_for_each(|_| bed.add_device(1))
}

/// Writes a few files, asks for figures, and commits.
pub(super) fn few_files(bed: &Bed, _: u64) -> Done {
    for at in 0..OPERATIONS {
        bed.fs().write(format!("/small-{at:02}"), [at as u8; SECTOR as usize])?;
        bed.fs().sync()?;
    }
    Ok(())
}

pub(super) fn ask(bed: &Bed, _: u64) -> Done {
    let admin = bed.fs().admin();
    admin.usage()?;
    admin.info()?;
    if admin.devices().is_empty() { Err("no device".into()) } else { Ok(()) }
}

pub(super) fn scrub(bed: &Bed, _: u64) -> Done {
    let (found, is_done) = bed.fs().admin().scrub(ScrubOptions::default(), &mut |_| true)?;
    if is_done && !found.has_errors() { Ok(()) } else { Err("damage".into()) }
}

pub(super) fn trim(bed: &Bed, _: u64) -> Done {
    Ok(bed.fs().admin().trim(TrimOptions::default(), &mut |_| true).map(drop)?)
}

fn balanced(bed: &Bed, options: &BalanceOptions) -> Done {
    let done = bed.fs().admin().balance(options, &mut |_| true)?;
    if done.completed == done.expected { Ok(()) } else { Err("groups are left".into()) }
}

pub(super) fn balance(bed: &Bed, _: u64) -> Done {
    balanced(bed, &BalanceOptions::full())
}

/// Balances empty block groups, on a volume where all block groups are full.
pub(super) fn balance_none(bed: &Bed, _: u64) -> Done {
    let usage = Filter { usage: Some((0, 0)), ..Filter::default() };
    balanced(bed, &BalanceOptions { data: Some(usage), ..BalanceOptions::default() })
}

pub(super) fn remove_device(bed: &Bed, _: u64) -> Done {
    let engine = bed.fs().engine();
    let device = engine.devices().last().map(|device| device.id).ok_or("no device")?;
    Ok(engine.remove_device(device, &mut |_| true)?)
}
