//! Another beginning of a check: a copy of the superblock, or older roots.
//!
//! The checker reads the superblock of each device by itself. So the devices show it a superblock
//! that has the chosen roots. Nothing is written.

use std::sync::Arc;

use buttress_block::{Device, Error as BlockError, Layer};
use buttress_format::limits::{SUPER_OFFSETS, SUPER_SIZE};
use buttress_format::{Header, Logical, Superblock};
use buttress_tree::{Geometry, Store, boot};
use buttress_volume::{OpenOptions, Volume};

use crate::exit::{Context, Exit, Failure, Result};

/// Where a check begins, as the options of btrfs-progs say it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Start {
    /// The copy of the superblock.
    pub copy: Option<usize>,
    /// Begin with the newest older root of the superblock.
    pub is_older: bool,
    /// The address of the root tree.
    pub tree_root: Option<u64>,
    /// The address of the chunk tree.
    pub chunk_root: Option<u64>,
}

/// A device that shows another superblock.
#[derive(Debug)]
struct Shown {
    inner: Arc<dyn Device>,
    superblock: Superblock,
}

impl Layer for Shown {
    type Inner = dyn Device;

    fn inner(&self) -> &(dyn Device + 'static) {
        &*self.inner
    }

    fn is_writable(&self) -> bool {
        false
    }

    fn on_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        self.inner.read_at(offset, buf)?;
        let end = offset + buf.len() as u64;
        for start in SUPER_OFFSETS {
            let (from, to) = (start.max(offset), (start + SUPER_SIZE as u64).min(end));
            if from < to {
                let bytes = self.superblock.to_bytes(start);
                let part = &bytes[(from - start) as usize..(to - start) as usize];
                buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(part);
            }
        }
        Ok(())
    }
}

impl Start {
    /// Whether the check begins as always.
    #[must_use]
    pub fn is_usual(&self) -> bool {
        self.copy.is_none()
            && !self.is_older
            && self.tree_root.is_none()
            && self.chunk_root.is_none()
    }

    /// The devices as the checker is to see them.
    ///
    /// # Errors
    ///
    /// A superblock or a root that cannot be read.
    pub fn show(&self, devices: &[Arc<dyn Device>]) -> Result<Vec<Arc<dyn Device>>> {
        let read = |device: &Arc<dyn Device>| {
            let found = match self.copy {
                Some(copy) => Volume::read_superblock_mirror(&**device, copy),
                None => Volume::read_superblock(&**device),
            };
            found.context(|| device.name())
        };
        let own = devices.iter().map(read).collect::<Result<Vec<_>>>()?;
        let newest = own.iter().max_by_key(|superblock| superblock.generation);
        let mut superblock =
            newest.cloned().ok_or_else(|| Failure::new(Exit::Usage, "no device was named"))?;
        let shown = |superblock: &Superblock| -> Vec<Arc<dyn Device>> {
            let pairs = devices.iter().zip(&own);
            let show = |(device, own): (&Arc<dyn Device>, &Superblock)| {
                let inner = Arc::clone(device);
                let superblock = Superblock { dev_item: own.dev_item, ..superblock.clone() };
                Arc::new(Shown { inner, superblock }) as Arc<dyn Device>
            };
            pairs.map(show).collect()
        };
        if self.is_older {
            let last = superblock.generation;
            let backups = boot::backups(&superblock);
            let older = backups.iter().find(|backup| backup.tree_root_gen < last);
            let older = older.ok_or_else(|| {
                Failure::new(Exit::Corrupt, "the superblock has no older root".to_owned())
            })?;
            boot::go_back(&mut superblock, older);
        }
        if let Some(at) = self.chunk_root {
            let header = node_at(shown(&superblock), at, false)?;
            superblock.chunk_root = header.bytenr;
            superblock.chunk_root_level = header.level;
            superblock.chunk_root_generation = header.generation;
        }
        if let Some(at) = self.tree_root {
            let header = node_at(shown(&superblock), at, true)?;
            (superblock.root, superblock.root_level) = (header.bytenr, header.level);
            superblock.generation = header.generation;
            // The log belongs to the newest root.
            superblock.log_root = Logical(0);
        }
        Ok(shown(&superblock))
    }
}

/// The header of the node at an address. `has_chunks` is true if the chunk tree can be read.
fn node_at(devices: Vec<Arc<dyn Device>>, at: u64, has_chunks: bool) -> Result<Header> {
    let name = devices.first().map_or_else(String::new, |device| device.name());
    let options = OpenOptions { degraded: true, ..OpenOptions::default() };
    let (volume, superblock) = Volume::open(devices, options).context(|| &name)?;
    let volume = Arc::new(volume);
    if has_chunks {
        let store = Store::new(Arc::clone(&volume), Geometry::of(&superblock), 0);
        boot::load_chunks(&store, &superblock).context(|| &name)?;
    }
    header_at(&volume, &superblock, at)
}

/// The header of the node at an address. The node is not verified.
///
/// # Errors
///
/// An address at which no node can be.
pub fn header_at(volume: &Volume, superblock: &Superblock, at: u64) -> Result<Header> {
    let sector = superblock.sectorsize;
    if !at.is_multiple_of(u64::from(sector)) {
        let what = format!("tree block bytenr {at} is not aligned to sectorsize {sector}");
        return Err(Failure::new(Exit::Failure, what));
    }
    let at = Logical(at);
    let mut buf = vec![0; superblock.nodesize as usize];
    let header = (0..volume.mirrors(at)).find_map(|mirror| {
        volume.read_mirror(at, &mut buf, mirror).ok()?;
        Header::parse(&buf).ok().filter(|header| header.bytenr == at)
    });
    header.ok_or_else(|| Failure::new(Exit::Failure, format!("failed to read tree block {at}")))
}
