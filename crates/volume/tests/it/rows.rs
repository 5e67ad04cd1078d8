//! Rows of chunks with parity are written whole, read with devices lost, compared and repaired.

use std::collections::BTreeSet;
use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_format::limits::STRIPE_LEN;
use buttress_format::{BlockGroupFlags, Chunk, DeviceId, Extent, Logical};
use buttress_volume::{Error, OpenOptions, Parity, Sector, Volume, new_rows};

use crate::builders::{CHUNK_AT, WRITE, chunk, devices, open, pattern};

const UNIT: u64 = STRIPE_LEN;
const SECTOR: usize = 4096;
const ROWS: u64 = 12;

/// A chunk with parity, and a model of its content.
struct Striped {
    chunk: Chunk,
    row: u64,
    parity: u64,
    devices: Vec<Arc<MemoryDevice>>,
    model: Vec<u8>,
}

impl Striped {
    fn new(count: u64, parity: u64) -> Self {
        let profile = if parity == 1 { BlockGroupFlags::RAID5 } else { BlockGroupFlags::RAID6 };
        let row = (count - parity) * UNIT;
        let ids: Vec<u64> = (1..=count).collect();
        let mut chunk = chunk(profile, CHUNK_AT, ROWS * row, &ids);
        chunk.flags = BlockGroupFlags::DATA.with(profile);
        for stripe in &mut chunk.stripes {
            stripe.offset = 2 << 20;
        }
        let devices = devices(count, &[]);
        // The devices begin with random bytes. So ranges that were never written are not zeros, and
        // have no right parity.
        for (index, device) in devices.iter().enumerate() {
            let noise = pattern(index as u64, (ROWS * UNIT) as usize);
            device.write_at(2 << 20, &noise).expect("memory");
        }
        Self { chunk, row, parity, devices, model: vec![0; (ROWS * row) as usize] }
    }

    /// The volume without some of its devices, which are numbered from 0.
    fn without(&self, lost: &[usize]) -> Volume {
        let there = self.devices.iter().enumerate().filter(|(index, _)| !lost.contains(index));
        let there: Vec<_> = there.map(|(_, device)| Arc::clone(device)).collect();
        let options = OpenOptions { degraded: !lost.is_empty(), ..WRITE };
        let (volume, _) = open(&there, options).expect("a good volume");
        volume.add_chunk(self.chunk.clone()).expect("a good chunk");
        assert!(volume.writable(), "{:?}", volume.read_only_reason());
        volume
    }

    /// Writes some rows anew, each in several ranges, and the last row only in part. Returns the
    /// numbers of these rows.
    fn write(&mut self, volume: &Volume, rng: &mut Rng) -> std::ops::Range<u64> {
        let first = rng.below(ROWS);
        let most = (ROWS - first).min(3) * self.row / SECTOR as u64;
        let len = (1 + rng.below(most)) * SECTOR as u64;
        let bytes = pattern(rng.below(u64::MAX), len as usize);
        let start = first * self.row;
        let mut batch = Vec::new();
        let mut rest = &bytes[..];
        let mut at = CHUNK_AT.end(start);
        while !rest.is_empty() {
            let cut = (1 + rng.below(64) as usize) * SECTOR;
            let (part, after) = rest.split_at(cut.min(rest.len()));
            batch.push((at, part));
            at = at.end(part.len() as u64);
            rest = after;
        }
        let turn = rng.below(batch.len() as u64) as usize;
        batch.rotate_left(turn);
        volume.write_batch(&batch).expect("whole rows");
        let rows = first..first + len.div_ceil(self.row);
        self.model[start as usize..(rows.end * self.row) as usize].fill(0);
        self.model[start as usize..(start + len) as usize].copy_from_slice(&bytes);
        rows
    }

    /// Reads rows and compares them with the model.
    fn expect(&self, volume: &Volume, rows: &BTreeSet<u64>, what: &str) {
        for row in rows {
            let start = row * self.row;
            let mut found = vec![1; self.row as usize];
            volume.read_mirror(CHUNK_AT.end(start), &mut found, 0).expect("enough is left");
            let model = &self.model[start as usize..(start + self.row) as usize];
            assert!(found == model, "{what}: row {row}");
        }
    }

