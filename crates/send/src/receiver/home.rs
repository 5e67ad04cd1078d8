//! The place at which subvolumes are received.

use buttress_format::{Generation, Key, Kind, RootItem, Timespec, TreeId};
use buttress_fs::{Filesystem, Inode, InodeId, ReceivedUuid};

use super::likeness;
use crate::error::{Error, Result};
use crate::stream::Source;

/// A place that can hold received subvolumes.
pub trait Home {
    /// Makes an empty subvolume; returns its top.
    ///
    /// # Errors
    ///
    /// An error of the volume, for example that the name is taken.
    fn create(&self, name: &[u8]) -> buttress_fs::Result<Inode>;

    /// Makes a writable snapshot; returns its top.
    ///
    /// # Errors
    ///
    /// Those of [`Home::create`].
    fn snapshot(&self, name: &[u8], of: TreeId) -> buttress_fs::Result<Inode>;

    /// Marks a subvolume as received, and makes it read-only.
    ///
    /// # Errors
    ///
    /// An error of the volume.
    fn finish(&self, top: &Inode, source: &Source) -> buttress_fs::Result<()>;

    /// Finds the subvolume that a stream names.
    ///
    /// # Errors
    ///
    /// An error of reading the volume.
    fn find(&self, source: &Source) -> Result<Option<TreeId>>;

    /// The top of a subvolume.
    ///
    /// # Errors
    ///
    /// An error of reading the volume.
    fn top(&self, tree: TreeId) -> buttress_fs::Result<Inode>;
}

/// A directory of a volume.
#[derive(Debug)]
pub struct Subvolumes {
    fs: Filesystem,
    dir: Inode,
}

impl Subvolumes {
    /// Receives into a directory.
    #[must_use]
    pub fn new(fs: &Filesystem, dir: Inode) -> Self {
        Self { fs: fs.clone(), dir }
    }
}

impl Home for Subvolumes {
    fn create(&self, name: &[u8]) -> buttress_fs::Result<Inode> {
        self.dir.create_subvolume(name, 0o755, 0, 0)
    }

    fn snapshot(&self, name: &[u8], of: TreeId) -> buttress_fs::Result<Inode> {
        self.dir.snapshot(name, of, false)
    }

    fn finish(&self, top: &Inode, source: &Source) -> buttress_fs::Result<()> {
        let tree = top.id().tree;
        let received = ReceivedUuid {
            uuid: source.uuid,
            stransid: Generation(source.ctransid),
            stime: Timespec::default(),
        };
        self.fs.set_received(tree, received)?;
        self.fs.set_subvolume_read_only(tree, true)
    }

    /// Searches the root items, since the uuid tree may be missing or outdated.
    fn find(&self, source: &Source) -> Result<Option<TreeId>> {
        let view = self.fs.view();
        let low = Key::new(TreeId::FS.0, Kind::ROOT_ITEM, 0);
        let mut best: Option<(u8, TreeId)> = None;
        for found in view.range(TreeId::ROOT, low, Key::MAX) {
            let (key, bytes) = found?;
            let tree = TreeId(key.objectid);
            if key.kind != Kind::ROOT_ITEM || !tree.is_fs_tree() {
                continue;
            }
            let item = RootItem::parse(&bytes).map_err(|source| {
                let ino = buttress_format::Ino(tree.0);
                Error::Volume(buttress_fs::Error::Format { tree: TreeId::ROOT, ino, source })
            })?;
            let likeness = likeness(&item, source);
            if item.refs > 0 && likeness > best.map_or(0, |(best, _)| best) {
                best = Some((likeness, tree));
            }
        }
        Ok(best.map(|(_, tree)| tree))
    }

    fn top(&self, tree: TreeId) -> buttress_fs::Result<Inode> {
        self.fs.inode(InodeId { tree, ino: buttress_fs::Ino::ROOT_DIR })
    }
}
