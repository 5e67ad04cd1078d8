//! Applies the commands of a stream one by one.

use std::collections::HashMap;

use buttress_format::Compression;
use buttress_fs::{
    FallocateMode, FileKind, HashKind, Inode, NewInode, RenameFlags, SetAttr, VerityOptions,
    XattrFlags,
};

use super::home::Home;
use super::walk::Walk;
use super::{step, uuid_text};
use crate::error::{Error, Result};
use crate::stream::{Command, Encoded, Source, StreamPath};

/// The most clone sources kept open.
const SOURCES_MAX: usize = 64;

const REGULAR: u32 = 0o100_000;
const FIFO: u32 = 0o010_000;
const SOCKET: u32 = 0o140_000;

/// The subvolume that is being received.
pub(super) struct Current {
    pub(super) name: Vec<u8>,
    pub(super) source: Source,
    pub(super) top: Inode,
    walk: Walk,
    sources: HashMap<Source, Walk>,
}

impl Current {
    pub(super) fn new(name: &[u8], source: Source, top: Inode) -> Self {
        let walk = Walk::new(top.clone());
        Self { name: name.to_vec(), source, top, walk, sources: HashMap::new() }
    }

    /// Drops every inode except the top.
    pub(super) fn drop_inodes(&mut self) {
        self.walk.forget();
        self.sources.clear();
    }

    /// Applies one command.
    pub(super) fn apply(&mut self, home: &impl Home, command: &Command<'_>) -> Result<()> {
        let (name, path) = subject(command);
        self.act(home, command).map_err(|error| step(name, path.as_bytes(), error))
    }

