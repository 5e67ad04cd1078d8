//! Allows writes to a volume that was opened for reading, while programs have its files open.
//!
//! # Place
//!
//! Readers notice nothing, because the trees stay the same. This module takes the steps that the
//! opening takes only for writers.
//!
//! # Invariants
//!
//! - **K4** Everything that forbids writing is checked before anything is written.
//! - **K5** If a step of the preparation fails, the volume is read-only, with the reason, until it
//!   is opened again.
//!
//! # Failure
//!
//! If the devices cannot be opened for writing, the volume stays as it was.

use buttress_format::CompatRo;

use crate::{Engine, Error, Result, found_log, learn, writable};

impl Engine {
    /// Whether the volume is read-only and [`Engine::begin_writing`] may make it writable.
    #[must_use]
    pub fn can_begin_writing(&self) -> bool {
        let is_fit = self.learning.unfit().is_none() && self.volume.read_only_reason().is_none();
        self.options.may_begin_writing && is_fit && self.health.read_only().is_some()
    }

    /// Allows writes from now on. One thread at a time calls this method.
    ///
    /// # Errors
    ///
    /// [`Error::ReadOnly`] with the reason if the volume cannot be written (K4). Fails also when
    /// the groups cannot be read, or when a step of the preparation fails (K5).
    pub fn begin_writing(&self) -> Result<()> {
        self.health.expect_no_failure()?;
        if self.health.read_only().is_none() {
            return Ok(());
        }
        if !self.options.may_begin_writing {
            return self.health.expect_opened_for_writing();
        }
        self.know_groups()?;
        if let Some(why) = self.learning.unfit() {
            return Err(Error::ReadOnly(why.clone()));
        }
        let state = self.commit.lock();
        if found_log::has_log(&state.superblock) {
            return Err(Error::ReadOnly("its fsync log was not replayed".into()));
        }
        let obstacle =
            writable::obstacle(&self.volume, &self.store, &state.superblock, &state.roots)?;
        if let Some(why) = obstacle {
            return Err(Error::ReadOnly(why));
        }
        self.volume.begin_writing(&state.superblock).map_err(|error| match error {
            buttress_volume::Error::ReadOnly { why } => Error::ReadOnly(why),
            error => error.into(),
        })?;
        drop(state);
        self.prepare().inspect_err(|error| self.learning.set_unfit(error.to_string()))
    }

    /// Takes the steps that the opening takes only for writers.
    fn prepare(&self) -> Result<()> {
        let (superblock, roots) = {
            let state = self.commit.lock();
            self.volume.mend_torn_superblocks(&state.superblock)?;
            learn::add_groups(&self.space, &self.volume, &state.groups)?;
            (state.superblock.clone(), state.roots.clone())
        };
        self.reservations.look_at_trees(&self.store, &roots)?;
        self.reservations.size_global_reserve();
        self.health.note_writing_begun();
        self.take_up_replacement()?;
        self.make_room_for_nodes()?;
        let flags = superblock.compat_ro;
        let is_stale = !flags.has(CompatRo::FREE_SPACE_TREE_VALID);
        let rebuild = flags.has(CompatRo::FREE_SPACE_TREE) && is_stale;
        if rebuild {
            self.rebuild_free_space();
        }
        self.load_rows();
        if rebuild {
            self.commit()?;
        }
        Ok(())
    }
}
