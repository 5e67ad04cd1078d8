//! A mounted volume and the parts of its state, called owners: each owns one kind of state.
//!
//! Each owner is made from the owners that it uses, so no owner refers back to a later owner. Code
//! that needs one or two owners takes these as arguments, not the mount. `docs/internals/files.md`
//! has a diagram.
//!
//! # Invariants
//!
//! - **D1** Only one directory moves at a time. So the path from a directory up to the root stays
//!   the same while a move checks this path.

use std::sync::{Arc, OnceLock};

use buttress_base::sync::Mutex;
use buttress_data::Files;
use buttress_format::Superblock;
use buttress_items::inode_refs::{self, RefLimits};
use buttress_items::{InodeId, NameError, Result, roots};
use buttress_log::{LogOptions, SyncLog};
use buttress_maintenance::Maintenance;
use buttress_txn::{Engine, View};

use crate::cell::InodeCell;
use crate::cleaner::Cleaner;
use crate::inodes::Inodes;
use crate::options::MountOptions;
use crate::scrubs::Scrubs;
use crate::space::Space;
use crate::status::Status;
use crate::stop::StopSignal;
use crate::threads::Threads;
use crate::times::Times;
use crate::upkeep::{Holders, Upkeep};
use crate::writeback::{Limits, Writeback};

/// The owners of one mounted volume, from the lowest to the highest.
pub(crate) struct Mount {
    pub(crate) engine: Arc<Engine>,
    pub(crate) log: SyncLog,
    pub(crate) maintenance: Arc<Maintenance>,
    pub(crate) files: Arc<Files>,
    pub(crate) status: Arc<Status>,
    pub(crate) inodes: Arc<Inodes>,
    pub(crate) writeback: Arc<Writeback>,
    pub(crate) cleaner: Arc<Cleaner>,
    pub(crate) times: Arc<Times>,
    pub(crate) space: Space,
    pub(crate) upkeep: Upkeep,
    pub(crate) scrubs: Scrubs,
    pub(crate) threads: Threads,
    pub(crate) stop: StopSignal,
    pub(crate) superblock: Superblock,
    pub(crate) options: MountOptions,
    /// The root directory of the mounted subvolume.
    pub(crate) root: OnceLock<InodeId>,
    /// Held while a directory moves (D1). Unranked: the outermost lock, held across a whole
    /// operation.
    pub(crate) moving: Mutex<()>,
}

impl Mount {
    pub(crate) fn new(
        engine: Arc<Engine>,
        files: Files,
        superblock: Superblock,
        options: MountOptions,
    ) -> Self {
        let log_options = LogOptions { is_on: !options.notreelog, copies: options.log_copies };
        let limits = Limits {
            dirty_bytes_max: options.dirty_bytes_max,
            commit_interval: options.commit_interval,
        };
        let log = SyncLog::new(Arc::clone(&engine), log_options);
        let maintenance = Arc::new(Maintenance::new(Arc::clone(&engine)));
        let files = Arc::new(files);
        let status = Arc::new(Status::new(Arc::clone(&engine), options.read_only));
        let times = Times::new(Arc::clone(&engine), Arc::clone(&status), options.lazytime);
        let times = Arc::new(times);
        let inodes = Arc::new(Inodes::new(Arc::clone(&engine), Arc::clone(&status)));
        let writeback = Writeback::new(Arc::clone(&engine), Arc::clone(&files), limits);
        let writeback = Arc::new(writeback);
        let cleaner = Arc::new(Cleaner::new(
            Arc::clone(&engine),
            Arc::clone(&files),
            Arc::clone(&maintenance),
            Arc::clone(&inodes),
        ));
        let space = Space::new(
            Arc::clone(&engine),
            Arc::clone(&files),
            Arc::clone(&cleaner),
            Arc::clone(&writeback),
            Arc::clone(&times),
        );
        let upkeep =
            Upkeep::new(Arc::clone(&engine), Arc::clone(&maintenance), Arc::clone(&status));
        Self {
            engine,
            log,
            maintenance,
            files,
            status,
            inodes,
            writeback,
            cleaner,
            times,
            space,
            upkeep,
            scrubs: Scrubs::default(),
            threads: Threads::default(),
            stop: StopSignal::default(),
            superblock,
            options,
            root: OnceLock::new(),
            moving: Mutex::new(()),
        }
    }

    /// The limits of the volume for names.
    pub(crate) fn ref_limits(&self) -> RefLimits {
        RefLimits::of(&self.superblock)
    }

    /// The users of files, for work that moves extents.
    pub(crate) fn holders(&self) -> Holders<'_> {
        Holders { inodes: &self.inodes, cleaner: &self.cleaner, files: &self.files }
    }

    /// The parent of a directory. The top level is its own parent.
    pub(crate) fn above(&self, cell: &InodeCell) -> Result<InodeId> {
        above(&self.inodes, &self.engine.view(), cell)
    }

    /// Makes everything done before the call durable, also on another machine if a device uploads
    /// its content there.
    pub(crate) fn sync(&self) -> Result<()> {
        self.writeback.write_all();
        if self.options.background {
            self.cleaner.clean_all();
        } else {
            self.cleaner.clean_here();
        }
        self.times.put_all();
        // Written data becomes durable even if other data was lost.
        self.engine.commit()?;
        self.engine.volume().upload()?;
        self.expect_nothing_lost()
    }

    /// Reports, once, that data of a file was lost when it was written in the background.
    pub(crate) fn expect_nothing_lost(&self) -> Result<()> {
        match self.files.counters().take_error() {
            None => Ok(()),
            Some(error) => Err(buttress_data::Error::Lost(Arc::new(error)).into()),
        }
    }
}

fn above(inodes: &Inodes, view: &View, cell: &InodeCell) -> Result<InodeId> {
    if let Some(dir) = cell.stub_in {
        return Ok(dir);
    }
    let id = cell.id;
    if id.ino == inodes.tree_info(view, id.tree)?.root_dir {
        return Ok(roots::place(view, id.tree)?.map_or(id, |(dir, _)| dir));
    }
    let (ino, _) = inode_refs::place(view, id)?.ok_or(NameError::NotFound)?;
    Ok(InodeId { tree: id.tree, ino })
}
