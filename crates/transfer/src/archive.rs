//! Copies a tar archive into a volume.
//!
//! # Invariants
//!
//! - **A1** No name of an archive leads out of the top of the copy. A name with `..` is refused,
//!   and also a name that leads through a symbolic link.
//! - **A2** If several entries have one name, the last entry wins. Hard links to an earlier entry
//!   keep the content of that entry.
//! - **A3** A hard link across a subvolume is a copy of the file. More links from the same
//!   subvolume to the file are links to the copy.
//! - **A5** A list with names that the archive has not shown yet is read again at its end, when all
//!   names are known. So the order of the entries does not matter.
//! - **A4** Whiteouts of container layers are copied like any other file or device.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use buttress_fs::{
    ErrorKind, FileKind, Filesystem, Inode, InodeId, NameError, NewInode, SetAttr, Timespec,
    TreeId, XattrFlags,
};

use super::acl;
use super::import::write_data;
use super::tar::{Archive, Entry, Kind};
use super::{CHUNK, Census, Job, Search, Within};
use buttress_control::exit::{Context, Exit, Failure, Result};
use buttress_control::location::show;

/// The most lines about what was left out.
const NOTES_MAX: usize = 50;
/// The most lists that wait for names, and the most bytes of all of them. Further lists are read
/// with the names that were shown before.
const WAITING_MAX: usize = 1 << 16;
const WAITING_BYTES_MAX: usize = 16 << 20;
/// The mode of a folder that has no entry of its own.
const IMPLIED: u32 = 0o755;

/// Counts the entries that [`Unpack`] would copy. Shows `search` all files and folders.
pub fn survey_archive(input: impl Read, search: &mut Search<'_>) -> Result<Census> {
    let mut archive = Archive::new(input);
    let mut census = Census::default();
    while let Some(entry) = archive.next().context(|| "the archive")? {
        let path: PathBuf = parts(&entry.path)?.into_iter().map(OsStr::from_bytes).collect();
        match entry.kind {
            Kind::Directory => search.saw(&path, true),
            Kind::Regular | Kind::Link => search.saw(&path, false),
            _ => path.parent().into_iter().for_each(|above| search.saw(above, true)),
        }
        census.entries += 1;
        census.name_bytes += entry.path.len() as u64;
        let stored: u64 = entry.runs.iter().map(|(_, len)| len.next_multiple_of(4096)).sum();
        census.data_bytes = census.data_bytes.saturating_add(stored);
        census.file_bytes = census.file_bytes.saturating_add(entry.size);
        census.sector_bytes = census.data_bytes;
    }
    Ok(census)
}

/// The lists of an entry with names that have no number yet.
struct Waiting {
    path: Vec<u8>,
    access: Option<Vec<u8>>,
    default: Option<Vec<u8>>,
}

impl Waiting {
    fn len(&self) -> usize {
        let list = |list: &Option<Vec<u8>>| list.as_ref().map_or(0, Vec::len);
        self.path.len() + list(&self.access) + list(&self.default)
    }
}

/// Copies an archive into one volume.
pub struct Unpack<'a, 'b> {
    job: &'a mut Job<'b>,
    fs: &'a Filesystem,
    buffer: Vec<u8>,
    /// Attributes of directories, and the lists for their new files. They are set at the end,
    /// because filling a directory changes its times, and new files would get its list.
    directories: BTreeMap<InodeId, (SetAttr, Option<Vec<u8>>)>,
    /// The copies of files in other subvolumes, by the file and the subvolume of the copy (A3).
    copies: BTreeMap<(InodeId, TreeId), InodeId>,
    /// The names of owners that the archive has shown, for its access control lists.
    names: acl::Names,
    /// Lists that are read again at the end (A5), and their bytes.
    waiting: BTreeMap<InodeId, Waiting>,
    waiting_bytes: usize,
    /// What was left out.
    notes: Vec<String>,
}

