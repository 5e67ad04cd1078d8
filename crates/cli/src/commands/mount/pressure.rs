//! Settings of the kernel for a server, so that a lack of memory does not stop it.
//!
//! # Invariants
//!
//! - **M1** When memory is short, the kernel frees memory by writing dirty pages to this server. So
//!   an allocation by the server must not wait for such a write. Also, the kernel must not delay
//!   the server's writes to its devices because other programs have made pages dirty. The process
//!   state that `PR_SET_IO_FLUSHER` sets ensures both rules. Threads inherit this state, so it is
//!   set before any thread is started.
//! - **M2** Without the privilege for this state, the mount works without the state.
//! - **M3** No memory of the server is in huge pages. The allocator uses only parts of a huge page
//!   for each thread. Under a load the rest of the page would be resident without use. A server in
//!   the background inherits this setting from its parent, so the setting holds for the first
//!   allocation, too. Otherwise 6 MiB stay resident.

use std::fs;

/// The file with the kernel's score for killing this process when memory runs out.
const OOM_SCORE: &str = "/proc/self/oom_score_adj";
/// Low enough that the kernel kills programs that use the mount first. But a server that takes all
/// memory is still killed.
const OOM_WANTED: i32 = -500;

/// Has the kernel use no huge pages for later memory of this process, and for all memory of
/// programs that this process starts (M3).
pub(super) fn avoid_huge_pages() {
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "the kernel may use huge pages for this server");
    }
}

/// Sets the process state and the score (M1, M2, M3).
pub(super) fn prepare() {
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::debug!(%error, "the kernel makes no difference between this server and a program");
    }
    avoid_huge_pages();
    let score = fs::read_to_string(OOM_SCORE).ok().and_then(|text| text.trim().parse::<i32>().ok());
    if score.is_some_and(|score| score > OOM_WANTED)
        && let Err(error) = fs::write(OOM_SCORE, OOM_WANTED.to_string())
    {
        tracing::debug!(%error, "the kernel may kill this server when memory runs out");
    }
}
