//! Making an empty cache.
//!
//! # Failure
//!
//! The magic number is written last, after all entries are durable. So a crash leaves a blank
//! device or a complete cache.

use std::sync::Arc;

use buttress_block::{Device, probe};

use crate::error::Error;
use crate::identity;
use crate::layout::{Cut, Geometry, HEADER_LEN, Stamp, Superblock};
use crate::medium::CacheRegion;
use crate::units::Epoch;

/// Bytes written in one request.
const CHUNK: usize = 1 << 20;

/// Makes an empty cache on `cache`, with blocks of `block_size`; ties the cache to `origin` if an
/// origin is given. Returns the layout.
///
/// # Errors
///
/// [`Error::NotBlank`] unless `force`; [`Error::BlockSize`], [`Error::TooSmall`], those of the
/// device.
pub fn format(
    cache: Arc<dyn Device>,
    origin: Option<&dyn Device>,
    block_size: u32,
    start_sector: u64,
    force: bool,
) -> Result<Geometry, Error> {
    let device = cache.name();
    let medium = CacheRegion::new(Arc::clone(&cache), start_sector)?;
    let geometry = Geometry::largest(block_size, &device, medium.len())?;
    if !force {
        if let Some(what) = probe::identify(&*cache)? {
            return Err(Error::NotBlank { device, what });
        }
        match medium.superblock() {
            Err(Error::Blank { .. }) => {}
            Ok(_) => return Err(Error::NotBlank { device, what: "dm-writecache".to_owned() }),
            Err(Error::Device(error)) => return Err(Error::Device(error)),
            Err(_) => return Err(Error::NotBlank { device, what: "something".to_owned() }),
        }
    }
    let stamp = match origin {
        Some(origin) => {
            let identity = identity::of_device(origin)?;
            Some(Stamp { origin: identity, next: identity, cut: Cut::None })
        }
        None => None,
    };
    // First erases the magic number. Then fills the area of the entries with ones, which mark slots
    // free.
    medium.write_at(0, &[0; HEADER_LEN])?;
    let free = vec![0xff; CHUNK];
    let mut at = HEADER_LEN as u64;
    while at < geometry.entries_end() {
        let len = (geometry.entries_end() - at).min(CHUNK as u64);
        medium.write_at(at, &free[..len as usize])?;
        at += len;
    }
    medium.flush()?;
    let superblock = Superblock { geometry, epoch: Epoch(0), stamp };
    medium.write_at(0, &superblock.to_bytes())?;
    medium.flush()?;
    Ok(geometry)
}
