//! One inode in memory, shared by all its users.
//!
//! A cell has no references to higher layers. Functions that need a higher layer, such as
//! [`Files`], take it as an argument. A dropped cell reports to [`Departures`], which has its own
//! lock order, separate from the lock orders of the higher layers.
//!
//! # Invariants
//!
//! - **C1** At most one cell of an inode has users; the table gives the same cell to all users. All
//!   state of a cell that drops is in the trees, because dirty data and pending times keep their
//!   cell alive.
//! - **C2** When the last user leaves an inode without names, the inode is marked as gone. The
//!   inode's dirty data is forgotten, and the inode gets no further user. When the last reference
//!   to its cell drops, the cleaner gets the inode.
//!
//! # Locks
//!
//! `lock` is the outermost lock of an inode. A thread holds this lock exclusively to change a
//! directory's names, or the length, layout or attributes of a file. A thread locks several inodes
//! only through [`crate::lock_set`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use buttress_base::activity::{self, Cause};
use buttress_base::sync::{Mutex, RwLock, RwLockWriteGuard};
use buttress_data::{File, Files};
use buttress_format::{Ino, InodeItem, Key, Kind, TreeId};
use buttress_items::{Attr, Error, FileKind, InodeId, NameError, Result, mode};
use buttress_txn::View;

use crate::clean_queue::CleanQueue;
use crate::inode_table::{Entry, InodeTable};
use crate::pending_times;
use crate::status::Status;
use crate::trees::{self, Tree};

/// The first index that a directory uses. In old volumes 0 and 1 are `.` and `..`.
pub(crate) const FIRST_INDEX: u64 = 2;

/// A bit in the count of users: the inode has lost its last user and its last name (C2).
const GONE: u32 = 1 << 31;

/// Whether a directory has a default access control list. `Unknown` until the list is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DefaultAcl {
    Unknown,
    Absent,
    Present,
}

/// The table and the queue that a cell reports to when it drops.
pub(crate) struct Departures {
    pub(crate) table: InodeTable<InodeCell>,
    pub(crate) cleaning: CleanQueue,
}

impl Departures {
    pub(crate) fn new() -> Self {
        Self { table: InodeTable::new(), cleaning: CleanQueue::default() }
    }
}

/// The lock of an inode. Unranked: held for long, across reads of trees and waits for space.
#[derive(Default)]
pub(crate) struct CellLock(RwLock<()>);

impl CellLock {
    #[track_caller]
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, ()> {
        activity::write(&self.0, Cause::File)
    }
}

pub(crate) struct InodeCell {
    departures: Arc<Departures>,
    pub(crate) id: InodeId,
    pub(crate) kind: FileKind,
    pub(crate) home: Arc<Tree>,
    pub(crate) file: File,
    pub(crate) lock: CellLock,
    /// A reference of the cell to itself, while it is in the list of inodes with dirty data. The
    /// list has only weak references, so a cell leaves the list when this reference drops.
    /// Unranked: a cell may drop under it.
    kept: Mutex<Option<Arc<InodeCell>>>,
    /// The cell's entry, while its times are listed (`pending_times::A2`).
    pending: pending_times::Place<InodeCell>,
    /// For a [`stub`](Self::stub): the directory that contains it.
    pub(crate) stub_in: Option<InodeId>,
    /// Whether the cell is or was in the table. A cell that never was in the table reports nothing.
    entered: AtomicBool,
    /// The number of [`crate::Inode`]s of this cell.
    users: AtomicU32,
    next_index: AtomicU64,
    default_acl: AtomicU8,
}

impl std::fmt::Debug for InodeCell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InodeCell").field("id", &self.id).field("kind", &self.kind).finish()
    }
}

impl InodeCell {
    pub(crate) fn new(
        departures: Arc<Departures>,
        id: InodeId,
        item: InodeItem,
        home: Arc<Tree>,
    ) -> Result<Self> {
        let kind = FileKind::from_mode(item.mode).ok_or(Error::Item {
            tree: id.tree,
            ino: id.ino,
            what: "its mode names no kind of file",
        })?;
        Ok(Self {
            departures,
            id,
            kind,
            home,
            file: File::new(id.tree, id.ino, item),
            lock: CellLock::default(),
            kept: Mutex::new(None),
            pending: pending_times::Place::default(),
            stub_in: None,
            entered: AtomicBool::new(false),
            users: AtomicU32::new(0),
            next_index: AtomicU64::new(0),
            default_acl: AtomicU8::new(DefaultAcl::Unknown as u8),
        })
    }

