//! Several mounts of one volume, each of a subvolume, by one server.
//!
//! # Place
//!
//! The kernel's mount shows the whole volume ([`crate::whole_mount`]). A session attaches its first
//! subvolume as soon as requests are answered. A [`Sharer`], which `cli` has, makes further mounts.
//!
//! # Invariants
//!
//! - **S1** The kernel finds a subvolume by its path below the top level, through requests to this
//!   server. So no thread that serves requests makes a mount.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use buttress_fs::{Filesystem, Ino, Inode, InodeId, TreeId};

use crate::front_end::{Node, place};
use crate::mount::Mount;
use crate::node::Nodes;
use crate::whole_mount::{Subtree, Top};
use crate::{Error, Options};

/// The top directory of the top-level subvolume.
pub(crate) fn top_level(fs: &Filesystem) -> Result<Inode, Error> {
    let top = fs.inode(InodeId { tree: TreeId::FS, ino: Ino::ROOT_DIR });
    top.map_err(|error| Error::Session(io::Error::other(error)))
}

/// The first mount of a session.
#[derive(Debug)]
pub(crate) struct First {
    sharer: Sharer,
    tree: TreeId,
    options: Options,
    top: Top,
}

impl First {
    pub(crate) fn new(sharer: Sharer, tree: TreeId, options: &Options, top: Top) -> Self {
        Self { sharer, tree, options: options.clone(), top }
    }

    pub(crate) fn sharer(&self) -> Sharer {
        self.sharer.clone()
    }

    /// Attaches the first mount.
    ///
    /// # Errors
    ///
    /// The errors of [`Subtree::attach`]; [`Error::Session`].
    pub(crate) fn show(self, target: &Path) -> Result<(), Error> {
        let shown = self.sharer.subtree(&self.top, self.tree).map_err(Error::Session)?;
        shown.attach(target, &self.options).map(drop)
    }
}

/// Makes more mounts of a volume that is mounted.
#[derive(Clone, Debug)]
pub struct Sharer {
    fs: Filesystem,
    mount: Arc<Mount>,
    nodes: Arc<Nodes<Arc<Node>>>,
}

impl Sharer {
    pub(crate) fn new(fs: Filesystem, mount: Arc<Mount>, nodes: Arc<Nodes<Arc<Node>>>) -> Self {
        Self { fs, mount, nodes }
    }

    /// The volume.
    #[must_use]
    pub fn filesystem(&self) -> &Filesystem {
        &self.fs
    }

    /// Keeps the volume mounted until another mount of it is attached; `None` if the volume has
    /// already been unmounted.
    #[must_use]
    pub fn top(&self) -> Option<Top> {
        self.mount.whole()?.top().ok()
    }

    /// A detached mount of a subvolume. A thread that serves requests must not call this.
    ///
    /// # Errors
    ///
    /// When the subvolume has no name, or the kernel refuses.
    pub fn subtree(&self, whole: &Top, tree: TreeId) -> io::Result<Subtree> {
        let all = self.fs.subvolumes().map_err(io::Error::other)?;
        let found = all.into_iter().find(|info| info.tree == tree);
        let path = found.ok_or(io::ErrorKind::NotFound)?.path;
        let top = self.fs.inode(InodeId { tree, ino: Ino::ROOT_DIR });
        let top = place(top.map_err(io::Error::other)?.id());
        whole.subtree(Path::new(OsStr::from_bytes(&path)), self.nodes.user_ino(top))
    }
}
