//! The commands of ioctl(2) that Linux's btrfs has, for programs that use them.
//!
//! # Place
//!
//! `protocol::btrfs` has the layouts. For a command that only looks up items, `dispatch` calls
//! [`FrontEnd::answer_from_memory`] on a thread that serves requests. All other commands run on the
//! thread `fuse-orders`, or `fuse-trim` if they may take minutes ([`FrontEnd::carry_out`]). These
//! threads may wait for a commit, and for the kernel to handle a notification.
//!
//! # Invariants
//!
//! - **IO1** A command makes the checks that Linux makes, in the same order, and gives Linux's
//!   errors. The kernel checks no permission before it sends an ioctl (see `rights`).
//! - **IO2** The kernel holds no lock while it waits for the answer to one of these commands. So an
//!   answer may wait for notifications (`front_end::D4`), on a thread that serves no requests
//!   (`notifier_threads::K1`).
//! - **IO3** When a command is answered, the kernel already knows each name that the command added
//!   or removed.
//! - **IO4** A snapshot, or a subvolume that becomes read-only, has all data that programs wrote
//!   before the command. The kernel first sends the data that it holds.

mod facts;
mod search;
mod source;
mod subvolumes;
mod through;

use std::sync::{Arc, Weak};

use buttress_base::interrupt;
use buttress_fs::{Ino, InodeId, Logical, TreeId, TrimOptions, TrimProgress};
use buttress_protocol::btrfs::{self, Command};
use buttress_protocol::{Errno, Reply};

pub(super) use self::search::Walks;
use super::rights::{Capability, Rights};
use super::{Caller, FrontEnd, Node, refuse};
use crate::errno::Answer;
use crate::mounts::Mounts;
use crate::notifier_threads::OrderPlace;

impl FrontEnd {
    /// Gives the front end the mounts of its volume. It notifies these mounts of changes. Without
    /// them it notifies only its own mount.
    pub(crate) fn set_mounts(&self, mounts: Weak<dyn Mounts>) {
        let _ = self.mounts.set(mounts);
    }

    /// All mounts of the volume.
    fn mounts(&self) -> Option<Arc<dyn Mounts>> {
        self.mounts.get().and_then(Weak::upgrade)
    }

