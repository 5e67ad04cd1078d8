//! fs-verity by ioctl(2), as the program `fsverity` uses it.
//!
//! # Invariants
//!
//! - **FY1** A file gets its Merkle tree only while no program has it open for writing through this
//!   mount. So the kernel holds no content of it that the tree lacks: a close has sent everything.
//!   An open for writing counts itself first and then looks at `sealing`; the command sets
//!   `sealing` first and then looks at the count. One of the two sees the other. A truncation comes
//!   wholly before the tree, or is refused.
//! - **FY2** Only root makes trees through a mount. Until a tree is made, removals and renames of
//!   the file wait, and with them the requests to its directory.
//!
//! The kernel keeps pages of such a file as it keeps others: they were verified when they were
//! read. Linux shows the flag by statx(2) too, for which FUSE has no field.

use std::sync::atomic::Ordering;
use std::time::Duration;

use buttress_fs::{FileKind, HashKind, VerityOptions};
use buttress_protocol::Errno;
use buttress_protocol::verity::{EnableVerity, MeasureVerity};

use super::rights::{Rights, WRITE};
use super::{Caller, FrontEnd, Node, refuse};
use crate::errno::Answer;

/// How long a command waits for the kernel to tell of a close, and how often it looks.
const RELEASE_MAX: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(2);

impl FrontEnd {
    /// Answers `FS_IOC_ENABLE_VERITY`, with the checks and the errors of Linux.
    pub(super) fn enable_verity(
        &self,
        caller: Caller,
        id: u64,
        argument: &[u8],
    ) -> Answer<Vec<u8>> {
        let EnableVerity { algorithm, block_size, salt, signature } =
            EnableVerity::parse(argument)?;
        if caller.uid != 0 {
            return Err(Errno::EPERM);
        }
        let node = self.node(id)?;
        self.expect_access(&Rights::of(caller), &node.inode, WRITE)?;
        self.expect_writable(caller, &node)?;
        if node.inode.kind() == FileKind::Directory {
            return Err(Errno::EISDIR);
        }
        let hash = u8::try_from(algorithm).ok().and_then(HashKind::from_disk);
        let hash = hash.ok_or(Errno::ENOPKG)?;
        let (salt, signature) = (salt.to_vec(), signature.to_vec());
        let options = VerityOptions { hash, block_size, salt, signature };
        let sealing = Sealing::begin(&node)?;
        if has_writer(&node) {
            return Err(Errno::ETXTBSY);
        }
        node.inode.enable_verity(&options).map_err(refuse)?;
        drop(sealing);
        // The kernel does not know that `ctime` has changed.
        self.notifier_threads.doubt_attributes(id);
        Ok(Vec::new())
    }

    /// Answers `FS_IOC_MEASURE_VERITY`.
    pub(super) fn measure_verity(&self, id: u64, argument: &[u8]) -> Answer<Vec<u8>> {
        let verity = self.node(id)?.inode.verity().map_err(refuse)?.ok_or(Errno::ENODATA)?;
        MeasureVerity::answer(argument, u16::from(verity.hash as u8), &verity.digest())
    }
}

/// A tree is being made until this is dropped, also by a panic.
struct Sealing<'n>(&'n Node);

impl<'n> Sealing<'n> {
    fn begin(node: &'n Node) -> Answer<Self> {
        if node.sealing.swap(true, Ordering::SeqCst) { Err(Errno::EBUSY) } else { Ok(Self(node)) }
    }
}

impl Drop for Sealing<'_> {
    fn drop(&mut self) {
        self.0.sealing.store(false, Ordering::SeqCst);
    }
}

/// Whether a file is open for writing. The kernel reports a close a little after it has answered
/// the program. So this function waits for a program that has just written the file.
fn has_writer(node: &Node) -> bool {
    let mut waited = Duration::ZERO;
    while node.writers.load(Ordering::SeqCst) > 0 {
        if waited >= RELEASE_MAX {
            return true;
        }
        std::thread::sleep(STEP);
        waited += STEP;
    }
    false
}

/// Refuses to write or cut a file if it never changes, or if its tree is being made (FY1). An open
/// for writing counts as a writer already.
pub(super) fn expect_unsealed(node: &Node) -> Answer<()> {
    if node.inode.has_verity() {
        Err(Errno::EPERM)
    } else if node.sealing.load(Ordering::SeqCst) {
        Err(Errno::ETXTBSY)
    } else {
        Ok(())
    }
}