impl<'a, 'b> Unpack<'a, 'b> {
    /// Prepares a copy into `fs`.
    pub fn new(job: &'a mut Job<'b>, fs: &'a Filesystem) -> Self {
        let buffer = vec![0; CHUNK];
        let (directories, copies) = (BTreeMap::new(), BTreeMap::new());
        let (names, notes) = (acl::Names::default(), Vec::new());
        let (waiting, waiting_bytes) = (BTreeMap::new(), 0);
        Self { job, fs, buffer, directories, copies, names, waiting, waiting_bytes, notes }
    }

    /// Copies all entries. Returns what was left out of them, a line for each.
    pub fn all(mut self, input: impl Read) -> Result<Vec<String>> {
        let mut archive = Archive::new(input);
        while let Some(entry) = archive.next().context(|| "the archive")? {
            let (user, group) = &entry.names;
            self.names.note((user, entry.uid), (group, entry.gid));
            self.entry(&entry, &mut archive)?;
        }
        for (id, waiting) in std::mem::take(&mut self.waiting) {
            self.named(id, &waiting)?;
        }
        for (id, (set, list)) in std::mem::take(&mut self.directories) {
            let done = self.fs.inode(id).and_then(|inode| {
                if let Some(list) = list {
                    inode.set_xattr(acl::DEFAULT, &list, XattrFlags::default())?;
                }
                inode.set_attr(&set)
            });
            done.context(|| "a directory")?;
        }
        // Reads the archive to its end. Otherwise a program that writes it into a pipe could fail.
        archive.drain().context(|| "the archive")?;
        Ok(self.notes)
    }

    fn entry(&mut self, entry: &Entry, archive: &mut Archive<impl Read>) -> Result<()> {
        let text = || show(&entry.path);
        self.job.bar.set_message(&text());
        let mut parts = parts(&entry.path)?;
        let Some(name) = parts.pop() else {
            // An entry with an empty path is the top itself.
            if entry.kind != Kind::Directory {
                return Err(Failure::new(Exit::Failure, format!("{}: has no name", text())));
            }
            let top = self.fs.root();
            xattrs(&top, entry)?;
            let late = self.lists(&top, entry)?;
            self.directories.insert(top.id(), late);
            return Ok(());
        };
        let (dir, at) = self.folder(&parts)?;
        let there = found(&dir, name).context(text)?;
        if entry.kind == Kind::Directory {
            return self.directory(entry, (&dir, at), name, there);
        }
        let target = match entry.kind {
            Kind::Link => Some(self.target(entry)?),
            _ => None,
        };
        if let Some(there) = there {
            let is_it = |target: &Inode| {
                let copy = self.copies.get(&(target.id(), dir.id().tree));
                target.id() == there.id() || copy == Some(&there.id())
            };
            if target.as_ref().is_some_and(is_it) {
                return Ok(());
            }
            // Fails if the name belongs to a directory.
            dir.unlink(name).context(text)?;
        }
        if let Some(target) = target {
            return self.link(&target, (&dir, at), name).context(text)?;
        }
        let (uid, gid) = (entry.uid, entry.gid);
        let (major, minor) = entry.device;
        let device = u64::from(major) << 20 | u64::from(minor);
        let create = |kind: FileKind| {
            dir.create(
                name,
                NewInode::of_mode(entry.mode | kind.mode_bits(), device).owner(uid, gid),
            )
            .context(text)
        };
        let inode = match entry.kind {
            Kind::Regular => {
                let inode = create(FileKind::Regular)?;
                self.job.special.file(&at, name, &inode).context(text)?;
                self.content(entry, archive, &inode)?;
                self.job.tally.files += 1;
                inode
            }
            Kind::Symlink => dir.symlink(name, &entry.link, uid, gid).context(text)?,
            Kind::Character => create(FileKind::Character)?,
            Kind::Block => create(FileKind::Block)?,
            Kind::Fifo | Kind::Directory | Kind::Link => create(FileKind::Fifo)?,
        };
        xattrs(&inode, entry)?;
        let (mut set, _) = self.lists(&inode, entry)?;
        if entry.kind == Kind::Symlink {
            set.mode = None;
        }
        inode.set_attr(&set).context(text)?;
        Ok(())
    }

