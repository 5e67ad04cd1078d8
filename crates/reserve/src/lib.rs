//! Reservations of metadata space, made before an operation starts.
//!
//! The need of a commit has two bounds, and the smaller one counts. First: every changed item
//! dirties at most one path and one split, as high as the tallest tree in use. Second: all items
//! together dirty at most every existing node, plus the nodes that new bytes fill. So a long
//! transaction of small operations does not reserve more than the volume has.
//!
//! If that does not fit, the nodes are counted (`count`), and paths are reserved only for items
//! since the count. The bounds are in `fits`.
//!
//! # Invariants
//!
//! - **P1** need(running + reserved) + need(frozen) fits in free metadata less the global reserve,
//!   plus half of the unallocated space of the devices. Data cannot take that half meanwhile. An
//!   operation that frees space may use all of it while some is kept for copies of shared nodes
//!   (`copies`).
//! - **P2** A thread that asks holds no handle: asking may commit. Checked in debug builds.
//! - **P3** What was reserved is the sum of the live tokens. Checked at every commit of a debug
//!   build.
//! - **P4** An operation that frees space may use seven eighths of the global reserve beyond the
//!   limit of writers. It may use three quarters if trees share nodes; the drop of a subvolume may
//!   use all of it. Such operations may also use all that is kept for copies, since together they
//!   fit in it. If no flush step made room, such an operation is granted beside other freeing
//!   operations alone, whatever else is reserved. If it has waited for those, too, it is granted as
//!   if it were alone. So unused reservations of others never make a delete fail.

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
