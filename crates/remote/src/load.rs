//! Reads the content that a manifest references into memory.
//!
//! Everything from the store is checked before its use: against the manifest, or against checked
//! content that the manifest references.

use std::collections::BTreeMap;

use crate::core::{Core, State};
use crate::envelope::damaged;
use crate::error::Result;
use crate::manifest::{Manifest, Recent, TablePart};
use crate::map::{Entry, Holds, PAGE_SECTORS, Ref, Refs, Table};
use crate::map_cache::Part;
use crate::segment::{self, Extent};
use crate::units::{Location, ObjectNumber, Sector};
use crate::write::{SUPERBLOCK, is_btrfs, node_ids};

/// Pages that are read at once before extents are applied.
const PAGES_AT_ONCE: usize = 256;

/// A part of an object that a manifest references.
#[derive(Clone, Copy)]
enum What<'m> {
    Table(Ref),
    Leaf(u32, Ref),
    Recent(&'m Recent),
}

/// A part of an object, and where it is.
type Want<'m> = (What<'m>, Part);

/// The content of a part that a manifest references.
enum Content {
    Table(Vec<(ObjectNumber, Entry)>),
    Leaf(Refs),
    Extents(Vec<Extent>),
}

impl What<'_> {
    fn decode(self, name: &str, bytes: &[u8]) -> Result<Content> {
        match self {
            Self::Table(at) => {
                at.check(name, bytes)?;
                Table::decode(name, bytes)
                    .map(|entries| Content::Table(entries.into_iter().collect()))
            }
            Self::Leaf(leaf, at) => {
                at.check(name, bytes)?;
                Refs::decode(name, leaf, bytes).map(Content::Leaf)
            }
            Self::Recent(recent) => {
                let extents = segment::extents(name, recent.shape(), recent.crc, bytes);
                extents.map(Content::Extents)
            }
        }
    }
}

impl Core {
    /// Reads the content that the manifest references: the map leaves, the table, and the extents
    /// of the newest data objects. Waits for the store twice, or three times for the manifest of an
    /// earlier version.
    pub(crate) fn load(&self, manifest: &Manifest) -> Result<()> {
        let names = &self.names;
        let of_map = |at: Ref, epoch: u32| {
            let name = names.of(at.object, epoch, false);
            Part { name, object: at.object, epoch, at: at.range(), is_extents: false }
        };
        let of_table = |part: &TablePart| (What::Table(part.at), of_map(part.at, part.epoch));
        let mut wants: Vec<Want<'_>> = manifest.tables.iter().map(of_table).collect();
        for recent in &manifest.recent {
            let &Recent { object, epoch, .. } = recent;
            let (name, at) = (names.of(object, epoch, true), segment::tail(recent.shape()));
            let part = Part { name, object, epoch, at, is_extents: true };
            wants.push((What::Recent(recent), part));
        }
        // If the manifest lacks the epochs, only the table gives the names of the objects with the
        // leaves.
        let epochs: BTreeMap<_, _> = manifest.leaf_epochs.iter().copied().collect();
        let named = manifest.leaves.iter().filter_map(|&(leaf, at)| {
            Some((What::Leaf(leaf, at), of_map(at, *epochs.get(&at.object)?)))
        });
        let named: Vec<Want<'_>> = named.collect();
        let is_complete = named.len() == manifest.leaves.len();
        wants.extend(named.into_iter().filter(|_| is_complete));
        let mut table = Table::default();
        let (mut leaves, mut recents) = (Vec::new(), Vec::new());
        for (want, part) in wants.iter().zip(self.parts(&wants)?) {
            match part {
                Content::Table(entries) => table.entries.extend(entries),
                Content::Leaf(refs) => leaves.push(refs),
                Content::Extents(extents) => recents.push((&want.1.name, extents)),
            }
        }
        for recent in &manifest.recent {
            let entry = Entry::new(Holds::Data(recent.shape()), recent.epoch);
            table.entries.insert(recent.object, entry);
        }
        let mut late = Vec::new();
        {
            let mut state = self.state.lock();
            state.map.table = table;
            for &(leaf, at) in &manifest.leaves {
                let entry = state.map.table.get(at.object).ok_or_else(|| {
                    damaged(&self.chain.place, "a leaf of the map is in no object".to_owned())
                })?;
                late.push((What::Leaf(leaf, at), of_map(at, entry.epoch)));
                state.map.leaves.insert(leaf, at);
            }
        }
        late.retain(|_| !is_complete);
        for part in self.parts(&late)? {
            if let Content::Leaf(refs) = part {
                leaves.push(refs);
            }
        }
        leaves.into_iter().for_each(|refs| self.state.lock().map.take_leaf(refs));
        self.load_ahead(recents.iter().flat_map(|(_, extents)| extents))?;
        for (recent, (name, extents)) in manifest.recent.iter().zip(&recents) {
            self.apply(name, recent.object, extents)?;
        }
        self.finish_loading(manifest)
    }

