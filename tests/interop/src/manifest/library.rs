//! A manifest of a volume, through the library.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use buttress_fs::{Attr, ErrorKind, FileKind, Filesystem, Inode, InodeId, NameError, Timespec};

use super::content::{Source, fingerprint, ranges};
use super::{Entry, Manifest, Time, join, join_links};

impl Manifest {
    /// Takes the manifest of all that a mounted volume shows. Objects that cannot be read are
    /// listed as errors.
    #[must_use]
    pub fn of_library(filesystem: &Filesystem) -> Self {
        let mut manifest = Self::default();
        let mut ids = BTreeMap::new();
        let mut queue = vec![(Vec::new(), filesystem.root())];
        while let Some((path, inode)) = queue.pop() {
            match entry(&inode) {
                Ok(entry) => {
                    if !entry.is_stub {
                        ids.insert(path.clone(), inode.id());
                    }
                    manifest.entries.insert(path.clone(), entry);
                }
                Err(error) => manifest.errors.push((path.clone(), text(&error))),
            }
            if inode.kind() == FileKind::Directory {
                list(&inode, &path, &mut queue, &mut manifest.errors);
            }
        }
        join_links::<InodeId>(&mut manifest.entries, &ids);
        manifest
    }
}

/// Looks every name up, as a front end does. The lookup and the listing must agree.
fn list(
    inode: &Inode,
    path: &[u8],
    queue: &mut Vec<(Vec<u8>, Inode)>,
    errors: &mut Vec<(Vec<u8>, String)>,
) {
    let mut names = Vec::new();
    let listed = inode.read_dir(0, |entry| {
        names.push((entry.name.to_vec(), entry.id, entry.kind));
        ControlFlow::Continue(())
    });
    if let Err(error) = listed {
        errors.push((path.to_vec(), text(&error)));
    }
    for (name, id, kind) in names {
        let path = join(path, &name);
        match inode.lookup(&name) {
            Ok(child) if child.kind() == kind && child.id() == id => queue.push((path, child)),
            Ok(child) => {
                let (found, found_kind) = (child.id(), child.kind());
                let why = format!("listed as {id:?} {kind:?}, found as {found:?} {found_kind:?}");
                errors.push((path, why));
            }
            Err(error) => errors.push((path, text(&error))),
        }
    }
}

/// An error with its causes.
fn text(error: &buttress_fs::Error) -> String {
    let mut text = error.to_string();
    let mut cause: Option<&dyn std::error::Error> = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

fn entry(inode: &Inode) -> buttress_fs::Result<Entry> {
    let attr: Attr = inode.attr();
    let mut entry = Entry {
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        device: numbers(attr.rdev),
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
        btime: time(attr.otime),
        is_stub: attr.id.ino.0 == 2,
        ..Entry::default()
    };
    match attr.kind {
        FileKind::Regular => {
            entry.data = ranges(inode, attr.size)?;
            entry.content = fingerprint(inode, attr.size, &entry.data)?;
        }
        FileKind::Symlink => entry.target = inode.read_link()?,
        _ => {}
    }
    for name in inode.list_xattrs()? {
        let value = inode.xattr(&name)?;
        entry.xattrs.insert(name, value);
    }
    Ok(entry)
}

fn numbers(rdev: u64) -> (u32, u32) {
    let part = |bits: u64| u32::try_from(bits).unwrap_or(u32::MAX);
    (part(rdev >> 20), part(rdev & 0xf_ffff))
}

fn time(time: Timespec) -> Time {
    (time.sec, time.nsec)
}

impl Source for Inode {
    type Error = buttress_fs::Error;

    fn read(&self, offset: u64, buf: &mut [u8]) -> buttress_fs::Result<usize> {
        self.read_at(offset, buf)
    }

    fn data(&self, offset: u64) -> buttress_fs::Result<Option<u64>> {
        match self.seek_data(offset) {
            Ok(at) => Ok(Some(at)),
            Err(error) if error.kind() == ErrorKind::Name(NameError::NoSuchRange) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn hole(&self, offset: u64) -> buttress_fs::Result<u64> {
        self.seek_hole(offset)
    }
}
