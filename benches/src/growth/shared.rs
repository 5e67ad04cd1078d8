//! Steps of cases on subvolumes and snapshots.

use super::Done;
use super::bed::{Bed, SECTOR, name, spread};
use buttress_fs::NewInode;

/// Files that are in every snapshot.
const FILES: u64 = 64;

fn path(what: &str, at: u64) -> String {
    format!("/{what}-{at:08}")
}

pub(super) fn subvolumes(bed: &Bed, size: u64) -> Done {
    (0..size).try_for_each(|at| Ok(bed.fs().create_subvolume(path("sub", at))?))
}

/// Subvolumes with full quotas.
pub(super) fn counted(bed: &Bed, size: u64) -> Done {
    subvolumes(bed, size)?;
    bed.fs().sync()?;
    Ok(bed.fs().engine().enable_quotas(false)?)
}

pub(super) fn delete_subvolumes(bed: &Bed, size: u64) -> Done {
    (0..size).try_for_each(|at| Ok(bed.fs().delete_subvolume(path("sub", at))?))
}

pub(super) fn list_subvolumes(bed: &Bed, size: u64) -> Done {
    let found = bed.fs().admin().subvolumes()?.len() as u64;
    if found >= size { Ok(()) } else { Err("subvolumes are missing".into()) }
}

/// A subvolume `home` of some files of a sector.
pub(super) fn home(bed: &Bed, _: u64) -> Done {
    let home = bed.root().create_subvolume(b"home", 0o755, 0, 0)?;
    for at in 0..FILES {
        home.create(&name(at), NewInode::file(0o644))?.write_at(0, &[at as u8; SECTOR as usize])?;
    }
    Ok(bed.fs().sync()?)
}

fn write_one(bed: &Bed, at: u64) -> Done {
    let file = bed.at("home")?.lookup(&name(at % FILES))?;
    Ok(file.write_at(0, &[at as u8; SECTOR as usize]).map(drop)?)
}

/// Makes `size` snapshots of `home`, with a write after each.
pub(super) fn snapshots(bed: &Bed, size: u64) -> Done {
    for at in 0..size {
        bed.fs().create_snapshot("/home", path("snap", at), true)?;
        write_one(bed, at)?;
    }
    Ok(())
}

pub(super) fn home_and_snapshots(bed: &Bed, size: u64) -> Done {
    home(bed, size)?;
    snapshots(bed, size)
}

/// A subvolume of many files, with four snapshots.
pub(super) fn many_files_and_snapshots(bed: &Bed, size: u64) -> Done {
    let home = bed.root().create_subvolume(b"home", 0o755, 0, 0)?;
    for at in 0..size {
        home.create(&name(at), NewInode::file(0o644))?.write_at(0, &[at as u8; SECTOR as usize])?;
    }
    snapshots(bed, 4)
}

pub(super) fn delete_snapshots(bed: &Bed, size: u64) -> Done {
    (0..size).try_for_each(|at| Ok(bed.fs().delete_subvolume(path("snap", at))?))
}

/// Deletes the snapshots as a server does: each is dropped from the trees before the next one is
/// deleted.
pub(super) fn delete_each_snapshot(bed: &Bed, size: u64) -> Done {
    for at in 0..size {
        bed.fs().delete_subvolume(path("snap", at))?;
        bed.fs().sync()?;
    }
    Ok(())
}

pub(super) fn few_writes(bed: &Bed, size: u64) -> Done {
    spread(size).try_for_each(|at| write_one(bed, at))
}

/// Makes and deletes a few snapshots where there are many.
pub(super) fn few_snapshots(bed: &Bed, _: u64) -> Done {
    for at in 0..4 {
        bed.fs().create_snapshot("/home", path("more", at), false)?;
        write_one(bed, at)?;
        bed.fs().delete_subvolume(path("more", at))?;
    }
    Ok(())
}
