//! The volume over devices in memory.

mod builders;
mod classes;
mod interop;
mod mapping;
mod mirrors;
mod opening;
mod rows;
mod superblocks;
