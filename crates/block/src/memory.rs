//! A device in memory, for tests. It is sparse: a device of many gigabytes takes memory only for
//! written blocks. Copies share their unchanged blocks, so thousands of crash states of one device
//! cost only their differences.
//!
//! # Locks
//!
//! Takes [`Rank::MemoryDevice`], one shard at a time. As on a disk, a request over several blocks
//! is not atomic.

use std::collections::HashMap;
use std::sync::Arc;

use buttress_base::{Rank, Ranked};

use crate::device::{Content, Device, Extent, Space, check};
use crate::error::{Error, Operation};

/// A device that reads as zeroes until it is written.
#[derive(Debug)]
pub struct MemoryDevice {
    name: String,
    len: u64,
    writable: bool,
    shards: [Ranked<Blocks>; SHARD_COUNT],
}

/// Blocks by number; an absent block is all zeroes. Copies of the device share blocks: a write
/// first makes its block unique.
type Blocks = HashMap<u64, Arc<[u8]>>;

const SHARD_COUNT: usize = 16;
const BLOCK_LEN: u64 = 16 << 10;

/// From this many blocks on, a discard visits the present blocks instead of all numbers.
const BLOCKS_SWEPT_MIN: u64 = 1 << 14;

impl MemoryDevice {
    /// Creates a writable device of `len` zero bytes.
    #[must_use]
    pub fn new(len: u64) -> Self {
        Self::named("memory", len)
    }

    /// Creates a writable device with a name of its own, for tests with several devices.
    #[must_use]
    pub fn named(name: &str, len: u64) -> Self {
        let shards = std::array::from_fn(|_| Ranked::new(Rank::MemoryDevice, Blocks::new()));
        Self { name: name.to_owned(), len, writable: true, shards }
    }

    /// Returns the same device, which now refuses writes.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.writable = false;
        self
    }

    /// Copies the device as it is now: the state after a crash if every write had survived.
    #[must_use]
    pub fn fork(&self) -> Self {
        let shards = self
            .shards
            .each_ref()
            .map(|shard| Ranked::new(Rank::MemoryDevice, shard.lock().clone()));
        Self { name: self.name.clone(), len: self.len, writable: true, shards }
    }

    /// Copies the device to a device of another length, by cutting or extending the copy at its
    /// end.
    #[must_use]
    pub fn fork_resized(&self, len: u64) -> Self {
        let mut copy = self.fork();
        copy.len = len;
        for shard in &mut copy.shards {
            shard.get_mut().retain(|&number, block| {
                let start = number * BLOCK_LEN;
                if start + BLOCK_LEN > len && start < len {
                    Arc::make_mut(block)[(len - start) as usize..].fill(0);
                }
                start < len
            });
        }
        copy
    }

    /// Returns how many bytes of memory hold the content.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().len() as u64 * BLOCK_LEN).sum()
    }

    fn shard(&self, block: u64) -> &Ranked<Blocks> {
        &self.shards[(block % SHARD_COUNT as u64) as usize]
    }
}

/// Cuts `offset..offset + len` at block ends: (block number, start within it, length).
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at == end {
            return None;
        }
        let start = at % BLOCK_LEN;
        let piece = (BLOCK_LEN - start).min(end - at);
        let block = at / BLOCK_LEN;
        at += piece;
        Some((block, start as usize, piece as usize))
    })
}

