//! The map tells where each sector of the device is. It has pages of runs, and the objects that
//! these runs name.
//!
//! # Invariants
//!
//! - **M1** A page is in memory or in an object, or it is all holes. A page that differs from its
//!   object stays in memory.
//! - **M2** The live count of a data object is the number of sectors that pages place in it. The
//!   live count of a map object is the number of its bytes that references name.
//! - **M3** A sealed object without live content was last needed by the commit before
//!   [`Entry::dead_since`].

mod page;
mod parts;
mod table;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

pub(crate) use self::page::{PAGE_SECTORS, Page};
pub(crate) use self::parts::{LEAF_PAGES, Ref, Refs};
pub(crate) use self::table::{Entry, Holds, Table};

use crate::units::{CommitNumber, Location, ObjectNumber, Sector};

/// A page in memory.
#[derive(Debug)]
struct Slot {
    page: Arc<Page>,
    is_dirty: bool,
    used: u64,
}

/// A run of the device that is in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) count: u64,
    pub(crate) location: Option<Location>,
}

/// A page that has to be read before the map can answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) page: u32,
    pub(crate) at: Ref,
}

/// The map of a volume.
#[derive(Debug, Default)]
pub(crate) struct Map {
    slots: HashMap<u32, Slot>,
    /// The references of the pages that are stored in objects.
    pages: BTreeMap<u32, Ref>,
    /// The stored leaves, each with the references of [`LEAF_PAGES`] pages.
    pub(crate) leaves: BTreeMap<u32, Ref>,
    leaves_changed: BTreeSet<u32>,
    pub(crate) table: Table,
    /// The commit to which the next change belongs.
    pub(crate) window: CommitNumber,
    clock: u64,
    resident: usize,
    dirty: usize,
}

/// Returns the page that has a sector, and the place of the sector in the page.
fn place(sector: Sector) -> (u32, u16) {
    ((sector.0 / PAGE_SECTORS) as u32, (sector.0 % PAGE_SECTORS) as u16)
}

impl Map {
    /// Finds the place of the first sectors of a range. The result is one run of at least one
    /// sector and at most `count`.
    pub(crate) fn find(&mut self, first: Sector, count: u64) -> Result<Piece, Missing> {
        let (number, start) = place(first);
        let count = count.min(PAGE_SECTORS - u64::from(start));
        self.clock += 1;
        let clock = self.clock;
        match self.slots.get_mut(&number) {
            Some(slot) => {
                slot.used = clock;
                let (location, len) = slot.page.find(start);
                Ok(Piece { count: count.min(u64::from(len)), location })
            }
            None => match self.pages.get(&number) {
                Some(&at) => Err(Missing { page: number, at }),
                None => Ok(Piece { count, location: None }),
            },
        }
    }

    /// Says whether a range within one page is all holes.
    pub(crate) fn is_hole(&self, first: Sector, count: u64) -> bool {
        let (number, start) = place(first);
        match self.slots.get(&number) {
            Some(slot) => {
                let (location, len) = slot.page.find(start);
                location.is_none() && u64::from(len) >= count
            }
            None => !self.pages.contains_key(&number),
        }
    }

    /// Says which page has to be read before a range can change.
    pub(crate) fn missing(&self, first: Sector, count: u64) -> Option<Missing> {
        let last = place(Sector(first.0 + count.max(1) - 1)).0;
        let kept = self.pages.range(place(first).0..=last);
        kept.map(|(&page, &at)| Missing { page, at }).find(|m| !self.slots.contains_key(&m.page))
    }

    /// Returns whether a page is still missing.
    pub(crate) fn missing_still(&self, missing: Missing) -> bool {
        !self.slots.contains_key(&missing.page)
            && self.pages.get(&missing.page) == Some(&missing.at)
    }

    /// Installs a page that was read, unless its reference has changed in the meantime.
    pub(crate) fn install(&mut self, missing: Missing, page: Page) {
        if self.pages.get(&missing.page) == Some(&missing.at) {
            self.clock += 1;
            let slot = Slot { page: Arc::new(page), is_dirty: false, used: self.clock };
            if let std::collections::hash_map::Entry::Vacant(vacant) =
                self.slots.entry(missing.page)
            {
                self.resident += slot.page.bytes();
                vacant.insert(slot);
            }
        }
    }

    /// Places sectors at `location`, or makes them a hole. The caller has read all stored pages of
    /// the range.
    pub(crate) fn set(&mut self, first: Sector, count: u64, location: Option<Location>) {
        let end = first.0 + count;
        let mut removed = Vec::new();
        for number in self.pages_to_set(first, count, location.is_some()) {
            let page = u64::from(number) * PAGE_SECTORS;
            let at = page.max(first.0);
            let len = (page + PAGE_SECTORS).min(end) - at;
            let part = location.map(|location| Location {
                frame: location.frame + (at - first.0) as u32,
                ..location
            });
            self.set_in_page(number, (at - page) as u16, len as u16, part, &mut removed);
        }
        for (object, count) in removed {
            self.table.less(object, count, self.window);
        }
        if let Some(location) = location {
            self.table.more(location.object, count as u32);
        }
    }

