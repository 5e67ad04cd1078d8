//! Work that has to finish, for programs that may be killed while they wait for it.
//!
//! # Invariants
//!
//! - **AS1** A program waits for a store that is away only until it is killed. Before its operation
//!   changes anything, its reads give up (`base::interrupt`). Whatever has to finish runs aside: a
//!   sync, a direct write, and the writeback of a writer over the limit of dirty data. The killed
//!   program then leaves, and the work goes on. It finishes when the store is back.
//! - **AS2** Work aside needs no lock that its caller holds. So it meets other operations as it
//!   would without the kill.
//!
//! # Failure
//!
//! Some waits are not given up. These are commits of operations on a full volume (`space`), and the
//! locks of inodes and subvolumes. So are snapshots, and the first reading of the block groups.
//! Writes from the kernel's cache wait, too (`killed::K3` of `fuse`).

use buttress_base::interrupt;
use buttress_items::Result;
use buttress_txn::{Engine, Error};

/// Whether work of this thread runs aside (AS1). Only a device where each request takes long may be
/// away, and a thread for each sync costs time.
pub(crate) fn is_aside(engine: &Engine) -> bool {
    interrupt::may_abandon() && engine.volume().gains_by_batches()
}

/// Runs work that has to finish, and waits for it while it is wanted (AS1).
pub(crate) fn aside<R: Send + 'static>(
    engine: &Engine,
    work: impl FnOnce() -> Result<R> + Send + 'static,
) -> Result<R> {
    if is_aside(engine) {
        let done = interrupt::outlived("aside", work);
        return done.unwrap_or_else(|| Err(Error::Interrupted.into()));
    }
    interrupt::shielded(work)
}
