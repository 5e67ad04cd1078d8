//! Tests of Linux's dm-writecache and Buttress on each other's caches.
//!
//! # Place
//!
//! The kernel runs as an ordinary process: Debian's `user-mode-linux`, with a few megabytes of
//! initramfs that hold busybox, dmsetup, the module and `rig-work`. Origin and cache are plain
//! files. A case takes two or three seconds, needs no privileges, and can be killed at any moment.
//! With QEMU and a kernel for its machine ([`machine`]), caches in persistent memory are exchanged,
//! too.

#![forbid(unsafe_code)]

pub mod guest;
pub mod machine;
pub mod work;

pub use guest::{Guest, has_guest};
pub use machine::{Machine, has_machine};
pub use work::{Work, read_model, sector};
