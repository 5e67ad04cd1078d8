//! Used and available space, for people and for `statfs`.

use buttress_format::BlockGroupFlags;
use buttress_space::SpaceKind;

use crate::{Commits, Storage};
use buttress_volume::DeviceSpace;

/// Space of one kind and profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindUsage {
    /// Kind and profile.
    pub flags: BlockGroupFlags,
    /// Bytes of the block groups of this kind and profile.
    pub total: u64,
    /// Bytes in use, as of now.
    pub used: u64,
}

/// The used and available space of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// By kind and profile.
    pub kinds: Vec<KindUsage>,
    /// Bytes of all devices.
    pub device_bytes: u64,
    /// Bytes of devices that no chunk takes.
    pub unallocated: u64,
    /// Copies of each byte of new data.
    pub data_copies: u32,
    /// Bytes available to new data: free bytes of data groups, and chunks that can still be made.
    pub data_available: u64,
    /// Bytes available to new metadata.
    pub metadata_available: u64,
}

/// The part of [`Usage`] that `statfs` reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatfsFigures {
    /// As in [`Usage`].
    pub device_bytes: u64,
    /// As in [`Usage`].
    pub data_copies: u32,
    /// As in [`Usage`].
    pub data_available: u64,
    /// Bytes of data, metadata and the global reserve with all copies, divided by the number of
    /// copies of data. The snapshot headroom is not included.
    pub used: u64,
}

impl Storage {
    /// Free bytes of data groups that cannot be allocated, because their row is partly in use or
    /// parity is not written.
    fn unallocatable_data(&self, devices: &DeviceSpace) -> u64 {
        if devices.has_parity() { self.space().account(SpaceKind::Data).read_only } else { 0 }
    }

    /// The figures for `statfs`, from the accounts alone. The cost does not grow with the number of
    /// block groups.
    pub(crate) fn statfs_figures(&self, commits: &Commits) -> StatfsFigures {
        let reserve = {
            let metadata = self.space().account(SpaceKind::Metadata);
            metadata.global_reserve.saturating_sub(metadata.for_copies)
        };
        if self.space().count() == 0 {
            let usage = self.usage(commits);
            let copies = |kind: &KindUsage| u64::from(kind.flags.copies());
            let raw = total(usage.kinds.iter().map(|kind| kind.used.saturating_mul(copies(kind))));
            return StatfsFigures {
                device_bytes: usage.device_bytes,
                data_copies: usage.data_copies,
                data_available: usage.data_available,
                used: (raw / u64::from(usage.data_copies.max(1))).saturating_add(reserve),
            };
        }
        let data = self.space().account(SpaceKind::Data);
        let devices = self.devices();
        let flags = self.kind_flags(SpaceKind::Data);
        let free = (data.total - data.used.min(data.total))
            .saturating_sub(self.unallocatable_data(&devices));
        let copies = |kind| u64::from(devices.profile_of(self.kind_flags(kind)).flags().copies());
        let kinds = [SpaceKind::Data, SpaceKind::Metadata, SpaceKind::System]
            .into_iter()
            // In mixed groups data and metadata are one account.
            .filter(|&kind| kind != SpaceKind::Data || !self.space().is_mixed());
        let raw =
            total(kinds.map(|kind| self.space().account(kind).used.saturating_mul(copies(kind))));
        StatfsFigures {
            device_bytes: devices.total(),
            data_copies: devices.profile_of(flags).flags().copies(),
            data_available: free
                + devices.available_to_data(flags, self.kind_flags(SpaceKind::Metadata)),
            used: (raw / copies(SpaceKind::Data).max(1)).saturating_add(reserve),
        }
    }

    /// The used and available space, from a walk over all block groups.
    pub(crate) fn usage(&self, commits: &Commits) -> Usage {
        use std::collections::BTreeMap;

        let mut kinds: BTreeMap<BlockGroupFlags, KindUsage> = BTreeMap::new();
        let mut add = |flags: BlockGroupFlags, total: u64, used: u64| {
            let kind = kinds.entry(flags).or_insert(KindUsage { flags, total: 0, used: 0 });
            kind.total += total;
            kind.used += used;
        };
        let groups = self.space().groups();
        if groups.is_empty() {
            for record in commits.lock().groups.values() {
                add(record.flags, record.len, record.used);
            }
        }
        for group in groups.iter() {
            add(group.flags(), group.len(), group.used());
        }
        let kinds: Vec<_> = kinds.into_values().collect();
        let devices = self.devices();
        let unallocatable = self.unallocatable_data(&devices);
        let unallocated = devices.unallocated();
        let free_of = |kind: BlockGroupFlags| -> u64 {
            let mine = kinds.iter().filter(|k| k.flags.has(kind));
            mine.map(|k| k.total - k.used.min(k.total)).sum()
        };
        let (data, metadata) =
            (self.kind_flags(SpaceKind::Data), self.kind_flags(SpaceKind::Metadata));
        Usage {
            device_bytes: devices.total(),
            unallocated,
            data_copies: devices.profile_of(data).flags().copies(),
            data_available: free_of(data).saturating_sub(unallocatable)
                + devices.available_to_data(data, metadata),
            metadata_available: free_of(metadata) + devices.available(metadata),
            kinds,
        }
    }
}

/// A saturating sum, since a damaged volume may have arbitrary figures.
fn total(figures: impl Iterator<Item = u64>) -> u64 {
    figures.fold(0, u64::saturating_add)
}
