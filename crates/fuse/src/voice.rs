//! Speaking with the kernel about one mount, beside the requests that it sends.

use std::sync::Arc;

use buttress_fs::{InodeId, TreeId};
use rustix::io::Errno;

use crate::aside::Kernel;
use crate::door::{Node, place};
use crate::mount::Mount;
use crate::node::Nodes;

/// One mount, and the numbers by which its kernel knows inodes.
#[derive(Clone, Debug)]
pub(crate) struct Voice {
    mount: Arc<Mount>,
    kernel: Kernel,
    nodes: Arc<Nodes<Arc<Node>>>,
}

impl Voice {
    pub(crate) fn new(mount: &Arc<Mount>, kernel: Kernel, nodes: Arc<Nodes<Arc<Node>>>) -> Self {
        Self { mount: Arc::clone(mount), kernel, nodes }
    }

    /// The numbers by which its kernel knows inodes.
    pub(crate) fn nodes(&self) -> Arc<Nodes<Arc<Node>>> {
        Arc::clone(&self.nodes)
    }

    /// Has the kernel hand over what programs have written.
    ///
    /// What found no room is told to the programs that wrote it, by `fsync` or `close`. The kernel
    /// also tells the next caller of `syncfs`, which may come much later. An order that makes room
    /// must not end with that.
    pub(crate) fn gather(&self) -> std::io::Result<()> {
        let top = self.mount.open()?;
        match rustix::fs::syncfs(&top) {
            Err(Errno::NOSPC | Errno::DQUOT) => {}
            other => other?,
        }
        // That begins all the writes, and does not wait for those of FUSE. Giving up a file's pages
        // does; a file that no program has open for writing was waited for when it was closed.
        for id in self.nodes.ids(|node| node.is_written()) {
            self.kernel.give_up(id);
        }
        Ok(())
    }

    /// Has the kernel read anew what it keeps of a subvolume.
    pub(crate) fn renewed(&self, tree: TreeId) {
        for id in self.nodes.ids_in(tree.0) {
            self.kernel.give_up(id);
        }
    }

    /// Has the kernel look again at a name.
    pub(crate) fn changed(&self, dir: InodeId, name: &[u8]) {
        self.kernel.forget_name(self.nodes.id_of(place(dir)), name);
    }
}
