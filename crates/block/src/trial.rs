//! A device that keeps changes in memory. A repair is tried on it before the real device is
//! changed.
//!
//! # Invariants
//!
//! - **TR1** The device behind gets no write before [`Trial::commit`].
//! - **TR2** [`Trial::take_back`] restores the content at the last call of [`Trial::keep`].

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::device::Device;
use crate::error::Error;
use crate::layer::Layer;

/// Bytes of one part of the memory.
const BLOCK: u64 = 4096;

/// The longest write of a commit, so that a journal can keep the overwritten bytes.
const RUN_MAX: usize = 32 << 20;

/// The written blocks, by number. The last block of a device may be shorter.
#[derive(Debug, Default)]
struct Written {
    blocks: BTreeMap<u64, Vec<u8>>,
    /// The content before each write since [`Trial::keep`].
    before: Vec<(u64, Option<Vec<u8>>)>,
}

/// A device in front of another device. Reads see all writes, but the device behind gets no write.
#[derive(Debug)]
pub struct Trial {
    device: Arc<dyn Device>,
    /// Unranked: a leaf.
    written: Mutex<Written>,
}

impl Trial {
    /// Makes a device in front of `device`, without any writes.
    #[must_use]
    pub fn new(device: &Arc<dyn Device>) -> Self {
        Self { device: Arc::clone(device), written: Mutex::default() }
    }

    /// Keeps all writes so far (TR2).
    pub fn keep(&self) {
        self.written.lock().before.clear();
    }

    /// Undoes the writes since the last [`Trial::keep`] (TR2).
    pub fn take_back(&self) {
        let mut written = self.written.lock();
        while let Some((number, before)) = written.before.pop() {
            match before {
                Some(bytes) => written.blocks.insert(number, bytes),
                None => written.blocks.remove(&number),
            };
        }
    }

    /// Writes the blocks with an offset that `is_wanted` accepts to the device behind, and drops
    /// them from memory. Adjacent blocks become one write.
    ///
    /// # Errors
    ///
    /// An error of the device behind.
    pub fn commit(&self, is_wanted: impl Fn(u64) -> bool) -> Result<(), Error> {
        let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
        for (number, bytes) in &self.written.lock().blocks {
            let at = number * BLOCK;
            match runs.last_mut() {
                Some((start, run))
                    if *start + run.len() as u64 == at && run.len() < RUN_MAX && is_wanted(at) =>
                {
                    run.extend(bytes);
                }
                _ if is_wanted(at) => runs.push((at, bytes.clone())),
                _ => {}
            }
        }
        for (at, bytes) in runs {
            self.device.write_at(at, &bytes)?;
        }
        self.written.lock().blocks.retain(|number, _| !is_wanted(number * BLOCK));
        self.device.flush()
    }
}

impl Layer for Trial {
    type Inner = dyn Device;

    fn inner(&self) -> &Self::Inner {
        &*self.device
    }

    fn on_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.device.read_at(offset, buf)?;
        let end = offset + buf.len() as u64;
        for (number, bytes) in self.written.lock().blocks.range(offset / BLOCK..end.div_ceil(BLOCK))
        {
            let at = number * BLOCK;
            let from = offset.max(at);
            let to = end.min(at + bytes.len() as u64);
            if from < to {
                let new = &bytes[(from - at) as usize..(to - at) as usize];
                buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(new);
            }
        }
        Ok(())
    }

    fn on_write(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        let end = offset + buf.len() as u64;
        for number in offset / BLOCK..end.div_ceil(BLOCK) {
            let at = number * BLOCK;
            let (from, to) = (offset.max(at), end.min(at + BLOCK));
            let mut block = vec![0; BLOCK.min(self.device.len().saturating_sub(at)) as usize];
            self.on_read(at, &mut block)?;
            if to - at > block.len() as u64 {
                // The device behind gives the error for a write past its end.
                return self.device.write_at(offset, buf);
            }
            block[(from - at) as usize..(to - at) as usize]
                .copy_from_slice(&buf[(from - offset) as usize..(to - offset) as usize]);
            let mut written = self.written.lock();
            let before = written.blocks.insert(number, block);
            written.before.push((number, before));
        }
        Ok(())
    }

    fn on_flush(&self) -> Result<(), Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    /// Reads see the writes, and the device behind gets them only at the commit (TR1).
    #[test]
    fn a_trial_changes_nothing() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(1 << 20));
        let trial = Trial::new(&device);
        Device::write_at(&trial, 4096, &[1; 4096]).expect("memory");
        Device::write_at(&trial, 6000, &[2; 10]).expect("memory");
        let mut read = [9; 4000];
        Device::read_at(&trial, 4000, &mut read).expect("memory");
        assert!(read[..96].iter().all(|byte| *byte == 0));
        assert!(read[96..2000].iter().all(|byte| *byte == 1));
        assert!(read[2000..2010].iter().all(|byte| *byte == 2) && read[2010] == 1);
        let tried = read;
        device.read_at(4000, &mut read).expect("memory");
        assert_eq!(read, [0; 4000]);
        trial.commit(|at| at != 4096).expect("memory");
        device.read_at(4000, &mut read).expect("memory");
        assert_eq!(read, [0; 4000]);
        trial.commit(|_| true).expect("memory");
        device.read_at(4000, &mut read).expect("memory");
        assert_eq!(read, tried);
    }
}
