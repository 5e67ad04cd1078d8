//! Records added, removed and changed devices and chunks in the trees of a commit.
//!
//! # Invariants
//!
//! - **D1** The device extents of a chunk and the used bytes of its devices are recorded in the
//!   same round as the chunk.

use buttress_format::{BlockGroupFlags, DeviceItem, Extent, Key, Kind, ReplaceItem, TreeId, ids};
use buttress_tree::Cursor;

use super::{Changes, Pending, Settle, over};
use crate::devices::known_item;
use crate::{Error, Result, commits::GroupRecord, transaction::DeviceChange};

impl Settle<'_> {
    /// Records added, removed and resized devices in the chunk tree.
    pub(super) fn device_items(&mut self) -> Result<()> {
        let changes = std::mem::take(&mut *self.transaction.devices.lock());
        for change in changes {
            let (id, item) = match change {
                DeviceChange::Set(item) => (item.devid, Some(item)),
                DeviceChange::Gone(id) => (id, None),
                DeviceChange::Replacement(item) => {
                    let put = Changes::from([(ReplaceItem::KEY, Some(item.to_bytes().into()))]);
                    self.merge(TreeId::DEV, put)?;
                    continue;
                }
            };
            let key = Key::new(ids::DEV_ITEMS, Kind::DEV_ITEM, id.0);
            let root = self.must_root(TreeId::CHUNK)?;
            let before = self.reading(|source| {
                let found = Cursor::find(source, TreeId::CHUNK, root, &key)?;
                let parse = |bytes: &[u8]| {
                    DeviceItem::parse(bytes).map_err(|source| Error::Item {
                        tree: TreeId::CHUNK,
                        key,
                        source,
                    })
                };
                found.map(|(node, slot)| parse(node.item(slot))).transpose()
            })?;
            self.devices_delta += i64::from(item.is_some()) - i64::from(before.is_some());
            let bytes = |item: Option<DeviceItem>| item.map_or(0, |item| item.total_bytes as i64);
            self.total_delta += bytes(item) - bytes(before);
            let stats = Key::new(ids::DEV_STATS, Kind::PERSISTENT_ITEM, id.0);
            if item.is_none() {
                self.merge(TreeId::DEV, Changes::from([(stats, None)]))?;
            }
            let change = item.map(|item| item.to_bytes().into());
            self.merge(TreeId::CHUNK, Changes::from([(key, change)]))?;
        }
        Ok(())
    }

    /// Records the error counts that changed since the last commit, by device.
    pub(super) fn device_stats(&mut self) -> Result<()> {
        let mut items = Changes::new();
        for device in self.owners.storage.volume().devices().iter() {
            if let Some(stats) = device.take_changed_stats() {
                let key = Key::new(ids::DEV_STATS, Kind::PERSISTENT_ITEM, device.id.0);
                items.insert(key, Some(stats.to_bytes().into()));
            }
        }
        self.merge(TreeId::DEV, items)
    }

    /// Records new and removed chunks in the chunk tree, the device tree and the block group tree.
    pub(super) fn chunks(&mut self, pending: &mut Pending) -> Result<()> {
        let Pending { groups, free_space, .. } = pending;
        let new: Vec<_> = self.transaction.chunks.lock()[self.new_chunks_seen..].to_vec();
        let removed = std::mem::take(&mut *self.transaction.removed.lock());
        if new.is_empty() && removed.is_empty() {
            return Ok(());
        }
        self.new_chunks_seen += new.len();
        let mut chunk_items = Changes::new();
        let mut dev_items = Changes::new();
        let key_of = |chunk: &buttress_format::Chunk| {
            Key::new(ids::FIRST_CHUNK_TREE, Kind::CHUNK_ITEM, chunk.logical.0)
        };
        for new in new {
            let key = key_of(&new.chunk);
            chunk_items.insert(key, Some(new.chunk.to_bytes().into()));
            for (device, offset, extent) in &new.stripes {
                let key = Key::new(device.0, Kind::DEV_EXTENT, *offset);
                dev_items.insert(key, Some(extent.to_bytes().into()));
                let len = i64::try_from(extent.length).unwrap_or(i64::MAX);
                *self.device_delta.entry(device.0).or_default() += len;
            }
            if new.flags.has(BlockGroupFlags::SYSTEM) {
                self.sys_chunks.push((key, new.chunk.clone()));
            }
            let record = GroupRecord { len: new.chunk.len, flags: new.flags, used: 0 };
            let root = self.roots.find(TreeId::FREE_SPACE);
            let source = over(self.owners.storage, self.transaction, &mut self.fresh);
            self.groups.add(&source, root, new.chunk.logical, record)?;
        }
        for chunk in &removed {
            chunk_items.insert(key_of(chunk), None);
            self.sys_chunks.retain(|(key, _)| *key != key_of(chunk));
            for stripe in &chunk.stripes {
                let key = Key::new(stripe.device.0, Kind::DEV_EXTENT, stripe.offset);
                dev_items.insert(key, None);
                let len = i64::try_from(chunk.stripe_bytes()).unwrap_or(i64::MAX);
                *self.device_delta.entry(stripe.device.0).or_default() -= len;
            }
            let group = Extent { start: chunk.logical, len: chunk.len };
            let root = self.roots.find(TreeId::FREE_SPACE);
            let sectorsize = self.sectorsize();
            let merge = over(self.owners.storage, self.transaction, &mut self.fresh);
            self.groups.remove(&merge, root, sectorsize, group, groups, free_space)?;
        }
        self.removed.extend(removed);
        for (id, delta) in &self.device_delta {
            let device = buttress_format::DeviceId(*id);
            let mut item: DeviceItem = known_item(&self.owners.storage.devices(), device)?;
            item.bytes_used = item.bytes_used.saturating_add_signed(*delta);
            let key = Key::new(ids::DEV_ITEMS, Kind::DEV_ITEM, *id);
            chunk_items.insert(key, Some(item.to_bytes().into()));
        }
        self.merge(TreeId::DEV, dev_items)?;
        self.merge(TreeId::CHUNK, chunk_items)
    }
}
