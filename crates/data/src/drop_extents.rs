//! Changes to a file's extent items, computed before the handle that applies them begins.
//!
//! # Place
//!
//! Writeback, truncation, holes and preallocation all replace the items of a range. They collect
//! [`Edits`] from a view, reserve their cost, and apply them in one handle.
//!
//! # Invariants
//!
//! - **D1** Every item that names an extent holds exactly one reference to it, keyed by the item's
//!   file offset minus the region's offset. Splitting an item in two adds one reference. Cutting an
//!   end off adds no reference.
//! - **D2** `nbytes` changes by exactly the bytes that the items gained and lost.

use std::ops::Range;

use buttress_format::{Body, Extent, FileExtent, Generation, Region};
use buttress_txn::{Cost, Handle};

use crate::extent_map::{Mapping, disk_extent};
use crate::file::{File, Meta};

/// The changes that one handle will make to the extent items of one file.
#[derive(Debug, Default)]
pub(crate) struct Edits {
    deletes: Vec<u64>,
    puts: Vec<(u64, FileExtent, Birth)>,
    added: Vec<(Extent, u64)>,
    dropped: Vec<(Extent, u64)>,
    gained: u64,
    lost: u64,
}

/// Whether an item is new and gets the generation of these edits, or is part of an older item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Birth {
    Now,
    Before,
}

/// The cost of one reference in a reservation: items, and bytes for the extent tree.
const REF_ITEMS: u64 = 3;
const REF_BYTES: u64 = 64;

impl Edits {
    /// The cost of one more extent.
    pub(crate) const COST_OF_ONE: Cost = Cost {
        items: 1,
        commit_items: REF_ITEMS,
        bytes: FileExtent::REGULAR_LEN as u64 + REF_BYTES,
    };

    /// Returns the number of items and references that the edits touch.
    pub(crate) fn len(&self) -> usize {
        self.deletes.len() + self.puts.len() + self.added.len() + self.dropped.len()
    }

    /// Returns the cost of the edits for a reservation, including the inode item.
    pub(crate) fn cost(&self) -> Cost {
        let refs = (self.added.len() + self.dropped.len()) as u64;
        let put_bytes: usize = self.puts.iter().map(|(_, extent, _)| extent_bytes(extent)).sum();
        Cost {
            items: 1 + (self.deletes.len() + self.puts.len()) as u64,
            commit_items: refs * REF_ITEMS,
            bytes: 160 + put_bytes as u64 + refs * REF_BYTES,
        }
    }

    /// Returns the cost of the dropped references alone.
    pub(crate) fn dropped_cost(&self) -> Cost {
        let refs = self.dropped.len() as u64;
        Cost { items: 0, commit_items: refs * REF_ITEMS, bytes: refs * REF_BYTES }
    }

    /// Removes `range` from `mapping`. The two overlap.
    pub(crate) fn cut(&mut self, mapping: &Mapping, range: &Range<u64>) {
        debug_assert!(mapping.offset < range.end && mapping.end > range.start);
        let Some(region) = mapping.region() else {
            // An inline extent is one sector at the start of the file, and ranges are whole
            // sectors.
            self.deletes.push(mapping.offset);
            self.lost += mapping.nbytes();
            return;
        };
        let head = range.start.saturating_sub(mapping.offset);
        let tail = mapping.end.saturating_sub(range.end);
        if head == 0 {
            self.deletes.push(mapping.offset);
        } else {
            self.puts.push((mapping.offset, window(&mapping.extent, 0, head), Birth::Before));
        }
        if tail > 0 {
            let skip = region.len - tail;
            let rest = window(&mapping.extent, skip, tail);
            self.puts.push((mapping.offset + skip, rest, Birth::Before));
        }
        if region.disk.0 == 0 {
            return;
        }
        self.lost += region.len - head - tail;
        let key = reference_key(mapping.offset, region);
        if head == 0 && tail == 0 {
            self.dropped.push((disk_extent(region), key));
        } else if head > 0 && tail > 0 {
            self.added.push((disk_extent(region), key));
        }
    }

