//! The FUSE wire format: parses the kernel's bytes into requests, and writes answers as bytes.
//!
//! # Place
//!
//! This crate knows the protocol (7.23 to 7.45) and nothing else: no device, no ring, no operation.
//! A transport hands over the [`Head`] and the [`Parts`] of a message; [`Operation::decode`] makes
//! a request of them. A front end answers with a [`Reply`], which the transport sends.
//!
//! The layouts are those of the kernel's `include/uapi/linux/fuse.h`, in the machine's byte order.
//!
//! # What must hold
//!
//! - Every length from the kernel is checked before it is used. A wrong length is `EINVAL`.
//! - No function here panics, whatever bytes it gets.

#![forbid(unsafe_code)]

mod errno;
mod flags;
mod layout;
mod values;

pub mod btrfs;
mod hello;
mod kinds;
mod listing;
mod notify;
mod reply;
mod request;
pub mod verity;

pub use errno::Errno;
pub use flags::{
    GETATTR_HANDLE, InitFlags, OpenFlags, READ_LOCKOWNER, RenameFlags, SetattrFlags, WriteFlags,
};
pub use hello::{Offer, Terms};
pub use kinds::{KINDS, kind_name};
pub use layout::{
    Attr, AttrOut, CopyRangeIn, CreateIn, EntryOut, FallocateIn, ForgetOne, Head, InitIn, InitOut,
    IoctlIn, LseekIn, MkdirIn, MknodIn, OpenIn, OpenOut, OutHead, ReadIn, ReleaseIn, SetattrIn,
    StatfsOut, StatxIn, StatxOut, StatxTime, WriteIn,
};
pub use listing::Listing;
pub use notify::{inval_entry, inval_inode, prune};
pub use reply::Reply;
pub use request::{Forgets, Opcode, Operation, Parts, opcode};
pub use values::{FileType, WireTime};

/// Length of the header of a request, bytes.
pub const IN_LEN: usize = size_of::<Head>();
/// Length of the header of an answer, bytes.
pub const OUT_LEN: usize = size_of::<OutHead>();
