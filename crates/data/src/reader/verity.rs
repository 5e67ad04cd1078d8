//! Reads of files with fs-verity: each block is compared with the file's Merkle tree.
//!
//! # Place
//!
//! The check lies between the content of a file and its reader, above the page cache. The cache has
//! data by address, for all files that share the data. Each of these files may have a tree of its
//! own, or none. So a page in the cache was compared with checksums alone.
//!
//! # Invariants
//!
//! - **V1** A read of a file with fs-verity returns only blocks with the hash that the file's tree
//!   has for them (`verity::V2`). Each read hashes the block, after the block was copied to
//!   memory that no other thread changes.
//!
//! A mount lets the kernel keep the pages, so the cost of V1 is paid once for each page that the
//! kernel has. The library pays for each read: a page that leaves the cache may come back changed,
//! and with a checksum that matches.

use std::sync::Arc;

use buttress_txn::View;

use super::ahead::Ahead;
use crate::error::Result;
use crate::file::File;
use crate::reader::Reader;
use crate::verity::VerityTree;

impl Reader {
    /// The Merkle tree of a file that has fs-verity.
    ///
    /// # Errors
    ///
    /// [`Error::Verity`](crate::Error::Verity) if the descriptor is missing or damaged, or if it is
    /// of a file of another length.
    pub fn verity(&self, file: &File) -> Result<Arc<VerityTree>> {
        if let Some(known) = file.verity.get() {
            return Ok(Arc::clone(known));
        }
        let read = VerityTree::load(&self.engine.view(), (file.tree, file.ino), file.size())?;
        Ok(Arc::clone(file.verity.get_or_init(|| Arc::new(read))))
    }

    /// Reads from a file with fs-verity (V1). Blocks that the caller wants only in part are read as
    /// a whole.
    pub(super) fn read_verified(
        &self,
        file: &File,
        offset: u64,
        buf: &mut [u8],
        may_keep: bool,
    ) -> Result<(usize, Ahead)> {
        let verity = self.verity(file)?;
        let size = verity.descriptor().data_size;
        let end = offset.saturating_add(buf.len() as u64).min(size);
        let block = verity.descriptor().block_size() as u64;
        let view = self.engine.view();
        let (mut at, mut ahead) = (offset, Ahead::default());
        let mut whole = Vec::new();
        while at < end {
            let low = at - at % block;
            let stop = if end == size { end } else { end - end % block };
            let is_direct = at == low && stop > at;
            let stop = if is_direct { stop } else { (low + block).min(end) };
            let out = &mut buf[(at - offset) as usize..(stop - offset) as usize];
            let next = if is_direct {
                self.read_blocks(&verity, &view, file, at, out, may_keep)?
            } else {
                whole.resize((block.min(size - low)) as usize, 0);
                let next = self.read_blocks(&verity, &view, file, low, &mut whole, may_keep)?;
                let skip = (at - low) as usize;
                out.copy_from_slice(&whole[skip..skip + out.len()]);
                next
            };
            if !next.is_empty() {
                ahead = next;
            }
            at = stop;
        }
        Ok((usize::try_from(end.saturating_sub(offset)).unwrap_or(0), ahead))
    }

    /// Reads whole blocks, up to the end of the file at most, and verifies them.
    fn read_blocks(
        &self,
        verity: &VerityTree,
        view: &View,
        file: &File,
        offset: u64,
        out: &mut [u8],
        may_keep: bool,
    ) -> Result<Ahead> {
        let (len, ahead) = self.read_content(file, offset, out, may_keep)?;
        if len < out.len() {
            return Err(verity.damaged(offset, "the file is shorter than its descriptor says"));
        }
        verity.verify(view, offset, out)?;
        Ok(ahead)
    }
}