    /// Puts an extent, with a reference of its own unless it is a hole or inline.
    pub(crate) fn insert(&mut self, offset: u64, extent: FileExtent) {
        match &extent.body {
            Body::Inline(_) => self.gained += extent.ram_bytes,
            Body::Regular(region) | Body::Prealloc(region) => {
                if region.disk.0 != 0 {
                    self.gained += region.len;
                    self.added.push((disk_extent(region), reference_key(offset, region)));
                }
            }
        }
        self.puts.push((offset, extent, Birth::Now));
    }

    /// Puts an item for an extent that another file or place shows already, with a reference of its
    /// own.
    pub(crate) fn share(&mut self, offset: u64, extent: FileExtent) {
        if let Some(region) = extent.region().filter(|region| !region.is_hole()) {
            self.gained += region.len;
            self.added.push((disk_extent(region), reference_key(offset, region)));
        }
        self.puts.push((offset, extent, Birth::Before));
    }

    /// Replaces the inline extent `mapping` by a shorter version of it.
    pub(crate) fn replace_inline(&mut self, mapping: &Mapping, extent: FileExtent) {
        self.lost += mapping.nbytes();
        self.gained += extent.ram_bytes;
        self.puts.push((mapping.offset, extent, Birth::Now));
    }

    /// Replaces items by other items that show the same bytes of one extent on disk.
    pub(crate) fn reshape(&mut self, old: &[Mapping], new: Vec<(u64, FileExtent)>) {
        let Some(region) = old.first().and_then(Mapping::region) else { return };
        let reference = (disk_extent(region), reference_key(old[0].offset, region));
        self.deletes.extend(old.iter().map(|mapping| mapping.offset));
        let (before, after) = (old.len(), new.len());
        self.added.extend(std::iter::repeat_n(reference, after.saturating_sub(before)));
        self.dropped.extend(std::iter::repeat_n(reference, before.saturating_sub(after)));
        self.puts.extend(new.into_iter().map(|(offset, extent)| (offset, extent, Birth::Before)));
    }

    /// Puts a hole's item, on volumes where holes have one.
    pub(crate) fn insert_hole(&mut self, range: &Range<u64>) {
        let len = range.end - range.start;
        self.puts.push((range.start, hole(len), Birth::Now));
    }

    /// Replaces an item by an item that shows `gained` more bytes of the same extent, which has
    /// grown.
    pub(crate) fn replace(
        handle: &Handle<'_>,
        file: &File,
        offset: u64,
        extent: FileExtent,
        gained: u64,
    ) -> Bytes {
        let extent = FileExtent { generation: handle.generation(), ..extent };
        put(handle, file, offset, &extent);
        Bytes { gained, lost: 0 }
    }

    /// Takes out the references that the edits drop. The caller drops them later.
    pub(crate) fn take_dropped(&mut self) -> Dropped {
        Dropped(std::mem::take(&mut self.dropped))
    }

    /// Returns edits that undo these edits. `there` are the mappings before these edits. The caller
    /// has called
    /// [`Self::take_dropped`]: dropped references are not undone.
    pub(crate) fn reverse(&self, there: Vec<Mapping>) -> Reverse {
        Reverse {
            puts: self.puts.iter().map(|(offset, ..)| *offset).collect(),
            added: self.added.clone(),
            there,
            bytes: Bytes { gained: self.lost, lost: self.gained },
        }
    }

