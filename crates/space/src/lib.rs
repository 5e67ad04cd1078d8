//! Space of a volume: how much an operation may reserve, and which addresses an allocation gets.
//!
//! # Place
//!
//! The crate computes in memory, without I/O and trees. `txn` tells the crate the block groups and
//! their free space. `txn` also asks for reservations and addresses, and records the answers in the
//! extent, block-group and free-space trees.
//!
//! # Where things are
//!
//! ```text
//! kind               data, metadata, system
//! error              what a disk says wrongly of its space, and requests that cannot be granted
//! extent_set         disjoint ranges that refuse double insertion
//! free_extents       the free space of one group, by offset and by size
//! free_bitmap        a fragmented group's free space: bits, and a tree of their longest runs
//! bits               runs of bits in words
//! free_space         one group's free space in the form that takes less memory
//! free_space_form    the two forms of a group in the free-space tree
//! group              one block group: its bytes by state, its summary
//! group_state        the bytes of a group by state, under its lock
//! group_load         a group gets its free extents
//! group_moves        bytes go from one state to the next; the end of a group
//! group_stop         the part of quiesce that works on one group
//! quiesce            read-only groups, and waiting for their writers
//! guard              writers in place, counted without a shared cache line
//! directory          all groups, sorted, immutable
//! index              groups by their largest free run: bitmaps by order
//! plane_bits         one of these bitmaps, with summaries to skip its empty parts
//! size_class         small and large extents, which lie in different groups
//! by_map             the baseline of lookups: groups in a map under a lock
//! policy             how groups are chosen and found; the published baselines, by name
//! account            one kind of space: total, used, reserved, ...
//! ticket             the queue of waiting requests, served in order
//! data_queue         that queue for data, over its account
//! flush_states       the order of the flush steps
//! preempt            when room is made before a request waits
//! reserve            reservations that give themselves back
//! in_place_token     tokens for writes in place, which need no reservation
//! unreserved         the count of bytes that in-place writes hold unreserved
//! token_audit        the live tokens, to compare accounts with
//! request            what an allocation asks for and gets
//! goals              where each stream allocated last
//! search             the order in which groups are tried
//! allocate           choosing a group and an extent
//! rows               extents that share rows with parity
//! space              the interface: groups, states of bytes, figures
//! sync, waiting      the primitives that tests replace by those of a scheduler
//! ```
//!
//! # Locks
//!
//! Outermost first: a queue of tickets, the directory's writers, one group, one account. No thread
//! holds the locks of two groups at once.

mod error;
mod kind;

mod bits;
mod extent_set;
mod free_bitmap;
mod free_extents;
mod free_space;

mod account;
#[cfg(feature = "baselines")]
mod by_map;
mod data_queue;
mod directory;
mod flush_states;
mod goals;
mod group;
mod group_load;
mod group_moves;
mod group_state;
mod group_stop;
mod guard;
mod in_place_token;
mod index;
mod policy;
mod preempt;
mod quiesce;
mod request;
mod reserve;
mod rows;
mod size_class;
mod sync;
mod ticket;
mod token_audit;
mod unreserved;
mod waiting;

mod allocate;
mod plane_bits;
mod search;
mod space;

pub mod free_space_form;

pub use account::{Account, Refused};
#[cfg(feature = "baselines")]
pub(crate) use by_map::Finder;
pub use error::Error;
pub use flush_states::{FlushState, FlushStates, Reach};
pub use group::{Group, GroupInit, GroupUsage};
pub use in_place_token::InPlaceToken;
pub use kind::SpaceKind;
pub use policy::{AllocPolicy, LookupPolicy};
pub use preempt::{Clamp, MetadataUse, Preempt, Round};
pub use quiesce::{NocowWriter, ReadOnlyHold};
pub use request::{AllocOutcome, AllocRequest, AllocStats};
pub use reserve::{DataReservation, DataTicket};
pub use rows::Rows;
pub use search::{Next, Search, Take};
pub use space::Space;
pub use ticket::{Priority, Queue, Ticket, TicketNumber, Verdict};
pub use token_audit::TokenAudit;
