//! Reservations of metadata space, made before an operation starts.
//!
//! What a commit needs is bounded from two sides, and the smaller bound counts: every changed
//! item dirties at most one path and one split, as high as the tallest tree that is worked in;
//! and all of them together dirty at most every node there is, plus what the new bytes fill. So a
//! long transaction of small operations does not reserve more than the volume has.
//!
//! Where that does not fit the nodes are counted (`count`), and paths are reserved for what came
//! since. The bounds are in `fits`.
//!
//! # Invariants
//!
//! - **P1** need(running + reserved) + need(frozen) fits in free metadata less the global reserve,
//!   and in half of what the devices have unallocated. Data cannot take that meanwhile. An
//!   operation that frees space has all of it, where some is kept for copies of what trees share
//!   (`copies`).
//! - **P2** A thread that asks holds no handle: asking may commit. Checked in debug builds.
//! - **P3** What was reserved is the sum of the live tokens. Checked at every commit of a debug
//!   build.
//! - **P4** An operation that frees space has seven eighths of the global reserve beyond what
//!   writers that fill it have. It has three quarters where trees share nodes; the drop of a
//!   subvolume has all of it. It also has all that is kept for copies: what all such operations may
//!   put together fits. Where no flush step made room, it gets its reservation beside others
//!   that free alone, whatever others hold. Once it has waited for those, too, it gets it as if it
//!   were alone. A delete is not refused for what others hold and do not use.

mod accounts;
mod ahead;
mod copies;
mod copies_need;
mod count;
mod counts;
mod credit;
mod finishing;
mod fits;
mod granting;
mod inode;
mod ledger;
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
pub use policy::{DeleteRoom, ReservePolicy};
pub use reservations::{Beneath, Reservations, kind_flags};
pub use ticket::MetaTicket;
pub use token::MetaReservation;
pub use urgency::{Demand, Urgency};

use buttress_transaction::{Cost, Costs, Result, View, held, transaction};
