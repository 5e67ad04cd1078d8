//! What a server asks of the kernel so that memory which runs short does not stop it.
//!
//! # Invariants
//!
//! - **M1** The kernel frees memory by writing dirty pages to the very server. So an allocation
//!   of the server must not wait for such a write. Nor may its own writes to the devices be held up
//!   because others have made pages dirty. The kernel has a state for a process like that. Threads
//!   inherit it, so it is taken before there are any.
//! - **M2** Without the rights for it the mount works as before.

use std::fs;

/// Where the kernel keeps how gladly it would kill this process.
const OOM_SCORE: &str = "/proc/self/oom_score_adj";
/// Low enough that programs on the mount go first, and not so low that a server which takes all
/// memory stays.
const OOM_WANTED: i32 = -500;

/// Asks for it (M1, M2).
pub(super) fn prepare() {
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::debug!(%error, "the kernel makes no difference between this server and a program");
    }
    let score = fs::read_to_string(OOM_SCORE).ok().and_then(|text| text.trim().parse::<i32>().ok());
    if score.is_some_and(|score| score > OOM_WANTED)
        && let Err(error) = fs::write(OOM_SCORE, OOM_WANTED.to_string())
    {
        tracing::debug!(%error, "the kernel may kill this server when memory runs out");
    }
}
