//! Files and directories in memory.
//!
//! # What must hold
//!
//! - A node without a name stays until the kernel forgets it.

use std::collections::BTreeMap;
use std::sync::Arc;

use buttress_protocol::{Attr, Errno, FileType, SetattrFlags, SetattrIn};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

use crate::attr::absent;
use crate::node::ROOT;

pub(super) const REGULAR: u32 = FileType::Regular.bits();
pub(super) const DIRECTORY: u32 = FileType::Directory.bits();
pub(super) const SYMLINK: u32 = FileType::Symlink.bits();
/// `O_TRUNC`.
pub(super) const TRUNCATE: i32 = 0o1000;
const BLOCK: u32 = 4096;

/// All files and directories.
#[derive(Debug)]
pub(super) struct Memory {
    /// Unranked: the lock of a file's bytes is taken under it.
    nodes: RwLock<Table>,
}

#[derive(Debug)]
struct Table {
    nodes: FxHashMap<u64, Node>,
    last: u64,
}

#[derive(Debug)]
struct Node {
    attr: Attr,
    /// Content, or the target of a link.
    /// Unranked: nothing is taken under it.
    bytes: Arc<Mutex<Vec<u8>>>,
    names: Names,
}

#[derive(Debug, Default)]
struct Names {
    by_name: FxHashMap<Vec<u8>, u64>,
    by_cookie: BTreeMap<u64, (Vec<u8>, u64)>,
    last: u64,
}

impl Names {
    fn add(&mut self, name: &[u8], node: u64) {
        self.last += 1;
        self.by_name.insert(name.to_vec(), self.last);
        self.by_cookie.insert(self.last, (name.to_vec(), node));
    }

    fn find(&self, name: &[u8]) -> Option<u64> {
        Some(self.by_cookie.get(self.by_name.get(name)?)?.1)
    }

    fn take(&mut self, name: &[u8]) -> Option<u64> {
        let cookie = self.by_name.remove(name)?;
        Some(self.by_cookie.remove(&cookie)?.1)
    }
}

impl Node {
    fn new(node: u64, mode: u32, (uid, gid): (u32, u32), rdev: u32) -> Self {
        let (sec, nsec) = now();
        let (atime, mtime, ctime) = (sec, sec, sec);
        let (atime_nsec, mtime_nsec, ctime_nsec) = (nsec, nsec, nsec);
        let attr = Attr {
            ino: node,
            atime,
            mtime,
            ctime,
            atime_nsec,
            mtime_nsec,
            ctime_nsec,
            mode,
            nlink: 1,
            uid,
            gid,
            rdev,
            blksize: BLOCK,
            ..Attr::default()
        };
        Self { attr, bytes: Arc::default(), names: Names::default() }
    }
}

impl Default for Memory {
    fn default() -> Self {
        let root = Node::new(ROOT, DIRECTORY | 0o755, (0, 0), 0);
        let nodes = [(ROOT, root)].into_iter().collect();
        Self { nodes: RwLock::new(Table { nodes, last: ROOT }) }
    }
}

impl Memory {
    pub(super) fn lookup(&self, dir: u64, name: &[u8]) -> Result<Attr, Errno> {
        let table = self.nodes.read();
        let dir = table.nodes.get(&dir).ok_or(Errno::ESTALE)?;
        let found = dir.names.find(name).and_then(|node| table.nodes.get(&node));
        Ok(found.map_or_else(absent, |node| node.attr))
    }

    pub(super) fn attr(&self, node: u64) -> Result<Attr, Errno> {
        self.nodes.read().nodes.get(&node).map(|node| node.attr).ok_or(Errno::ESTALE)
    }

