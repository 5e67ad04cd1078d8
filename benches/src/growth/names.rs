//! Steps of cases on names: directories, depth, links, attributes, and whole trees through the
//! crate `buttress`.

use std::ops::ControlFlow;

use buttress_fs::{
    FileKind, Inode, NameChange, NameDir, NewInode, RenameFlags, SetAttr, XattrFlags,
};

use super::Done;
use super::bed::{Bed, SECTOR, name, spread};

/// Names that a request of a mount lists.
const LISTED: usize = 50;

pub(super) fn fill(bed: &Bed, size: u64) -> Done {
    let root = bed.root();
    (0..size).try_for_each(|at| {
        drop(root.create(&name(at), NewInode::file(0o644))?);
        Ok(())
    })
}

/// Files of a sector each, in the directory `src`.
pub(super) fn fill_files(bed: &Bed, size: u64) -> Done {
    let dir = bed.root().mkdir(b"src", 0o755, 0, 0)?;
    for at in 0..size {
        let file = dir.create(&name(at), NewInode::file(0o644))?;
        file.write_at(0, &[at as u8; SECTOR as usize])?;
    }
    Ok(())
}

pub(super) fn mkdir(bed: &Bed, size: u64) -> Done {
    (0..size).try_for_each(|at| {
        drop(bed.root().mkdir(&name(at), 0o755, 0, 0)?);
        Ok(())
    })
}

pub(super) fn symlink(bed: &Bed, size: u64) -> Done {
    let root = bed.root();
    (0..size).try_for_each(|at| {
        drop(root.symlink(&name(at), b"/there", 0, 0)?);
        Ok(())
    })
}

pub(super) fn read_links(bed: &Bed, size: u64) -> Done {
    (0..size).try_for_each(|at| {
        drop(bed.root().lookup(&name(at))?.read_link()?);
        Ok(())
    })
}

pub(super) fn tmpfile(bed: &Bed, size: u64) -> Done {
    (0..size).try_for_each(|_| {
        drop(bed.root().tmpfile(0o644, 0, 0)?);
        Ok(())
    })
}

pub(super) fn lookup(bed: &Bed, size: u64) -> Done {
    (0..size).try_for_each(|at| {
        let _ = bed.root().lookup(&name(at))?.attr();
        Ok(())
    })
}

pub(super) fn set_attr(bed: &Bed, size: u64) -> Done {
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    (0..size).try_for_each(|at| Ok(bed.root().lookup(&name(at))?.set_attr(&set).map(drop)?))
}

