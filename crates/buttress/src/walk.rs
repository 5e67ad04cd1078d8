//! Resolves paths to inodes.
//!
//! # What must hold
//!
//! - A path never leads out of the mounted subvolume: `..` at the top of the subvolume stays at the
//!   top, and an absolute symbolic link begins at the top.
//! - A chain of symbolic links ends after [`LINKS_MAX`].

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use buttress_fs::{Error as FsError, FileKind, Filesystem, Inode, NameError, Result as FsResult};

/// Symbolic links that one path may go through, as in Linux.
const LINKS_MAX: u32 = 40;

/// The treatment of a symbolic link at the end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    /// The link is followed.
    Follow,
    /// The link itself is the result.
    Keep,
}

/// Finds the inode that a path of the volume names.
pub(crate) fn find(fs: &Filesystem, path: &Path, last: Last) -> FsResult<Inode> {
    find_from(&fs.root(), path, last)
}

/// Finds the inode that a path names below `top`.
pub(crate) fn find_from(top: &Inode, path: &Path, last: Last) -> FsResult<Inode> {
    find_or(top, path, last, |_, _| Err(NameError::NotFound.into()))
}

/// Finds the inode that a path names below `top`. If a name of the path itself does not exist,
/// calls `missing` with the directory and the name. The search goes on with the inode that
/// `missing` returns.
pub(crate) fn find_or(
    top: &Inode,
    path: &Path,
    last: Last,
    mut missing: impl FnMut(&Inode, &[u8]) -> FsResult<Inode>,
) -> FsResult<Inode> {
    let mut names = components(path);
    // The number of remaining names that come from the path itself, not from a symbolic link.
    let mut own = names.len();
    let mut trail = Vec::new();
    let mut at = top.clone();
    let mut links = 0;
    while let Some(name) = names.pop_front() {
        let is_own = names.len() < own;
        own = own.min(names.len());
        match name.as_bytes() {
            b"/" => {
                trail.clear();
                at = top.clone();
            }
            b".." => at = trail.pop().unwrap_or_else(|| top.clone()),
            bytes => {
                let next = match at.lookup(bytes) {
                    Err(error) if is_own && is_not_found(&error) => missing(&at, bytes)?,
                    found => found?,
                };
                let follows = last == Last::Follow || !names.is_empty();
                if next.kind() == FileKind::Symlink && follows {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(FsError::invalid("a chain of symbolic links does not end"));
                    }
                    let target = OsString::from_vec(next.read_link()?);
                    let mut rest = components(Path::new(&target));
                    rest.append(&mut names);
                    names = rest;
                } else {
                    trail.push(std::mem::replace(&mut at, next));
                }
            }
        }
    }
    Ok(at)
}

fn is_not_found(error: &FsError) -> bool {
    error.kind() == buttress_fs::ErrorKind::Name(NameError::NotFound)
}

/// Finds a regular file.
pub(crate) fn file_at(top: &Inode, path: &Path) -> FsResult<Inode> {
    let inode = find_from(top, path, Last::Follow)?;
    expect_file(&inode)?;
    Ok(inode)
}

/// Returns an error unless the inode is a regular file.
pub(crate) fn expect_file(inode: &Inode) -> FsResult<()> {
    match inode.kind() {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(NameError::IsDir.into()),
        _ => Err(FsError::invalid("it is no regular file")),
    }
}

/// Finds a directory.
pub(crate) fn dir_at(top: &Inode, path: &Path) -> FsResult<Inode> {
    let dir = find_from(top, path, Last::Follow)?;
    if dir.kind() != FileKind::Directory {
        return Err(NameError::NotDir.into());
    }
    Ok(dir)
}

/// Returns the target of a symbolic link.
pub(crate) fn link_at(top: &Inode, path: &Path) -> FsResult<PathBuf> {
    let target = find_from(top, path, Last::Keep)?.read_link()?;
    Ok(PathBuf::from(OsString::from_vec(target)))
}

/// Finds the directory that a path's last name is in, and that name.
pub(crate) fn find_parent<'p>(fs: &Filesystem, path: &'p Path) -> FsResult<(Inode, &'p [u8])> {
    let Some(Component::Normal(name)) = path.components().next_back() else {
        return Err(FsError::invalid("the path ends in no name"));
    };
    let parent = path.parent().unwrap_or(Path::new(""));
    let parent = find(fs, parent, Last::Follow)?;
    if parent.kind() != FileKind::Directory {
        return Err(NameError::NotDir.into());
    }
    Ok((parent, name.as_bytes()))
}

fn components(path: &Path) -> VecDeque<OsString> {
    let kept = path.components().filter_map(|component| match component {
        Component::RootDir | Component::Prefix(_) => Some(OsString::from("/")),
        Component::ParentDir => Some(OsString::from("..")),
        Component::Normal(name) => Some(name.to_owned()),
        Component::CurDir => None,
    });
    kept.collect()
}

/// Refuses to open a file with fs-verity for writing, as Linux does.
pub(crate) fn expect_openable(inode: &Inode, for_writing: bool) -> FsResult<()> {
    if for_writing && inode.has_verity() {
        return Err(NameError::NotPermitted.into());
    }
    Ok(())
}
