//! Where bytes lie, and what is known of it.

use std::sync::Arc;

use buttress_base::sync::{Mutex, MutexGuard};
use buttress_space::{FlushStates, Reach, Space, SpaceKind};
use buttress_tree::Store;
use buttress_volume::{DeviceSpace, Volume};

use crate::group_notes::GroupNotes;
use crate::learning::LazyGroups;
use crate::loading::Loading;
use crate::options::EngineOptions;

/// The devices, the tree nodes and the block groups of an open volume.
pub struct Storage {
    volume: Arc<Volume>,
    store: Arc<Store>,
    space: Arc<Space>,
    /// Unranked: a discard may run while this lock is held.
    devices: Arc<Mutex<DeviceSpace>>,
    groups: GroupNotes,
    loading: Loading,
    learning: LazyGroups,
    options: EngineOptions,
}

impl Storage {
    pub(crate) fn new(
        store: Arc<Store>,
        space: Arc<Space>,
        devices: Arc<Mutex<DeviceSpace>>,
        learning: LazyGroups,
        options: EngineOptions,
    ) -> Self {
        Self {
            volume: Arc::clone(store.volume()),
            store,
            space,
            devices,
            groups: GroupNotes::default(),
            loading: Loading::default(),
            learning,
            options,
        }
    }

    /// The devices and chunks of the volume.
    #[must_use]
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// The tree nodes of the volume.
    #[must_use]
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The block groups and accounts of the volume.
    #[must_use]
    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// The space of the devices, locked.
    pub(crate) fn devices(&self) -> MutexGuard<'_, DeviceSpace> {
        self.devices.lock()
    }

    pub(crate) fn groups(&self) -> &GroupNotes {
        &self.groups
    }

    pub(crate) fn loading(&self) -> &Loading {
        &self.loading
    }

    pub(crate) fn learning(&self) -> &LazyGroups {
        &self.learning
    }

    pub(crate) fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// The flush steps for a kind of space, by its accounts as they are now.
    #[must_use]
    pub fn flush_states(&self, kind: SpaceKind, reach: Reach) -> FlushStates {
        let account = self.space().account(kind);
        FlushStates::new(kind, reach, account.used > account.total / 10 * 7)
    }
}
