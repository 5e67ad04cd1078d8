//! The cache through its public interface, on devices that crash and fail.

mod bad;
mod crash;
mod cut;
mod faults;
mod model;
mod pmem;
mod regressions;
mod requests;
mod rig;
mod threads;
