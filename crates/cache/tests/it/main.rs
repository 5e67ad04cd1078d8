//! The cache as its users see it, on devices that crash and fail.

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
