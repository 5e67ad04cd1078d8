//! The order of the stripes of chunks, where the chunk tree is lost.
//!
//! Device extents say which parts of devices belong to a chunk, but not in what order. Nodes and
//! checksums tell it: a node says its logical address, and a sector that matches the checksum of an
//! address is the one of this address.
//!
//! # Invariants
//!
//! - **ST1** A stripe gets a place only by evidence, or because no other place is left for it.
//!   Without evidence its place stays empty, as if its device were missing.

use std::collections::BTreeMap;
use std::sync::Arc;

use buttress_block::Device;
use buttress_format::{
    BlockGroupFlags, Chunk, DeviceId, Kind, Stripe, TreeId, ids, limits::STRIPE_LEN,
};
use buttress_tree::{Expect, Geometry};

use crate::chunks::newest_first;
use crate::scan::{self, FoundNode, Scan};

/// Sectors that are enough evidence for one stripe.
const ENOUGH: u32 = 16;
/// The most sectors that are read for one stripe.
const READS_MAX: u32 = 1024;
/// Checksums that are collected for one chunk before they are compared.
const SUMS_MAX: usize = 2048;
/// A stripe belongs where it has this many times the votes of any other place.
const MAJORITY: u32 = 4;
/// A device that no volume has.
const NOWHERE: DeviceId = DeviceId(u64::MAX);

/// Whether the stripes of a chunk differ, so that their order matters. With two devices in RAID5,
/// and three in RAID6, parity has the same bytes as the data.
pub(crate) fn has_order(chunk: &Chunk) -> bool {
    chunk.data_stripes() > 1
}

/// What is known of the order of a chunk's stripes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Each stripe has its place.
    Known(Chunk),
    /// The chunk with the stripes that are known. The others are on a device that does not exist.
    Partly(Chunk),
    /// Nothing is known.
    Unknown,
}

impl Order {
    /// The chunk, if all of it is known.
    pub(crate) fn known(self) -> Option<Chunk> {
        match self {
            Self::Known(chunk) => Some(chunk),
            Self::Partly(_) | Self::Unknown => None,
        }
    }
}

/// Where evidence comes from.
pub(crate) struct Evidence<'e> {
    pub(crate) devices: &'e [Arc<dyn Device>],
    /// The number of each device, if it is known.
    pub(crate) numbers: Vec<Option<DeviceId>>,
    pub(crate) geometry: &'e Geometry,
    pub(crate) found: &'e Scan,
    /// Whether a log of fsync may lie in groups that are empty.
    pub(crate) has_log: bool,
}

/// A chunk with its stripes in any order.
#[derive(Clone, Debug)]
pub(crate) struct Unordered {
    pub(crate) chunk: Chunk,
    /// Whether its block group has nothing in use.
    pub(crate) is_empty: bool,
}

/// The votes for the stripes of one chunk.
struct Ballot<'b> {
    chunk: &'b Chunk,
    /// The number of columns: stripes that differ. Copies share a column.
    columns: usize,
    /// How often each stripe, as it is listed, was found to be of each column.
    votes: Vec<Vec<u32>>,
    /// Sectors that were read for each column.
    reads: Vec<u32>,
    /// Checksums of sectors, by their offset in the chunk.
    sums: BTreeMap<u64, Vec<u8>>,
    /// Whether nothing in use lies in the chunk.
    is_empty: bool,
}

impl<'b> Ballot<'b> {
    fn new(chunk: &'b Chunk, is_empty: bool) -> Self {
        let count = chunk.stripes.len();
        let columns = count / chunk.flags.copies().max(1) as usize;
        let (votes, reads) = (vec![vec![0; columns]; count], vec![0; columns]);
        Self { chunk, columns, votes, reads, sums: BTreeMap::new(), is_empty }
    }

    fn copies(&self) -> usize {
        self.chunk.flags.copies().max(1) as usize
    }

    fn has_parity(&self) -> bool {
        [BlockGroupFlags::RAID5, BlockGroupFlags::RAID6].contains(&self.chunk.flags.profile())
    }

    /// The column of an offset in the chunk, and the offset in each stripe of the column.
    fn column(&self, within: u64) -> (usize, u64) {
        let (unit, rest) = (within / STRIPE_LEN, within % STRIPE_LEN);
        let data = self.chunk.data_stripes();
        let (row, index) = (unit / data, unit % data);
        let turn = if self.has_parity() { row } else { 0 };
        (((turn + index) % self.columns as u64) as usize, row * STRIPE_LEN + rest)
    }