    /// An empty directory in place of a subvolume: the directory above has the name, but the
    /// subvolume's reference names another place (`roots::is_here`). A snapshot has such names,
    /// because it does not copy the subvolumes inside its source. As on Linux, all such directories
    /// have the same inode number, and take their other attributes from their parent directory.
    pub(crate) fn stub(dir: &Self) -> Result<Self> {
        let id = InodeId { tree: dir.tree(), ino: trees::STUB };
        let above = dir.file.item();
        let item = InodeItem {
            nlink: 1,
            uid: above.uid,
            gid: above.gid,
            mode: mode::DIRECTORY | 0o755,
            atime: above.atime,
            mtime: above.mtime,
            ctime: above.ctime,
            otime: above.otime,
            ..InodeItem::default()
        };
        let mut cell = Self::new(Arc::clone(&dir.departures), id, item, Arc::clone(&dir.home))?;
        cell.stub_in = Some(dir.id);
        Ok(cell)
    }

    /// Counts one more user. Fails for an inode that is marked as gone (C2).
    pub(crate) fn join(&self) -> Result<()> {
        let one_more = |users| (users & GONE == 0).then_some(users + 1);
        let joined = self.users.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        joined.map(drop).map_err(|_| NameError::NotFound.into())
    }

    /// Counts one user less. For an inode that is now gone, forgets its dirty data through `files`
    /// (C2).
    pub(crate) fn leave(&self, files: &Files) {
        let last = self.users.fetch_sub(1, Ordering::AcqRel) == 1;
        let mark_gone =
            || self.users.compare_exchange(0, GONE, Ordering::AcqRel, Ordering::Acquire);
        if last && self.nlink() == 0 && mark_gone().is_ok() {
            self.departures.cleaning.note_leaving();
            files.forget_waiting(&self.file);
            self.unlist();
            drop(self.pending.take());
        }
    }

    /// Keeps the cell alive for the list of dirty inodes. Returns false if the list has the cell
    /// already, or if the inode is gone.
    pub(crate) fn keep_listed(self: &Arc<Self>) -> bool {
        let mut kept = self.kept.lock();
        if kept.is_some() || self.is_gone() {
            return false;
        }
        *kept = Some(Arc::clone(self));
        true
    }

    /// Takes the cell out of the list of dirty inodes.
    pub(crate) fn unlist(&self) {
        let kept = self.kept.lock().take();
        drop(kept);
    }

    /// Whether the inode has lost its last name and its last user.
    pub(crate) fn is_gone(&self) -> bool {
        self.users.load(Ordering::Acquire) & GONE != 0
    }

    pub(crate) fn tree(&self) -> TreeId {
        self.id.tree
    }

    pub(crate) fn ino(&self) -> Ino {
        self.id.ino
    }

    /// Fails unless the inode is a directory.
    pub(crate) fn expect_dir(&self) -> Result<()> {
        if self.kind == FileKind::Directory { Ok(()) } else { Err(NameError::NotDir.into()) }
    }

    /// Fails unless the inode is a regular file.
    pub(crate) fn expect_regular(&self) -> Result<()> {
        match self.kind {
            FileKind::Regular => Ok(()),
            FileKind::Directory => Err(NameError::IsDir.into()),
            _ => Err(Error::invalid("only regular files have content")),
        }
    }

    /// Fails if the volume or the subvolume must not change.
    pub(crate) fn expect_writable(&self, status: &Status) -> Result<()> {
        status.expect_writable()?;
        if self.home.is_dead() {
            return Err(NameError::NotFound.into());
        }
        if self.home.is_read_only() {
            return Err(Error::read_only("the subvolume", "its read-only flag is set"));
        }
        if self.stub_in.is_some() {
            return Err(Error::read_only("the directory", "it stands for a subvolume elsewhere"));
        }
        Ok(())
    }

    /// Fails if the directory was removed. The caller holds the lock.
    pub(crate) fn expect_linked(&self) -> Result<()> {
        if self.nlink() == 0 { Err(NameError::NotFound.into()) } else { Ok(()) }
    }

