//! Names, inodes and subvolumes as items: how they lie in trees.
//!
//! # Invariants
//!
//! - **I1** This crate knows items, views and batches, and no live inode. It keeps no state: what a
//!   function returns follows from its arguments.
//! - **I2** Nothing here begins a handle, waits for space, or changes a tree. A change goes into a
//!   [`Batch`], which the caller reserves for and applies.
//! - **I3** Bytes of items become checked types here. What does not parse is an [`Error`] that
//!   names the tree and the inode.
//!
//! # Place
//!
//! The crate stands below the one that serves files, which has inodes in memory, locks and
//! operations. It has that crate's error, too, because reading an item can fail in the same ways.
//!
//! # Layers
//!
//! A module uses the modules above it in this list.
//!
//! ```text
//! attr, error                      types of the interface
//! batch, roots                     changes of one operation; root items
//! names, inode_refs, orphan        names of inodes, and inodes without one
//! xattr_items, subvolume_items     attributes; subvolumes outside their own trees
//! property, acl                    attributes with a meaning
//! ```

mod attr;
mod batch;
mod error;

pub mod acl;
pub mod inode_refs;
pub mod names;
pub mod orphan;
pub mod property;
pub mod roots;
pub mod subvolume_items;
pub mod xattr_items;

pub use attr::{Attr, FileKind, InodeId, SetAttr, mode};
pub use batch::{Batch, Change, Current, NOW, entry_len};
pub use error::{Error, ErrorKind, NameError, Result};
