//! The tests of the crate, on devices in memory and throwaway images.

mod access;
#[cfg(debug_assertions)]
mod ahead;
mod alone;
mod begin_writing;
mod behind;
mod bounds;
mod cancelled;
mod checker;
mod content;
mod contention;
mod cuts;
mod devices;
mod dirty_blocks;
mod early;
mod events;
#[cfg(debug_assertions)]
mod faults;
mod free_reads;
mod fsync;
mod growth;
mod held;
mod in_place;
mod interrupted;
mod late;
mod log_copies;
mod losses;
mod missed;
mod model;
mod moving;
mod names;
mod packing;
mod parity_cuts;
mod parity_nodes;
mod pending_times;
#[cfg(debug_assertions)]
mod processors;
mod quota_counts;
mod quota_limits;
mod quotas;
mod races;
#[cfg(debug_assertions)]
mod readers;
mod reads;
mod regressions;
mod repairs;
mod replaced;
mod resumed;
mod reuse;
mod room;
mod scrubs;
#[cfg(debug_assertions)]
mod seeded;
mod shortfalls;
mod snapshots;
mod steps;
mod stores;
mod stripe_tree;
mod subvolumes;
mod trim;
mod verity;
mod volume;
mod waiters;