    fn act(&mut self, home: &impl Home, command: &Command<'_>) -> Result<()> {
        match *command {
            Command::MkFile { path, .. } => self.make(path, REGULAR | 0o600, 0),
            Command::MkFifo { path, .. } => self.make(path, FIFO | 0o600, 0),
            Command::MkSock { path, .. } => self.make(path, SOCKET | 0o600, 0),
            Command::MkNod { path, mode, rdev, .. } => {
                let mode = u32::try_from(mode).map_err(|_| Error::Refused("a mode of no file"))?;
                match FileKind::from_mode(mode) {
                    None | Some(FileKind::Directory | FileKind::Symlink) => {
                        Err(Error::Refused("a mode of no device, pipe or socket"))
                    }
                    Some(_) => self.make(path, mode, unpack_device(rdev)),
                }
            }
            Command::MkDir { path, .. } => {
                let (dir, name) = self.walk.parent(path)?;
                dir.mkdir(name, 0o700, 0, 0)?;
                Ok(())
            }
            Command::Symlink { path, target, .. } => {
                let (dir, name) = self.walk.parent(path)?;
                dir.symlink(name, target, 0, 0)?;
                Ok(())
            }
            Command::Rename { path, to } => self.rename(path, to),
            Command::Link { path, existing } => {
                let inode = self.walk.find(existing)?;
                let (dir, name) = self.walk.parent(path)?;
                Ok(dir.link(&inode, name)?)
            }
            Command::Unlink { path } => {
                self.walk.forget_file();
                let (dir, name) = self.walk.parent(path)?;
                Ok(dir.unlink(name)?)
            }
            Command::Rmdir { path } => {
                let (dir, name) = self.walk.parent(path)?;
                self.walk.forget();
                Ok(dir.rmdir(name)?)
            }
            Command::SetXattr { path, name, value } => {
                Ok(self.walk.find(path)?.set_xattr(name, value, XattrFlags::default())?)
            }
            Command::RemoveXattr { path, name } => Ok(self.walk.find(path)?.remove_xattr(name)?),
            Command::Write { path, offset, data } => self.write(path, offset, data),
            Command::EncodedWrite { path, offset, encoded, data } => {
                let content = unpack(&encoded, data)?;
                self.write(path, offset, &content)
            }
            Command::Clone { path, offset, len, source, source_path, source_offset } => {
                let target = self.walk.find(path)?;
                let from = self.walk_of(home, &source)?.find(source_path)?;
                self.clone(&from, source_offset, &target, (offset, len))
            }
            Command::Fallocate { path, mode, offset, len } => {
                let mode = fallocate_mode(mode)?;
                Ok(self.walk.find(path)?.preserve_times().fallocate(offset, len, mode)?)
            }
            Command::Truncate { path, size } => {
                self.set(path, SetAttr { size: Some(size), ..SetAttr::default() })
            }
            Command::Chmod { path, mode } => {
                let mode = Some((mode & 0o7777) as u32);
                self.set(path, SetAttr { mode, ..SetAttr::default() })
            }
            Command::Chown { path, uid, gid } => {
                self.set(path, SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() })
            }
            Command::Utimes { path, stamps } => self.set(
                path,
                SetAttr {
                    atime: Some(stamps.atime),
                    mtime: Some(stamps.mtime),
                    ctime: Some(stamps.ctime),
                    ..SetAttr::default()
                },
            ),
            // A stream without data only names the ranges, so nothing is written. File flags are
            // ignored, as `btrfs receive` ignores them.
            Command::UpdateExtent { .. } | Command::FileAttr { .. } => Ok(()),
            Command::EnableVerity { path, algorithm, block_size, salt, signature } => {
                let hash = HashKind::from_disk(algorithm);
                let hash = hash.ok_or(Error::Refused("an unknown hash function of fs-verity"))?;
                let (salt, signature) = (salt.to_vec(), signature.to_vec());
                let options = VerityOptions { hash, block_size, salt, signature };
                self.walk.find(path)?.enable_verity(&options)?;
                Ok(())
            }
            Command::Subvol { .. } | Command::Snapshot { .. } | Command::End => {
                Err(Error::Refused("a command that is none of a subvolume"))
            }
        }
    }

    fn make(&mut self, path: StreamPath<'_>, mode: u32, rdev: u64) -> Result<()> {
        self.walk.forget_file();
        let (dir, name) = self.walk.parent(path)?;
        dir.create(name, NewInode::of_mode(mode, rdev))?;
        Ok(())
    }

    fn rename(&mut self, path: StreamPath<'_>, to: StreamPath<'_>) -> Result<()> {
        let moved = self.walk.find(path)?.kind();
        let (dir, name) = self.walk.parent(path)?;
        let (target, new) = self.walk.parent(to)?;
        // If a directory moves, remembered paths through it are no longer right.
        match moved {
            FileKind::Directory => self.walk.forget(),
            _ => self.walk.forget_file(),
        }
        Ok(dir.rename(name, &target, new, RenameFlags::default())?)
    }

    fn set(&mut self, path: StreamPath<'_>, set: SetAttr) -> Result<()> {
        self.walk.find(path)?.set_attr(&set)?;
        Ok(())
    }

    fn write(&mut self, path: StreamPath<'_>, offset: u64, data: &[u8]) -> Result<()> {
        let file = self.walk.find(path)?;
        if !data.is_empty() {
            file.preserve_times().write_at(offset, data)?;
        }
        Ok(())
    }

    /// Shares whole sectors where possible, and copies the rest.
    fn clone(
        &self,
        from: &Inode,
        from_offset: u64,
        to: &Inode,
        (offset, len): (u64, u64),
    ) -> Result<()> {
        let done = to.preserve_times().copy_from(offset, from, from_offset, len)?;
        if done < len {
            return Err(Error::Refused("the source is shorter than what is to be taken from it"));
        }
        Ok(())
    }

    /// The subvolume that a clone comes from: the current one, or a subvolume that was received
    /// before.
    fn walk_of(&mut self, home: &impl Home, source: &Source) -> Result<&mut Walk> {
        if source.uuid == self.source.uuid {
            return Ok(&mut self.walk);
        }
        if !self.sources.contains_key(source) {
            let tree = home.find(source)?;
            let tree = tree.ok_or_else(|| Error::NoSource(uuid_text(&source.uuid)))?;
            if self.sources.len() >= SOURCES_MAX {
                self.sources.clear();
            }
            self.sources.insert(*source, Walk::new(home.top(tree)?));
        }
        Ok(self.sources.get_mut(source).expect("it was just put there"))
    }
}

