//! Claims the space of an fsync log that was found at the opening (`found_log`), so that no other
//! allocation gets this space.

use buttress_format::{Extent, Key, Kind, TreeId};
use buttress_space::{AllocOutcome, SpaceKind};
use buttress_transaction::transaction::Transaction;
use buttress_tree::Cursor;

use crate::QuotaCharge;
use crate::found_log::{SubvolumeLog, WholeLog};
use crate::{Allocation, Commits, Error, Result, Storage, View};

impl Commits {
    /// Takes the log that was found when the volume was opened. The caller puts the log's content
    /// into the running transaction and commits. Until this commit is durable the caller does
    /// nothing else, and no other commit may run.
    #[must_use]
    pub fn take_log(&self) -> Option<Vec<SubvolumeLog>> {
        self.found_log().take()
    }
}

impl Storage {
    fn claim(&self, commits: &Commits, kind: SpaceKind, extent: Extent) -> Result<()> {
        loop {
            match self.space().reserve_exact(kind, extent)? {
                AllocOutcome::NeedsLoading(group) => self.load_group(commits, &group)?,
                AllocOutcome::Got(_) | AllocOutcome::Full { .. } => return Ok(()),
            }
        }
    }
}

impl Allocation {
    /// Claims the nodes of a log, so that the commit which ends the log does not overwrite these
    /// nodes (`found_log::J2`).
    pub(crate) fn claim_log(
        &self,
        storage: &Storage,
        commits: &Commits,
        found: WholeLog,
    ) -> Result<()> {
        let len = u64::from(storage.store().geometry().nodesize);
        for start in found.nodes {
            let extent = Extent { start, len };
            storage.claim(commits, SpaceKind::Metadata, extent)?;
            self.log_space().add(extent);
        }
        commits.found_log().put(found.logs);
        Ok(())
    }

    /// Prepares a data extent for its first reference. The data was already written. If neither the
    /// extent tree nor the running transaction has the extent, takes the extent from free space
    /// (`found_log::J2`). Returns whether the extent was taken.
    ///
    /// # Errors
    ///
    /// When the extent overlaps space in use, or when the running transaction has an extent with
    /// the same start and another length.
    pub fn claim_logged(
        &self,
        storage: &Storage,
        commits: &Commits,
        view: &View,
        extent: Extent,
    ) -> Result<bool> {
        let looks = |of: &Transaction| of.refs.look(extent.start, |to| to.extent == extent);
        // Another thread may be committing a transaction that has the extent.
        let known = looks(view.running()).or_else(|| view.frozen().and_then(|of| looks(of)));
        if let Some(same) = known {
            let what = "a log names a part of an extent";
            return if same { Ok(false) } else { Err(Error::Extents { at: extent.start, what }) };
        }
        let root = view
            .committed_root(TreeId::EXTENT)?
            .ok_or_else(|| Error::Malformed("there is no extent tree".into()))?;
        let key = Key::new(extent.start.0, Kind::EXTENT_ITEM, extent.len);
        if Cursor::find(&**view.store(), TreeId::EXTENT, root, &key)?.is_some() {
            return Ok(false);
        }
        storage.claim(commits, SpaceKind::Data, extent)?;
        self.unreferenced().insert(extent.start, QuotaCharge::default());
        Ok(true)
    }
}
