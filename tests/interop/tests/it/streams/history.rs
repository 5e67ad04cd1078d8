//! A random history of a tree, from a seed. It has everything that streams have to carry, including
//! the difficult cases.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use buttress_base::Rng;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, RenameFlags, Timespec, Timestamps, Uid,
    XattrFlags,
};

/// A tree on a mount of Linux, and the random choices.
pub(crate) struct History {
    top: PathBuf,
    rng: Rng,
    /// Relative paths of directories, the top first.
    dirs: Vec<PathBuf>,
    /// Relative paths of all other objects.
    files: Vec<PathBuf>,
    count: u64,
}

impl History {
    /// Begins in an empty directory.
    pub(crate) fn new(top: &Path, seed: u64) -> Self {
        let (dirs, files) = (vec![PathBuf::new()], Vec::new());
        Self { top: top.to_owned(), rng: Rng::new(seed), dirs, files, count: 0 }
    }

    /// Makes `steps` random changes. Changes that Linux refuses, such as a directory into itself,
    /// count too.
    pub(crate) fn go_on(&mut self, steps: usize) {
        for step in 0..steps {
            if step % 20 == 0 {
                self.look();
            }
            // Random changes may be refused.
            let _ = self.step();
        }
        self.look();
        let top = File::open(&self.top).expect("the top");
        rustix::fs::syncfs(top).expect("a sync");
    }

    /// Lists the present files and directories.
    fn look(&mut self) {
        self.dirs = vec![PathBuf::new()];
        self.files.clear();
        let mut at = 0;
        while at < self.dirs.len() {
            let dir = self.dirs[at].clone();
            at += 1;
            let mut entries: Vec<_> = std::fs::read_dir(self.top.join(&dir))
                .expect("a directory")
                .map(|entry| entry.expect("an entry"))
                .collect();
            entries.sort_by_key(std::fs::DirEntry::file_name);
            for entry in entries {
                let path = dir.join(entry.file_name());
                match entry.file_type().expect("a type").is_dir() {
                    true => self.dirs.push(path),
                    false => self.files.push(path),
                }
            }
        }
    }

    fn any_dir(&mut self) -> PathBuf {
        let index = self.rng.below(self.dirs.len() as u64) as usize;
        self.top.join(&self.dirs[index])
    }

    fn any_file(&mut self) -> PathBuf {
        if self.files.is_empty() {
            return self.top.join("nothing there");
        }
        let index = self.rng.below(self.files.len() as u64) as usize;
        self.top.join(&self.files[index])
    }

