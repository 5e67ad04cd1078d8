//! Settings of the kernel for a server, so that a lack of memory does not stop it.
//!
//! # Invariants
//!
//! - **M1** The kernel frees memory by writing dirty pages to this very server. So an allocation of
//!   the server must not wait for such a write. Nor may the kernel hold up its own writes to the
//!   devices because other programs have made pages dirty. The kernel has a process state for this.
//!   Threads inherit the state, so it is set before there are any.
//! - **M2** Without the privilege for that state the mount works as before.

use std::fs;

/// The file with the kernel's score for killing this process when memory runs out.
const OOM_SCORE: &str = "/proc/self/oom_score_adj";
/// Low enough that programs on the mount are killed first. Not so low that a server which takes all
/// memory survives.
const OOM_WANTED: i32 = -500;

/// Sets the process state and the score (M1, M2).
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