    /// Returns the pages that a change affects. Holes change only existing pages.
    fn pages_to_set(&self, first: Sector, count: u64, adds: bool) -> Vec<u32> {
        let range = place(first).0..=place(Sector(first.0 + count.max(1) - 1)).0;
        if adds {
            return range.collect();
        }
        if range.end() - range.start() < 64 {
            return range.filter(|page| self.slots.contains_key(page)).collect();
        }
        let mut pages: Vec<u32> =
            self.slots.keys().copied().filter(|page| range.contains(page)).collect();
        pages.sort_unstable();
        pages
    }

    fn set_in_page(
        &mut self,
        number: u32,
        start: u16,
        count: u16,
        location: Option<Location>,
        removed: &mut Vec<(ObjectNumber, u32)>,
    ) {
        self.clock += 1;
        let new = || Slot { page: Arc::default(), is_dirty: false, used: 0 };
        let slot = self.slots.entry(number).or_insert_with(new);
        slot.used = self.clock;
        let before = slot.page.bytes();
        Arc::make_mut(&mut slot.page).set(start, count, location, removed);
        let after = slot.page.bytes();
        self.resident = self.resident + after - before;
        if slot.is_dirty {
            self.dirty = self.dirty + after - before;
        } else {
            self.dirty += after;
            slot.is_dirty = true;
        }
    }

    /// Bytes of pages that differ from their objects.
    pub(crate) fn dirty_bytes(&self) -> usize {
        self.dirty
    }

    /// Drops pages that can be read again, the longest unused first, until the remaining pages are
    /// within a budget.
    pub(crate) fn shrink(&mut self, budget: usize) {
        if self.resident <= budget {
            return;
        }
        let clean = self.slots.iter().filter(|(_, slot)| !slot.is_dirty);
        let mut clean: Vec<(u64, u32)> = clean.map(|(&page, slot)| (slot.used, page)).collect();
        clean.sort_unstable();
        for (_, page) in clean {
            if self.resident <= budget / 4 * 3 {
                break;
            }
            if let Some(slot) = self.slots.remove(&page) {
                self.resident -= slot.page.bytes();
            }
        }
    }

    /// The present pages that differ from their objects.
    pub(crate) fn dirty_pages(&self) -> BTreeMap<u32, Arc<Page>> {
        let dirty = self.slots.iter().filter(|(_, slot)| slot.is_dirty);
        dirty.map(|(&number, slot)| (number, Arc::clone(&slot.page))).collect()
    }

    /// Records the place of a written page that [`Map::dirty_pages`] returned. `at` is `None` for a
    /// page that is all holes.
    pub(crate) fn written(&mut self, number: u32, page: &Arc<Page>, at: Option<Ref>) {
        let before = match at {
            Some(at) => self.pages.insert(number, at),
            None => self.pages.remove(&number),
        };
        self.exchange(before, at);
        self.leaves_changed.insert(number / LEAF_PAGES);
        if let Some(slot) = self.slots.get_mut(&number)
            && Arc::ptr_eq(&slot.page, page)
        {
            slot.is_dirty = false;
            self.dirty -= slot.page.bytes();
            if at.is_none() {
                self.resident -= slot.page.bytes();
                self.slots.remove(&number);
            }
        }
    }

    /// The leaves that have changed since they were written.
    pub(crate) fn changed_leaves(&self) -> Vec<(u32, Refs)> {
        let each = |&leaf: &u32| {
            let range = leaf * LEAF_PAGES..(leaf + 1) * LEAF_PAGES;
            (leaf, Refs(self.pages.range(range).map(|(&page, &at)| (page, at)).collect()))
        };
        self.leaves_changed.iter().map(each).collect()
    }

    /// Records the place of a written leaf.
    pub(crate) fn leaf_written(&mut self, leaf: u32, at: Option<Ref>) {
        let before = match at {
            Some(at) => self.leaves.insert(leaf, at),
            None => self.leaves.remove(&leaf),
        };
        self.exchange(before, at);
        self.leaves_changed.remove(&leaf);
    }

    /// Takes the references of a leaf that was read.
    pub(crate) fn take_leaf(&mut self, refs: Refs) {
        self.pages.extend(refs.0);
    }

    /// The pages that are kept in one of these objects.
    pub(crate) fn pages_in(&self, objects: &BTreeSet<ObjectNumber>) -> Vec<Missing> {
        let inside = self.pages.iter().filter(|(_, at)| objects.contains(&at.object));
        inside.map(|(&page, &at)| Missing { page, at }).collect()
    }

    /// Marks the leaves in these objects, and each of `pages` that is in memory, to be written
    /// again.
    pub(crate) fn write_again(&mut self, pages: &[Missing], objects: &BTreeSet<ObjectNumber>) {
        for missing in pages {
            if let Some(slot) = self.slots.get_mut(&missing.page)
                && !slot.is_dirty
            {
                slot.is_dirty = true;
                self.dirty += slot.page.bytes();
            }
        }
        let leaves = self.leaves.iter().filter(|(_, at)| objects.contains(&at.object));
        self.leaves_changed.extend(leaves.map(|(leaf, _)| leaf));
    }

    fn exchange(&mut self, before: Option<Ref>, now: Option<Ref>) {
        if let Some(now) = now {
            self.table.more(now.object, now.len);
        }
        if let Some(before) = before {
            self.table.less(before.object, before.len, self.window);
        }
    }
}