    /// Compares a row of which all data is in use and has a checksum.
    fn compare(&self, volume: &Volume, row: u64) -> (u64, u64, u64, u64) {
        let start = (row * self.row) as usize;
        let classify = |within: usize, bytes: &[u8]| {
            let good = bytes == &self.model[start + within..][..SECTOR];
            if good { Sector::Good } else { Sector::Bad }
        };
        let at = CHUNK_AT.end(row * self.row);
        let (found, parity) = volume.compare_row(at, SECTOR, true, classify).expect("a row");
        (found.bad, parity.wrong.len() as u64, found.corrected, found.uncorrectable)
    }
}

/// N1: after any writes, with or without missing devices, all data is readable when as many devices
/// are lost as there are parity units.
#[test]
fn rows_survive_any_loss() {
    for seed in 0..10 {
        let mut rng = Rng::new(seed);
        let parity = 1 + seed % 2;
        let count = 3 + rng.below(4);
        let mut striped = Striped::new(count, parity);
        let mut written = BTreeSet::new();
        let all = count as usize;
        for round in 0..3 {
            // In one round rows are written without one device, which then stays missing.
            let away = if round == 2 { vec![rng.below(count) as usize] } else { Vec::new() };
            let volume = striped.without(&away);
            for _ in 0..=rng.below(4) {
                written.extend(striped.write(&volume, &mut rng));
            }
            striped.expect(&volume, &written, "written");
            drop(volume);
            for one in 0..all {
                for other in 0..all {
                    let mut lost = BTreeSet::from([one, other]);
                    lost.extend(&away);
                    if lost.len() as u64 <= striped.parity {
                        let lost: Vec<usize> = lost.into_iter().collect();
                        let volume = striped.without(&lost);
                        striped.expect(
                            &volume,
                            &written,
                            &format!("seed {seed}, without {lost:?}"),
                        );
                    }
                }
            }
        }
    }
}

/// A write into the middle of a row is refused, and so is a write in place.
#[test]
fn half_rows_are_refused() {
    let striped = Striped::new(4, 1);
    let volume = striped.without(&[]);
    for within in [4096, UNIT, striped.row - 4096] {
        let at = CHUNK_AT.end(within);
        let error = volume.write(at, &[1; 4096]).expect_err("the middle of a row");
        assert!(matches!(error, Error::NotARow { .. }), "{error}");
        let gap = volume.write_batch(&[(CHUNK_AT, &[1; 2048][..]), (at, &[1; 4096])]);
        assert!(matches!(gap, Err(Error::NotARow { .. })));
    }
}

