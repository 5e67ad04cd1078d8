//! How a chunk spreads its bytes over its stripes. This file does only arithmetic.
//!
//! # Invariants
//!
//! - **G1** Two different bytes of a chunk never have the same place of the same stripe. The copies
//!   of one byte are on different stripes.
//! - **G2** A piece lies within one stripe unit, one row and the chunk.
//! - **G3** No arithmetic here can overflow: `Layout::of` has bounded every factor.
//!
//! # On disk
//!
//! A stripe is a run of bytes on one device. Some profiles cut a chunk into units of 64 KiB:
//!
//! ```text
//! single, DUP, RAID1*   each stripe holds the whole chunk, in order
//! RAID0                 unit u on stripe u % n, at row u / n
//! RAID10                as RAID0 over groups of `sub_stripes` stripes that hold the same
//! RAID5, RAID6          data unit u of row r (r = u / data) on stripe (r + u % data) % n;
//!                       the other stripes of the row are parity, so parity moves from row to row
//! ```

use buttress_format::{BlockGroupFlags, Chunk};

/// The shape of one chunk, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    len: u64,
    shape: Shape,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// Every stripe holds the whole chunk.
    Whole { copies: usize },
    /// Units are dealt to `columns` columns in turn. Each column has `copies` stripes.
    Striped { columns: u64, copies: usize, unit: u64 },
    /// A row has units of data on `data` stripes, and parity on the others. Each row begins one
    /// stripe after the start of the preceding row.
    Parity { data: u64, stripes: u64, unit: u64 },
}

/// A run of bytes that is contiguous on each of its stripes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The first of its stripes; copies lie on the stripes after it.
    pub(crate) first_stripe: usize,
    /// The offset in each of its stripes.
    pub(crate) offset: u64,
    /// Its length in bytes.
    pub(crate) len: u64,
}

