//! Copies from a volume to the same volume or to another volume.

use buttress_fs::{ErrorKind, FileKind, Inode, NameError, SetAttr, XattrFlags};

use super::{CHUNK, Job, Reflink, caller, directory, needs_recursive, regular, replacing};
use crate::listing::{self, Entry};
use buttress_control::exit::{Context, Exit, Failure, Result};
use buttress_control::location::show;

/// A directory being copied.
struct Level {
    left: std::vec::IntoIter<Entry>,
    source: Inode,
    target: Inode,
}

/// Copies `inode` to the name `target` in `dir`.
pub fn copy_within(job: &mut Job<'_>, inode: &Inode, dir: &Inode, target: &[u8]) -> Result<()> {
    let mut stack = Vec::new();
    let mut buffer = vec![0_u8; CHUNK];
    copy(job, inode, dir, target, &mut stack, &mut buffer, &|_, _| Ok(()))?;
    while let Some(mut level) = stack.pop() {
        let Some(entry) = level.left.next() else {
            keep(job, &level.source, &level.target).context(|| show(target))?;
            continue;
        };
        let at = stack.len();
        let made = &|_: &mut Job<'_>, _: &Inode| Ok(());
        copy(job, &entry.inode, &level.target, &entry.name, &mut stack, &mut buffer, made)?;
        stack.insert(at, level);
    }
    Ok(())
}

/// A function that changes a new regular file before it has content.
type Made<'m> = &'m dyn Fn(&mut Job<'_>, &Inode) -> buttress_fs::Result<()>;

/// Copies anything but a directory to the name `target` in `dir`. A new regular file is shown to
/// `made` before it has content.
pub(super) fn copy_file(
    job: &mut Job<'_>,
    inode: &Inode,
    dir: &Inode,
    target: &[u8],
    made: Made<'_>,
) -> Result<()> {
    copy(job, inode, dir, target, &mut Vec::new(), &mut vec![0_u8; CHUNK], made)
}

fn copy(
    job: &mut Job<'_>,
    inode: &Inode,
    dir: &Inode,
    name: &[u8],
    stack: &mut Vec<Level>,
    buffer: &mut [u8],
    made: Made<'_>,
) -> Result<()> {
    let text = || show(name);
    let attr = inode.attr();
    let (uid, gid) = if job.keep.everything { (attr.uid, attr.gid) } else { caller() };
    job.bar.set_message(&text());
    let copied = match attr.kind {
        FileKind::Directory => {
            needs_recursive(job, &text())?;
            if stack.first().is_some_and(|top| top.target.id() == inode.id()) {
                let what = format!("{}: a directory cannot be copied into itself", text());
                return Err(Failure::new(Exit::Failure, what));
            }
            // The source is listed before the copy may appear in it.
            let left = listing::entries(inode).context(text)?.into_iter();
            let target = directory(dir, name, attr.mode, (uid, gid)).context(text)?;
            job.tally.directories += 1;
            stack.push(Level { left, source: inode.clone(), target });
            return Ok(());
        }
        FileKind::Symlink => {
            let link = inode.read_link().context(text)?;
            job.tally.others += 1;
            replacing(dir, name, || dir.symlink(name, &link, uid, gid)).context(text)?
        }
        FileKind::Regular => {
            if dir.lookup(name).is_ok_and(|found| found.id() == inode.id()) {
                let what = format!("{}: is the same file on both sides", text());
                return Err(Failure::new(Exit::Failure, what));
            }
            let copied = regular(dir, name, attr.mode, (uid, gid)).context(text)?;
            made(job, &copied).context(text)?;
            content(job, inode, &copied, attr.size, buffer).context(text)?;
            job.tally.files += 1;
            copied
        }
        FileKind::Character | FileKind::Block | FileKind::Fifo | FileKind::Socket => {
            job.tally.others += 1;
            replacing(dir, name, || dir.create(name, attr.mode, uid, gid, attr.rdev))
                .context(text)?
        }
    };
    keep(job, inode, &copied).context(text)
}

fn content(
    job: &mut Job<'_>,
    source: &Inode,
    target: &Inode,
    size: u64,
    buffer: &mut [u8],
) -> buttress_fs::Result<()> {
    match job.reflink {
        Reflink::Never => {}
        Reflink::Always => return shared(job, source, target, size),
        Reflink::Auto => match shared(job, source, target, size) {
            // If the files are in different volumes, or only one of them has checksums, the data is
            // copied.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Invalid | ErrorKind::Name(NameError::CrossDevice)
                ) => {}
            done => return done,
        },
    }
    let mut offset = 0;
    while offset < size {
        offset = match source.seek_data(offset) {
            Ok(start) => start,
            Err(error) if error.kind() == ErrorKind::Name(NameError::NoSuchRange) => break,
            Err(error) => return Err(error),
        };
        let end = source.seek_hole(offset)?.min(size);
        while offset < end {
            let want = usize::try_from(end - offset).map_or(CHUNK, |left| left.min(CHUNK));
            let read = source.read_at(offset, &mut buffer[..want])?;
            if read == 0 {
                break;
            }
            target.write_at(offset, &buffer[..read])?;
            offset += read as u64;
            job.bar.add(read as u64);
            job.tally.bytes += read as u64;
        }
    }
    target.set_attr(&SetAttr { size: Some(size), ..SetAttr::default() })?;
    Ok(())
}

/// Lets the copy share the data of the source.
fn shared(job: &mut Job<'_>, source: &Inode, target: &Inode, size: u64) -> buttress_fs::Result<()> {
    source.clone_range(0, target, 0, 0)?;
    job.bar.add(size);
    job.tally.bytes += size;
    Ok(())
}

fn keep(job: &Job<'_>, source: &Inode, target: &Inode) -> buttress_fs::Result<()> {
    let attr = source.attr();
    if job.keep.everything {
        for name in source.list_xattrs()? {
            target.set_xattr(&name, &source.xattr(&name)?, XattrFlags::default())?;
        }
    }
    if job.keep.everything || job.keep.attributes {
        let is_link = attr.kind == FileKind::Symlink;
        target.set_attr(&SetAttr {
            mode: (!is_link).then_some(attr.mode & 0o7777),
            atime: Some(attr.atime),
            mtime: Some(attr.mtime),
            ..SetAttr::default()
        })?;
    }
    Ok(())
}