    /// A place for a user's command in the queue of a thread that may wait for the kernel (IO2).
    /// `None` if the user's share of the queue is full (`notifier_threads::K4`).
    pub(crate) fn order_place(&self, uid: u32, may_take_minutes: bool) -> Option<OrderPlace<'_>> {
        self.notifier_threads.order_place(uid, may_take_minutes)
    }

    /// Answers a command that looks up single items at most, and never waits for the kernel or a
    /// commit.
    pub(crate) fn answer_from_memory(
        &self,
        caller: Caller,
        id: u64,
        command: Command<'_>,
    ) -> Answer<Reply> {
        let node = self.node(id)?;
        let tree = node.inode.id().tree;
        match command {
            Command::VolumeFacts => self.volume_facts().map(Reply::Ioctl),
            Command::DeviceFacts { id, uuid } => self.device_facts(id, uuid).map(Reply::Ioctl),
            Command::Features => Ok(Reply::Ioctl(self.features())),
            Command::SubvolumeFacts => self.subvolume_facts(tree).map(Reply::Ioctl),
            Command::SubvolumeRefs { from } => self.subvolume_refs(tree, from),
            Command::InodePath { tree: of, ino } => {
                let of = if of == 0 { tree } else { TreeId(of) };
                self.inode_path(caller, InodeId { tree: of, ino: Ino(ino) }).map(Reply::Ioctl)
            }
            Command::SubvolumePath { dir, tree } => {
                self.subvolume_path(caller, &node, Ino(dir), TreeId(tree)).map(Reply::Ioctl)
            }
            Command::Flags => self.subvolume_flags(&node).map(Reply::Ioctl),
            Command::DeviceErrors(asked) => self.device_errors(caller, &asked).map(Reply::Ioctl),
            Command::Generation => {
                // Linux, too, answers with four bytes, although the number of the command says
                // eight.
                let generation = node.inode.attr().generation as u32;
                Ok(Reply::Ioctl(generation.to_ne_bytes().to_vec()))
            }
            _ => Err(Errno::ENOTTY),
        }
    }

    /// Carries out a command that may take long, on a thread that serves no requests (IO2).
    pub(crate) fn carry_out(
        self: &Arc<Self>,
        caller: Caller,
        id: u64,
        command: Command<'_>,
        argument: &[u8],
    ) -> Answer<Reply> {
        let node = self.node(id)?;
        let done = |()| Reply::Ioctl(Vec::new());
        if !matches!(command, Command::Search(_)) {
            // The next search of the caller's thread must show the changes of this command.
            self.walks.end_of(caller.task);
        }
        match command {
            Command::Search(key) => self.search(caller, &node, key, argument).map(Reply::Ioctl),
            Command::Sync => {
                self.write_back(None)?;
                self.sync_all().map(done)
            }
            Command::StartSync => self.start_sync().map(Reply::Ioctl),
            Command::WaitSync(number) => self.wait_sync(number).map(done),
            Command::SetFlags(flags) => self.set_subvolume_flags(caller, &node, flags).map(done),
            Command::SetDefault(tree) => self.set_default(caller, &node, tree).map(done),
            Command::Create(made) => self.create_subvolume(caller, id, &node, made).map(done),
            Command::Snapshot { source, made } => {
                self.snapshot(caller, id, &node, source, made).map(done)
            }
            Command::Destroy { name, flags } => {
                self.destroy(caller, id, &node, name, flags).map(done)
            }
            Command::DestroyById(tree) => self.destroy_by_id(caller, &node, TreeId(tree)).map(done),
            Command::SetReceived(origin) => {
                self.set_received(caller, &node, &origin).map(Reply::Ioctl)
            }
            Command::DeviceErrors(asked) => self.device_errors(caller, &asked).map(Reply::Ioctl),
            Command::Trim { from, len, least } => {
                let options = TrimOptions { from: Logical(from), len, least };
                let trimmed = self.trim(caller, options)?;
                Ok(Reply::Ioctl(btrfs::trimmed(argument, trimmed)))
            }
            known => self.answer_from_memory(caller, id, known),
        }
    }

    /// Makes the kernel send the data that it holds for the files of one subvolume, or of all
    /// subvolumes (IO4).
    fn write_back(&self, tree: Option<TreeId>) -> Answer<()> {
        let Some(mounts) = self.mounts() else { return Ok(()) };
        mounts.write_back(tree).map_err(|error| {
            tracing::warn!(%error, "the kernel did not send what it holds");
            error.raw_os_error().map_or(Errno::EIO, Errno::from_i32)
        })
    }

    /// Tells the kernel of a name that was added or removed, and waits until the kernel knows
    /// (IO3).
    fn name_changed(&self, dir: InodeId, name: &[u8], came: bool) {
        match self.mounts() {
            Some(mounts) if came => mounts.note_created(dir, name),
            Some(mounts) => mounts.invalidate_name(dir, name),
            None => {
                let dir = self.nodes.id_of(super::place(dir));
                self.notifier_threads.forget_name_now(dir, name);
            }
        }
    }

    /// Commits, and returns when the commit is durable. In Linux the command returns earlier.
    fn start_sync(&self) -> Answer<Vec<u8>> {
        self.fs.commit().map_err(refuse)?;
        Ok(self.fs.committed().0.to_ne_bytes().to_vec())
    }

    /// Waits until the commit with this number is durable. A commit that [`Self::start_sync`] made
    /// is durable already.
    fn wait_sync(&self, number: u64) -> Answer<()> {
        if number == 0 || number <= self.fs.committed().0 {
            return Ok(());
        }
        if number > self.fs.running().0 {
            return Err(Errno::EINVAL);
        }
        self.fs.commit().map_err(refuse)
    }

    fn set_default(&self, caller: Caller, node: &Node, tree: u64) -> Answer<()> {
        expect_admin(&Rights::of(caller))?;
        self.expect_writable(caller, node)?;
        let tree = if tree == 0 { TreeId::FS } else { TreeId(tree) };
        self.fs.set_default_subvolume(tree).map_err(refuse)
    }

    /// Checks that the volume can be changed, and that the caller's mount is not read-only.
    pub(super) fn expect_writable(&self, caller: Caller, node: &Node) -> Answer<()> {
        if self.fs.read_only_reason().is_some() || self.is_by_read_only_mount(caller, node) {
            return Err(Errno::EROFS);
        }
        Ok(())
    }

    /// Discards free space, and returns the number of discarded bytes. The trim ends early if the
    /// caller is killed.
    fn trim(&self, caller: Caller, options: TrimOptions) -> Answer<u64> {
        expect_admin(&Rights::of(caller))?;
        let is_short = options.len < u64::from(self.fs.superblock().sectorsize);
        if is_short || !is_range(options.from, options.len) {
            return Err(Errno::EINVAL);
        }
        let mut go_on = |_: &TrimProgress| !interrupt::is_interrupted();
        self.fs.trim(options, &mut go_on).map(|progress| progress.trimmed).map_err(refuse)
    }
}

/// Whether `FITRIM` takes a range, as Linux's btrfs does: it has an end, or is open.
fn is_range(from: Logical, len: u64) -> bool {
    from.0 < u64::MAX && (len == u64::MAX || from.0.checked_add(len).is_some())
}

/// Checks that a caller may administer this machine.
fn expect_admin(rights: &Rights) -> Answer<()> {
    if rights.has(Capability::SysAdmin) { Ok(()) } else { Err(Errno::EPERM) }
}

/// Whether a node is the top of a subvolume.
fn is_top(node: &Node) -> bool {
    node.inode.id().ino == Ino::ROOT_DIR
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cases are those that Linux's btrfs takes and refuses.
    #[test]
    fn trim_ranges_have_an_end() {
        let open = u64::MAX;
        for (from, len) in
            [(0, open), (1 << 40, open), (open - 1, open), (0, open - 1), (open - 1, 1)]
        {
            assert!(is_range(Logical(from), len), "{from} {len}");
        }
        for (from, len) in [(open, open), (open, 4096), (open - 1, 4096)] {
            assert!(!is_range(Logical(from), len), "{from} {len}");
        }
    }
}