impl Device for MemoryDevice {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn writable(&self) -> bool {
        self.writable
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        check(self, Operation::Read, offset, buf.len() as u64)?;
        let mut rest = buf;
        for (number, start, len) in pieces(offset, rest.len() as u64) {
            let (part, after) = rest.split_at_mut(len);
            match self.shard(number).lock().get(&number) {
                Some(block) => part.copy_from_slice(&block[start..start + len]),
                None => part.fill(0),
            }
            rest = after;
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        check(self, Operation::Write, offset, buf.len() as u64)?;
        let mut rest = buf;
        for (number, start, len) in pieces(offset, buf.len() as u64) {
            let (part, after) = rest.split_at(len);
            let mut blocks = self.shard(number).lock();
            let block = blocks.entry(number).or_insert_with(|| Arc::new([0; BLOCK_LEN as usize]));
            Arc::make_mut(block)[start..start + len].copy_from_slice(part);
            rest = after;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Discards a range. The range reads as zeroes afterwards, and the memory of its whole blocks
    /// is freed.
    fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        check(self, Operation::Discard, offset, len)?;
        // Nearly all blocks of a range of terabytes are absent, so the loop visits only the present
        // blocks.
        let whole = offset.div_ceil(BLOCK_LEN)..(offset + len) / BLOCK_LEN;
        let ends = if whole.end.saturating_sub(whole.start) < BLOCKS_SWEPT_MIN {
            [offset..offset + len, 0..0]
        } else {
            for shard in &self.shards {
                shard.lock().retain(|number, _| !whole.contains(number));
            }
            [offset..whole.start * BLOCK_LEN, whole.end * BLOCK_LEN..offset + len]
        };
        for (number, start, len) in
            ends.into_iter().flat_map(|end| pieces(end.start, end.end - end.start))
        {
            let mut blocks = self.shard(number).lock();
            if len as u64 == BLOCK_LEN {
                blocks.remove(&number);
            } else if let Some(block) = blocks.get_mut(&number) {
                Arc::make_mut(block)[start..start + len].fill(0);
            }
        }
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64, _space: Space) -> Result<(), Error> {
        self.discard(offset, len)
    }

    fn extent_at(&self, offset: u64, len: u64) -> Result<Extent, Error> {
        check(self, Operation::Read, offset, len)?;
        let content_of = |number: u64| {
            let is_there = self.shard(number).lock().contains_key(&number);
            if is_there { Content::Data } else { Content::Hole }
        };
        let mut runs = pieces(offset, len).map(|(number, _, len)| (content_of(number), len as u64));
        let Some((content, first)) = runs.next() else {
            return Ok(Extent { len: 0, content: Content::Data });
        };
        let more: u64 = runs.take_while(|(next, _)| *next == content).map(|(_, len)| len).sum();
        Ok(Extent { len: first + more, content })
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use buttress_base::Rng;

    use super::*;

    /// D1: any sequence of writes and discards reads back as from a plain array.
    #[test]
    fn agrees_with_an_array() {
        const LEN: u64 = 5 * BLOCK_LEN + 100;
        let device = MemoryDevice::new(LEN);
        let mut model = vec![0_u8; LEN as usize];
        let mut rng = Rng::new(11);
        for _ in 0..500 {
            let start = rng.below(LEN);
            let len = rng.below((LEN - start).min(3 * BLOCK_LEN) + 1);
            let range = start as usize..(start + len) as usize;
            if rng.chance(1, 4) {
                device.discard(start, len).expect("within the device");
                model[range].fill(0);
            } else {
                let mut bytes = vec![0; len as usize];
                rng.fill(&mut bytes);
                let (left, right) = bytes.split_at(bytes.len() / 3);
                let bufs = [IoSlice::new(left), IoSlice::new(right)];
                device.write_vectored_at(start, &bufs).expect("within the device");
                model[range].copy_from_slice(&bytes);
            }
        }
        let mut found = vec![1; LEN as usize];
        device.read_at(0, &mut found).expect("within the device");
        assert!(found == model);
        let mut at = 0;
        while at < LEN {
            let extent = device.extent_at(at, LEN - at).expect("within the device");
            assert!(extent.len > 0 && at + extent.len <= LEN, "{extent:?}");
            let bytes = &model[at as usize..(at + extent.len) as usize];
            assert!(extent.content == Content::Data || bytes.iter().all(|&byte| byte == 0));
            at += extent.len;
        }
    }

    /// D2: a request past the end fails, and the error names the range. The same holds if the end
    /// of the range overflows.
    #[test]
    fn refuses_past_the_end() {
        let device = MemoryDevice::new(8192);
        let mut buf = [0; 4096];
        device.read_at(4096, &mut buf).expect("the last page is within the device");
        for offset in [4097, 8192, u64::MAX, u64::MAX - 4095] {
            let error = device.read_at(offset, &mut buf).expect_err("past the end");
            assert!(matches!(error, Error::PastEnd { device_len: 8192, .. }), "{error}");
            device.write_at(offset, &buf).expect_err("past the end");
        }
        let error = device.read_only().write_at(0, &buf).expect_err("read only");
        assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
    }

    /// A discard of a very long range, which visits the present blocks, drops its own blocks and no
    /// others.
    #[test]
    fn a_large_discard_ends_where_it_says() {
        let device = MemoryDevice::new(1 << 50);
        let (start, end) = ((1 << 30) + 5000, (1 << 49) + 77);
        let places = [start - 10, start, start + (1 << 20), 1 << 40, end - 10, end];
        for at in places {
            device.write_at(at, &[1; 20]).expect("within the device");
        }
        device.discard(start, end - start).expect("within the device");
        let count = |at: u64| {
            let mut found = [9; 20];
            device.read_at(at, &mut found).expect("within the device");
            found.iter().filter(|byte| **byte == 1).count()
        };
        assert_eq!(places.map(count), [10, 0, 0, 0, 10, 20]);
    }

    /// A fork is a copy: later writes or discards on one device do not reach the other.
    #[test]
    fn forks() {
        let device = MemoryDevice::new(1 << 40);
        device.write_at(1 << 39, b"before").expect("within the device");
        let copy = device.fork();
        device.write_at(1 << 39, b"after!").expect("within the device");
        let mut buf = [0; 6];
        copy.read_at(1 << 39, &mut buf).expect("within the device");
        assert_eq!(&buf, b"before");
        copy.write_at(1 << 39, b"beside").expect("within the device");
        let third = copy.fork();
        third.discard(1 << 39, 3).expect("within the device");
        device.read_at(1 << 39, &mut buf).expect("within the device");
        assert_eq!(&buf, b"after!");
        copy.read_at(1 << 39, &mut buf).expect("within the device");
        assert_eq!(&buf, b"beside");
        third.read_at(1 << 39, &mut buf).expect("within the device");
        assert_eq!(&buf, b"\0\0\0ide");
        assert_eq!(copy.resident_bytes(), BLOCK_LEN);
        assert_eq!(device.fork_resized(4096).resident_bytes(), 0);
    }
}