    fn wants(&self, column: usize) -> bool {
        let found: u32 = self.votes.iter().map(|votes| votes[column]).max().unwrap_or(0);
        found < ENOUGH && self.reads[column] < READS_MAX
    }

    fn is_open(&self) -> bool {
        (0..self.columns).any(|column| self.wants(column))
    }

    /// The offsets in the chunk that are beside an offset in its row.
    fn others(&self, within: u64) -> impl Iterator<Item = u64> + use<> {
        let data = self.chunk.data_stripes();
        let (unit, rest) = (within / STRIPE_LEN, within % STRIPE_LEN);
        let row = unit / data * data;
        (row..row + data).filter(move |other| *other != unit).map(move |at| at * STRIPE_LEN + rest)
    }

    /// Whether a sector differs from those beside it in its row. If a device is missing, an equal
    /// sector would be taken for the one on that device. Parity may be equal to a sector unless all
    /// sectors that it is of are known.
    fn is_unlike_others(&self, within: u64, sums: &BTreeMap<u64, Vec<u8>>) -> bool {
        self.others(within).all(|other| match sums.get(&other) {
            Some(sum) => Some(sum) != sums.get(&within),
            None => !self.has_parity(),
        })
    }

    /// The column that the votes give to a stripe.
    fn elected(&self, stripe: usize) -> Option<usize> {
        let votes = &self.votes[stripe];
        let (column, most) = votes.iter().enumerate().max_by_key(|(_, count)| **count)?;
        let others = votes.iter().enumerate().filter(|(other, _)| *other != column);
        let next = others.map(|(_, count)| *count).max().unwrap_or(0);
        (*most > 0 && *most / MAJORITY >= next).then_some(column)
    }

    fn result(&self) -> Order {
        let copies = self.copies();
        let mut columns: Vec<Vec<usize>> = vec![Vec::new(); self.columns];
        let mut left = Vec::new();
        for stripe in 0..self.chunk.stripes.len() {
            match self.elected(stripe) {
                Some(column) => columns[column].push(stripe),
                None => left.push(stripe),
            }
        }
        for column in columns.iter_mut().filter(|column| column.len() > copies) {
            left.append(column);
        }
        if self.is_empty {
            // Nothing is there to be read, so any order is as good.
            for column in &mut columns {
                column.extend(left.drain(..left.len().min(copies.saturating_sub(column.len()))));
            }
        }
        if left.len() == self.chunk.stripes.len() && self.columns > 1 {
            return Order::Unknown;
        }
        let mut open = columns.iter_mut().filter(|column| column.len() < copies);
        if let (Some(last), None) = (open.next(), open.next()) {
            last.append(&mut left);
        }
        let nowhere = |column: usize| Stripe {
            device: NOWHERE,
            offset: column as u64 * self.chunk.stripe_bytes(),
            dev_uuid: [0; 16],
        };
        let stripes = columns.iter().enumerate().flat_map(|(index, column)| {
            let stripe = move |copy| {
                let there = column.get(copy).map(|at| self.chunk.stripes[*at]);
                there.unwrap_or_else(|| nowhere(index * copies + copy))
            };
            (0..copies).map(stripe)
        });
        let chunk = Chunk { stripes: stripes.collect(), ..self.chunk.clone() };
        if left.is_empty() { Order::Known(chunk) } else { Order::Partly(chunk) }
    }
}