    pub(crate) fn nlink(&self) -> u32 {
        self.file.with_item(|item| item.nlink)
    }

    /// The last index that a name of this directory has. If the caller does not hold the lock,
    /// names that are added meanwhile may have greater indices.
    pub(crate) fn last_index(&self, view: &View) -> Result<u64> {
        let next = self.next_index.load(Ordering::Relaxed);
        if next != 0 {
            return Ok(next - 1);
        }
        let low = Key::new(self.ino().0, Kind::DIR_INDEX, 0);
        let high = Key::new(self.ino().0, Kind::DIR_INDEX, u64::MAX);
        let last = view.at_or_before(self.tree(), &low, &high)?;
        Ok(last.map_or(FIRST_INDEX - 1, |(key, _)| key.offset.max(FIRST_INDEX - 1)))
    }

    /// The index for the next name in this directory. The caller holds the lock exclusively.
    pub(crate) fn next_index(&self, view: &View) -> Result<u64> {
        let next = self.last_index(view)?.checked_add(1);
        let after = next.and_then(|next| Some((next, next.checked_add(1)?)));
        // No directory has this many names, so the number on disk is damaged.
        let (next, after) = after.ok_or_else(|| Error::Item {
            tree: self.tree(),
            ino: self.ino(),
            what: "no index is left for another name",
        })?;
        self.next_index.store(after, Ordering::Relaxed);
        Ok(next)
    }

    /// Sets the index for the next name of a new directory that already has names.
    pub(crate) fn set_next_index(&self, next: u64) {
        self.next_index.store(next, Ordering::Relaxed);
    }

    /// Prepares a new directory, which has used no index yet.
    pub(crate) fn start_empty(&self, default_acl: DefaultAcl) {
        self.next_index.store(FIRST_INDEX, Ordering::Relaxed);
        self.set_default_acl(default_acl);
    }

    pub(crate) fn default_acl(&self) -> DefaultAcl {
        match self.default_acl.load(Ordering::Relaxed) {
            1 => DefaultAcl::Absent,
            2 => DefaultAcl::Present,
            _ => DefaultAcl::Unknown,
        }
    }

    pub(crate) fn set_default_acl(&self, state: DefaultAcl) {
        self.default_acl.store(state as u8, Ordering::Relaxed);
    }

    pub(crate) fn attr(&self, files: &Files) -> Attr {
        let item = self.file.item();
        let owned = item.nbytes.saturating_add(files.reader().fresh_bytes(&self.file));
        attr_of(self.id, self.kind, &item, owned, files.sector())
    }
}

/// The attributes of an inode with `owned` bytes of content on devices or on the way there.
pub(crate) fn attr_of(
    id: InodeId,
    kind: FileKind,
    item: &InodeItem,
    owned: u64,
    sector: u64,
) -> Attr {
    Attr {
        id,
        kind,
        mode: item.mode & (mode::TYPE | mode::PERMISSIONS),
        nlink: item.nlink,
        uid: item.uid,
        gid: item.gid,
        rdev: item.rdev,
        size: item.size,
        block_size: u32::try_from(sector).unwrap_or(u32::MAX),
        blocks: owned.div_ceil(sector) * (sector / 512),
        atime: item.atime,
        mtime: item.mtime,
        ctime: item.ctime,
        otime: item.otime,
        generation: item.generation.0,
        flags: item.flags,
    }
}

impl pending_times::Listable for InodeCell {
    fn place(&self) -> &pending_times::Place<Self> {
        &self.pending
    }

    fn is_gone(&self) -> bool {
        Self::is_gone(self)
    }
}

impl Entry for InodeCell {
    fn id(&self) -> InodeId {
        self.id
    }

    fn note_entered(&self) {
        self.entered.store(true, Ordering::Relaxed);
    }
}

impl Drop for InodeCell {
    fn drop(&mut self) {
        let Departures { table, cleaning } = &*self.departures;
        if *self.entered.get_mut() {
            table.forget(self.id);
            if self.nlink() == 0 {
                cleaning.clean_later(self.id);
            }
        }
        // The cleaner has the inode by now.
        if self.is_gone() {
            cleaning.note_left();
        }
    }
}
