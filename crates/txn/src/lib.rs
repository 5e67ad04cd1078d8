//! Transactions: handles, delayed references, commit. Records what `space` decided.
//!
//! [`Engine`] opens a volume's trees and hands out [`View`]s to readers and [`Handle`]s to writers.
//! A commit freezes the running transaction, merges it into new trees and publishes them; meanwhile
//! the next transaction is already running.

mod allocate;
mod boot;
mod chunk_alloc;
mod claim;
mod commit;
mod commit_state;
mod commit_turn;
mod cost;
mod counters;
mod csum_tree;
mod csums;
mod delayed_ref;
mod device_space;
mod devices;
mod engine;
mod error;
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
mod held;
mod learn;
mod learning;
mod load;
mod loading;
mod log_hold;
mod log_space;
mod numbers;
mod options;
mod pinned;
mod reclaim;
mod reserve;
mod reserve_data;
mod reserving;
mod rows;
mod scrub_hold;
mod scrub_room;
mod seldom;
mod snapshot;
mod stamps;
mod subvolumes;
mod sums;
mod sync;
mod tracked;
mod transaction;
mod unborn;
mod usage;
mod view;
mod waiting;
mod window;
mod window_alloc;
mod writable;

pub use commit_turn::CommitTurn;
pub use cost::{Cost, Costs};
pub use csums::Csums;
pub use delayed_ref::DataRef;
pub use device_space::DeviceSpace;
pub use engine::Engine;
pub use error::{Error, Result};
pub use flush::waits::{Waits, WaitsByLine};
pub use flush::{Before, FlushSteps, Flusher, Gain, Refusal, StepFigures};
pub use found_log::SubvolumeLog;
pub use handle::Handle;
pub use learning::GroupsRead;
pub use load::Loader;
pub use log_hold::LogHold;
pub use options::EngineOptions;
pub use reserve::{
    Accounts, DeleteRoom, InodeReserve, MetaReservation, PromisePolicy, Urgency, cost_of_copies,
};
pub use rows::SharedRows;
pub use scrub_hold::HeldGroup;
pub use snapshot::Snapshot;
pub use stamps::Stamp;

pub use tracked::{LoggedId, Tracked};
pub use transaction::DeviceChange;
pub use usage::{KindUsage, Room, Stats, Usage};
pub use view::View;
pub use window::Window;

pub use buttress_space::{
    Account, AllocPolicy, AllocStats, Arrivals, Clamp, DataReservation, Ladder, LookupPolicy,
    NoReserve, NocowWriter, Pace, Pools, Preempt, Reach, ReadOnlyHold, Round, SpaceKind, Step,
};