/// Nodes in a row leave gaps, which are named. With zeros in the gaps the rows survive a loss. The
/// rows of a new volume are the same bytes on the same devices.
#[test]
fn gaps_between_nodes_are_filled() {
    const NODE: u64 = 16 << 10;
    for (count, parity) in [(4, 1), (5, 2)] {
        let mut striped = Striped::new(count, parity);
        let volume = striped.without(&[]);
        let node = |index: u64| Extent::new(CHUNK_AT.end(index * NODE), NODE);
        // A row has twelve places for nodes.
        let nodes = [1, 2, 5, 13].map(node);
        let in_nodes = |(at, zeros): (Logical, &[u8])| {
            (at.distance(CHUNK_AT) / NODE, zeros.len() as u64 / NODE)
        };
        let content = |at: &Extent| pattern(at.start.0, NODE as usize);
        let bytes: Vec<_> = nodes.iter().map(|at| (at.start, content(at))).collect();
        let mut batch: Vec<_> = bytes.iter().rev().map(|(at, bytes)| (*at, &bytes[..])).collect();
        let gaps = volume.gaps_in_rows(&batch);
        assert_eq!(gaps.parts().map(in_nodes).collect::<Vec<_>>(), [(0, 1), (3, 2), (12, 1)]);
        batch.extend(gaps.parts());
        volume.write_batch(&batch).expect("whole rows");
        for (at, bytes) in &bytes {
            striped.model[at.distance(CHUNK_AT) as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        let rows = BTreeSet::from([0, 1]);
        for (device, offset, unit) in new_rows(&striped.chunk, &bytes).expect("rows") {
            let mut found = vec![1; unit.len()];
            let device = &striped.devices[device.0 as usize - 1];
            device.read_at(offset, &mut found).expect("memory");
            assert!(found == unit, "{count} devices, at {offset}");
        }
        for lost in 0..count as usize {
            striped.expect(&striped.without(&[lost]), &rows, "nodes");
        }
    }
}

/// A row recovers from any damage to its data or parity. Nothing is computed from data that is
/// known to be bad.
#[test]
fn rows_are_compared_and_mended() {
    for (count, parity) in [(3, 1), (5, 1), (4, 2), (6, 2)] {
        let mut rng = Rng::new(count);
        let mut striped = Striped::new(count, parity);
        let volume = striped.without(&[]);
        let rows: Vec<u64> = striped.write(&volume, &mut rng).collect();
        for row in rows {
            assert_eq!(striped.compare(&volume, row), (0, 0, 0, 0), "nothing was spoiled");
            for spoiled in 1..=parity + 1 {
                let before: Vec<_> = striped.devices.iter().map(|device| device.fork()).collect();
                let place = (2 << 20) + row * UNIT + 8192;
                for index in 0..spoiled {
                    striped.devices[index as usize].write_at(place, &[0xA5; 700]).expect("memory");
                }
                let is_parity =
                    |index: u64| (index + count - row % count) % count >= count - parity;
                let bad_parity = (0..spoiled).filter(|index| is_parity(*index)).count() as u64;
                let bad = spoiled - bad_parity;
                let found = striped.compare(&volume, row);
                if spoiled <= parity || bad == 0 {
                    assert_eq!(found, (bad, bad_parity, spoiled, 0), "{count} {parity} {row}");
                    assert_eq!(striped.compare(&volume, row), (0, 0, 0, 0), "it was mended");
                } else {
                    assert_eq!((found.0, found.1, found.2), (bad, 0, 0), "{count} {parity} {row}");
                    assert!(found.3 > 0, "it cannot be mended");
                    for (device, before) in striped.devices.iter().zip(&before) {
                        let mut bytes = vec![0; UNIT as usize];
                        before.read_at((2 << 20) + row * UNIT, &mut bytes).expect("memory");
                        device.write_at((2 << 20) + row * UNIT, &bytes).expect("memory");
                    }
                }
            }
        }
    }
}

/// The bytes of a device that missed writes are rebuilt from parity until its rows were compared.
/// Data without checksums is rebuilt from parity, too.
#[test]
fn a_device_that_missed_writes_catches_up() {
    for (count, parity) in [(3, 1), (5, 2)] {
        let mut rng = Rng::new(7 + count);
        let mut striped = Striped::new(count, parity);
        let mut rows: BTreeSet<u64> = striped.write(&striped.without(&[]), &mut rng).collect();
        let old = 1_usize;
        let degraded = striped.without(&[old]);
        for _ in 0..4 {
            rows.extend(striped.write(&degraded, &mut rng));
        }
        drop(degraded);
        for (index, device) in striped.devices.iter().enumerate().filter(|(i, _)| *i != old) {
            let id = index as u64 + 1;
            let mut superblock = crate::builders::superblock(id, count, &[]);
            superblock.generation.0 += 5;
            crate::builders::plant(device, &superblock);
        }
        let volume = striped.without(&[]);
        striped.expect(&volume, &rows, "while it is old");
        for row in &rows {
            let at = CHUNK_AT.end(row * striped.row);
            let classify = |_: usize, _: &[u8]| Sector::Unknown;
            let (found, wrong) = volume.compare_row(at, SECTOR, true, classify).expect("a row");
            assert_eq!((wrong.wrong.len(), found.uncorrectable), (0, 0));
        }
        volume.device(DeviceId(old as u64 + 1)).expect("it is here").heal();
        striped.expect(&volume, &rows, "when it has caught up");
        let mut superblock = crate::builders::superblock(old as u64 + 1, count, &[]);
        superblock.generation.0 += 5;
        crate::builders::plant(&striped.devices[old], &superblock);
        let other = (old + 1) % count as usize;
        drop(volume);
        striped.expect(&striped.without(&[other]), &rows, "without another");
    }
}

/// Mixed block groups with parity are not written, and a refused write does not change its target.
#[test]
fn refused_parity_write_leaves_its_target_alone() {
    let striped = Striped::new(3, 1);
    for (parity, flags) in [
        (Parity::ReadOnly, BlockGroupFlags::DATA),
        (Parity::Rows, BlockGroupFlags::DATA.with(BlockGroupFlags::METADATA)),
    ] {
        let mut chunk = striped.chunk.clone();
        chunk.flags = flags.with(BlockGroupFlags::RAID5);
        let (volume, _) = open(&striped.devices, OpenOptions { parity, ..WRITE }).expect("good");
        volume.add_chunk(chunk).expect("it can be read");
        assert!(volume.read_only_reason().expect("read-only").contains("raid56="));
        let error = volume.write(CHUNK_AT, &vec![0; striped.row as usize]).expect_err("read-only");
        assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
    }
}