    /// Reads parts of objects at once.
    fn parts(&self, wants: &[Want<'_>]) -> Result<Vec<Content>> {
        let parts: Vec<Part> = wants.iter().map(|(_, part)| part.clone()).collect();
        self.read_parts(&parts, |index, bytes| wants[index].0.decode(&parts[index].name, bytes))
    }

    /// Reads the first pages that extents change, and the page of the superblock, at once.
    fn load_ahead<'e>(&self, extents: impl Iterator<Item = &'e Extent>) -> Result<()> {
        let sectors = self.len() / 4096;
        let mut pages = BTreeMap::new();
        {
            let state = self.state.lock();
            let mut look = |sector: u64| {
                if let Some(missing) = state.map.missing(Sector(sector), 1) {
                    pages.insert(sector / PAGE_SECTORS, missing);
                }
                pages.len() < PAGES_AT_ONCE
            };
            if self.needs_superblock() {
                look(SUPERBLOCK.0);
            }
            'all: for extent in extents {
                // `apply` refuses an extent that goes past the end of the device.
                let end = extent.first.0.saturating_add(extent.count).min(sectors);
                let first = extent.first.0 - extent.first.0 % PAGE_SECTORS;
                for at in (first..end).step_by(PAGE_SECTORS as usize).take(PAGES_AT_ONCE) {
                    if !look(at) {
                        break 'all;
                    }
                }
            }
        }
        self.load_pages(&pages.into_values().collect::<Vec<_>>())
    }

    /// Whether the superblock is read now. A writer and a cache on disk need its identifiers to
    /// recognise nodes.
    fn needs_superblock(&self) -> bool {
        let is_there = self.len() > (SUPERBLOCK.0 + 1) * 4096;
        is_there && (self.options.write || self.options.cache_dir.is_some())
    }

    /// Puts the extents of an object into the map, in their order.
    fn apply(&self, name: &str, object: ObjectNumber, extents: &[Extent]) -> Result<()> {
        let sectors = self.len() / 4096;
        let mut frame = 0_u32;
        for extent in extents {
            if extent.first.0 + extent.count > sectors {
                return Err(damaged(name, "an extent is past the end of the device".to_owned()));
            }
            let mut at = extent.first.0;
            let end = at + extent.count;
            while at < end {
                let page = PAGE_SECTORS;
                let step = (page - at % page).min(end - at);
                let location = (!extent.is_hole).then_some(Location { object, frame });
                self.with_pages(Sector(at), step)?.map.set(Sector(at), step, location);
                frame += if extent.is_hole { 0 } else { step as u32 };
                at += step;
            }
        }
        Ok(())
    }

    fn finish_loading(&self, manifest: &Manifest) -> Result<()> {
        let mut sector = vec![0; 4096];
        if self.needs_superblock() {
            self.read_sectors(SUPERBLOCK, &mut sector)?;
        }
        let mut state = self.state.lock();
        let state: &mut State = &mut state;
        state.recent.clone_from(&manifest.recent);
        state.is_btrfs = is_btrfs(&sector);
        state.node_ids = node_ids(&sector);
        if self.options.write {
            self.open_entry(state);
        }
        Ok(())
    }
}
