//! Whole rows of chunks with parity.
//!
//! # Invariants
//!
//! - **N1** A row is written once, as a whole: all its data, zeros elsewhere, and the parity of
//!   exactly these bytes. So a power cut damages a row only while no committed data is in it.
//!
//! `space` hands out only rows without committed data. This file refuses writes into the middle of
//! a row.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use buttress_format::{Chunk, DeviceId, Extent, Logical};

use crate::error::Error;
use crate::layout::Layout;
use crate::parity::parity_of;
use crate::volume::Volume;
use crate::write::Transfer;

/// All units of a row: data in order, then parity.
pub(crate) struct RowImage<'a> {
    at: Logical,
    units: Vec<Cow<'a, [u8]>>,
}

/// The bytes that nodes leave out of their rows.
#[derive(Debug)]
pub struct RowGaps {
    gaps: Vec<Extent>,
    zeros: Vec<u8>,
}

impl RowGaps {
    /// Zeros for each gap, which are written together with the nodes.
    pub fn parts(&self) -> impl Iterator<Item = (Logical, &[u8])> {
        self.gaps.iter().map(|gap| (gap.start, &self.zeros[..gap.len as usize]))
    }
}

/// A row that is being put together.
struct Open<'a> {
    at: Logical,
    /// Bytes of a unit, data units, parity units.
    unit: usize,
    data: usize,
    parity: usize,
    /// Contents, one after the other, from the start of the row.
    parts: Vec<&'a [u8]>,
    filled: usize,
}

impl<'a> Open<'a> {
    /// The next `len` bytes, with zeros past the end. The bytes are borrowed where they are
    /// contiguous.
    fn next_unit(&mut self) -> Cow<'a, [u8]> {
        match self.parts.first_mut() {
            None => return Cow::Owned(vec![0; self.unit]),
            Some(part) if part.len() >= self.unit => {
                let (unit, rest) = part.split_at(self.unit);
                if rest.is_empty() {
                    self.parts.remove(0);
                } else {
                    *part = rest;
                }
                return Cow::Borrowed(unit);
            }
            Some(_) => {}
        }
        let mut unit = Vec::with_capacity(self.unit);
        let mut gone = 0;
        for part in &mut self.parts {
            let (taken, rest) = part.split_at(part.len().min(self.unit - unit.len()));
            unit.extend_from_slice(taken);
            *part = rest;
            if !rest.is_empty() {
                break;
            }
            gone += 1;
        }
        self.parts.drain(..gone);
        unit.resize(self.unit, 0);
        Cow::Owned(unit)
    }

    fn close(mut self) -> RowImage<'a> {
        let mut units: Vec<_> = (0..self.data).map(|_| self.next_unit()).collect();
        let data: Vec<&[u8]> = units.iter().map(|unit| &**unit).collect();
        let sums = parity_of(&data, self.parity);
        units.extend(sums.into_iter().map(Cow::Owned));
        RowImage { at: self.at, units }
    }
}

