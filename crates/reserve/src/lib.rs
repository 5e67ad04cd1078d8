//! Reservations of metadata space, made before an operation starts.
//!
//! The need of a commit has a crude bound (`fits`). If a request does not fit by this bound, the
//! nodes are counted (`count`), and the smaller bound counts. `docs/internals/reservations.md` has
//! the proof on one page.
//!
//! # Invariants
//!
//! - **P1** The need of the running transaction with all reservations, plus the need of the frozen
//!   one, always fits. It fits in free metadata less the global reserve, plus half of the
//!   unallocated space. Data cannot take this half. While space is kept for copies of shared nodes
//!   (`copies`), an operation that frees space may use all unallocated space.
//! - **P2** A thread that requests a reservation holds no handle, since the request may have to
//!   commit. Debug builds check this.
//! - **P3** The sum of all reservations equals the sum of the live tokens. Debug builds check this
//!   at every commit.
//! - **P4** An operation that frees space may use seven eighths of the global reserve, which
//!   ordinary writers may not use. It may use only three quarters if trees share nodes; the drop of
//!   a subvolume may use the whole reserve. These operations may also use all space kept for
//!   copies, because the space is enough for the copies that all of them make. If no flush step
//!   made room, such an operation ignores the reservations of writers. It must fit beside the
//!   reservations of other operations that free space. If it has also waited for those other
//!   operations to end, it ignores all reservations. So unused reservations of others never make a
//!   delete fail.

mod accounts;
mod cache;
mod class;
mod copies;
mod copies_need;
mod count;
mod finishing;
mod fits;
mod frozen;
mod granting;
mod inode;
mod ledger;
mod outstanding;
mod policy;
mod preempt_wakeup;
mod pressure;
mod quota_charge;
mod quota_limits;
mod reservations;
mod shape;
mod shared;
mod ticket;
mod token;
mod transaction_ledger;
pub mod waiting;

pub use accounts::Accounts;
pub use class::{ReserveClass, TicketDemand};
pub use copies::cost_of_copies;
pub use copies_need::TreeFacts;
pub use frozen::FrozenNeed;
pub use inode::InodeReserve;
pub use policy::ReservePolicy;
pub use quota_charge::{DataReservation, QuotaCharge};
pub use quota_limits::{QuotaChanges, QuotaLimits, QuotaUse};
pub use reservations::{EngineParts, Reservations, kind_flags};
pub use ticket::MetaTicket;
pub use token::MetaReservation;

use buttress_transaction::{Cost, Result, View, open_handles, transaction};
