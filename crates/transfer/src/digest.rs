//! A number that depends on the content of a tree of files, and on nothing else.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use buttress_format::CsumType;
use buttress_fs::FileKind;

use super::CHUNK;
use super::import::{kind, length, open_child, open_file, stat};
use super::names::Names;
use buttress_control::exit::{Context, Result};
use buttress_control::location::show;

/// A digest of everything that was added, in order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chain(u64);

impl Chain {
    /// Adds bytes and their length.
    pub fn add(&mut self, bytes: &[u8]) {
        let digest = CsumType::Xxhash64.digest(bytes);
        let mut link = [0; 24];
        link[..8].copy_from_slice(&self.0.to_le_bytes());
        link[8..16].copy_from_slice(&digest[..8]);
        link[16..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        let digest = CsumType::Xxhash64.digest(&link);
        let mut number = [0; 8];
        number.copy_from_slice(&digest[..8]);
        self.0 = u64::from_le_bytes(number);
    }

    /// Returns the number.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// Adds all bytes of an archive.
pub fn digest_archive(mut input: impl std::io::Read, chain: &mut Chain) -> Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        let mut read = 0;
        while read < CHUNK {
            match input.read(&mut buffer[read..]) {
                Ok(0) => break,
                Ok(more) => read += more,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context(|| "the archive"),
            }
        }
        chain.add(&buffer[..read]);
        if read < CHUNK {
            return Ok(());
        }
    }
}

/// Adds the content of a directory: names, types, modes, owners, file content, and targets of
/// links. Times are left out, because reading and copying can change them.
pub fn digest(dir: OwnedFd, images: &[(u64, u64)], chain: &mut Chain) -> Result<()> {
    let first = Names::of(&dir, &|_| false)?;
    let mut stack = vec![(dir, first)];
    let mut buffer = vec![0; CHUNK];
    while let Some((dir, left)) = stack.last_mut() {
        let Some(name) = left.next()? else {
            chain.add(b"");
            stack.pop();
            continue;
        };
        let text = || show(name.as_bytes());
        let stat = stat(dir, &name)?;
        if images.contains(&(stat.st_dev, stat.st_ino)) {
            continue;
        }
        chain.add(name.as_bytes());
        for number in [stat.st_mode, stat.st_uid, stat.st_gid] {
            chain.add(&number.to_le_bytes());
        }
        chain.add(&stat.st_rdev.to_le_bytes());
        match kind(&stat) {
            Some(FileKind::Directory) => {
                let child = open_child(dir, &name)?;
                let left = Names::of(&child, &|_| false)?;
                stack.push((child, left));
            }
            Some(FileKind::Regular) => {
                let file = open_file(dir, &name, &stat)?;
                let (len, mut offset) = (length(&stat), 0);
                chain.add(&len.to_le_bytes());
                while offset < len {
                    let read = rustix::io::pread(&file, &mut buffer[..], offset).context(text)?;
                    if read == 0 {
                        break;
                    }
                    chain.add(&buffer[..read]);
                    offset += read as u64;
                }
            }
            Some(FileKind::Symlink) => {
                let link = rustix::fs::readlinkat(&*dir, &name, Vec::new()).context(text)?;
                chain.add(link.as_bytes());
            }
            _ => {}
        }
    }
    Ok(())
}
