//! Sends notifications and calls to the kernel about one mount, outside of any request.

use std::sync::Arc;

use buttress_fs::{InodeId, TreeId};
use rustix::io::Errno;

use crate::front_end::{Node, place};
use crate::mount::Mount;
use crate::node::{Nodes, Place};
use crate::notifier_threads::SessionNotifier;

/// One mount, and the numbers by which the kernel knows its inodes.
#[derive(Clone, Debug)]
pub(crate) struct MountNotifier {
    mount: Arc<Mount>,
    notifier: SessionNotifier,
    nodes: Arc<Nodes<Arc<Node>>>,
}

impl MountNotifier {
    pub(crate) fn new(
        mount: &Arc<Mount>,
        notifier: SessionNotifier,
        nodes: Arc<Nodes<Arc<Node>>>,
    ) -> Self {
        Self { mount: Arc::clone(mount), notifier, nodes }
    }

    /// The numbers by which the kernel knows the inodes of this mount.
    pub(crate) fn nodes(&self) -> Arc<Nodes<Arc<Node>>> {
        Arc::clone(&self.nodes)
    }

    /// The inode that has a number on this mount. `None` for another device.
    pub(crate) fn place_on(&self, device: u64, number: u64) -> Option<Place> {
        let (major, minor) = self.mount.device()?;
        let is_this = rustix::fs::makedev(major, minor) == device;
        is_this.then(|| self.nodes.place_of(number)).flatten()
    }

    /// Makes the kernel write back the data that programs have written to one subvolume, or to all.
    ///
    /// If data found no space, `fsync` or `close` reports this to the program that wrote the data.
    /// The kernel also reports the error to the next caller of `syncfs`, which may come much later.
    /// A command that frees space must not fail with that error.
    pub(crate) fn write_back(&self, tree: Option<TreeId>) -> std::io::Result<()> {
        // After a lazy unmount, no path leads to the mount, but programs may still use it. In this
        // case only the second step below runs.
        if let Ok(top) = self.mount.open() {
            match rustix::fs::syncfs(&top) {
                Err(Errno::NOSPC | Errno::DQUOT) => {}
                other => other?,
            }
        }
        // `syncfs` starts all writes, but does not wait for writes to FUSE files. Invalidating a
        // file's pages waits. For a file without writers, the close has already waited.
        let is_asked = |node: &Arc<Node>| tree.is_none_or(|tree| node.inode.id().tree == tree);
        for id in self.nodes.ids(|node| node.is_written() && is_asked(node)) {
            self.notifier.drop_content(id);
        }
        Ok(())
    }

    /// Makes the kernel drop its cached data of a subvolume.
    pub(crate) fn invalidate_content(&self, tree: TreeId) {
        for id in self.nodes.ids_in(&[tree.0]) {
            self.notifier.drop_content(id);
        }
    }

    /// Makes the kernel forget the unused inodes of a subvolume, if the kernel can. It forgets a
    /// directory only after the directory's files, so one call may not be enough.
    pub(crate) fn forget_subvolume(&self, tree: TreeId) {
        self.notifier.prune_all(&self.nodes.ids_in(&[tree.0]));
    }

    /// Makes the kernel drop its cached entry of a name.
    pub(crate) fn invalidate_name(&self, dir: InodeId, name: &[u8]) {
        self.notifier.forget_name(self.nodes.id_of(place(dir)), name);
    }
}