    /// Gives a file one more name, or copies it into another subvolume (A3).
    fn link(
        &mut self,
        target: &Inode,
        (dir, at): (&Inode, PathBuf),
        name: &[u8],
    ) -> buttress_fs::Result<Result<()>> {
        let key = (target.id(), dir.id().tree);
        // A later entry may have replaced the last name of the copy. Then the copy is gone.
        let copy = match self.copies.get(&key).map(|&id| self.fs.inode(id)) {
            Some(Err(error)) if error.kind() != ErrorKind::Name(NameError::NotFound) => {
                return Err(error);
            }
            copy => copy.and_then(Result::ok),
        };
        match dir.link(copy.as_ref().unwrap_or(target), name) {
            Ok(()) => {
                self.job.special.link(&at, name);
                return Ok(Ok(()));
            }
            Err(error) if error.kind() == ErrorKind::Name(NameError::CrossDevice) => {}
            Err(error) => return Err(error),
        }
        let special = |job: &mut Job<'_>, copy: &Inode| job.special.file(&at, name, copy);
        let copied = Within::new(self.job, self.fs).file(target, dir, name, &special);
        if let Err(failure) = copied {
            return Ok(Err(failure));
        }
        self.copies.insert(key, dir.lookup(name)?.id());
        Ok(Ok(()))
    }

    /// Makes a directory, or uses an existing directory.
    fn directory(
        &mut self,
        entry: &Entry,
        (dir, at): (&Inode, PathBuf),
        name: &[u8],
        there: Option<Inode>,
    ) -> Result<()> {
        let text = || show(&entry.path);
        let inode = match there {
            Some(inode) if inode.kind() == FileKind::Directory => inode,
            other => {
                if other.is_some() {
                    dir.unlink(name).context(text)?;
                }
                self.make(dir, &at, name, (entry.mode, entry.uid, entry.gid)).context(text)?
            }
        };
        xattrs(&inode, entry)?;
        let late = self.lists(&inode, entry)?;
        self.directories.insert(inode.id(), late);
        Ok(())
    }

    fn make(
        &mut self,
        dir: &Inode,
        at: &std::path::Path,
        name: &[u8],
        (mode, uid, gid): (u32, u32, u32),
    ) -> buttress_fs::Result<Inode> {
        self.job.tally.directories += 1;
        let path = at.join(OsString::from_vec(name.to_vec()));
        let make = || dir.mkdir(name, mode, uid, gid);
        self.job.special.directory(&path, dir, (mode, uid, gid), make)
    }

    /// Finds the directory of an entry, and makes missing directories that have no entry of their
    /// own. Returns the path of the directory as well.
    fn folder(&mut self, parts: &[&[u8]]) -> Result<(Inode, PathBuf)> {
        let mut dir = self.fs.root();
        let mut at = PathBuf::new();
        for part in parts {
            let text = || show(part);
            dir = match found(&dir, part).context(text)? {
                Some(next) if next.kind() == FileKind::Directory => next,
                // A1
                Some(_) => {
                    let what = format!("{}: is no directory, and has a name below it", text());
                    return Err(Failure::new(Exit::Failure, what));
                }
                None => {
                    let made = self.make(&dir, &at, part, (IMPLIED, 0, 0)).context(text)?;
                    if let Some(last) = self.job.canonical {
                        let time = Some(Timespec { sec: last, nsec: 0 });
                        let set = SetAttr { atime: time, mtime: time, ..SetAttr::default() };
                        self.directories.insert(made.id(), (set, None));
                    }
                    made
                }
            };
            at.push(OsString::from_vec(part.to_vec()));
        }
        Ok((dir, at))
    }

    /// Finds the inode of which a hard link is another name.
    fn target(&self, entry: &Entry) -> Result<Inode> {
        let mut inode = self.fs.root();
        for part in parts(&entry.link)? {
            inode = inode.lookup(part).context(|| show(&entry.link))?;
        }
        Ok(inode)
    }

