//! Work that has to finish, for programs that may be killed while they wait for it.
//!
//! # Invariants
//!
//! - **AS1** A program waits for a store that is away only until it is killed. Before its operation
//!   changes anything, its reads give up (`base::interrupt`). Whatever has to finish runs aside: a
//!   sync, and the writeback of a writer over the limit of dirty data. The killed program then
//!   leaves, and the work goes on. It finishes when the store is back.
//! - **AS2** Work aside needs no lock that its caller holds, and may come at any later time. So it
//!   writes only what files have: a write of a program that is gone could overwrite a later one.
//! - **AS3** If the wait for it was given up, a failure is kept for the next sync.
//! - **AS4** At most [`MOST`] threads run aside. Without a thread, the caller waits.
//!
//! # Failure
//!
//! Some waits are not given up. These are commits of operations on a full volume (`space`), and the
//! locks of inodes and subvolumes. So are direct writes, truncations and other changes of
//! attributes, snapshots, and the first reading of the block groups. Writes from the kernel's cache
//! wait, too (`fuse::killed::K3`). Work aside that begins after the volume was closed fails.

use std::sync::atomic::{AtomicUsize, Ordering};

use buttress_base::interrupt;
use buttress_items::Result;
use buttress_txn::{Engine, Error};

/// The most threads aside (AS4).
const MOST: usize = 64;

/// The threads aside of this process.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// Counts a thread aside until it is dropped.
struct Running;

impl Running {
    fn begin() -> Option<Self> {
        let count = |running| (running < MOST).then_some(running + 1);
        RUNNING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count).ok().map(|_| Self)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether work of this thread runs aside (AS1). Only a device where each request takes long may be
/// away, and a thread for each sync costs time.
fn is_aside(engine: &Engine) -> bool {
    interrupt::may_abandon() && engine.volume().gains_by_batches()
}

/// Runs work that has to finish, and waits for it while it is wanted (AS1). Otherwise `unwanted`
/// gets the result (AS3).
pub(crate) fn aside<R: Send + 'static>(
    engine: &Engine,
    work: impl FnOnce() -> Result<R> + Send + 'static,
    unwanted: impl FnOnce(Result<R>) + Send + 'static,
) -> Result<R> {
    let running = if is_aside(engine) { Running::begin() } else { None };
    let Some(running) = running else { return interrupt::without_cancel(work) };
    let counted = move || {
        let _running = running;
        work()
    };
    let done = interrupt::outlived("aside", counted, unwanted);
    done.unwrap_or_else(|| Err(Error::Interrupted.into()))
}