    pub(super) fn set_attr(&self, node: u64, how: &SetattrIn) -> Result<Attr, Errno> {
        let mut table = self.nodes.write();
        let node = table.nodes.get_mut(&node).ok_or(Errno::ESTALE)?;
        let valid = how.valid();
        let has = |flag| valid.contains(flag);
        let attr = &mut node.attr;
        if has(SetattrFlags::MODE) {
            attr.mode = attr.mode & Attr::KIND | how.mode & !Attr::KIND;
        }
        if has(SetattrFlags::UID) {
            attr.uid = how.uid;
        }
        if has(SetattrFlags::GID) {
            attr.gid = how.gid;
        }
        if has(SetattrFlags::SIZE) {
            node.bytes.lock().resize(how.size as usize, 0);
            attr.size = how.size;
        }
        if has(SetattrFlags::ATIME) {
            (attr.atime, attr.atime_nsec) = (how.atime().sec, how.atime().nsec);
        }
        if has(SetattrFlags::MTIME) {
            (attr.mtime, attr.mtime_nsec) = (how.mtime().sec, how.mtime().nsec);
        }
        if has(SetattrFlags::CTIME) {
            (attr.ctime, attr.ctime_nsec) = (how.ctime().sec, how.ctime().nsec);
        }
        Ok(*attr)
    }

    pub(super) fn target(&self, node: u64) -> Result<Vec<u8>, Errno> {
        let bytes = self.bytes(node)?;
        let target = bytes.lock().clone();
        Ok(target)
    }

    /// Makes a node with a name and with the content `bytes`.
    pub(super) fn make(
        &self,
        dir: u64,
        name: &[u8],
        mode: u32,
        owner: (u32, u32),
        rdev: u32,
        bytes: &[u8],
    ) -> Result<Attr, Errno> {
        let mut table = self.nodes.write();
        table.last += 1;
        let number = table.last;
        let names = &mut table.nodes.get_mut(&dir).ok_or(Errno::ESTALE)?.names;
        if names.by_name.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        names.add(name, number);
        let mut node = Node::new(number, mode, owner, rdev);
        node.attr.size = bytes.len() as u64;
        *node.bytes.lock() = bytes.to_vec();
        let attr = node.attr;
        table.nodes.insert(number, node);
        Ok(attr)
    }

    pub(super) fn remove(&self, dir: u64, name: &[u8]) -> Result<(), Errno> {
        let mut table = self.nodes.write();
        let names = &table.nodes.get(&dir).ok_or(Errno::ESTALE)?.names;
        let node = names.find(name).ok_or(Errno::ENOENT)?;
        if table.nodes.get(&node).is_some_and(|node| !node.names.by_name.is_empty()) {
            return Err(Errno::ENOTEMPTY);
        }
        table.take(dir, name);
        Ok(())
    }

    pub(super) fn rename(
        &self,
        dir: u64,
        name: &[u8],
        target: u64,
        new_name: &[u8],
    ) -> Result<(), Errno> {
        let mut table = self.nodes.write();
        let names = &mut table.nodes.get_mut(&dir).ok_or(Errno::ESTALE)?.names;
        let node = names.take(name).ok_or(Errno::ENOENT)?;
        table.take(target, new_name);
        table.nodes.get_mut(&target).ok_or(Errno::ESTALE)?.names.add(new_name, node);
        Ok(())
    }

    pub(super) fn link(&self, node: u64, dir: u64, name: &[u8]) -> Result<Attr, Errno> {
        let mut table = self.nodes.write();
        table.nodes.get_mut(&dir).ok_or(Errno::ESTALE)?.names.add(name, node);
        let attr = &mut table.nodes.get_mut(&node).ok_or(Errno::ESTALE)?.attr;
        attr.nlink += 1;
        Ok(*attr)
    }

    pub(super) fn open(&self, node: u64, is_truncating: bool) -> Result<(), Errno> {
        if is_truncating {
            let mut table = self.nodes.write();
            let node = table.nodes.get_mut(&node).ok_or(Errno::ESTALE)?;
            node.bytes.lock().clear();
            node.attr.size = 0;
        }
        Ok(())
    }

