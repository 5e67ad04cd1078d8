//! The items of a new checksum tree, from the data that files with checksums have.
//!
//! # Invariants
//!
//! - **SM1** A sector gets a checksum if a file with checksums has written to it, and if it can be
//!   read. Preallocated space, and data of files without checksums, get no checksums.
//! - **SM2** Ranges are added in the order of their starts, and may overlap. Each sector is read
//!   once.

use buttress_base::{AlignedBuf, RangeSet};
use buttress_format::{CsumType, Extent, Key, Kind, Logical, header::ITEM_LEN, ids};
use buttress_sorter::spool::Spool;
use buttress_tree::Geometry;
use buttress_volume::Volume;

use crate::error::Result;

/// Bytes of one read of data.
const READ_BYTES: u64 = 1 << 20;

/// The wanted ranges, joined where they touch.
pub(crate) struct Wanted {
    /// Items with the start and the end of a range in their keys.
    ranges: Spool,
    open: Option<Extent>,
}

impl Wanted {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { ranges: Spool::new()?, open: None })
    }

    /// Adds a range that begins at or after the start of all earlier ranges (SM2).
    pub(crate) fn add(&mut self, range: Extent) -> Result<()> {
        match &mut self.open {
            Some(open) if open.end() >= range.start => {
                open.len = open.len.max(range.end().distance(open.start));
            }
            _ => {
                let done = self.open.replace(range);
                self.put(done)?;
            }
        }
        Ok(())
    }

    fn put(&mut self, range: Option<Extent>) -> Result<()> {
        if let Some(range) = range {
            let key = Key::new(range.start.0, Kind::EXTENT_CSUM, range.len);
            self.ranges.push(&key, &[])?;
        }
        Ok(())
    }

    /// Reads all wanted data and makes the items.
    pub(crate) fn sums(mut self, volume: &Volume, geometry: &Geometry) -> Result<Sums> {
        let last = self.open.take();
        self.put(last)?;
        let mut sums = Sums { items: Spool::new()?, sectors: 0, unreadable: RangeSet::new() };
        for item in self.ranges.items()? {
            let (key, _) = item?;
            let (mut at, end) = (Logical(key.objectid), Logical(key.objectid).end(key.offset));
            while at < end {
                let part = Extent::new(at, READ_BYTES.min(end.distance(at)));
                sums.part(volume, geometry, part)?;
                at = part.end();
            }
        }
        Ok(sums)
    }
}

/// The items of the new tree.
pub(crate) struct Sums {
    pub(crate) items: Spool,
    pub(crate) sectors: u64,
    /// Addresses of sectors of which no copy can be read.
    pub(crate) unreadable: RangeSet,
}

impl Sums {
    fn part(&mut self, volume: &Volume, geometry: &Geometry, part: Extent) -> Result<()> {
        let sector = u64::from(geometry.sectorsize);
        let mut buf = AlignedBuf::zeroed(part.len as usize);
        if read(volume, part.start, &mut buf) {
            return self.put(geometry, part.start, &buf);
        }
        // Some sector cannot be read, so all sectors are read one by one.
        for within in (0..part.len).step_by(sector as usize) {
            let mut buf = AlignedBuf::zeroed(sector as usize);
            if read(volume, part.start.end(within), &mut buf) {
                self.put(geometry, part.start.end(within), &buf)?;
            } else {
                let at = part.start.0 + within;
                self.unreadable.insert(at..at + sector);
            }
        }
        Ok(())
    }

    fn put(&mut self, geometry: &Geometry, start: Logical, data: &[u8]) -> Result<()> {
        let (sector, size) = (geometry.sectorsize as usize, geometry.csum.size());
        // A leaf has room for five items. Longer items would leave much of each leaf empty.
        let most = ((geometry.leaf_room() / 5 - ITEM_LEN) / size).max(1);
        for (index, part) in data.chunks(most * sector).enumerate() {
            let at = start.end((index * most * sector) as u64);
            let key = Key::new(ids::EXTENT_CSUM, Kind::EXTENT_CSUM, at.0);
            self.items.push(&key, &digests(geometry.csum, part, sector))?;
        }
        self.sectors += (data.len() / sector) as u64;
        Ok(())
    }
}

fn digests(csum: CsumType, data: &[u8], sector: usize) -> Vec<u8> {
    let of = |sector: &[u8]| csum.digest(sector)[..csum.size()].to_vec();
    data.chunks(sector).flat_map(of).collect()
}

/// Reads from the first copy that can be read.
fn read(volume: &Volume, at: Logical, buf: &mut [u8]) -> bool {
    (0..volume.mirrors(at)).any(|mirror| volume.read_mirror(at, buf, mirror).is_ok())
}
