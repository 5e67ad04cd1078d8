//! Reads the content that a manifest references into memory.
//!
//! Everything from the store is checked before its use: against the manifest, or against checked
//! content that the manifest references.

use crate::core::{Core, State};
use crate::envelope::damaged;
use crate::error::Result;
use crate::manifest::Manifest;
use crate::map::{Entry, Holds, Ref, Refs, Table};
use crate::segment::{self, Extent};
use crate::units::{ObjectNumber, Sector, Spot};
use crate::write::{SUPERBLOCK, is_btrfs, node_ids};

/// A part of the content that a manifest references.
enum Part {
    Leaf(Refs),
    Extents(Vec<Extent>),
}

impl Core {
    /// Reads the content that the manifest references: the map leaves, the table, and the extents
    /// of the newest data objects.
    pub(crate) fn load(&self, manifest: &Manifest) -> Result<()> {
        let store = &self.chain.store;
        let tables: Vec<(String, Ref)> = manifest
            .tables
            .iter()
            .map(|part| (self.names.of(part.at.object, part.epoch, false), part.at))
            .collect();
        let ranges: Vec<_> = tables.iter().map(|(name, at)| (name.clone(), at.range())).collect();
        let mut table = Table::default();
        let parts = store.many_as(&ranges, |index, bytes| {
            let (name, at) = &tables[index];
            at.check(name, bytes)?;
            Table::decode(name, bytes)
        })?;
        table.entries.extend(parts.into_iter().flatten());
        for recent in &manifest.recent {
            let entry = Entry::new(Holds::Data(recent.shape()), recent.epoch);
            table.entries.insert(recent.object, entry);
        }
        let mut state = self.state.lock();
        state.map.table = table;
        let mut leaves = Vec::new();
        for &(leaf, at) in &manifest.leaves {
            let name = self.object_name(&state, at.object);
            let name = name.ok_or_else(|| {
                damaged(&self.chain.place, "a leaf of the map is in no object".to_owned())
            })?;
            leaves.push((leaf, name, at));
            state.map.leaves.insert(leaf, at);
        }
        drop(state);
        let names = &self.names;
        let recent = manifest.recent.iter().map(|recent| {
            (names.of(recent.object, recent.epoch, true), segment::tail(recent.shape()))
        });
        let of_leaves = leaves.iter().map(|(_, name, at)| (name.clone(), at.range()));
        let ranges: Vec<_> = of_leaves.chain(recent).collect();
        let parts = store.many_as(&ranges, |index, bytes| match leaves.get(index) {
            Some((leaf, name, at)) => {
                at.check(name, bytes)?;
                Refs::decode(name, *leaf, bytes).map(Part::Leaf)
            }
            None => {
                let recent = &manifest.recent[index - leaves.len()];
                let name = &ranges[index].0;
                segment::extents(name, recent.shape(), recent.crc, bytes).map(Part::Extents)
            }
        })?;
        for (index, part) in parts.into_iter().enumerate() {
            match part {
                Part::Leaf(refs) => self.state.lock().map.take_leaf(refs),
                Part::Extents(extents) => {
                    let recent = &manifest.recent[index - leaves.len()];
                    self.apply(&ranges[index].0, recent.object, &extents)?;
                }
            }
        }
        self.finish_loading(manifest)
    }

    /// Puts the extents of an object into the map, in their order.
    fn apply(&self, name: &str, object: ObjectNumber, extents: &[Extent]) -> Result<()> {
        let sectors = self.len / 4096;
        let mut frame = 0_u32;
        for extent in extents {
            if extent.first.0 + extent.count > sectors {
                return Err(damaged(name, "an extent is past the end of the device".to_owned()));
            }
            let mut at = extent.first.0;
            let end = at + extent.count;
            while at < end {
                let page = crate::map::PAGE_SECTORS;
                let step = (page - at % page).min(end - at);
                let spot = (!extent.is_hole).then_some(Spot { object, frame });
                self.with_pages(Sector(at), step)?.map.set(Sector(at), step, spot);
                frame += if extent.is_hole { 0 } else { step as u32 };
                at += step;
            }
        }
        Ok(())
    }

    fn finish_loading(&self, manifest: &Manifest) -> Result<()> {
        let has_superblock = self.len > (SUPERBLOCK.0 + 1) * 4096;
        let mut sector = vec![0; 4096];
        if has_superblock {
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
