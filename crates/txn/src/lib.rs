//! Transactions: handles, delayed references, commit. A commit records the allocations of `space`
//! in the trees.
//!
//! [`Engine`] opens a volume's trees and hands out [`View`]s to readers and [`Handle`]s to writers.
//! A commit freezes the running transaction, merges it into new trees and publishes them; meanwhile
//! the next transaction is already running.
//!
//! # Invariants
//!
//! Files of this crate name these invariants. Each file gives the reasons for its own part.
//!
//! - **T2** An operation waits for a freeze, which takes microseconds, and never for a commit.
//! - **T3** A freeze is a consistent cut: it waits for the live handles.
//! - **T4** Memory is bounded: a full overlay starts a commit early.
//! - **T5** An operation never changes a reference count in a tree: changes are summed until the
//!   commit.
//! - **T6** Space that a transaction freed is pinned until its superblock is durable and the last
//!   view of older trees is gone.
//! - **T8** After a crash the volume contains the last committed transaction and the changes that
//!   fsync logged.
//! - **T10** Whether an extent is shared follows from the committed trees and the frozen and
//!   running references together. One of the three alone is not enough.
//! - **T11** Changes of block groups, free space and references belong to the same transaction as
//!   the overlay changes that caused them.

mod allocate;
mod allocation;
mod begin_writing;
mod boot;
mod chunk_alloc;
mod claim;
mod commit;
mod commit_turn;
mod commits;
mod counters;
mod devices;
mod engine;
mod extent_refs;
mod extent_tree;
mod flush;
mod flushers;
mod found_log;
mod free_space_tree;
mod gate;
mod group_notes;
mod handle;
mod health;
mod held_commit;
mod learn;
mod learning;
mod load;
mod loading;
mod log_hold;
mod log_space;
mod move_plan;
mod moving;
mod numbers;
mod options;
mod pinned;
mod queues;
mod quota_count;
mod quotas;
mod reclaim;
mod replacement;
mod reserve_data;
mod reserving;
mod rows;
mod scrub_hold;
mod scrub_room;
mod storage;
mod subvolumes;
mod sync;
mod unreferenced;
mod unwritten;
mod usage;
mod window;
mod window_alloc;
mod writable;

pub use allocation::Allocation;
pub use commit::drop_min;
pub use commit_turn::CommitLockGuard;
pub use commits::Commits;
pub use counters::Stats;
pub use counters::refusal::Refusal;
pub use counters::steps::{Before, FlushSteps, Gain, StepFigures};
pub use counters::waits::{Waits, WaitsByQueue};
pub use engine::Engine;
pub use flush::Flusher;
pub use flushers::Flushers;
pub use found_log::SubvolumeLog;
pub use handle::Handle;
pub use held_commit::HeldCommit;
pub use learning::GroupsRead;
pub use load::Loader;
pub use log_hold::LogHold;
pub use options::EngineOptions;
pub use queues::Queues;
pub use quotas::Quotas;
pub use rows::SharedRows;
pub use scrub_hold::HeldGroup;
pub use storage::Storage;
pub use subvolumes::last_snapshot;
pub use unwritten::UnwrittenPermit;

pub use usage::{KindUsage, StatfsFigures, Usage};
pub use window::Window;

pub use buttress_reserve::{
    Accounts, DataReservation, InodeReserve, MetaReservation, QuotaCharge, QuotaUse, ReserveClass,
    ReservePolicy, cost_of_copies,
};
pub use buttress_transaction::{
    CommitReason, Cost, Csums, DataRef, DeviceChange, Error, LoggedId, MovedExtent, QuotaChange,
    Result, Snapshot, Stamp, Tracked, View,
};
pub use extent_tree::{data_owner, is_exclusive};

use buttress_reserve::{self as reserve, waiting};
use buttress_transaction::{delayed_ref, open_handles, snapshot, transaction};

pub use buttress_space::{
    Account, AllocPolicy, AllocStats, Clamp, FlushState, FlushStates, InPlaceToken, LookupPolicy,
    MetadataUse, NocowWriter, Preempt, Reach, ReadOnlyHold, Round, SpaceKind, TicketNumber,
};