impl Layout {
    /// Computes the layout of a chunk, or says why the chunk is invalid.
    pub(crate) fn of(chunk: &Chunk) -> Result<Self, &'static str> {
        let len = chunk.len;
        if len == 0 || chunk.logical.checked_add(len).is_none() {
            return Err("its length is zero or past the end of all addresses");
        }
        let stripes = chunk.stripes.len();
        let profile = chunk.flags.profile();
        let unit = chunk.stripe_len;
        let whole = |copies| {
            if stripes == copies {
                Ok(Shape::Whole { copies })
            } else {
                Err("its profile and its number of stripes differ")
            }
        };
        let shape = match profile {
            BlockGroupFlags(0) => whole(1)?,
            BlockGroupFlags::DUP | BlockGroupFlags::RAID1 => whole(2)?,
            BlockGroupFlags::RAID1C3 => whole(3)?,
            BlockGroupFlags::RAID1C4 => whole(4)?,
            BlockGroupFlags::RAID0 => striped(stripes, 1, unit)?,
            BlockGroupFlags::RAID10 => striped(stripes, usize::from(chunk.sub_stripes), unit)?,
            BlockGroupFlags::RAID5 => parity(stripes, 1, unit)?,
            BlockGroupFlags::RAID6 => parity(stripes, 2, unit)?,
            _ => return Err("it has several profiles, or one that is not known"),
        };
        let layout = Self { len, shape };
        // Each stripe is counted in whole rows (`stripe_len`), so the stripes may cover more bytes
        // than the chunk. If the chunk takes nearly all addresses, this length can exceed 64 bits.
        if layout.checked_stripe_len().is_none() {
            return Err("its last row ends past the end of all addresses");
        }
        for stripe in &chunk.stripes {
            if stripe.offset.checked_add(layout.stripe_len()).is_none() {
                return Err("one of its stripes ends past the end of all devices");
            }
        }
        Ok(layout)
    }

    /// How many copies of each byte there are.
    pub(crate) fn copies(&self) -> usize {
        match self.shape {
            Shape::Whole { copies } | Shape::Striped { copies, .. } => copies,
            Shape::Parity { .. } => 1,
        }
    }

    /// The number of ways to read each byte: its copies, then the reconstructions from parity. The
    /// first reconstruction assumes that only the byte's own stripe is lost. With two parity units
    /// there are further ones: each assumes that one other stripe is lost, too.
    pub(crate) fn readings(&self) -> u32 {
        match self.shape {
            Shape::Parity { stripes, .. } if self.parity() == 2 => 1 + stripes as u32,
            Shape::Parity { .. } => 2,
            _ => self.copies() as u32,
        }
    }

    /// For a piece of a chunk with parity: the index of its data unit in its row, and the stripes
    /// of the row, data first, then parity.
    pub(crate) fn row(&self, piece: &Piece) -> Option<(usize, Vec<usize>)> {
        let Shape::Parity { stripes, unit, .. } = self.shape else { return None };
        let turn = (piece.offset / unit % stripes) as usize;
        let count = stripes as usize;
        let members: Vec<usize> = (0..count).map(|index| (index + turn) % count).collect();
        let wanted = members.iter().position(|stripe| *stripe == piece.first_stripe)?;
        Some((wanted, members))
    }

    /// The data bytes of a row, which share parity; `None` without parity.
    pub(crate) fn row_bytes(&self) -> Option<u64> {
        match self.shape {
            Shape::Parity { data, unit, .. } => Some(data * unit),
            _ => None,
        }
    }

    /// Says whether a write here must also update parity.
    pub(crate) fn has_parity(&self) -> bool {
        matches!(self.shape, Shape::Parity { .. })
    }

    /// Stripes of each row that hold parity.
    pub(crate) fn parity(&self) -> usize {
        match self.shape {
            Shape::Parity { data, stripes, .. } => (stripes - data) as usize,
            _ => 0,
        }
    }

    /// How many bytes of each stripe the chunk covers.
    pub(crate) fn stripe_len(&self) -> u64 {
        self.checked_stripe_len().expect("it was looked at when the layout was made")
    }

    fn checked_stripe_len(&self) -> Option<u64> {
        match self.shape {
            Shape::Whole { .. } => Some(self.len),
            Shape::Striped { columns, unit, .. } => rows(self.len, columns, unit).checked_mul(unit),
            Shape::Parity { data, unit, .. } => rows(self.len, data, unit).checked_mul(unit),
        }
    }

    /// Finds the piece at `offset` of the chunk. It has at most `len` bytes (G2).
    pub(crate) fn piece(&self, offset: u64, len: u64) -> Piece {
        assert!(offset < self.len, "G2: {offset} is not within a chunk of {} bytes", self.len);
        let len = len.min(self.len - offset);
        match self.shape {
            Shape::Whole { .. } => Piece { first_stripe: 0, offset, len },
            Shape::Striped { columns, copies, unit } => {
                let (row, column, within) = place(offset, columns, unit);
                let first_stripe = column as usize * copies;
                Piece { first_stripe, offset: row * unit + within, len: len.min(unit - within) }
            }
            Shape::Parity { data, stripes, unit } => {
                let (row, column, within) = place(offset, data, unit);
                let first_stripe = ((row + column) % stripes) as usize;
                Piece { first_stripe, offset: row * unit + within, len: len.min(unit - within) }
            }
        }
    }
}

fn striped(stripes: usize, copies: usize, unit: u64) -> Result<Shape, &'static str> {
    check_unit(unit)?;
    if copies == 0 || stripes == 0 || !stripes.is_multiple_of(copies) {
        return Err("its stripes do not divide into groups");
    }
    Ok(Shape::Striped { columns: (stripes / copies) as u64, copies, unit })
}

fn parity(stripes: usize, parity: usize, unit: u64) -> Result<Shape, &'static str> {
    check_unit(unit)?;
    let data = stripes.checked_sub(parity).filter(|&data| data > 0);
    let data = data.ok_or("it has no stripe that is not parity")? as u64;
    Ok(Shape::Parity { data, stripes: stripes as u64, unit })
}

/// Units are 64 KiB today. Any power of two up to a gigabyte keeps the arithmetic within bounds
/// (G3): a row has at most `u16::MAX` units.
fn check_unit(unit: u64) -> Result<(), &'static str> {
    if unit.is_power_of_two() && (512..=1 << 30).contains(&unit) {
        Ok(())
    } else {
        Err("its stripe length is not a power of two within bounds")
    }
}

/// Splits an offset into (row, column, offset within the unit).
fn place(offset: u64, columns: u64, unit: u64) -> (u64, u64, u64) {
    let index = offset / unit;
    (index / columns, index % columns, offset % unit)
}

fn rows(len: u64, columns: u64, unit: u64) -> u64 {
    len.div_ceil(unit).div_ceil(columns)
}

#[cfg(test)]
mod tests;
