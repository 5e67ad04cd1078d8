//! Speed beside the kernel's file systems, as ratios in one run.
//!
//! Every experiment runs all its targets in turn, several times, so that other work of the machine
//! affects all targets alike. It reports medians, with the smallest and the largest value. The
//! kernel's file systems need root and loop devices. The images are in a memory-backed folder.
//!
//! [`published`] is the frame of experiments with published figures. The experiments on the
//! write-back cache, [`writeback`] and [`foreground`], compare no other file systems.

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
mod programs;
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
