//! A manifest of a folder of this machine.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, SeekFrom, Statx, StatxFlags, StatxTimestamp};

use super::content::{Source, fingerprint, ranges};
use super::{Entry, Manifest, Time, join_links};

impl Manifest {
    /// Takes the manifest of the tree below `top`, mounts and subvolumes in it included.
    #[must_use]
    pub fn of_folder(top: &Path) -> Self {
        let mut manifest = Self::default();
        let mut ids = BTreeMap::new();
        let mut queue = vec![Vec::new()];
        while let Some(path) = queue.pop() {
            let full = full(top, &path);
            match entry(&full) {
                Ok((entry, id)) => {
                    if entry.is_dir() {
                        list(&full, &path, &mut queue, &mut manifest.errors);
                    }
                    if !entry.is_stub {
                        ids.insert(path.clone(), id);
                    }
                    manifest.entries.insert(path, entry);
                }
                Err(error) => manifest.errors.push((path, error.to_string())),
            }
        }
        join_links(&mut manifest.entries, &ids);
        manifest
    }
}

fn full(top: &Path, path: &[u8]) -> PathBuf {
    if path.is_empty() { top.to_owned() } else { top.join(OsStr::from_bytes(path)) }
}

fn list(full: &Path, path: &[u8], queue: &mut Vec<Vec<u8>>, errors: &mut Vec<(Vec<u8>, String)>) {
    let names = std::fs::read_dir(full).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    match names {
        Ok(names) => {
            queue.extend(names.iter().map(|name| super::join(path, name.file_name().as_bytes())));
        }
        Err(error) => errors.push((path.to_vec(), error.to_string())),
    }
}

/// A device and an inode number.
type Id = (u32, u32, u64);

fn entry(path: &Path) -> io::Result<(Entry, Id)> {
    let flags = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let stat = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, flags)?;
    let mode = u32::from(stat.stx_mode);
    let mut entry = Entry {
        mode,
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        device: (stat.stx_rdev_major, stat.stx_rdev_minor),
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        atime: time(stat.stx_atime),
        mtime: time(stat.stx_mtime),
        ctime: time(stat.stx_ctime),
        btime: time(stat.stx_btime),
        is_stub: is_stub(&stat),
        ..Entry::default()
    };
    match mode & 0o170_000 {
        0o100_000 => {
            let file = Open(File::open(path)?);
            entry.data = ranges(&file, entry.size)?;
            entry.content = fingerprint(&file, entry.size, &entry.data)?;
        }
        0o120_000 => entry.target = std::fs::read_link(path)?.into_os_string().into_encoded_bytes(),
        _ => {}
    }
    entry.xattrs = xattrs(path)?;
    Ok((entry, (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino)))
}

/// Linux shows the place of a subvolume within a snapshot as an empty directory with number 2.
fn is_stub(stat: &Statx) -> bool {
    stat.stx_ino == 2 && stat.stx_size == 0 && u32::from(stat.stx_mode) & 0o170_000 == 0o040_000
}

fn time(stamp: StatxTimestamp) -> Time {
    (stamp.tv_sec, stamp.tv_nsec)
}

fn xattrs(path: &Path) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut names = vec![0_u8; 64 * 1024];
    let len = match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(len) => len,
        Err(rustix::io::Errno::NOTSUP) => 0,
        Err(error) => return Err(error.into()),
    };
    let mut found = BTreeMap::new();
    for name in names[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0_u8; 64 * 1024];
        let len = rustix::fs::lgetxattr(path, name, &mut value[..])?;
        value.truncate(len);
        found.insert(name.to_vec(), value);
    }
    Ok(found)
}

struct Open(File);

impl Source for Open {
    type Error = io::Error;

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }

    fn data(&self, offset: u64) -> io::Result<Option<u64>> {
        match rustix::fs::seek(&self.0, SeekFrom::Data(offset)) {
            Ok(at) => Ok(Some(at)),
            Err(rustix::io::Errno::NXIO) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn hole(&self, offset: u64) -> io::Result<u64> {
        Ok(rustix::fs::seek(&self.0, SeekFrom::Hole(offset))?)
    }
}