    pub(super) fn read(&self, node: u64, offset: u64, room: &mut [u8]) -> Result<usize, Errno> {
        let bytes = self.bytes(node)?;
        let bytes = bytes.lock();
        let rest = bytes.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(room.len());
        room[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    pub(super) fn write(&self, node: u64, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let bytes = self.bytes(node)?;
        let mut bytes = bytes.lock();
        let (start, end) = (offset as usize, offset as usize + data.len());
        if bytes.len() == start {
            bytes.extend_from_slice(data);
        } else {
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[start..end].copy_from_slice(data);
        }
        let size = bytes.len() as u64;
        drop(bytes);
        if let Some(node) = self.nodes.write().nodes.get_mut(&node) {
            node.attr.size = size;
            node.attr.blocks = size.div_ceil(512);
        }
        Ok(())
    }

    /// Calls `add` with each name behind a position, until `add` returns true because its space is
    /// full.
    pub(super) fn list(
        &self,
        dir: u64,
        position: u64,
        mut add: impl FnMut(Attr, u64, &[u8]) -> bool,
    ) -> Result<(), Errno> {
        let table = self.nodes.read();
        let names = &table.nodes.get(&dir).ok_or(Errno::ESTALE)?.names;
        for (cookie, (name, node)) in names.by_cookie.range(position + 1..) {
            let Some(node) = table.nodes.get(node) else { continue };
            if add(node.attr, *cookie, name) {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn forget(&self, node: u64) {
        let is_gone =
            |table: &Table| table.nodes.get(&node).is_some_and(|node| node.attr.nlink == 0);
        if is_gone(&self.nodes.read()) {
            let gone = self.nodes.write().nodes.remove(&node);
            drop(gone);
        }
    }

    fn bytes(&self, node: u64) -> Result<Arc<Mutex<Vec<u8>>>, Errno> {
        let table = self.nodes.read();
        table.nodes.get(&node).map(|node| Arc::clone(&node.bytes)).ok_or(Errno::ESTALE)
    }
}

impl Table {
    /// Removes a name, if the directory has it.
    fn take(&mut self, dir: u64, name: &[u8]) {
        let taken = self.nodes.get_mut(&dir).and_then(|dir| dir.names.take(name));
        if let Some(node) = taken.and_then(|node| self.nodes.get_mut(&node)) {
            node.attr.nlink = node.attr.nlink.saturating_sub(1);
        }
    }
}

/// The kind in a mode.
pub(super) fn kind_of(mode: u32) -> FileType {
    match mode & Attr::KIND {
        DIRECTORY => FileType::Directory,
        SYMLINK => FileType::Symlink,
        _ => FileType::Regular,
    }
}

fn now() -> (i64, u32) {
    let now = buttress_fs::now();
    (now.sec, now.nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written bytes are read back, and a name leads to its node until the name is removed. The
    /// node stays until it is forgotten.
    #[test]
    fn files_are_kept_until_forgotten() {
        let memory = Memory::default();
        let dir = memory.make(ROOT, b"d", DIRECTORY | 0o755, (0, 0), 0, &[]).expect("made").ino;
        let file = memory.make(dir, b"f", REGULAR | 0o644, (0, 0), 0, &[]).expect("made").ino;
        memory.write(file, 2, b"abc").expect("written");
        let mut room = [1; 8];
        assert_eq!(memory.read(file, 0, &mut room), Ok(5));
        assert_eq!(&room[..5], b"\0\0abc");
        assert_eq!(memory.lookup(dir, b"f").map(|attr| (attr.ino, attr.size)), Ok((file, 5)));
        assert_eq!(memory.remove(ROOT, b"d").err(), Some(Errno::ENOTEMPTY));
        memory.rename(dir, b"f", ROOT, b"g").expect("moved");
        let mut listed = Vec::new();
        let add = |_, _, name: &[u8]| {
            listed.push(name.to_vec());
            false
        };
        memory.list(ROOT, 0, add).expect("listed");
        assert_eq!(listed, [b"d".to_vec(), b"g".to_vec()]);
        memory.remove(ROOT, b"g").expect("removed");
        assert_eq!(memory.lookup(ROOT, b"g").map(|attr| attr.ino), Ok(0));
        assert!(memory.attr(file).is_ok(), "the kernel knows it");
        memory.forget(file);
        assert!(memory.attr(file).is_err());
    }
}