    fn content(
        &mut self,
        entry: &Entry,
        archive: &mut Archive<impl Read>,
        inode: &Inode,
    ) -> Result<()> {
        let text = || show(&entry.path);
        let size = SetAttr { size: Some(entry.size), ..SetAttr::default() };
        for &(start, len) in &entry.runs {
            let mut offset = start;
            while offset < start + len {
                // Pieces begin at multiples of their length, whatever the map of holes is.
                let end = (offset + 1).next_multiple_of(CHUNK as u64).min(start + len);
                let want = (end - offset) as usize;
                let read = archive.read(&mut self.buffer[..want]).context(text)?;
                let piece = &self.buffer[..read];
                match self.job.canonical {
                    Some(_) => write_data(inode, offset, piece).context(text)?,
                    None => drop(inode.write_at(offset, piece).context(text)?),
                }
                offset = end;
                self.job.bar.add(read as u64);
                self.job.tally.bytes += read as u64;
            }
        }
        if inode.attr().size < entry.size {
            inode.set_attr(&size).context(text)?;
        }
        Ok(())
    }

    /// Sets the access control list of an entry. Returns its other attributes, with the mode that
    /// follows from the list, as in Linux, and the list for new files of a directory.
    fn lists(&mut self, inode: &Inode, entry: &Entry) -> Result<(SetAttr, Option<Vec<u8>>)> {
        let mut set = self.attributes(entry);
        if entry.has_other_acl {
            self.note(&entry.path, "a list that is not of POSIX");
        }
        if entry.kind == Kind::Symlink {
            return Ok((set, None));
        }
        let default = entry.default_acl.as_deref().filter(|_| entry.kind == Kind::Directory);
        let lists = [entry.acl.as_deref(), default];
        let lists = lists.map(|text| self.list(&entry.path, text));
        let is_unknown =
            |list: &Option<acl::List>| list.as_ref().is_some_and(|list| !list.unknown.is_empty());
        if let Some(earlier) = self.waiting.remove(&inode.id()) {
            self.waiting_bytes -= earlier.len();
        }
        if lists.iter().any(is_unknown) {
            let (access, default) = (entry.acl.clone(), default.map(<[u8]>::to_vec));
            self.wait(inode.id(), Waiting { path: entry.path.clone(), access, default });
        }
        let [access, default] = lists;
        if let Some(list) = access {
            set.mode = Some(entry.mode & !0o777 | list.mode);
            put_access(inode, &list).context(|| show(&entry.path))?;
        }
        let plain = entry.xattrs.iter().find(|(name, _)| name == acl::DEFAULT);
        let list = default.map(|list| list.value);
        Ok((set, list.or_else(|| plain.map(|(_, value)| value.clone()))))
    }

    /// Keeps lists for the end, if there is room for them.
    fn wait(&mut self, id: InodeId, lists: Waiting) {
        if self.waiting.len() < WAITING_MAX && self.waiting_bytes + lists.len() <= WAITING_BYTES_MAX
        {
            self.waiting_bytes += lists.len();
            self.waiting.insert(id, lists);
            return;
        }
        for text in [&lists.access, &lists.default] {
            self.tell_unknown(&lists.path, text.as_deref());
        }
    }

    /// Sets lists again, when all names are known (A5).
    fn named(&mut self, id: InodeId, lists: &Waiting) -> Result<()> {
        let inode = match self.fs.inode(id) {
            // A later entry replaced the file.
            Err(error) if error.kind() == ErrorKind::Name(NameError::NotFound) => return Ok(()),
            inode => inode.context(|| show(&lists.path))?,
        };
        let both = [&lists.access, &lists.default];
        let [access, default] = both.map(|text| self.parsed(text.as_deref()).and_then(Result::ok));
        if let Some(list) = access {
            put_access(&inode, &list).context(|| show(&lists.path))?;
            // Other subvolumes have copies (A3).
            let copies = self.copies.range((id, TreeId(0))..=(id, TreeId(u64::MAX)));
            for copy in copies.map(|(_, copy)| *copy) {
                match self.fs.inode(copy) {
                    Err(error) if error.kind() == ErrorKind::Name(NameError::NotFound) => {}
                    copy => copy
                        .and_then(|copy| put_access(&copy, &list))
                        .context(|| show(&lists.path))?,
                }
            }
        }
        if let Some((list, late)) = default.zip(self.directories.get_mut(&id)) {
            late.1 = Some(list.value);
        }
        for text in both {
            self.tell_unknown(&lists.path, text.as_deref());
        }
        Ok(())
    }

