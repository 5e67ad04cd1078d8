//! Sending: writes the stream that makes a subvolume, either anew or from a snapshot of an older
//! one.
//!
//! # How
//!
//! 1. **Names.** The sender walks the differences of the two trees once. It first removes the names
//!    of deleted files. Then it moves directories and files that have other names now, in an order
//!    in which every target is free. Last it removes deleted directories (`names`).
//! 2. **Content.** The sender walks the differences again, in the order of inode numbers. It makes
//!    new inodes at their final names, and sends attributes and content of changed inodes
//!    (`content`). Content that the receiver has already is cloned (`sharing`).
//! 3. **Times** of directories come last, when no later command changes these directories.
//!
//! A full stream has no older tree, and so no first step.
//!
//! # Invariants
//!
//! - **X1** Paths are computed from the receiver's tree as it is after the commands so far, never
//!   from its final state. `Names`, `current` and `made_ahead` describe that tree.
//! - **X2** Memory grows with the number of moved names and of changed directories, not with the
//!   number of files.

mod content;
mod diff;
mod fit;
mod make;
mod names;
mod paths;
mod sharing;
mod tree;

use std::collections::{BTreeSet, HashSet};
use std::io::Write;

use buttress_format::{Ino, TreeId};
use buttress_fs::Filesystem;

use crate::error::Result;
use crate::stream::{Command, Source, Stamps, StreamWriter, Version};
use diff::Diff;
use names::Names;
use paths::{Paths, path};
use sharing::Sharing;
pub(crate) use tree::Tree;

/// The subvolume to send, and options.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SendOptions {
    /// The subvolume; read-only.
    pub subvolume: TreeId,
    /// The subvolume that the receiver has and that the stream changes; read-only.
    pub parent: Option<TreeId>,
    /// Other subvolumes that the receiver has, as sources of clones; read-only.
    pub clone_sources: Vec<TreeId>,
    /// The version of the stream.
    pub version: Version,
    /// Send compressed extents as they are; version 2.
    pub compressed_data: bool,
    /// Send the ranges of data without the data.
    pub no_data: bool,
    /// Continue a stream of other subvolumes: write no header.
    pub continues: bool,
    /// Let other subvolumes follow in the stream: write no end.
    pub stays_open: bool,
}

impl SendOptions {
    /// A full stream of a subvolume, in version 1.
    #[must_use]
    pub fn new(subvolume: TreeId) -> Self {
        Self {
            subvolume,
            parent: None,
            clone_sources: Vec::new(),
            version: Version::One,
            compressed_data: false,
            no_data: false,
            continues: false,
            stays_open: false,
        }
    }
}

/// The identity of a read-only subvolume in streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sendable {
    /// The name by which sender and receiver know the subvolume.
    pub source: Source,
    /// Its own uuid.
    pub uuid: crate::stream::Uuid,
    /// The uuid of the subvolume that this one is a snapshot of; zeros if it is no snapshot.
    pub parent_uuid: crate::stream::Uuid,
}

/// Checks that a subvolume can be sent, or be the parent or clone source of another one.
///
/// # Errors
///
/// [`Error::NotSubvolume`], [`Error::NotReadOnly`].
pub fn sendable(fs: &Filesystem, subvolume: TreeId) -> Result<Sendable> {
    let view = fs.view();
    let tree = Tree::open(&view, subvolume)?;
    let item = tree.root_item();
    Ok(Sendable { source: tree.source(), uuid: item.uuid, parent_uuid: item.parent_uuid })
}

