//! Finds which of the given devices are a volume's own, and which belong to its seeds.

use std::sync::Arc;

use buttress_block::Device;
use buttress_format::Superblock;

use crate::error::{Error, Uuid};

/// A device with the superblock found on it.
pub(crate) struct Candidate {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) superblock: Superblock,
}

/// The flag of a superblock that makes a volume a seed.
pub(crate) const SEEDING: u64 = 1 << 32;
/// The most seeds, each grown from the one before, that a volume can have.
const SEEDS_MAX: usize = 4;

/// The identifiers of a volume's seeds. Nodes on the seeds' devices carry these identifiers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeedIds {
    ids: [[u8; 16]; SEEDS_MAX],
    pub(crate) len: usize,
}

impl SeedIds {
    /// No seed.
    pub const NONE: Self = Self { ids: [[0; 16]; SEEDS_MAX], len: 0 };

    /// Whether a seed has this identifier.
    #[must_use]
    pub fn has(&self, id: [u8; 16]) -> bool {
        self.ids[..self.len].contains(&id)
    }

    fn of<'c>(candidates: impl Iterator<Item = &'c Candidate>) -> Result<Self, Error> {
        let mut seeds = Self::default();
        for id in candidates.map(|part| part.superblock.tree_fsid()) {
            if seeds.has(id) {
                continue;
            }
            let Some(place) = seeds.ids.get_mut(seeds.len) else {
                let what = format!("more than {SEEDS_MAX} seeds, one grown from the other");
                return Err(Error::Features { features: vec![what] });
            };
            *place = id;
            seeds.len += 1;
        }
        Ok(seeds)
    }
}

/// Whether a superblock is that of a seed.
#[must_use]
pub fn is_seed(superblock: &Superblock) -> bool {
    superblock.flags & SEEDING != 0
}

/// The superblock of the volume that the candidates make: the newest superblock that is not a
/// seed's. If all superblocks belong to seeds, the newest of all is returned, since a sprout is
/// newer than its seed. A log does not raise the generation. So of equal ones that with a log is
/// newer: a device that missed a degraded mount has none.
pub(crate) fn newest(candidates: &[Candidate]) -> Option<&Superblock> {
    let superblocks = candidates.iter().map(|candidate| &candidate.superblock);
    superblocks.max_by_key(|superblock| {
        (!is_seed(superblock), superblock.generation, superblock.log_root.0 != 0)
    })
}

/// Finds the seeds among the candidates of a volume. All other devices must be the volume's own.
pub(crate) fn seeds_of(candidates: &[Candidate], newest: &Superblock) -> Result<SeedIds, Error> {
    let identity = |superblock: &Superblock| (superblock.fsid, superblock.tree_fsid());
    let is_own = |part: &&Candidate| identity(&part.superblock) == identity(newest);
    let others = || candidates.iter().filter(|part| !is_own(part));
    if let Some(foreign) = others().find(|part| !is_seed(&part.superblock)) {
        return Err(Error::ForeignDevice {
            device: foreign.device.name(),
            found: Uuid(foreign.superblock.fsid),
            expected: Uuid(newest.fsid),
        });
    }
    SeedIds::of(others())
}
