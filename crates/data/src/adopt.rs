//! Makes files of content that lies on the device already. An example is the content of a file
//! system which the volume replaces in place.
//!
//! # Invariants
//!
//! - **A1** No byte of the content is written. New extents are taken from free space that already
//!   has the bytes. The bytes are read only to compute their checksums.
//! - **A2** A step that fails leaves a file with a part of the content, and no extent without a
//!   reference.

use buttress_format::{Body, Compression, Extent, FileExtent, Generation, InodeFlags, Region};
use buttress_txn::{Cost, ReserveClass};

use crate::drop_extents::Edits;
use crate::error::{Error, Result};
use crate::file::File;
use crate::files::Files;
use crate::step::STEP_ITEMS;
use crate::writeback::grow;

/// The bytes of an extent that are read at a time for checksums.
const READ_BYTES: u64 = 1 << 20;

/// A full item of the checksum tree has at least this many bytes of checksums.
const SUMS_EACH: u64 = 8192;

/// A part of a file, and the part of an extent that holds its bytes. All numbers are whole sectors.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The offset in the file.
    pub offset: u64,
    /// The whole extent.
    pub extent: Extent,
    /// Where the part begins in the extent.
    pub skip: u64,
    /// Bytes of the part.
    pub len: u64,
}

impl Files {
    /// Gives an empty file its content: pieces in ascending order, holes between them, and the
    /// length `size`. The extents are in free space, or were given to another file before.
    ///
    /// The caller keeps other threads from the file, and from allocating data.
    ///
    /// # Errors
    ///
    /// [`Error::Unshareable`] for a file that is not empty; no space for the items; extents that
    /// are in use, or cannot be read.
    pub fn adopt(&self, file: &File, pieces: &[Piece], size: u64) -> Result<()> {
        if file.size() != 0 || !self.params.options.no_holes {
            return Err(Error::Unshareable("the file has content, or holes have items"));
        }
        let has_sums = file.with_item(|item| item.flags & InodeFlags::NODATASUM == 0);
        for step in pieces.chunks(STEP_ITEMS) {
            self.adopt_step(file, step, has_sums)?;
        }
        let reservation = self.engine.reserve(Edits::default().cost(), ReserveClass::Normal)?;
        let handle = self.engine.begin(reservation);
        file.update_meta(&handle, |meta| {
            meta.item.size = size;
            grow(meta, &file.dirty.lock(), &(0..size), size, self.params.sector);
        });
        Ok(())
    }

    fn adopt_step(&self, file: &File, pieces: &[Piece], has_sums: bool) -> Result<()> {
        let _extents = file.change_extents();
        let mut edits = Edits::default();
        let (mut sums, mut new) = (Vec::new(), Vec::new());
        let view = self.engine.view();
        for piece in pieces {
            let is_new = self.engine.allocation().claim_logged(
                self.engine.storage(),
                self.engine.commits(),
                &view,
                piece.extent,
            )?;
            if is_new {
                new.push(piece.extent);
            }
            if is_new && has_sums {
                sums.push((piece.extent, self.sums_of(piece.extent)?));
            }
            let body = Body::Regular(Region {
                disk: piece.extent.start,
                disk_len: piece.extent.len,
                offset: piece.skip,
                len: piece.len,
            });
            let extent = FileExtent {
                generation: Generation(0),
                ram_bytes: piece.extent.len,
                compression: Compression::None,
                body,
            };
            edits.insert(piece.offset, extent);
        }
        drop(view);
        let bytes = sums.iter().map(|(_, sums): &(_, Vec<u8>)| sums.len() as u64).sum::<u64>();
        let items = 2 * sums.len() as u64 + bytes / SUMS_EACH;
        let len = new.iter().map(|extent| extent.len).sum();
        let stripes = self.params.stripe_cost(len, new.len() as u32);
        let cost = edits.cost().and(Cost { items: 0, commit_items: items, bytes }).and(stripes);
        let reservation = self.engine.reserve(cost, ReserveClass::Normal)?;
        let handle = self.engine.begin(reservation);
        new.into_iter().for_each(|extent| handle.note_written(extent));
        for (extent, sums) in sums {
            handle.insert_csums(extent, sums);
        }
        let bytes = edits.apply(&handle, file);
        file.update_meta(&handle, |meta| bytes.count(meta));
        Ok(())
    }

    /// Reads an extent of free space, which has no checksums yet, and computes them.
    fn sums_of(&self, extent: Extent) -> Result<Vec<u8>> {
        let mut sums = Vec::new();
        let mut buf = vec![0; READ_BYTES.min(extent.len) as usize];
        let mut at = 0;
        while at < extent.len {
            let part = &mut buf[..READ_BYTES.min(extent.len - at) as usize];
            self.volume.read_mirror(extent.start.end(at), part, 0)?;
            sums.extend(self.params.sums(&[part]));
            at += part.len() as u64;
        }
        Ok(sums)
    }
}
