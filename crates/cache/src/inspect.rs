//! Reads a cache without opening it; changes nothing.

use std::sync::Arc;

use buttress_block::Device;

use crate::error::Error;
use crate::identity;
use crate::medium::CacheRegion;
use crate::recover;
pub use crate::recover::{Fate, Scan};

/// Reads the superblock and all entries, and classifies each entry as a recovery would.
///
/// # Errors
///
/// Those of the superblock and the device. Faults of entries are in the scan.
pub fn scan(
    cache: Arc<dyn Device>,
    origin: Option<&dyn Device>,
    start_sector: u64,
) -> Result<Scan, Error> {
    let medium = CacheRegion::new(cache, start_sector)?;
    let name = origin.map(|origin| (origin.name(), origin.len()));
    let origin_facts = name.as_ref().map(|(name, len)| (name.as_str(), *len));
    let mut scan = recover::scan(&medium, origin_facts)?;
    if let Some(origin) = origin
        && let Some(stamp) = scan.superblock.stamp
    {
        let found = identity::of_device(origin)?;
        if found != stamp.origin && found != stamp.next {
            let expected = stamp.origin;
            scan.faults.insert(0, Error::WrongOrigin { origin: origin.name(), expected, found });
        }
    }
    Ok(scan)
}
