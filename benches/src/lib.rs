//! Speed beside the kernel's file systems, as ratios in one run.
//!
//! Every experiment runs all its targets in turn, several times over, so that what else the machine
//! does hits all alike; medians are reported, with the smallest and the largest. The kernel's file
//! systems need root and loop devices; a memory-backed folder is for the images.
//!
//! [`published`] is the frame of experiments with published figures. Those of the write-back cache,
//! [`writeback`] and [`foreground`], have no other file systems beside them.

mod allocate;
mod choice;
mod command;
mod cpu;
mod disk;
mod enospc;
mod fio;
pub mod foreground;
mod fsync;
pub mod groups;
pub mod growth;
pub mod heap;
mod latency;
mod mount;
mod nocow;
mod plan;
mod processors;
pub mod published;
mod read;
pub mod remote;
mod report;
pub mod scale;
mod series;
mod setup;
mod stall;
mod subject;
mod target;
mod told;
mod volume;
mod work;
pub mod writeback;

pub use command::run;
pub use target::Target;
