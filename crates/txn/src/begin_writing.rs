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
        let is_fit = self.storage().learning().unfit().is_none()
            && self.storage().volume().read_only_reason().is_none();
        self.storage().options().may_begin_writing
            && is_fit
            && self.commits().health().read_only().is_some()
    }

    /// Allows writes from now on. One thread at a time calls this method.
    ///
    /// # Errors
    ///
    /// [`Error::ReadOnly`] with the reason if the volume cannot be written (K4). Fails also when
    /// the groups cannot be read, or when a step of the preparation fails (K5).
    pub fn begin_writing(&self) -> Result<()> {
        self.commits().health().expect_no_failure()?;
        if self.commits().health().read_only().is_none() {
            return Ok(());
        }
        if !self.storage().options().may_begin_writing {
            return self.commits().health().expect_opened_for_writing();
        }
        self.know_groups()?;
        if let Some(why) = self.storage().learning().unfit() {
            return Err(Error::ReadOnly(why.clone()));
        }
        let state = self.commits().lock();
        if found_log::has_log(&state.superblock) {
            return Err(Error::ReadOnly("its fsync log was not replayed".into()));
        }
        let obstacle = writable::obstacle(
            self.storage().volume(),
            self.storage().store(),
            &state.superblock,
            &state.roots,
        )?;
        if let Some(why) = obstacle {
            return Err(Error::ReadOnly(why));
        }
        self.storage().volume().begin_writing(&state.superblock).map_err(|error| match error {
            buttress_volume::Error::ReadOnly { why } => Error::ReadOnly(why),
            error => error.into(),
        })?;
        drop(state);
        self.prepare().inspect_err(|error| self.storage().learning().set_unfit(error.to_string()))
    }

    /// Takes the steps that the opening takes only for writers.
    fn prepare(&self) -> Result<()> {
        let (superblock, roots) = {
            let state = self.commits().lock();
            self.storage().volume().mend_torn_superblocks(&state.superblock)?;
            learn::add_groups(self.storage().space(), self.storage().volume(), &state.groups)?;
            (state.superblock.clone(), state.roots.clone())
        };
        self.reservations().look_at_trees(self.storage().store(), &roots)?;
        self.reservations().size_global_reserve();
        self.commits().health().note_writing_begun();
        self.commits().take_up_replacement(self.storage())?;
        self.storage().make_room_for_nodes(self.commits(), self.reservations())?;
        let flags = superblock.compat_ro;
        let is_stale = !flags.has(CompatRo::FREE_SPACE_TREE_VALID);
        let rebuild = flags.has(CompatRo::FREE_SPACE_TREE) && is_stale;
        if rebuild {
            self.storage().rebuild_free_space(self.commits());
        }
        self.storage().load_rows(self.commits(), self.reservations());
        if rebuild {
            self.commit()?;
        }
        Ok(())
    }
}