/// Writes the stream of a subvolume.
///
/// # Errors
///
/// [`Error::NotReadOnly`] for a subvolume, parent or clone source that may change;
/// [`Error::PathTooLong`] for a path that no stream can hold, before anything is written; errors of
/// reading the volume and of writing to the output.
pub fn send<W: Write>(fs: &Filesystem, options: &SendOptions, output: W) -> Result<W> {
    // Only committed nodes are read (sender::tree::T1), and a snapshot that was just made is not
    // committed yet.
    fs.sync()?;
    let view = fs.view();
    let new = Tree::open(&view, options.subvolume)?;
    let old = options.parent.map(|id| Tree::open(&view, id)).transpose()?;
    let mut sources = Vec::new();
    for id in &options.clone_sources {
        if Some(*id) != options.parent && *id != options.subvolume {
            sources.push(Tree::open(&view, *id)?);
        }
    }
    fit::check(old.as_ref(), &new)?;
    let writer = match options.continues {
        true => StreamWriter::continuing(output, options.version),
        false => StreamWriter::new(output, options.version),
    };
    let mut sender = Sender {
        fs,
        options,
        old: old.as_ref(),
        new: &new,
        writer,
        paths: Paths::new(&new),
        sharing: Sharing::new(&view, old.as_ref(), &sources, &new),
        made_ahead: HashSet::new(),
        deferred_xattrs: BTreeSet::new(),
        stamps_due: BTreeSet::new(),
        current: Ino(0),
        buffer: Vec::new(),
    };
    sender.run()?;
    Ok(match options.stays_open {
        true => sender.writer.leave_open()?,
        false => sender.writer.finish()?,
    })
}

struct Sender<'s, 'v, W: Write> {
    fs: &'s Filesystem,
    options: &'s SendOptions,
    old: Option<&'s Tree<'v>>,
    new: &'s Tree<'v>,
    writer: StreamWriter<W>,
    paths: Paths<'s, 'v>,
    sharing: Sharing<'s, 'v>,
    /// New directories that were made before the content step reached their inode numbers.
    made_ahead: HashSet<Ino>,
    /// New directories with attributes that entries made in them would inherit. The directories get
    /// these attributes at the end.
    deferred_xattrs: BTreeSet<Ino>,
    /// Directories to be given their times at the end.
    stamps_due: BTreeSet<Ino>,
    /// The inode that is being sent with its content. The receiver has all new inodes with smaller
    /// numbers.
    current: Ino,
    buffer: Vec<u8>,
}

impl<W: Write> Sender<'_, '_, W> {
    fn run(&mut self) -> Result<()> {
        self.head()?;
        if let Some(old) = self.old {
            let names = Names::new(old, self.new);
            let (made, touched) = names.run(|command| self.emit(&command))?;
            self.made_ahead = made;
            self.stamps_due.extend(touched);
        }
        let mut diff = Diff::new(self.old, self.new)?;
        while let Some(change) = diff.next()? {
            self.current = change.ino;
            self.inode(&change)?;
        }
        self.current = Ino(u64::MAX);
        for ino in std::mem::take(&mut self.deferred_xattrs) {
            if let Some(inode) = self.new.inode(ino)? {
                let path = self.paths.of_dir(ino)?.to_vec();
                self.send_deferred_xattrs(&path, &inode)?;
            }
        }
        for ino in std::mem::take(&mut self.stamps_due) {
            if let Some(item) = self.new.inode_item(ino)? {
                let path = self.paths.of_dir(ino)?.to_vec();
                self.stamp(&path, &item)?;
            }
        }
        Ok(())
    }

    /// The command that makes the subvolume.
    fn head(&mut self) -> Result<()> {
        let name = self.new.name()?;
        let name = path(&name)?;
        let source: Source = self.new.source();
        match self.old {
            None => self.emit(&Command::Subvol { name, source }),
            Some(old) => self.emit(&Command::Snapshot { name, source, parent: old.source() }),
        }
    }

    fn emit(&mut self, command: &Command<'_>) -> Result<()> {
        Ok(self.writer.command(command)?)
    }

    fn stamp(&mut self, at: &[u8], item: &buttress_format::InodeItem) -> Result<()> {
        let stamps = Stamps {
            atime: item.atime,
            mtime: item.mtime,
            ctime: item.ctime,
            otime: Some(item.otime),
        };
        self.emit(&Command::Utimes { path: path(at)?, stamps })
    }
}
