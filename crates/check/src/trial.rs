//! A device that keeps changes in memory: a repair is tried on it before it is made.

use std::sync::Arc;

use buttress_block::{Device, Error, Layer};
use parking_lot::Mutex;

/// A device in front of another. Reads see all writes, and the device behind gets none.
#[derive(Debug)]
pub(crate) struct Trial {
    device: Arc<dyn Device>,
    /// Unranked: a leaf. Writes in their order; there are a few superblocks.
    written: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl Trial {
    pub(crate) fn new(device: &Arc<dyn Device>) -> Self {
        Self { device: Arc::clone(device), written: Mutex::default() }
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
        for (at, bytes) in self.written.lock().iter() {
            let from = offset.max(*at);
            let to = end.min(*at + bytes.len() as u64);
            if from < to {
                let new = &bytes[(from - at) as usize..(to - at) as usize];
                buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(new);
            }
        }
        Ok(())
    }

    fn on_write(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        self.written.lock().push((offset, buf.to_vec()));
        Ok(())
    }

    fn on_flush(&self) -> Result<(), Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use buttress_block::MemoryDevice;

    use super::*;

    /// Reads see the writes, and the device behind does not.
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
        device.read_at(4096, &mut read).expect("memory");
        assert_eq!(read, [0; 4000]);
    }
}
