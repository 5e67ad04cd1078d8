//! Overlapping writes and flushes from a seed: the same inside the guest, in our process, and in
//! the model.

use buttress_base::Rng;
use crc_fast::{CrcAlgorithm, Digest};

/// Bytes of a sector.
pub const SECTOR: usize = 512;

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Writes a number to `count` sectors from `at` on.
    Write {
        /// The first sector.
        at: usize,
        /// The number of sectors.
        count: usize,
        /// The number.
        value: u32,
    },
    /// Makes all earlier writes durable.
    Flush,
}

/// A list of steps for a device.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// The seed of the steps.
    pub seed: u64,
    /// The number of steps.
    pub steps: usize,
    /// Length of the device.
    pub sectors: usize,
    /// Writes begin and end at multiples of this number of sectors.
    pub align: usize,
}

impl Work {
    /// The steps, in order. The last step is a flush.
    #[must_use]
    pub fn list(&self) -> Vec<Step> {
        let mut rng = Rng::new(self.seed);
        let blocks = self.sectors / self.align;
        let mut steps: Vec<_> =
            (1..self.steps).map(|step| self.step(step, blocks, &mut rng)).collect();
        steps.push(Step::Flush);
        steps
    }

    fn step(&self, step: usize, blocks: usize, rng: &mut Rng) -> Step {
        if rng.chance(1, 6) {
            return Step::Flush;
        }
        // Half of the writes are within a tenth of the device.
        let region = if rng.chance(1, 2) { (blocks / 10).max(1) } else { blocks };
        let at = rng.below(region as u64) as usize;
        let count = 1 + rng.below(12.min(blocks - at) as u64) as usize;
        let value = (self.seed as u32) << 16 | step as u32;
        Step::Write { at: at * self.align, count: count * self.align, value }
    }

    /// Applies the first `count` steps to a model.
    pub fn apply(&self, model: &mut [u32], count: usize) {
        for step in self.list().into_iter().take(count) {
            if let Step::Write { at, count, value } = step {
                model[at..at + count].fill(value);
            }
        }
    }

    /// Checks the content of each sector. The first `flushed` steps are durable, and no step after
    /// `begun` has begun.
    ///
    /// # Panics
    ///
    /// If a sector holds something else.
    pub fn check(&self, before: &[u32], found: &[u32], flushed: usize, begun: usize) {
        let mut durable = before.to_vec();
        self.apply(&mut durable, flushed);
        let mut allowed: Vec<Vec<u32>> = durable.into_iter().map(|value| vec![value]).collect();
        for step in self.list().into_iter().take(begun).skip(flushed) {
            if let Step::Write { at, count, value } = step {
                allowed[at..at + count].iter_mut().for_each(|values| values.push(value));
            }
        }
        for (at, (found, allowed)) in found.iter().zip(&allowed).enumerate() {
            assert!(
                allowed.contains(found),
                "sector {at} holds {found:#x}, not of {allowed:x?} (seed {}, flushed {flushed})",
                self.seed
            );
        }
    }
}

/// The bytes of a sector that holds a number. For zero, all bytes are zero.
#[must_use]
pub fn sector(value: u32) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    for (index, place) in bytes.chunks_exact_mut(4).enumerate() {
        let word = if value == 0 { 0 } else { value.wrapping_mul(0x9e37_79b9) ^ index as u32 };
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes[0..4].copy_from_slice(&value.to_le_bytes());
    bytes
}

/// The numbers in a device's content.
///
/// # Panics
///
/// If a sector is torn.
#[must_use]
pub fn read_model(bytes: &[u8]) -> Vec<u32> {
    let number = |(at, bytes): (usize, &[u8])| {
        let value = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
        assert!(bytes == sector(value), "sector {at} is torn");
        value
    };
    bytes.chunks_exact(SECTOR).enumerate().map(number).collect()
}

/// The checksum of a device that holds a model.
#[must_use]
pub fn checksum(model: &[u32]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    model.iter().for_each(|&value| digest.update(&sector(value)));
    digest.finalize() as u32
}
