//! The owner of inodes and subvolumes in memory.
//!
//! # Invariants
//!
//! - **I1** The first access to a subvolume of a writable mount passes the subvolume's orphans to
//!   the cleaner. A read-only snapshot has orphans, too: files that were open without a name when
//!   the snapshot was made.

use std::sync::Arc;

use buttress_format::{InodeItem, Key, Kind, TreeId};
use buttress_items::{Attr, Error, FileKind, InodeId, NameError, Result, orphan, property};
use buttress_txn::{Engine, View};

use crate::cell::{Departures, InodeCell, attr_of};
use crate::clean_queue::CleanQueue;
use crate::inode_table::{Entered, InodeTable};
use crate::status::Status;
use crate::trees::{Tree, Trees};

/// Inodes and subvolumes in memory.
pub(crate) struct Inodes {
    engine: Arc<Engine>,
    status: Arc<Status>,
    departures: Arc<Departures>,
    trees: Trees,
}

impl Inodes {
    pub(crate) fn new(engine: Arc<Engine>, status: Arc<Status>) -> Self {
        let departures = Arc::new(Departures::new());
        Self { engine, status, departures, trees: Trees::default() }
    }

    /// The subvolumes in memory.
    pub(crate) fn trees(&self) -> &Trees {
        &self.trees
    }

    /// The queue of the cleaner.
    pub(crate) fn cleaning(&self) -> &CleanQueue {
        &self.departures.cleaning
    }

    /// The inodes in memory.
    pub(crate) fn table(&self) -> &InodeTable<InodeCell> {
        &self.departures.table
    }

    /// The information on a subvolume (I1).
    pub(crate) fn tree_info(&self, view: &View, tree: TreeId) -> Result<Arc<Tree>> {
        let info = self.trees.info(view, tree)?;
        info.list_orphans_once(|| {
            if self.status.expect_writable().is_ok() {
                self.engine.reservations().know_height(view, tree)?;
                for id in orphan::list(view, tree)? {
                    self.cleaning().clean_later(id);
                }
            }
            Ok(())
        })?;
        Ok(info)
    }

    /// The cell of an inode that has a name, or had a user a moment ago.
    pub(crate) fn cell(&self, id: InodeId) -> Result<Arc<InodeCell>> {
        loop {
            let seen = match self.table().find(id) {
                Ok(cell) => return Ok(cell),
                Err(seen) => seen,
            };
            let view = self.engine.view();
            let info = match self.trees.held(id.tree) {
                Some(held) => held,
                None => self.tree_info(&view, id.tree)?,
            };
            let item = read_item(&view, id)?.ok_or(NameError::NotFound)?;
            if item.nlink == 0 {
                return Err(NameError::NotFound.into());
            }
            let cell = self.new_cell(id, item, info)?;
            cell.file.set_codec(property::read(&view, id, item.flags)?);
            match self.table().enter(cell, seen) {
                Entered::Cell(cell) => return Ok(cell),
                Entered::Stale => {}
                Entered::KeptOut => self.table().wait(),
            }
        }
    }

    /// The attributes of an inode without a cell, as the trees have them. An inode without a cell
    /// has no newer state in memory (`pending_times::A2`). `None` if the inode has a cell, had one
    /// meanwhile, or needs a closer look. `sector` is the size of a sector, in bytes.
    pub(crate) fn attr_without_cell(&self, id: InodeId, sector: u64) -> Result<Option<Attr>> {
        let Err(seen) = self.table().find(id) else { return Ok(None) };
        let view = self.engine.view();
        // In a deleted subvolume, only inodes that are in use can be found.
        if self.trees.held(id.tree).is_some() {
            return Ok(None);
        }
        self.tree_info(&view, id.tree)?;
        let Some(item) = read_item(&view, id)? else { return Ok(None) };
        let Some(kind) = FileKind::from_mode(item.mode) else { return Ok(None) };
        let is_unused = matches!(self.table().find(id), Err(later) if later == seen);
        let attr = attr_of(id, kind, &item, item.nbytes, sector);
        Ok((is_unused && item.nlink > 0).then_some(attr))
    }

    /// A cell that is not in the table yet.
    pub(crate) fn new_cell(
        &self,
        id: InodeId,
        item: InodeItem,
        home: Arc<Tree>,
    ) -> Result<InodeCell> {
        InodeCell::new(Arc::clone(&self.departures), id, item, home)
    }
}

/// Reads an inode item.
pub(crate) fn read_item(view: &View, id: InodeId) -> Result<Option<InodeItem>> {
    let Some(item) = view.get(id.tree, &Key::new(id.ino.0, Kind::INODE_ITEM, 0))? else {
        return Ok(None);
    };
    let item = InodeItem::parse(&item).map_err(|source| Error::Format {
        tree: id.tree,
        ino: id.ino,
        source,
    })?;
    Ok(Some(item))
}
