//! Promises of metadata space, made before an operation starts.
//!
//! What a commit needs is bounded from two sides, and the smaller bound counts: every changed
//! item dirties at most one path and one split, as high as the tallest tree that is worked in;
//! and all of them together dirty at most every node there is, plus what the new bytes fill. So a
//! long transaction of small operations does not promise more than the volume has.
//!
//! Where that does not fit the nodes are counted (`count`), and paths are promised for what came
//! since. The bounds are in `fits`.
//!
//! # Invariants
//!
//! - **P1** need(running + promised) + need(frozen) fits in free metadata less the global
//!   reserve, and in half of what the devices have unallocated, which data cannot take meanwhile;
//!   in all of it for who frees space, where some is kept for copies of what trees share
//!   (`copies`).
//! - **P2** Whoever asks holds no handle: asking may commit. Checked in debug builds.
//! - **P3** What was promised is the sum of the live tokens. Checked at every commit of a debug
//!   build.
//! - **P4** Who frees space has seven eighths of the global reserve beyond what those have who
//!   fill it (three quarters where trees share nodes, and who drops subvolumes all of it), and
//!   all that is kept for copies: what all of them may put together fits. Where no step of a
//!   ladder made room for him he is promised his beside others who free alone, whatever others
//!   hold; once he has waited for those, too, as if he were alone. A delete is not refused for
//!   what others hold and do not use.

mod accounts;
mod ahead;
mod copies;
mod copies_known;
mod copies_need;
mod count;
mod counts;
mod credit;
mod credits;
pub mod device_space;
mod fits;
mod granting;
mod inode;
mod landing;
mod outstanding;
mod policy;
mod reservations;
mod shared;
mod shares;
mod ticket;
mod token;
mod urgency;
pub mod waiting;

pub use accounts::Accounts;
pub use copies::{Tree, cost_of_copies};
pub use inode::InodeReserve;
pub use policy::{DeleteRoom, PromisePolicy};
pub use reservations::{Beneath, Reservations};
pub use ticket::MetaTicket;
pub use token::MetaReservation;
pub use urgency::{Demand, Urgency};

use buttress_transaction::{Cost, Costs, Result, View, held, transaction};