    /// A new name, or one of a few names that are used often.
    fn new_name(&mut self) -> PathBuf {
        let dir = self.any_dir();
        self.count += 1;
        match self.rng.below(3) {
            0 => dir.join(format!("wanted {}", self.rng.below(6))),
            _ => dir.join(format!("name {}", self.count)),
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = match self.rng.below(4) {
            0 => self.rng.below(100),
            1 => self.rng.below(5000),
            _ => self.rng.below(200_000),
        };
        let mut bytes = vec![0; len as usize];
        if self.rng.chance(1, 2) {
            self.rng.fill(&mut bytes);
        } else {
            let word = self.rng.next_u64().to_le_bytes();
            bytes.iter_mut().zip(word.iter().cycle()).for_each(|(byte, from)| *byte = *from);
        }
        bytes
    }

    fn open(path: &Path) -> std::io::Result<File> {
        if !path.symlink_metadata()?.is_file() {
            return Err(std::io::ErrorKind::InvalidInput.into());
        }
        OpenOptions::new().read(true).write(true).open(path)
    }

    #[allow(clippy::too_many_lines, reason = "a list")]
    fn step(&mut self) -> std::io::Result<()> {
        let offset = match self.rng.below(3) {
            0 => self.rng.below(60) * 4096,
            _ => self.rng.below(250_000),
        };
        match self.rng.below(31) {
            0..=4 => {
                let (name, bytes) = (self.new_name(), self.bytes());
                // Opening a pipe would wait for its other end.
                if name.symlink_metadata().is_ok_and(|there| !there.is_file()) {
                    return Ok(());
                }
                std::fs::write(&name, bytes)?;
                self.files.push(name.strip_prefix(&self.top).expect("below").to_owned());
            }
            5 | 6 => {
                let name = self.new_name();
                std::fs::create_dir(&name)?;
                self.dirs.push(name.strip_prefix(&self.top).expect("below").to_owned());
            }
            7 | 8 => {
                let (file, bytes) = (Self::open(&self.any_file())?, self.bytes());
                file.write_all_at(&bytes, offset)?;
            }
            9 => Self::open(&self.any_file())?.set_len(offset)?,
            10 => {
                let file = Self::open(&self.any_file())?;
                file.write_all_at(b"far away", offset << 12)?;
            }
            11 => {
                let flags = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE;
                let len = self.rng.below(100_000) + 1;
                rustix::fs::fallocate(Self::open(&self.any_file())?, flags, offset, len)?;
            }
            12 => {
                let keep = self.rng.chance(1, 2);
                let flags = if keep { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
                rustix::fs::fallocate(Self::open(&self.any_file())?, flags, offset, 70_000)?;
            }
            13 => {
                let (from, to) = (Self::open(&self.any_file())?, self.new_name());
                let to = File::create_new(&to)?;
                rustix::fs::ioctl_ficlone(to, from)?;
            }
            14 | 15 => {
                let (from, to) = (Self::open(&self.any_file())?, Self::open(&self.any_file())?);
                let mut from_at = self.rng.below(20) * 4096;
                let mut to_at = self.rng.below(20) * 4096;
                let len = (self.rng.below(20) as usize + 1) * 4096;
                rustix::fs::copy_file_range(from, Some(&mut from_at), to, Some(&mut to_at), len)?;
            }
            16 | 17 => std::fs::rename(self.any_file(), self.new_name())?,
            18 => std::fs::rename(self.any_file(), self.any_file())?,
            19 | 20 => std::fs::rename(self.any_dir(), self.new_name())?,
            21 => {
                let (one, other) = match self.rng.below(3) {
                    0 => (self.any_file(), self.any_dir()),
                    1 => (self.any_dir(), self.any_dir()),
                    _ => (self.any_file(), self.any_file()),
                };
                rustix::fs::renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?;
            }
            22 => std::fs::hard_link(self.any_file(), self.new_name())?,
            23 => std::fs::remove_file(self.any_file())?,
            24 => {
                let dir = self.any_dir();
                if dir != self.top && self.rng.chance(1, 2) {
                    std::fs::remove_dir_all(dir)?;
                    self.look();
                }
            }
            25 => {
                // The name gets an object of another kind.
                let file = self.any_file();
                std::fs::remove_file(&file)?;
                std::fs::create_dir(&file)?;
                std::fs::write(file.join("inside"), "was a file")?;
            }
            26 => std::os::unix::fs::symlink("somewhere/else", self.new_name())?,
            27 => {
                let kind = *self
                    .rng
                    .choose(&[FileType::Fifo, FileType::CharacterDevice, FileType::Socket])
                    .expect("three");
                let device = rustix::fs::makedev(8, 300);
                rustix::fs::mknodat(CWD, self.new_name(), kind, Mode::RUSR, device)?;
            }
            28 => self.attributes()?,
            29 => self.xattr()?,
            _ => {
                let time = Timespec { tv_sec: 1_000_000_000 + offset as i64, tv_nsec: 123_456_789 };
                let times = Timestamps { last_access: time, last_modification: time };
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::utimensat(CWD, self.any_file(), &times, flags)?;
            }
        }
        Ok(())
    }

    fn attributes(&mut self) -> std::io::Result<()> {
        let at = if self.rng.chance(1, 3) { self.any_dir() } else { self.any_file() };
        if self.rng.chance(1, 2) {
            let (uid, gid) = (Uid::from_raw(1000), Gid::from_raw(self.rng.below(9) as u32));
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::chownat(CWD, &at, Some(uid), Some(gid), flags)?;
        }
        if !at.is_symlink() {
            let mode = [0o700, 0o4755, 0o2775, 0o1777, 0o644][self.rng.below(5) as usize];
            rustix::fs::chmodat(CWD, &at, Mode::from_raw_mode(mode), AtFlags::empty())?;
        }
        Ok(())
    }

    fn xattr(&mut self) -> std::io::Result<()> {
        let flags = XattrFlags::empty();
        let name = format!("user.{}", self.rng.below(3));
        match self.rng.below(6) {
            0 => {
                // u::rwx, u:1000:rwx, g::r-x, m::rwx, o::r-x
                let mut acl = 2_u32.to_le_bytes().to_vec();
                for (tag, bits, id) in
                    [(1_u16, 7_u16, !0), (2, 7, 1000_u32), (4, 5, !0), (16, 7, !0), (32, 5, !0)]
                {
                    acl.extend_from_slice(&tag.to_le_bytes());
                    acl.extend_from_slice(&bits.to_le_bytes());
                    acl.extend_from_slice(&id.to_le_bytes());
                }
                let dir = self.any_dir();
                if dir == self.top {
                    return Ok(());
                }
                rustix::fs::lsetxattr(dir, "system.posix_acl_default", &acl, flags)?;
            }
            1 => rustix::fs::lremovexattr(self.any_file(), name.as_str())?,
            2 => rustix::fs::lremovexattr(self.any_dir(), "system.posix_acl_default")?,
            3 => {
                let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                let file = self.any_file();
                rustix::fs::lsetxattr(file, "security.capability", &capability, flags)?;
            }
            _ => {
                let at = if self.rng.chance(1, 2) { self.any_dir() } else { self.any_file() };
                let value = self.rng.next_u64().to_string();
                rustix::fs::lsetxattr(at, name.as_str(), value.as_bytes(), flags)?;
            }
        }
        Ok(())
    }
}
