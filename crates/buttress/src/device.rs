//! Devices: what a program needs to implement [`Device`], and the devices that exist.
//!
//! A program implements seven methods; the other ones have defaults.
//!
//! ```
//! use std::sync::Arc;
//!
//! use buttress::device::{Device, Error, MemoryDevice};
//!
//! /// A device that prints each flush.
//! #[derive(Debug)]
//! struct Told(MemoryDevice);
//!
//! impl Device for Told {
//!     fn name(&self) -> String {
//!         "told".to_owned()
//!     }
//!     fn len(&self) -> u64 {
//!         self.0.len()
//!     }
//!     fn writable(&self) -> bool {
//!         true
//!     }
//!     fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
//!         self.0.read_at(offset, buf)
//!     }
//!     fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
//!         self.0.write_at(offset, buf)
//!     }
//!     fn flush(&self) -> Result<(), Error> {
//!         println!("flush");
//!         self.0.flush()
//!     }
//!     fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
//!         self.0.discard(offset, len)
//!     }
//! }
//!
//! # fn main() -> buttress::Result<()> {
//! let device = Arc::new(Told(MemoryDevice::new(256 << 20)));
//! let fs = buttress::CreateOptions::new(256 << 20).create_on(device)?;
//! fs.write("/text", "hello")?;
//! fs.close()
//! # }
//! ```

pub use buttress_block::{
    Class, Content, Device, Error, Extent, FailedWrite, FileDevice, Layer, MemoryDevice,
    NotADevice, OpenOptions, Operation, Read, Space, Unfinished, Window, Write,
};
