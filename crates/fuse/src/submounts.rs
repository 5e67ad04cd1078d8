//! Mounts each subvolume by itself, so that the subvolume has a device number of its own, as in
//! Linux.
//!
//! # Place
//!
//! With the option `submounts` every subvolume below the mount has a session of its own, on the
//! directory that is its top. Without the option, [`Submounts`] holds only the mount at the top.
//!
//! # Invariants
//!
//! - **M1** A subvolume is mounted after the subvolume that contains it, and unmounted before that
//!   subvolume.
//! - **M2** A subvolume that cannot be mounted is a directory of the mount above, so programs can
//!   always reach it.
//!
//! # Locks
//!
//! There is one lock, held while mounts are made and removed. To make a mount, the kernel looks up
//! names in the mounts above, so no thread that serves requests may wait for this lock.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use buttress_base::text;
use buttress_fs::{Filesystem, Ino, InodeId, SubvolumeInfo, TreeId};
use parking_lot::Mutex;

use crate::mount_notifier::MountNotifier;
use crate::mounts::Mounts;
use crate::node::Place;
use crate::placement::run_anywhere;
use crate::session::{Opened, Unmounter, open};
use crate::{Error, Options};

/// The number of threads of a subvolume's session. While one thread waits for the disk, the other
/// thread still answers.
const THREADS: usize = 2;

/// The mounts of one volume.
#[derive(Debug)]
pub(crate) struct Submounts {
    this: Weak<Self>,
    fs: Filesystem,
    /// The subvolume at the top.
    tree: TreeId,
    target: PathBuf,
    notifier: MountNotifier,
    /// `None` if subvolumes have no mounts of their own.
    options: Option<Options>,
    /// Unranked: held while mounts are made and taken away.
    mounts: Mutex<BTreeMap<TreeId, Submount>>,
}

#[derive(Debug)]
struct Submount {
    unmounter: Unmounter,
    notifier: MountNotifier,
    device_threads: JoinHandle<std::io::Result<()>>,
}

impl Submounts {
    /// Creates the set with only the mount at the top.
    pub(crate) fn new(
        fs: Filesystem,
        tree: TreeId,
        target: PathBuf,
        notifier: MountNotifier,
        options: &Options,
    ) -> Arc<Self> {
        let options = options
            .submounts
            // Queues for each processor would cost too much for each subvolume.
            .then(|| Options {
                threads: options.threads.or(Some(THREADS)),
                io_uring: Some(false),
                ..options.clone()
            });
        let mounts = Mutex::default();
        Arc::new_cyclic(|this| {
            let this = Weak::clone(this);
            Self { this, fs, tree, target, notifier, options, mounts }
        })
    }

    /// Mounts every subvolume that has a name below the top and is not mounted (M1, M2).
    pub(crate) fn mount_all(&self) {
        let Some(options) = &self.options else { return };
        let mut mounts = self.mounts.lock();
        let all = match self.below() {
            Ok(all) => all,
            Err(error) => {
                tracing::warn!(%error, "subvolumes are not mounted by themselves");
                return;
            }
        };
        for (tree, target) in all {
            // A subvolume that a user has unmounted by hand is mounted again.
            if mounts.get(&tree).is_some_and(Submount::is_there) {
                continue;
            }
            match self.mount(tree, &target, options) {
                Ok(mount) => drop(mounts.insert(tree, mount)),
                Err(error) => {
                    let target = text::of_path(&target);
                    tracing::warn!(target, %error, "a subvolume is not mounted by itself");
                }
            }
        }
    }

    /// Returns the subvolumes below the top with their paths. Nested subvolumes come after their
    /// parents.
    fn below(&self) -> buttress_fs::Result<Vec<(TreeId, PathBuf)>> {
        let all = self.fs.subvolumes()?;
        let top = all.iter().find(|info| info.tree == self.tree).map(|info| info.path.clone());
        let top = top.unwrap_or_default();
        let within = |info: &SubvolumeInfo| -> Option<PathBuf> {
            let path = info.path.strip_prefix(top.as_slice())?;
            let path = if top.is_empty() { path } else { path.strip_prefix(b"/")? };
            (!path.is_empty()).then(|| self.target.join(OsStr::from_bytes(path)))
        };
        let mut found: Vec<_> =
            all.iter().filter_map(|info| Some((info.tree, within(info)?))).collect();
        found.sort_by_key(|(_, target)| target.components().count());
        Ok(found)
    }

