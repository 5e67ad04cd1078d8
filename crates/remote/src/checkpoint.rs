//! A checkpoint: the parts of the map that have changed, in objects.
//!
//! # Invariants
//!
//! - **K1** The checkpoint is the map of exactly one commit: pages and table are copied when that
//!   commit's window ends.
//! - **K2** The table in a checkpoint has every object that this commit or an older one needs. The
//!   table lacks only the objects that hold the table itself. The manifest names these objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::core::{Core, State};
use crate::envelope::{Kind, LEN, wrap};
use crate::error::Result;
use crate::manifest::{Manifest, TablePart};
use crate::map::{Entry, Holds, Page, Ref, Table};
use crate::map_cache::Part;
use crate::units::ObjectNumber;

/// A map object takes parts until it has this many bytes.
const MAP_OBJECT: usize = 4 << 20;

/// The input of a checkpoint, copied when the window ends (K1).
#[derive(Debug)]
pub(crate) struct Copied {
    pages: BTreeMap<u32, Arc<Page>>,
    table: Table,
}

impl Copied {
    pub(crate) fn of(state: &State) -> Self {
        Self { pages: state.map.dirty_pages(), table: state.map.table.clone() }
    }
}

/// Parts of the map that are written as one object.
#[derive(Debug, Default)]
struct Batch<K> {
    body: Vec<u8>,
    parts: Vec<(K, Ref)>,
}

impl<K> Batch<K> {
    fn add(&mut self, key: K, bytes: &[u8]) {
        let at = Ref {
            object: ObjectNumber(0),
            offset: (LEN + self.body.len()) as u32,
            len: bytes.len() as u32,
            crc: crc_fast::crc32_iscsi(bytes),
        };
        self.body.extend_from_slice(bytes);
        self.parts.push((key, at));
    }
}

/// Groups parts into objects.
fn batches<K>(parts: impl Iterator<Item = (K, Vec<u8>)>) -> Vec<Batch<K>> {
    let mut all: Vec<Batch<K>> = Vec::new();
    for (key, bytes) in parts {
        match all.last_mut() {
            Some(batch) if batch.body.len() + bytes.len() <= MAP_OBJECT => batch.add(key, &bytes),
            _ => {
                let mut batch = Batch { body: Vec::new(), parts: Vec::new() };
                batch.add(key, &bytes);
                all.push(batch);
            }
        }
    }
    all
}

impl Core {
    /// Writes the changed parts of the map, and puts the new roots into the manifest.
    pub(crate) fn write_checkpoint(&self, manifest: &mut Manifest, copied: Copied) -> Result<()> {
        let full = copied.pages.iter().filter(|(_, page)| !page.is_empty());
        let full = full.map(|(&number, page)| (number, page.encode()));
        for batch in batches(full) {
            let written = self.write_batch(batch)?;
            let mut state = self.state.lock();
            for (number, at) in written {
                state.map.written(number, &copied.pages[&number], Some(at));
            }
        }
        let leaves = {
            let mut state = self.state.lock();
            for (&number, page) in copied.pages.iter().filter(|(_, page)| page.is_empty()) {
                state.map.written(number, page, None);
            }
            let changed = state.map.changed_leaves();
            let (full, empty): (Vec<_>, Vec<_>) =
                changed.into_iter().partition(|(_, refs)| !refs.0.is_empty());
            empty.into_iter().for_each(|(leaf, _)| state.map.leaf_written(leaf, None));
            full
        };
        for batch in batches(leaves.into_iter().map(|(leaf, refs)| (leaf, refs.encode()))) {
            let written = self.write_batch(batch)?;
            let mut state = self.state.lock();
            for (leaf, at) in written {
                state.map.leaf_written(leaf, Some(at));
            }
        }
        let table = self.table_of(manifest, copied.table);
        let mut tables = Vec::new();
        for batch in batches(table.encode().into_iter().map(|part| ((), part))) {
            let object_len = (LEN + batch.body.len()) as u32;
            let (number, parts) = self.put_batch(batch)?;
            tables.extend(parts.into_iter().map(|((), at)| {
                let at = Ref { object: number, ..at };
                TablePart { epoch: self.epoch, object_len, at }
            }));
        }
        let mut state = self.state.lock();
        Self::name_leaves(&state, manifest);
        manifest.next_object = state.next_object;
        manifest.tables.clone_from(&tables);
        manifest.checkpoint = manifest.number;
        state.tables = tables;
        let done = std::mem::take(&mut manifest.recent);
        Self::forget_recent(&mut state, &done, manifest.number);
        state.map.shrink(self.options.memory as usize / 4);
        Ok(())
    }

    /// The table as it was copied, with the objects of the map as they are now.
    fn table_of(&self, manifest: &Manifest, mut table: Table) -> Table {
        let mut state = self.state.lock();
        for part in &manifest.tables {
            // The objects that hold the old table are last needed by the preceding commit.
            let mut entry = Entry::new(Holds::Map(part.object_len), part.epoch);
            entry.dead_since = manifest.number;
            state.map.table.entries.insert(part.at.object, entry);
        }
        table.entries.retain(|_, entry| matches!(entry.holds, Holds::Data(_)));
        let of_map = state.map.table.entries.iter();
        let of_map = of_map.filter(|(_, entry)| matches!(entry.holds, Holds::Map(_)));
        table.entries.extend(of_map.map(|(&number, &entry)| (number, entry)));
        for recent in &manifest.recent {
            if let Some(entry) = table.entries.get_mut(&recent.object) {
                entry.dead_since = entry.dead_since.max(manifest.number);
            }
        }
        table
    }

    /// Writes parts as one object, and adds the object to the table.
    fn write_batch<K>(&self, batch: Batch<K>) -> Result<Vec<(K, Ref)>> {
        let len = (LEN + batch.body.len()) as u32;
        let (number, parts) = self.put_batch(batch)?;
        let entry = Entry::new(Holds::Map(len), self.epoch);
        self.state.lock().map.table.entries.insert(number, entry);
        Ok(parts.into_iter().map(|(key, at)| (key, Ref { object: number, ..at })).collect())
    }

    fn put_batch<K>(&self, batch: Batch<K>) -> Result<(ObjectNumber, Vec<(K, Ref)>)> {
        let number = {
            let mut state = self.state.lock();
            let number = state.next_object;
            state.next_object.0 += 1;
            number
        };
        let object = Bytes::from(wrap(Kind::Map, self.volume, number.0, self.epoch, &batch.body));
        let name = self.chain.names.object(number, self.epoch, false);
        self.chain.store.put(&name, &object)?;
        for (_, at) in &batch.parts {
            let (name, epoch, at) = (name.clone(), self.epoch, at.range());
            let bytes = object.get(at.start as usize..at.end as usize).unwrap_or_default();
            let part = Part { name, object: number, epoch, at, is_extents: false };
            self.keep_part(&part, bytes);
        }
        Ok((number, batch.parts))
    }
}