    /// Tells of each name in a list that has no number.
    fn tell_unknown(&mut self, path: &[u8], text: Option<&[u8]>) {
        let list = match self.parsed(text) {
            Some(Err(why)) => return self.note(path, &format!("a list for access control: {why}")),
            list => list.and_then(Result::ok),
        };
        for name in list.map(|list| list.unknown).unwrap_or_default() {
            self.note(path, &format!("{name}, of which the archive has no number"));
        }
    }

    /// Reads a list; none if it is empty or wrong.
    fn list(&mut self, path: &[u8], text: Option<&[u8]>) -> Option<acl::List> {
        match self.parsed(text)? {
            Ok(list) => Some(list),
            Err(why) => {
                self.note(path, &format!("a list for access control: {why}"));
                None
            }
        }
    }

    fn parsed(&self, text: Option<&[u8]>) -> Option<Result<acl::List, String>> {
        let text = text.filter(|text| !text.trim_ascii().is_empty())?;
        Some(acl::parse(text, &self.names))
    }

    fn note(&mut self, path: &[u8], what: &str) {
        match self.notes.len() {
            0..NOTES_MAX => self.notes.push(format!("{}: left out {what}", show(path))),
            NOTES_MAX => self.notes.push("more of that kind was left out".to_owned()),
            _ => {}
        }
    }

    fn attributes(&self, entry: &Entry) -> SetAttr {
        let time = |(sec, nsec)| match self.job.canonical {
            Some(last) if sec >= last => Timespec { sec: last, nsec: 0 },
            _ => Timespec { sec, nsec },
        };
        let atime = entry.atime.filter(|_| self.job.canonical.is_none());
        SetAttr {
            mode: Some(entry.mode),
            uid: Some(entry.uid),
            gid: Some(entry.gid),
            atime: Some(time(atime.unwrap_or(entry.mtime))),
            mtime: Some(time(entry.mtime)),
            ..SetAttr::default()
        }
    }
}

/// The parts of a name, below the top of the copy (A1).
fn parts(path: &[u8]) -> Result<Vec<&[u8]>> {
    let parts = path.split(|&byte| byte == b'/').filter(|part| !matches!(*part, b"" | b"."));
    let parts: Vec<&[u8]> = parts.collect();
    match parts.contains(&&b".."[..]) {
        true => Err(Failure::new(Exit::Failure, format!("{}: leads out of the top", show(path)))),
        false => Ok(parts),
    }
}

fn found(dir: &Inode, name: &[u8]) -> buttress_fs::Result<Option<Inode>> {
    match dir.lookup(name) {
        Ok(inode) => Ok(Some(inode)),
        Err(error) if error.kind() == ErrorKind::Name(NameError::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sets the list of a file, unless its mode says as much.
fn put_access(inode: &Inode, list: &acl::List) -> buttress_fs::Result<()> {
    match list.is_minimal {
        true => Ok(()),
        false => inode.set_xattr(acl::ACCESS, &list.value, XattrFlags::default()),
    }
}

fn xattrs(inode: &Inode, entry: &Entry) -> Result<()> {
    let is_late = |name: &[u8]| name == acl::DEFAULT && entry.kind == Kind::Directory;
    for (name, value) in entry.xattrs.iter().filter(|(name, _)| !is_late(name)) {
        inode.set_xattr(name, value, XattrFlags::default()).context(|| show(&entry.path))?;
    }
    Ok(())
}