    fn mount(&self, tree: TreeId, target: &Path, options: &Options) -> Result<Submount, Error> {
        let root = self.fs.inode(InodeId { tree, ino: Ino::ROOT_DIR });
        let root = root.map_err(|error| Error::Session(std::io::Error::other(error)))?;
        let Opened { device_threads, unmounter, notifier, .. } =
            open(self.fs.clone(), root, target, options)?;
        device_threads.set_mounts(self.this());
        let device_threads = std::thread::Builder::new()
            .name(format!("fuse-{}", tree.0))
            .spawn(move || {
                run_anywhere();
                device_threads.run()
            })
            .map_err(Error::Session)?;
        Ok(Submount { unmounter, notifier, device_threads })
    }

    /// Returns a weak reference to this set, for the front ends of the mounts.
    pub(crate) fn this(&self) -> Weak<dyn Mounts> {
        let this: Weak<Self> = Weak::clone(&self.this);
        this
    }

    /// Unmounts a subvolume, lazily if it is in use. A mount with other mounts below it stays,
    /// since the mounts below would be unmounted with it.
    fn unmount(&self, tree: TreeId) {
        let mut mounts = self.mounts.lock();
        let Some(target) = mounts.get(&tree).map(Submount::target) else { return };
        if mounts
            .values()
            .all(|other| other.target() == target || !other.target().starts_with(&target))
            && let Some(mount) = mounts.remove(&tree)
        {
            mount.end();
        }
    }

    /// Unmounts all subvolumes (M1), and does not wait for programs that use them.
    pub(crate) fn hide_all(&self) {
        let mounts = self.mounts.lock();
        let mut all: Vec<_> = mounts.values().collect();
        all.sort_by_key(|mount| std::cmp::Reverse(mount.target().components().count()));
        for mount in all {
            if let Err(error) = mount.unmounter.unmount() {
                tracing::debug!(%error, "a subvolume's mount stays for a while");
            }
        }
    }

    /// Unmounts all subvolumes, and waits until no program uses them any more.
    pub(crate) fn unmount_all(&self) {
        self.hide_all();
        let mounts = std::mem::take(&mut *self.mounts.lock());
        // The last changes that the kernel sends are in the volume before the volume is closed.
        mounts.into_values().for_each(|mount| drop(mount.device_threads.join()));
    }

    /// All mounts, the top last.
    pub(crate) fn notifiers(&self) -> Vec<MountNotifier> {
        let mounts = self.mounts.lock();
        let below = mounts.values().filter(|mount| mount.is_there()).map(|mount| &mount.notifier);
        below.chain([&self.notifier]).cloned().collect()
    }

    /// The mounts of single subvolumes: the path and the device number of each.
    pub(crate) fn devices(&self) -> Vec<(PathBuf, u64)> {
        let mounts = self.mounts.lock();
        let there = mounts.values().filter(|mount| mount.is_there());
        there.filter_map(|mount| Some((mount.target(), mount.unmounter.device()?))).collect()
    }

    /// The mount that shows inodes of a subvolume.
    fn notifier_of(&self, tree: TreeId) -> MountNotifier {
        let mounts = self.mounts.lock();
        let own = mounts.get(&tree).filter(|mount| mount.is_there());
        own.map_or(&self.notifier, |mount| &mount.notifier).clone()
    }
}

impl Mounts for Submounts {
    fn write_back(&self, tree: Option<TreeId>) -> std::io::Result<()> {
        self.notifiers().iter().try_for_each(|notifier| notifier.write_back(tree))
    }

    fn note_created(&self, dir: InodeId, name: &[u8]) {
        self.invalidate_name(dir, name);
        self.mount_all();
    }

    fn prepare_removal(&self, tree: TreeId) {
        self.unmount(tree);
    }

    fn cancel_removal(&self) {
        self.mount_all();
    }

    fn invalidate_name(&self, dir: InodeId, name: &[u8]) {
        self.notifier_of(dir.tree).invalidate_name(dir, name);
    }

    fn place_on(&self, device: u64, number: u64) -> Option<Place> {
        self.notifiers().iter().find_map(|notifier| notifier.place_on(device, number))
    }
}

impl Submount {
    /// Whether the mount is still there. After a user has unmounted the mount by hand, its device
    /// number may belong to another mount, and notifications have no effect.
    fn is_there(&self) -> bool {
        !self.device_threads.is_finished()
    }

    fn target(&self) -> PathBuf {
        self.unmounter.target().to_owned()
    }

    fn end(self) {
        if let Err(error) = self.unmounter.unmount() {
            tracing::warn!(%error, "a subvolume's mount stays");
        }
    }
}
