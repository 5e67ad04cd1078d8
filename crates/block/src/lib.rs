//! One device: read, write, flush, discard; files, block devices and memory.
//!
//! # Place
//!
//! This crate is the bottom of the storage stack. `volume` joins devices into one address space.
//! This crate does not interpret bytes, with two exceptions. [`probe`] recognises the format of a
//! device from its first sectors, so that messages can say what would be lost. [`partition`] reads
//! where the partitions of a disk lie, and [`Window`] shows each partition as a device.

#![deny(unsafe_code)]

mod at_once;
pub mod device;
pub mod error;
pub mod file;
pub mod layer;
mod lock;
pub mod memory;
pub mod partition;
pub mod probe;
mod queue;
mod ring;
mod trial;
pub mod window;

pub use device::{Class, Content, Device, Extent, FailedWrite, Read, Space, Unfinished, Write};
pub use error::{Error, NotADevice, Operation};
pub use file::{FileDevice, OpenOptions};
pub use layer::Layer;
pub use lock::{LockFile, locked_by};
pub use memory::MemoryDevice;
pub use trial::Trial;
pub use window::Window;
