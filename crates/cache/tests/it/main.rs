//! The cache through its public interface, on devices that crash and fail.

mod bad;
mod crash;
mod cut;
mod faults;
mod known;
mod model;
mod pmem;
mod requests;
mod rig;
mod threads;