pub(super) fn list(bed: &Bed, size: u64) -> Done {
    let (root, mut cookie, mut listed) = (bed.root(), 0, 0);
    loop {
        let mut here = 0;
        root.read_dir(cookie, |entry| {
            (cookie, here) = (entry.cookie, here + 1);
            if here == LISTED { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        listed += here as u64;
        if here < LISTED {
            break;
        }
    }
    if listed < size { Err("names are missing".into()) } else { Ok(()) }
}

pub(super) fn unlink(bed: &Bed, size: u64) -> Done {
    (0..size).try_for_each(|at| Ok(bed.root().unlink(&name(at))?))
}

pub(super) fn rmdir(bed: &Bed, size: u64) -> Done {
    (0..size).try_for_each(|at| Ok(bed.root().rmdir(&name(at))?))
}

/// As `rm` does: lists some names, removes them, and lists again.
pub(super) fn list_and_unlink(bed: &Bed, size: u64) -> Done {
    let (root, mut left) = (bed.root(), size);
    while left > 0 {
        let mut names = Vec::new();
        root.read_dir(0, |entry| {
            if entry.name.starts_with(b"name") {
                names.push(entry.name.to_vec());
            }
            if names.len() == LISTED { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        names.iter().try_for_each(|name| root.unlink(name))?;
        left -= names.len() as u64;
    }
    Ok(())
}

fn new_name(at: u64) -> Vec<u8> {
    [b"new-".to_vec(), name(at)].concat()
}

pub(super) fn rename(bed: &Bed, size: u64) -> Done {
    let root = bed.root();
    let flags = RenameFlags::default();
    (0..size).try_for_each(|at| Ok(root.rename(&name(at), &root, &new_name(at), flags)?))
}

pub(super) fn exchange(bed: &Bed, size: u64) -> Done {
    let root = bed.root();
    let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
    (0..size / 2)
        .try_for_each(|at| Ok(root.rename(&name(2 * at), &root, &name(2 * at + 1), flags)?))
}

pub(super) fn whiteout(bed: &Bed, size: u64) -> Done {
    let (root, flags) = (bed.root(), RenameFlags::default());
    (0..size).try_for_each(|at| {
        Ok(root.rename_leaving_whiteout(&name(at), &root, &new_name(at), flags, (0, 0))?)
    })
}

pub(super) fn change_names(bed: &Bed, size: u64) -> Done {
    let root = bed.root();
    let there = || NameDir::There(root.clone());
    let change = |at| NameChange::Move { from: (there(), name(at)), to: (there(), new_name(at)) };
    let changes: Vec<_> = (0..size).map(change).collect();
    Ok(root.change_names(&changes)?)
}

pub(super) fn transaction(bed: &Bed, size: u64) -> Done {
    let path = |at| format!("/in-{at:08}");
    Ok(bed.fs().transaction(|tx| (0..size).try_for_each(|at| tx.write(path(at), "text")))?)
}

pub(super) fn create_and_sync(bed: &Bed, size: u64) -> Done {
    (0..size)
        .try_for_each(|at| Ok(bed.root().create(&new_name(at), NewInode::file(0o644))?.sync()?))
}

/// Creates, finds, renames and removes a few names among many.
pub(super) fn few_names(bed: &Bed, size: u64) -> Done {
    let root = bed.root();
    for at in spread(size) {
        drop(root.create(&new_name(at), NewInode::file(0o644))?);
        drop(root.lookup(&name(at))?.attr());
        root.rename(&new_name(at), &root, b"other", RenameFlags::default())?;
        root.unlink(b"other")?;
        root.last_cookie()?;
    }
    Ok(())
}

/// Makes nested directories.
pub(super) fn deepen(bed: &Bed, size: u64) -> Done {
    let mut dir = bed.root();
    (0..size).try_for_each(|_| {
        dir = dir.mkdir(b"d", 0o755, 0, 0)?;
        Ok(())
    })
}

pub(super) fn resolve(bed: &Bed, size: u64) -> Done {
    drop(bed.fs().engine().resolve("d/".repeat(size as usize))?);
    Ok(())
}

fn deepest(bed: &Bed, size: u64) -> Result<Inode, Box<dyn std::error::Error>> {
    Ok(bed.fs().engine().resolve("d/".repeat(size as usize))?)
}

pub(super) fn walk_up(bed: &Bed, size: u64) -> Done {
    let mut dir = deepest(bed, size)?;
    (0..size).try_for_each(|_| {
        dir = bed.fs().engine().inode(dir.parent()?)?;
        Ok(())
    })
}

pub(super) fn move_deep(bed: &Bed, size: u64) -> Done {
    let dir = deepest(bed, size)?;
    let root = bed.root();
    drop(root.mkdir(b"moved", 0o755, 0, 0)?);
    Ok(root.rename(b"moved", &dir, b"here", RenameFlags::default())?)
}

pub(super) fn create_dir_all(bed: &Bed, size: u64) -> Done {
    Ok(bed.fs().create_dir_all("/".to_owned() + &"e/".repeat(size as usize))?)
}

pub(super) fn remove_dir_all(bed: &Bed, _: u64) -> Done {
    let top = if bed.at("d").is_ok() { "/d" } else { "/src" };
    Ok(bed.fs().remove_dir_all(top)?)
}

/// Makes a file with `size` names.
pub(super) fn links(bed: &Bed, size: u64) -> Done {
    let file = bed.make("linked")?;
    (0..size).try_for_each(|at| Ok(bed.root().link(&file, &name(at))?))
}

pub(super) fn link(bed: &Bed, size: u64) -> Done {
    let file = bed.at("warm")?;
    (0..size).try_for_each(|at| Ok(bed.root().link(&file, &name(at))?))
}

pub(super) fn places(bed: &Bed, size: u64) -> Done {
    let found = bed.at("linked")?.places()?.len() as u64;
    if found == size + 1 { Ok(()) } else { Err("names are missing".into()) }
}

pub(super) fn few_links(bed: &Bed, size: u64) -> Done {
    let (root, file) = (bed.root(), bed.at("linked")?);
    for at in spread(size) {
        root.link(&file, &new_name(at))?;
        root.rename(&name(at), &root, b"other", RenameFlags::default())?;
        root.unlink(b"other")?;
    }
    Ok(())
}

pub(super) fn link_and_sync(bed: &Bed, _: u64) -> Done {
    let file = bed.at("linked")?;
    bed.root().link(&file, b"one more")?;
    Ok(file.sync()?)
}

fn attribute(at: u64) -> Vec<u8> {
    [b"user.".to_vec(), name(at)].concat()
}

fn set(file: &Inode, at: u64, value: u8) -> Done {
    Ok(file.set_xattr(&attribute(at), &[value; 20], XattrFlags::default())?)
}

/// Makes a file with `size` attributes.
pub(super) fn xattrs(bed: &Bed, size: u64) -> Done {
    let file = bed.make("marked")?;
    (0..size).try_for_each(|at| set(&file, at, 1))
}

pub(super) fn replace_xattrs(bed: &Bed, size: u64) -> Done {
    let file = bed.at("marked")?;
    (0..size).try_for_each(|at| set(&file, at, 2))
}

pub(super) fn remove_xattrs(bed: &Bed, size: u64) -> Done {
    let file = bed.at("marked")?;
    (0..size).try_for_each(|at| Ok(file.remove_xattr(&attribute(at))?))
}

pub(super) fn list_xattrs(bed: &Bed, size: u64) -> Done {
    let found = bed.at("marked")?.list_xattrs()?.len() as u64;
    if found == size { Ok(()) } else { Err("attributes are missing".into()) }
}

pub(super) fn few_xattrs(bed: &Bed, size: u64) -> Done {
    let file = bed.at("marked")?;
    for at in spread(size) {
        file.xattr(&attribute(at))?;
        set(&file, at, 3)?;
        set(&file, size + at, 3)?;
    }
    Ok(())
}

pub(super) fn mark_and_sync(bed: &Bed, size: u64) -> Done {
    let file = bed.at("marked")?;
    set(&file, size, 3)?;
    Ok(file.sync()?)
}

/// Reads all files of a directory through the crate `buttress`.
pub(super) fn walk(bed: &Bed, _: u64) -> Done {
    for entry in bed.fs().read_dir("/src")? {
        let entry = entry?;
        if entry.kind() == FileKind::Regular {
            bed.fs().read(entry.path())?;
        }
    }
    Ok(())
}

pub(super) fn snapshot_and_walk(bed: &Bed, _: u64) -> Done {
    let snapshot = bed.fs().snapshot()?;
    for entry in snapshot.read_dir("/src")? {
        snapshot.read(entry?.path())?;
    }
    Ok(())
}

pub(super) fn write_files(bed: &Bed, size: u64) -> Done {
    let path = |at| format!("/file-{at:08}");
    (0..size).try_for_each(|at| Ok(bed.fs().write(path(at), [7; SECTOR as usize])?))
}

pub(super) fn copy_files(bed: &Bed, size: u64) -> Done {
    for at in 0..size {
        let name = String::from_utf8(name(at))?;
        bed.fs().copy(format!("/src/{name}"), format!("/{name}"))?;
    }
    Ok(())
}
