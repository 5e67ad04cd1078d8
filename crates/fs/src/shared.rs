//! What everything that is mounted shares.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use buttress_base::sync::Mutex;
use buttress_data::Files;
use buttress_format::{Incompat, InodeItem, Key, Kind, Superblock, TreeId};
use buttress_log::{LogOptions, SyncLog};
use buttress_maintenance::Maintenance;
use buttress_txn::{Cost, Engine, MetaReservation, Urgency, View};

use crate::access::AccessTimes;
use crate::attr::InodeId;
use crate::background::Background;
use crate::cell::InodeCell;
use crate::error::{Error, NameError, Result};
use crate::inode::Inode;
use crate::inode_cache::{Entered, InodeCache};
use crate::inode_refs::RefLimits;
use crate::names::item_len_max;
use crate::options::MountOptions;
use crate::orphan;
use crate::property;
use crate::trees::{Tree, Trees};
use crate::upkeep::Upkeep;

pub(crate) struct Shared {
    pub(crate) engine: Arc<Engine>,
    pub(crate) log: SyncLog,
    pub(crate) maintenance: Maintenance,
    pub(crate) files: Files,
    pub(crate) superblock: Superblock,
    pub(crate) options: MountOptions,
    pub(crate) trees: Trees,
    pub(crate) cache: InodeCache,
    pub(crate) background: Background,
    pub(crate) access: AccessTimes<InodeCell>,
    pub(crate) upkeep: Upkeep,
    /// The directory that is shown.
    pub(crate) root: OnceLock<InodeId>,
    /// Held while a directory moves: the way up from a directory stays what it is meanwhile.
    pub(crate) moving: Mutex<()>,
    closed: AtomicBool,
    /// It was opened for writing, and is read-only until it is thawed.
    frozen: AtomicBool,
}

impl Shared {
    pub(crate) fn new(
        engine: Arc<Engine>,
        files: Files,
        superblock: Superblock,
        options: MountOptions,
    ) -> Self {
        let log_options = LogOptions { is_on: !options.notreelog, copies: options.log_copies };
        Self {
            log: SyncLog::new(Arc::clone(&engine), log_options),
            maintenance: Maintenance::new(Arc::clone(&engine)),
            engine,
            files,
            superblock,
            options,
            trees: Trees::default(),
            cache: InodeCache::new(),
            background: Background::default(),
            access: AccessTimes::default(),
            upkeep: Upkeep::default(),
            root: OnceLock::new(),
            moving: Mutex::new(()),
            closed: AtomicBool::new(false),
            frozen: AtomicBool::new(false),
        }
    }

    /// Why nothing can be changed, if nothing can.
    pub(crate) fn read_only_reason(&self) -> Option<String> {
        if self.is_closed() {
            return Some("it was closed".to_owned());
        }
        if self.options.read_only {
            return Some("it was mounted read-only".to_owned());
        }
        if self.frozen.load(Ordering::Relaxed) {
            return Some("it was remounted read-only".to_owned());
        }
        self.engine.read_only()
    }

    /// Has the volume be read-only from now on, or no longer.
    pub(crate) fn freeze(&self, frozen: bool) {
        self.frozen.store(frozen, Ordering::Relaxed);
    }

    pub(crate) fn expect_writable(&self) -> Result<()> {
        if let Some(cause) = self.engine.aborted() {
            return Err(buttress_txn::Error::Aborted(cause).into());
        }
        match self.read_only_reason() {
            None => Ok(()),
            Some(why) => Err(Error::read_only("the filesystem", why)),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// What the volume allows in the way of names.
    pub(crate) fn ref_limits(&self) -> RefLimits {
        RefLimits {
            item_len_max: item_len_max(self.superblock.nodesize),
            extended: self.superblock.incompat.has(Incompat::EXTENDED_IREF),
        }
    }

    /// What is known of a subvolume; whoever asks first sends its orphans to the cleaner. A read-only
    /// snapshot has them, too, of files that were open without a name when it was cut.
    pub(crate) fn tree_info(&self, view: &View, tree: TreeId) -> Result<Arc<Tree>> {
        let (info, first) = self.trees.info(view, tree)?;
        if first && self.expect_writable().is_ok() {
            self.engine.know_height(view, tree)?;
            for id in orphan::list(view, tree)? {
                self.background.clean_later(id);
            }
        }
        Ok(info)
    }

    /// Makes one more user of an inode that has a name, or a user.
    pub(crate) fn inode(self: &Arc<Self>, id: InodeId) -> Result<Inode> {
        Inode::new(self.cell(id)?)
    }

    /// The cell of an inode that has a name, or had a user a moment ago.
    pub(crate) fn cell(self: &Arc<Self>, id: InodeId) -> Result<Arc<InodeCell>> {
        loop {
            let seen = match self.cache.find(id) {
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
            let cell = InodeCell::new(Arc::clone(self), id, item, info)?;
            cell.file.set_codec(property::read(&view, id, item.flags)?);
            if let Entered::Cell(cell) = self.cache.enter(cell, seen) {
                return Ok(cell);
            }
        }
    }

    /// Promises metadata for an operation, which holds no file's writeback claim. Dirty data holds promises
    /// for the worst that its writeback may need: before that is a reason to refuse, it is written back,
    /// which shows what it does need.
    pub(crate) fn reserve(&self, cost: Cost, urgency: Urgency) -> Result<MetaReservation> {
        if let Some(reservation) = self.engine.reserve_at_once(cost, urgency)? {
            return Ok(reservation);
        }
        // What frees space draws on what dirty data was promised, too.
        if urgency == Urgency::Normal && !self.engine.has_flusher() {
            self.engine.expect_wanted()?;
            self.write_all();
        }
        match self.engine.reserve_in_line(cost, urgency) {
            Err(buttress_txn::Error::NoSpace(_)) if urgency.frees() => {
                self.clean_all();
                self.write_all();
                Ok(self.engine.reserve(cost, urgency)?)
            }
            other => Ok(other?),
        }
    }

    /// Has everything give back what it can, without any lock held: once, for a caller who found no room.
    ///
    /// # Errors
    ///
    /// Those of a commit; `Interrupted` when nobody wants to wait for the next step.
    pub(crate) fn give_all_back(&self) -> Result<()> {
        self.engine.expect_wanted()?;
        self.clean_all();
        self.engine.expect_wanted()?;
        self.write_all();
        self.engine.commit_while_wanted()?;
        Ok(())
    }

    /// Puts nothing but the inode item of a cell, changed.
    pub(crate) fn put_item(
        &self,
        cell: &InodeCell,
        urgency: Urgency,
        change: impl FnOnce(&mut InodeItem),
    ) -> Result<()> {
        let cost = Cost::of(1, 160);
        let handle = self.engine.begin(self.reserve(cost, urgency)?);
        cell.file.update(&handle, change);
        Ok(())
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