    /// Applies the edits. The items of `puts` win over `deletes` of the same key.
    pub(crate) fn apply(self, handle: &Handle<'_>, file: &File) -> Bytes {
        // A key that is put again is not deleted first. Otherwise the overlay would list two
        // changes of the item's length, and the ledger would process both.
        let goes = |offset: &&u64| !self.puts.iter().any(|(put, ..)| put == *offset);
        for offset in self.deletes.iter().filter(goes) {
            handle.delete(file.tree, file.extent_key(*offset));
        }
        for (offset, mut extent, birth) in self.puts {
            if birth == Birth::Now {
                extent.generation = handle.generation();
            }
            put(handle, file, offset, &extent);
        }
        // References are added before others are dropped. Otherwise a count could reach zero in
        // between, which would free the extent.
        for (extent, key) in self.added {
            handle.add_data_ref(extent, file.data_ref(key));
        }
        for (extent, key) in self.dropped {
            handle.drop_data_ref(extent, file.data_ref(key));
        }
        Bytes { gained: self.gained, lost: self.lost }
    }
}

/// References to drop.
#[derive(Debug)]
pub(crate) struct Dropped(Vec<(Extent, u64)>);

impl Dropped {
    pub(crate) fn is_nothing(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn apply(self, handle: &Handle<'_>, file: &File) {
        for (extent, key) in self.0 {
            handle.drop_data_ref(extent, file.data_ref(key));
        }
    }
}

/// Reverses edits that were applied, except for the references that they dropped.
#[derive(Debug)]
pub(crate) struct Reverse {
    puts: Vec<u64>,
    added: Vec<(Extent, u64)>,
    there: Vec<Mapping>,
    bytes: Bytes,
}

impl Reverse {
    pub(crate) fn apply(self, handle: &Handle<'_>, file: &File) -> Bytes {
        let comes = |offset: &&u64| !self.there.iter().any(|there| there.offset == **offset);
        for offset in self.puts.iter().filter(comes) {
            handle.delete(file.tree, file.extent_key(*offset));
        }
        for there in &self.there {
            put(handle, file, there.offset, &there.extent);
        }
        for (extent, key) in self.added {
            handle.drop_data_ref(extent, file.data_ref(key));
        }
        self.bytes
    }
}

fn put(handle: &Handle<'_>, file: &File, offset: u64, extent: &FileExtent) {
    let key = file.extent_key(offset);
    match extent.to_array() {
        Some(bytes) => handle.put(file.tree, key, bytes),
        None => handle.put(file.tree, key, extent.to_bytes()),
    }
}

/// The change of an inode's byte count by applied edits.
#[must_use = "the inode item must learn of it (D2)"]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes {
    gained: u64,
    lost: u64,
}

impl Bytes {
    pub(crate) fn count(self, meta: &mut Meta) {
        // A damaged volume may have counted too few bytes. The checker reports this; the
        // subtraction must not overflow.
        meta.item.nbytes = (meta.item.nbytes + self.gained).saturating_sub(self.lost);
    }
}

/// The key under which an item's reference is counted (D1).
pub(crate) fn reference_key(offset: u64, region: &Region) -> u64 {
    offset.wrapping_sub(region.offset)
}

/// Returns a window of an extent: `len` bytes after the first `skip` bytes.
pub(crate) fn window(extent: &FileExtent, skip: u64, len: u64) -> FileExtent {
    let mut part = extent.clone();
    if let Body::Regular(region) | Body::Prealloc(region) = &mut part.body {
        region.len = len;
        if region.disk.0 != 0 {
            region.offset += skip;
        } else {
            // Linux leaves an offset in the hole items that it splits. But the checker of Linux
            // treats an offset plus length past the item's `ram_bytes` as an error.
            region.offset = 0;
            part.ram_bytes = len;
        }
    }
    part
}

/// Returns the item of a hole, for volumes on which holes have items.
fn hole(len: u64) -> FileExtent {
    FileExtent {
        generation: Generation(0),
        ram_bytes: len,
        compression: buttress_format::Compression::None,
        body: Body::Regular(Region {
            disk: buttress_format::Logical(0),
            disk_len: 0,
            offset: 0,
            len,
        }),
    }
}

fn extent_bytes(extent: &FileExtent) -> usize {
    match &extent.body {
        Body::Inline(data) => 21 + data.len(),
        Body::Regular(_) | Body::Prealloc(_) => 53,
    }
}