impl Volume {
    /// Puts together the rows of writes to chunks with parity (N1).
    pub(crate) fn rows<'a>(
        &self,
        mut writes: Vec<(Logical, &'a [u8])>,
    ) -> Result<Vec<RowImage<'a>>, Error> {
        writes.sort_unstable_by_key(|(at, _)| *at);
        let map = self.map.load();
        let mut rows = Vec::new();
        let mut open: Option<Open<'a>> = None;
        for (mut at, mut bytes) in writes {
            while !bytes.is_empty() {
                let entry = map.find(at)?;
                let whole = entry.layout.row_bytes().ok_or(Error::NotARow { logical: at })?;
                let within = at.distance(entry.chunk.logical);
                let start = within / whole * whole;
                let first = entry.chunk.logical.end(start);
                if open.as_ref().is_some_and(|open| open.at != first) {
                    rows.extend(open.take().map(Open::close));
                }
                let unit = entry.chunk.stripe_len;
                let row = open.get_or_insert_with(|| Open {
                    at: first,
                    unit: unit as usize,
                    data: (whole / unit) as usize,
                    parity: entry.layout.parity(),
                    parts: Vec::new(),
                    filled: 0,
                });
                let offset = (within - start) as usize;
                assert!(offset >= row.filled, "write::W2: writes overlap at {at}");
                if offset != row.filled || start + whole > entry.chunk.len {
                    return Err(Error::NotARow { logical: at });
                }
                let (part, rest) = bytes.split_at(bytes.len().min(whole as usize - offset));
                row.parts.push(part);
                row.filled += part.len();
                at = at.end(part.len() as u64);
                bytes = rest;
            }
        }
        rows.extend(open.map(Open::close));
        Ok(rows)
    }

    /// The bytes that nodes leave out of their rows, before and between them. A batch that writes
    /// the nodes must also write zeros there. The caller says by this that the rows hold nothing
    /// else: no byte of them is reachable. Nodes outside of chunks with parity leave no gaps.
    #[must_use]
    pub fn gaps_in_rows(&self, nodes: &[(Logical, &[u8])]) -> RowGaps {
        let map = self.map.load();
        // Most volumes have no such nodes, and then nothing is sorted.
        let mut parts: Vec<_> = nodes
            .iter()
            .filter_map(|(at, bytes)| {
                let entry = map.find(*at).ok()?;
                let whole = entry.layout.row_bytes()?;
                let within = at.distance(entry.chunk.logical);
                let row = entry.chunk.logical.end(within / whole * whole);
                Some((Extent::new(*at, bytes.len() as u64), row))
            })
            .collect();
        parts.sort_unstable();
        let mut gaps = Vec::new();
        let mut filled = Logical(0);
        for (node, row) in parts {
            let from = row.max(filled);
            if from < node.start {
                gaps.push(Extent::new(from, node.start.distance(from)));
            }
            filled = node.end();
        }
        let longest = gaps.iter().map(|gap| gap.len).max().unwrap_or(0);
        RowGaps { gaps, zeros: vec![0; longest as usize] }
    }

    /// Says where each unit of a row goes, on devices that can be written.
    pub(crate) fn plan_row<'a>(
        &self,
        row: &'a RowImage<'a>,
        transfers: &mut Vec<Transfer<'a>>,
    ) -> Result<(), Error> {
        let map = self.map.load();
        let entry = map.find(row.at)?;
        let piece = entry.piece(row.at, 1);
        let (_, members) = entry.layout.row(&piece).ok_or(Error::NotARow { logical: row.at })?;
        for (stripe, bytes) in members.into_iter().zip(&row.units) {
            let Some(device) = entry.device(stripe).filter(|device| !device.is_lost()) else {
                continue;
            };
            transfers.push(Transfer {
                device: Arc::clone(device),
                offset: entry.chunk.stripes[stripe].offset + piece.offset,
                bytes,
                logical: row.at,
                mirror: 0,
                class: self.class_of(row.at),
            });
        }
        Ok(())
    }
}

/// The places of a new chunk's rows with parity that hold `nodes`, each with its device, offset and
/// bytes. Rows without a node are left out. `None` without parity, or if the chunk is invalid or a
/// node lies outside of it.
#[must_use]
pub fn new_rows(
    chunk: &Chunk,
    nodes: &[(Logical, Vec<u8>)],
) -> Option<Vec<(DeviceId, u64, Vec<u8>)>> {
    let layout = Layout::of(chunk).ok()?;
    let whole = layout.row_bytes()?;
    let unit = usize::try_from(chunk.stripe_len).ok()?;
    let mut rows: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    for (at, bytes) in nodes {
        let within = at.0.checked_sub(chunk.logical.0)?;
        let row = rows.entry(within / whole).or_insert_with(|| vec![0; whole as usize]);
        let offset = (within % whole) as usize;
        row.get_mut(offset..offset + bytes.len())?.copy_from_slice(bytes);
    }
    let mut places = Vec::new();
    for (number, bytes) in rows {
        let first = number * whole;
        if first.checked_add(whole)? > chunk.len {
            return None;
        }
        let piece = layout.piece(first, 1);
        let (_, members) = layout.row(&piece)?;
        let mut units: Vec<Vec<u8>> = bytes.chunks(unit).map(<[u8]>::to_vec).collect();
        let sums = parity_of(&bytes.chunks(unit).collect::<Vec<_>>(), layout.parity());
        units.extend(sums);
        for (stripe, unit) in members.into_iter().zip(units) {
            let stripe = &chunk.stripes[stripe];
            places.push((stripe.device, stripe.offset + piece.offset, unit));
        }
    }
    Some(places)
}
