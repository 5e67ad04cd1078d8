//! Reads parts of the map, and extents. The cache on a local disk keeps them.
//!
//! # Invariants
//!
//! - **B1** A part is used only if it has the checksum of its reference. If the part on the disk
//!   has another checksum, the part is read from the store.
//! - **B2** A part is kept as lines of its object. For a part of a map object the number of a line
//!   is the offset of its first byte in the object. The lines with the extents of a data object
//!   count down from the highest number, where no line of frames is.
//! - **B3** Threads that need one page at the same time cause one request for it. The page has the
//!   key of its first line, as the requests of `ahead` have the keys of their lines (A4 there).

use std::ops::Range;

use buttress_base::RankedGuard;
use bytes::Bytes;

use crate::core::{Core, State};
use crate::disk_lines::{DiskKey, DiskLines};
use crate::error::{Error, Result};
use crate::lines::{Key, LINE_BYTES};
use crate::map::{Missing, Page};
use crate::units::{ObjectNumber, Sector};

/// A part of an object that the cache on disk may have.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) object: ObjectNumber,
    pub(crate) epoch: u32,
    pub(crate) at: Range<u64>,
    /// Whether the part is the extents of a data object instead of a part of the map.
    pub(crate) is_extents: bool,
}

impl Part {
    fn len(&self) -> usize {
        (self.at.end - self.at.start) as usize
    }

    /// The keys of the lines that have the part, and the number of its bytes in each (B2).
    fn keys(&self) -> impl Iterator<Item = (DiskKey, Range<usize>)> + use<> {
        let (object, epoch, start, len) = (self.object, self.epoch, self.at.start, self.len());
        let is_extents = self.is_extents;
        (0..len.div_ceil(LINE_BYTES)).map(move |number| {
            let from = number * LINE_BYTES;
            let line = match is_extents {
                true => u32::MAX - number as u32,
                false => (start as u32).wrapping_add(from as u32),
            };
            (DiskKey { epoch, object, line }, from..(from + LINE_BYTES).min(len))
        })
    }

    fn on_disk(&self, disk: &DiskLines) -> Option<Bytes> {
        // A damaged reference may have any length, so no memory is reserved for that length.
        let mut bytes = Vec::new();
        for (key, range) in self.keys() {
            let line = disk.get(key)?;
            if line.len() != range.len() {
                return None;
            }
            bytes.extend_from_slice(&line);
        }
        Some(bytes.into())
    }

    /// Keeps the part on the disk. The part stays as long as nodes of trees do.
    fn keep(&self, disk: &DiskLines, bytes: &[u8]) {
        for (key, range) in self.keys() {
            if let Some(line) = bytes.get(range) {
                disk.put(key, line, true);
            }
        }
    }
}

impl Core {
    /// Keeps a part that this writer has written.
    pub(crate) fn keep_part(&self, part: &Part, bytes: &[u8]) {
        if let Some(disk) = &self.disk {
            part.keep(disk, bytes);
        }
    }

    /// Reads the parts that the disk has from the disk, and all other parts at once from the store.
    /// `check` gets the index and the bytes of each part (B1).
    pub(crate) fn read_parts<T>(
        &self,
        parts: &[Part],
        check: impl Fn(usize, &Bytes) -> Result<T>,
    ) -> Result<Vec<T>> {
        let here = |index: usize, part: &Part| {
            let bytes = part.on_disk(self.disk.as_ref()?)?;
            check(index, &bytes).ok()
        };
        let mut found: Vec<Option<T>> =
            parts.iter().enumerate().map(|(index, part)| here(index, part)).collect();
        let absent: Vec<usize> = (0..parts.len()).filter(|index| found[*index].is_none()).collect();
        let each = |index: &usize| (parts[*index].name.clone(), parts[*index].at.clone());
        let ranges: Vec<_> = absent.iter().map(each).collect();
        let read = self.chain.store.many_as(&ranges, |number, bytes| {
            let index = absent[number];
            let value = check(index, bytes)?;
            self.keep_part(&parts[index], bytes);
            Ok(value)
        })?;
        for (index, value) in absent.into_iter().zip(read) {
            found[index] = Some(value);
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// Locks the state when all pages of a range are in memory.
    pub(crate) fn with_pages(&self, first: Sector, count: u64) -> Result<RankedGuard<'_, State>> {
        loop {
            let state = self.state.lock();
            let Some(missing) = state.map.missing(first, count) else { return Ok(state) };
            drop(state);
            self.load_page(missing)?;
        }
    }

    /// Reads a page of the map.
    pub(crate) fn load_page(&self, missing: Missing) -> Result<()> {
        self.load_pages(&[missing])
    }

    /// Reads the page of the map that has a sector, if memory lacks it.
    pub(crate) fn load_page_of(&self, sector: Sector) -> Result<()> {
        let missing = self.state.lock().map.missing(sector, 1);
        missing.map_or(Ok(()), |missing| self.load_page(missing))
    }

    /// Reads pages of the map at once. Waits for pages that another thread has asked for (B3).
    pub(crate) fn load_pages(&self, wanted: &[Missing]) -> Result<()> {
        let mut wanted = wanted.to_vec();
        loop {
            {
                let state = self.state.lock();
                wanted.retain(|page| state.map.missing_still(*page));
            }
            let (asked, others) = self.ahead.take(wanted.iter().map(key).collect());
            let is_mine = |page: &&Missing| asked.keys.contains(&key(page));
            self.ask_pages(wanted.iter().filter(is_mine).copied().collect())?;
            drop(asked);
            if others.is_empty() {
                return Ok(());
            }
            if !others.iter().all(|key| self.ahead.wait(*key)) {
                return Err(Error::Abandoned { place: self.chain.place.clone() });
            }
            // The request of the other thread may have failed. This thread asks again, but not for
            // its own pages, which the budget may have evicted by now.
            wanted.retain(|page| others.contains(&key(page)));
        }
    }

    /// Asks for pages that no other thread asks for.
    fn ask_pages(&self, mut pages: Vec<Missing>) -> Result<()> {
        let mut parts = Vec::with_capacity(pages.len());
        {
            let state = self.state.lock();
            // Another thread may have received a page after this thread looked.
            pages.retain(|page| state.map.missing_still(*page));
            for missing in &pages {
                let (object, at) = (missing.at.object, missing.at.range());
                let entry = state.map.table.get(object);
                let Some((name, entry)) = self.object_name(&state, object).zip(entry) else {
                    let name = self.chain.place.clone();
                    return Err(Error::Damaged { name, why: "the map names no object".to_owned() });
                };
                parts.push(Part { name, object, epoch: entry.epoch, at, is_extents: false });
            }
        }
        let found = self.read_parts(&parts, |index, bytes| {
            let name = &parts[index].name;
            pages[index].at.check(name, bytes)?;
            Page::decode(name, bytes)
        })?;
        let mut state = self.state.lock();
        for (missing, page) in pages.into_iter().zip(found) {
            state.map.install(missing, page);
        }
        state.map.shrink(self.budget.map as usize);
        Ok(())
    }
}

/// The key of a page of the map (B3).
fn key(page: &Missing) -> Key {
    (page.at.object, page.at.offset)
}