impl Evidence<'_> {
    /// Finds the order of the stripes of each chunk.
    pub(crate) fn order(&self, chunks: &[Unordered]) -> Vec<Order> {
        let mut ballots = BTreeMap::new();
        for Unordered { chunk, is_empty } in chunks {
            ballots.insert(chunk.logical.0, Ballot::new(chunk, *is_empty && !self.has_log));
        }
        if !ballots.is_empty() {
            self.ask_nodes(&mut ballots);
            self.ask_sums(&mut ballots);
        }
        let result = |it: &Unordered| ballots.get(&it.chunk.logical.0).map(Ballot::result);
        chunks.iter().map(|it| result(it).unwrap_or(Order::Unknown)).collect()
    }

    fn ask_nodes(&self, ballots: &mut BTreeMap<u64, Ballot<'_>>) {
        let is_one = |one: &FoundNode, other: &FoundNode| {
            (one.logical, one.generation) == (other.logical, other.generation)
        };
        for copies in self.found.nodes.chunk_by(is_one) {
            let at = copies[0].logical.0;
            let Some((ballot, within)) = around(ballots, at) else { continue };
            let (column, offset) = ballot.column(within);
            let is_there = |stripe: &Stripe| {
                copies.iter().any(|node| {
                    self.numbers.get(node.device as usize) == Some(&Some(stripe.device))
                        && stripe.offset.checked_add(offset) == Some(node.physical)
                })
            };
            // If a node is alone in its row, parity has the same bytes. With a missing device, the
            // parity may be all that is left of it.
            let is_clear = !ballot.has_parity()
                || self.is_whole(ballot.chunk)
                || ballot.others(within).any(|other| self.has_node(at - within + other));
            let stripes = ballot.chunk.stripes.iter().enumerate();
            let matching: Vec<usize> =
                stripes.filter(|(_, stripe)| is_there(stripe)).map(|(at, _)| at).collect();
            if is_clear && matching.len() <= ballot.copies() {
                matching.iter().for_each(|stripe| ballot.votes[*stripe][column] += 1);
            }
        }
    }

    fn has_node(&self, at: u64) -> bool {
        self.found.nodes.binary_search_by_key(&at, |node| node.logical.0).is_ok()
    }

    /// Whether all devices of a chunk are here.
    fn is_whole(&self, chunk: &Chunk) -> bool {
        chunk.stripes.iter().all(|stripe| self.numbers.contains(&Some(stripe.device)))
    }

    /// Compares sectors of data with checksums of any age. A stale checksum matches nothing.
    fn ask_sums(&self, ballots: &mut BTreeMap<u64, Ballot<'_>>) {
        let csum = self.geometry.csum;
        let sector = u64::from(self.geometry.sectorsize);
        let zeros = csum.digest(&vec![0; sector as usize]);
        for leaf in newest_first(self.found, &[TreeId::CSUM, TreeId::TREE_LOG]) {
            let expect = Expect::root(leaf.ptr());
            let node = scan::read_copy(self.devices, self.geometry, &leaf, &expect);
            let Some(node) = node else { continue };
            for slot in 0..node.len() {
                let key = node.key(slot);
                if key.kind != Kind::EXTENT_CSUM || key.objectid != ids::EXTENT_CSUM {
                    continue;
                }
                for (index, sum) in node.item(slot).chunks_exact(csum.size()).enumerate() {
                    let at = key.offset.saturating_add(index as u64 * sector);
                    let Some((ballot, within)) = around(ballots, at) else { continue };
                    if sum != &zeros[..csum.size()] && ballot.is_open() {
                        ballot.sums.entry(within).or_insert_with(|| sum.to_vec());
                        if ballot.sums.len() == SUMS_MAX {
                            self.compare(ballot);
                        }
                    }
                }
            }
        }
        ballots.values_mut().for_each(|ballot| self.compare(ballot));
    }

    /// Compares sectors of all stripes with the checksums that were collected for one chunk.
    fn compare(&self, ballot: &mut Ballot<'_>) {
        let csum = self.geometry.csum;
        let mut bytes = vec![0; self.geometry.sectorsize as usize];
        let sums = std::mem::take(&mut ballot.sums);
        let is_whole = self.is_whole(ballot.chunk);
        for (within, sum) in &sums {
            let (column, offset) = ballot.column(*within);
            let is_clear = is_whole || ballot.is_unlike_others(*within, &sums);
            if !ballot.wants(column) || !is_clear {
                continue;
            }
            ballot.reads[column] += 1;
            let mut matching = Vec::new();
            for (at, stripe) in ballot.chunk.stripes.iter().enumerate() {
                let device = self.numbers.iter().position(|it| *it == Some(stripe.device));
                let place = stripe.offset.checked_add(offset);
                let (Some(device), Some(place)) = (device, place) else { continue };
                if self.devices[device].read_at(place, &mut bytes).is_ok()
                    && csum.digest(&bytes)[..csum.size()] == **sum
                {
                    matching.push(at);
                }
            }
            // Content that repeats tells nothing.
            if matching.len() <= ballot.copies() {
                matching.iter().for_each(|stripe| ballot.votes[*stripe][column] += 1);
            }
        }
    }
}

/// The chunk that has an address, and the offset in the chunk.
fn around<'m, 'b>(
    ballots: &'m mut BTreeMap<u64, Ballot<'b>>,
    at: u64,
) -> Option<(&'m mut Ballot<'b>, u64)> {
    let (start, ballot) = ballots.range_mut(..=at).next_back()?;
    let within = at - start;
    (within < ballot.chunk.len).then_some((ballot, within))
}