/// The name of a command, and its path.
fn subject<'c>(command: &Command<'c>) -> (&'static str, StreamPath<'c>) {
    match *command {
        Command::MkFile { path, .. } => ("mkfile", path),
        Command::MkDir { path, .. } => ("mkdir", path),
        Command::MkNod { path, .. } => ("mknod", path),
        Command::MkFifo { path, .. } => ("mkfifo", path),
        Command::MkSock { path, .. } => ("mksock", path),
        Command::Symlink { path, .. } => ("symlink", path),
        Command::Rename { path, .. } => ("rename", path),
        Command::Link { path, .. } => ("link", path),
        Command::Unlink { path } => ("unlink", path),
        Command::Rmdir { path } => ("rmdir", path),
        Command::SetXattr { path, .. } => ("set_xattr", path),
        Command::RemoveXattr { path, .. } => ("remove_xattr", path),
        Command::Write { path, .. } => ("write", path),
        Command::Clone { path, .. } => ("clone", path),
        Command::Truncate { path, .. } => ("truncate", path),
        Command::Chmod { path, .. } => ("chmod", path),
        Command::Chown { path, .. } => ("chown", path),
        Command::Utimes { path, .. } => ("utimes", path),
        Command::UpdateExtent { path, .. } => ("update_extent", path),
        Command::Fallocate { path, .. } => ("fallocate", path),
        Command::FileAttr { path, .. } => ("fileattr", path),
        Command::EncodedWrite { path, .. } => ("encoded_write", path),
        Command::EnableVerity { path, .. } => ("enable_verity", path),
        Command::Subvol { name, .. } => ("subvol", name),
        Command::Snapshot { name, .. } => ("snapshot", name),
        Command::End => ("end", StreamPath::TOP),
    }
}

/// Converts the mode of fallocate(2).
fn fallocate_mode(mode: u32) -> Result<FallocateMode> {
    Ok(match mode {
        0 => FallocateMode::Allocate { keep_size: false },
        1 => FallocateMode::Allocate { keep_size: true },
        3 => FallocateMode::PunchHole,
        0x10 => FallocateMode::ZeroRange { keep_size: false },
        0x11 => FallocateMode::ZeroRange { keep_size: true },
        _ => return Err(Error::Refused("a mode of fallocate that is not supported")),
    })
}

/// Decompresses an encoded write into file data.
fn unpack(encoded: &Encoded, data: &[u8]) -> Result<Vec<u8>> {
    if encoded.encryption != 0 {
        return Err(Error::Refused("encryption is not supported"));
    }
    let (kind, segment) = match encoded.compression {
        0 => (Compression::None, 4096),
        1 => (Compression::Zlib, 4096),
        2 => (Compression::Zstd, 4096),
        number @ 3..=7 => (Compression::Lzo, 4096_usize << (number - 3)),
        _ => return Err(Error::Refused("an unknown compression")),
    };
    let content = buttress_data::decompress(
        kind,
        buttress_format::Logical(0),
        data,
        encoded.ram_bytes,
        segment,
    );
    let mut content = content.map_err(buttress_fs::Error::from)?;
    // The sum cannot overflow, since it was bounded when the command was read.
    let end = usize::try_from(encoded.offset + encoded.file_len).unwrap_or(usize::MAX);
    if end > content.len() {
        return Err(Error::Refused("more is to be written than the data unpacks to"));
    }
    content.truncate(end);
    content.drain(..encoded.offset as usize);
    Ok(content)
}

/// Converts a device number from the system calls' form to the format's (major << 20 | minor).
fn unpack_device(rdev: u64) -> u64 {
    let major = rdev >> 8 & 0xfff;
    let minor = rdev & 0xff | rdev >> 12 & 0xf_ff00;
    major << 20 | minor
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packed device numbers unpack to the original ones.
    #[test]
    fn device_numbers_are_unpacked() {
        assert_eq!(unpack_device(0x0010_082c), 8 << 20 | 300);
        assert_eq!(unpack_device(0x507), 5 << 20 | 7);
    }

    /// An encoded write that claims more bytes than its data unpacks to is refused.
    #[test]
    fn encoded_writes_are_bounded() {
        let mut encoded =
            Encoded { file_len: 10, ram_bytes: 20, offset: 5, compression: 0, encryption: 0 };
        assert_eq!(unpack(&encoded, b"0123456789abcdefghij").expect("fits"), b"56789abcde");
        encoded.file_len = 16;
        assert!(unpack(&encoded, b"0123456789abcdefghij").is_err());
        encoded = Encoded { file_len: 10, ram_bytes: u64::MAX, ..encoded };
        assert!(unpack(&encoded, b"x").is_err());
        encoded = Encoded { ram_bytes: 20, compression: 2, ..encoded };
        assert!(unpack(&encoded, b"not a frame").is_err());
    }
}
