//! Replays a file's extents from a log of fsync.
//!
//! # Place
//!
//! Replay holds one handle from beginning to end, before other threads work. The reads of the
//! replay see the items that it has put so far.

use buttress_format::{Body, Compression, Extent, Key};
use buttress_txn::Handle;

use crate::drop_extents::Edits;
use crate::error::Result;
use crate::file::File;
use crate::files::Files;

impl Files {
    /// Inserts an extent item of a log into the file, in place of everything in its range. Returns
    /// the range on disk that may have checksums in the log.
    ///
    /// # Errors
    ///
    /// When the item is invalid, or its extent is not available.
    pub fn replay_extent(
        &self,
        handle: &Handle<'_>,
        file: &File,
        key: Key,
        item: &[u8],
    ) -> Result<Option<Extent>> {
        let new = self.params.check(file, key, item)?;
        let view = self.engine.view();
        if view.get(file.tree, &key)?.is_some_and(|there| there[..] == *item) {
            return Ok(None);
        }
        let range = new.offset..new.end;
        let mut edits = Edits::default();
        for mapping in self.params.mappings(&view, file, range.clone(), usize::MAX)? {
            edits.cut(&mapping, &range);
        }
        let mut summed = None;
        if let Some(region) = new.region().filter(|region| !region.is_hole()) {
            self.engine.allocation().claim_logged(
                self.engine.storage(),
                self.engine.commits(),
                &view,
                region.extent(),
            )?;
            if matches!(new.extent.body, Body::Regular(_)) {
                let part = Extent::new(region.disk.end(region.offset), region.len);
                let plain = new.extent.compression == Compression::None;
                summed = Some(if plain { part } else { region.extent() });
            }
            edits.share(new.offset, new.extent);
        } else if new.is_inline() {
            edits.insert(new.offset, new.extent);
        } else if !self.params.options.no_holes {
            edits.share(new.offset, new.extent);
        }
        drop(view);
        file.forget_end();
        let bytes = edits.apply(handle, file);
        file.update_meta(handle, |meta| bytes.count(meta));
        Ok(summed)
    }

    /// Removes every extent past a file's length.
    ///
    /// # Errors
    ///
    /// When the extents cannot be read.
    pub fn replay_length(&self, handle: &Handle<'_>, file: &File) -> Result<()> {
        let view = self.engine.view();
        let range = self.params.ceil(file.size())..u64::MAX;
        let mut edits = Edits::default();
        for mapping in self.params.mappings(&view, file, range.clone(), usize::MAX)? {
            edits.cut(&mapping, &range);
        }
        drop(view);
        if edits.len() > 0 {
            let bytes = edits.apply(handle, file);
            file.update_meta(handle, |meta| bytes.count(meta));
        }
        Ok(())
    }
}
