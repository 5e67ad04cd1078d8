//! One file in memory: its inode item, its dirty data, and the locks of both.
//!
//! # Invariants
//!
//! - **F1** The item in memory is the newest. The overlay has the item from the last handle that
//!   changed it. So that puts keep their order, the item is encoded and put under one lock, inside
//!   a handle.
//! - **F2** The length on disk never passes the end of the data on disk. `disk_size` is the length
//!   that a reader sees after a crash. `item.size` is the length that a reader sees now.
//!
//! # Locks
//!
//! The locks, outermost first:
//!
//! 1. the caller's lock of the inode. One thread at a time changes length and layout;
//! 2. the writeback claim (`Dirty::busy`). A thread that has one claim waits for a second one only
//!    if it holds the locks of both inodes;
//! 3. `extents`. Threads that look up extents, and some threads that read them (`read_plan`), hold
//!    this lock shared. Threads that change extents hold it exclusively. A thread locks several
//!    files at once in two ways only. It locks one file exclusively and the others shared. Or it
//!    locks all files exclusively, in the order of their numbers, and holds no other lock;
//! 4. two short locks: the item's, then the dirty map's. They are taken inside a handle, so no
//!    thread begins a handle, reserves or does I/O under them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use buttress_base::sync::{Condvar, RwLock, RwLockWriteGuard};
use buttress_base::{Rank, Ranked, RankedGuard};
use buttress_format::{Extent, Ino, InodeFlags, InodeItem, Key, Kind, Timespec, TreeId};
use buttress_txn::{DataRef, Handle, Window};

use crate::backoff::Backoff;
use crate::codec::Codec;
use crate::dirty::Dirty;
use crate::error::Error;
use crate::in_place_hints::InPlaceHints;
use crate::sequential::Positions;
use crate::streams::Streams;
use crate::verity::VerityTree;

const TYPE_MASK: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;

/// A file takes this many layout numbers from the common counter at once. So changes of layouts
/// seldom touch the counter's cache line.
const LAYOUTS: u64 = 1 << 16;

/// Returns the first of a range of numbers that no other file has.
fn fresh_layouts() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(LAYOUTS, Ordering::Relaxed)
}

/// One inode in memory. Directories and other inodes also have a `File`, which holds their inode
/// item.
#[derive(Debug)]
pub struct File {
    pub(crate) tree: TreeId,
    pub(crate) ino: Ino,
    meta: Ranked<Meta>,
    /// Unranked: held across reads of trees and of devices, and taken before handles begin.
    pub(crate) extents: RwLock<()>,
    /// The number of the file's layout of extents. No other file ever has the same number.
    layout: AtomicU64,
    /// The end of the file's extents, once it was looked up. Changes only with `extents` held.
    end: Ranked<Option<End>>,
    pub(crate) dirty: Ranked<Dirty>,
    pub(crate) streams: Ranked<Streams>,
    /// Readers that distant devices know of.
    pub(crate) positions: Ranked<Positions>,
    /// Decides whether a read first tries without the lock `extents`.
    pub(crate) free_reads: Backoff,
    /// Decides whether reads are extended beyond the requested bytes. An extended read that meets a
    /// bad sector fails, and its requested bytes are read a second time.
    pub(crate) long_reads: Backoff,
    /// Space after the file's last extent, for the next extent.
    pub(crate) window: OnceLock<Arc<Window>>,
    /// Signalled when the writeback claim is given back.
    pub(crate) idle: Condvar,
    /// Parts that may be overwritten in place, as far as earlier checks found.
    pub(crate) in_place_hints: Ranked<InPlaceHints>,
    /// Whether reads compare the content with a Merkle tree. A copy of a flag of the item: each
    /// read asks for it.
    has_verity: AtomicBool,
    /// The file's Merkle tree, once a read needed it.
    pub(crate) verity: OnceLock<Arc<VerityTree>>,
}

/// The end of a file's extents.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    /// No extent lies at or after this offset.
    pub(crate) at: u64,
    /// The file offset of the last item, and its extent. `None` unless the item is preallocated and
    /// shows the whole extent.
    pub(crate) last: Option<(u64, Extent)>,
}

#[derive(Debug)]
pub(crate) struct Meta {
    pub(crate) item: InodeItem,
    pub(crate) disk_size: u64,
    /// No ordered extent was finished after this offset, and none is being written there.
    /// `disk_size` is not enough: it stops before data that waits for writeback, and extents may
    /// lie after that data. The offset says nothing about a file with preallocated extents.
    pub(crate) ordered_end: u64,
    /// Whether the file is being truncated. Extents are removed in steps, so `disk_size` may exceed
    /// `item.size` until the last step.
    pub(crate) shrinks: bool,
    /// The codec that the inode's property names.
    pub(crate) codec: Option<Codec>,
    /// The item as it was last put.
    put: Option<InodeItem>,
    /// The times in the tree, as they were last put or read.
    times_put: Times,
}

/// The times of an inode: of access, of the last change of content, and of the inode.
type Times = [Timespec; 3];

fn times(item: &InodeItem) -> Times {
    [item.atime, item.mtime, item.ctime]
}

impl Meta {
    fn encode(&self) -> [u8; InodeItem::LEN] {
        if self.item.mode & TYPE_MASK != REGULAR || self.item.size == self.disk_size {
            return self.item.to_array();
        }
        let mut item = self.item;
        item.size = self.disk_size;
        item.to_array()
    }
}

impl File {
    /// Creates the state of an inode that was read, or that is about to be made.
    #[must_use]
    pub fn new(tree: TreeId, ino: Ino, item: InodeItem) -> Self {
        let disk_size = item.size;
        let has_verity = item.flags & InodeFlags::RO_VERITY != 0;
        Self {
            tree,
            ino,
            meta: Ranked::new(
                Rank::Inode,
                Meta {
                    item,
                    disk_size,
                    ordered_end: disk_size,
                    shrinks: false,
                    codec: None,
                    put: None,
                    times_put: times(&item),
                },
            ),
            extents: RwLock::new(()),
            layout: AtomicU64::new(fresh_layouts()),
            end: Ranked::new(Rank::Leaf, None),
            dirty: Ranked::new(Rank::PageIndex, Dirty::default()),
            streams: Ranked::new(Rank::Leaf, Streams::default()),
            positions: Ranked::new(Rank::Leaf, Positions::default()),
            free_reads: Backoff::default(),
            long_reads: Backoff::default(),
            window: OnceLock::new(),
            idle: Condvar::new(),
            in_place_hints: Ranked::new(Rank::Leaf, InPlaceHints::default()),
            has_verity: AtomicBool::new(has_verity),
            verity: OnceLock::new(),
        }
    }

    /// Returns the tree of the inode.
    #[must_use]
    pub fn tree(&self) -> TreeId {
        self.tree
    }

    /// Returns the number of the inode.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Returns the allocator's key for this file. The key keeps the file's extents together, apart
    /// from the extents of other files.
    pub(crate) fn stream(&self) -> u64 {
        self.ino.0 ^ self.tree.0.rotate_left(32)
    }

    /// Copies the item.
    #[must_use]
    pub fn item(&self) -> InodeItem {
        self.meta.lock().item
    }

    /// Looks at the item without copying it.
    pub fn with_item<R>(&self, look: impl FnOnce(&InodeItem) -> R) -> R {
        look(&self.meta.lock().item)
    }

    /// Whether the file has fs-verity: its content never changes, and reads compare the content
    /// with its Merkle tree.
    #[must_use]
    pub fn has_verity(&self) -> bool {
        self.has_verity.load(Ordering::Acquire)
    }

    /// Notes that the item has the flag of fs-verity now. It never loses the flag.
    pub fn note_verity(&self) {
        self.has_verity.store(true, Ordering::Release);
    }

    /// The codec that the inode's property names.
    #[must_use]
    pub fn codec(&self) -> Option<Codec> {
        self.meta.lock().codec
    }

    /// Sets the codec after its property was read or changed.
    pub fn set_codec(&self, codec: Option<Codec>) {
        self.meta.lock().codec = codec;
    }

    /// Length in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.meta.lock().item.size
    }

    /// Changes the item in memory alone. The next call that puts the item makes the change part of
    /// a transaction.
    ///
    /// This is for changes that come with dirty data (times, length), and for times that the caller
    /// puts later ([`put_times`](Self::put_times)).
    pub fn touch<R>(&self, change: impl FnOnce(&mut InodeItem) -> R) -> R {
        change(&mut self.meta.lock().item)
    }

    /// Changes the item as part of a transaction.
    pub fn update<R>(&self, handle: &Handle<'_>, change: impl FnOnce(&mut InodeItem) -> R) -> R {
        self.update_meta(handle, |meta| {
            let answer = change(&mut meta.item);
            if meta.item.mode & TYPE_MASK != REGULAR {
                meta.disk_size = meta.item.size;
            }
            answer
        })
    }

    /// Changes the item and the length on disk as part of a transaction.
    pub(crate) fn update_meta<R>(
        &self,
        handle: &Handle<'_>,
        change: impl FnOnce(&mut Meta) -> R,
    ) -> R {
        self.put_meta(handle, change, |put, now| put == now)
    }

    /// As [`update_meta`](Self::update_meta), for extents with data that was written to the device.
    /// The write into memory already counted as a change of the content, so this update does not
    /// count as a change.
    pub(crate) fn update_finished<R>(
        &self,
        handle: &Handle<'_>,
        change: impl FnOnce(&mut Meta) -> R,
    ) -> R {
        let is_same =
            |put: &InodeItem, now: &InodeItem| InodeItem { nbytes: now.nbytes, ..*put } == *now;
        self.put_meta(handle, change, is_same)
    }

    fn put_meta<R>(
        &self,
        handle: &Handle<'_>,
        change: impl FnOnce(&mut Meta) -> R,
        is_same: impl Fn(&InodeItem, &InodeItem) -> bool,
    ) -> R {
        let mut meta = self.meta.lock();
        let answer = change(&mut meta);
        meta.item.transid = handle.generation();
        // The sequence number grows only if the item differs from the item that was last put.
        // Otherwise each put would change the item, and the next log would have to contain it.
        if meta.put.is_none_or(|put| !is_same(&put, &meta.item)) {
            meta.item.sequence = meta.item.sequence.wrapping_add(1);
        }
        meta.put = Some(meta.item);
        meta.times_put = times(&meta.item);
        assert!(
            meta.disk_size <= meta.item.size || meta.shrinks,
            "F2: {} on disk of {}",
            meta.disk_size,
            meta.item.size
        );
        handle.put(self.tree, self.item_key(), meta.encode());
        answer
    }

    /// Whether the times in memory differ from the times that were last put or read.
    #[must_use]
    pub fn has_unsaved_times(&self) -> bool {
        let meta = self.meta.lock();
        times(&meta.item) != meta.times_put
    }

    /// Puts the item because of its times. A read changes nothing: if the time of access alone
    /// differs, the item's sequence number does not grow.
    pub fn put_times(&self, handle: &Handle<'_>) {
        let mut meta = self.meta.lock();
        if times(&meta.item)[1..] != meta.times_put[1..] {
            drop(meta);
            return self.update(handle, |_| ());
        }
        meta.item.transid = handle.generation();
        meta.times_put = times(&meta.item);
        let now = meta.item;
        if let Some(put) = &mut meta.put {
            (put.atime, put.transid) = (now.atime, now.transid);
        }
        handle.put(self.tree, self.item_key(), meta.encode());
    }

    pub(crate) fn meta(&self) -> RankedGuard<'_, Meta> {
        self.meta.lock()
    }

    /// Waits for readers of extents, and keeps new ones out while a thread changes the extents.
    pub(crate) fn change_extents(&self) -> RwLockWriteGuard<'_, ()> {
        self.append_extents().0
    }

    /// As [`Self::change_extents`]; also returns the previous end of the extents, if it is known.
    /// That end is forgotten unless [`Self::note_end`] sets it before the guard is dropped.
    pub(crate) fn append_extents(&self) -> (RwLockWriteGuard<'_, ()>, Option<End>) {
        let guard = self.extents.write();
        self.change_layout();
        let end = self.end.lock().take();
        (guard, end)
    }

    /// As [`Self::change_extents`], if no thread reads the extents now and the layout is still
    /// `layout`.
    pub(crate) fn try_change_extents(&self, layout: u64) -> Option<RwLockWriteGuard<'_, ()>> {
        let guard = self.extents.try_write()?;
        if self.layout() != layout {
            return None;
        }
        self.change_layout();
        self.forget_end();
        Some(guard)
    }

    pub(crate) fn change_layout(&self) {
        let next = self.layout() + 1;
        let next = if next.is_multiple_of(LAYOUTS) { fresh_layouts() } else { next };
        // The number changes before any extent can be freed. A thread that read without the lock
        // compares the layout afterwards (`reader::read_plan::L1`).
        self.layout.store(next, Ordering::SeqCst);
    }

    /// Returns the end of the file's extents, if it is known. The caller holds `extents`, or no
    /// other thread adds extents.
    pub(crate) fn known_end(&self) -> Option<u64> {
        self.end.lock().map(|end| end.at)
    }

    /// Returns whether the file's last extent is preallocated and ends at `at`.
    pub(crate) fn ends_preallocated_at(&self, at: u64) -> bool {
        self.end.lock().is_some_and(|end| end.at == at && end.last.is_some())
    }

    /// Sets the end of the file's extents. The caller holds `extents`.
    pub(crate) fn note_end(&self, end: End) {
        *self.end.lock() = Some(end);
    }

    /// Forgets the end of the file's extents.
    pub(crate) fn forget_end(&self) {
        *self.end.lock() = None;
    }

    /// Notes that the inode was just made and has no extents.
    pub fn note_new(&self) {
        self.note_end(End { at: 0, last: None });
    }

    /// Keeps all threads from reading and changing extents, for a caller that replaces the extents
    /// by copies elsewhere.
    pub fn hold_extents(&self) -> RwLockWriteGuard<'_, ()> {
        self.change_extents()
    }

    /// Returns the number of the file's layout. The caller holds `extents`, or asks only whether
    /// the layout has changed.
    pub(crate) fn layout(&self) -> u64 {
        self.layout.load(Ordering::SeqCst)
    }

    fn item_key(&self) -> Key {
        Key::new(self.ino.0, Kind::INODE_ITEM, 0)
    }

    pub(crate) fn extent_key(&self, offset: u64) -> Key {
        Key::new(self.ino.0, Kind::EXTENT_DATA, offset)
    }

    pub(crate) fn data_ref(&self, offset: u64) -> DataRef {
        DataRef { root: self.tree, ino: self.ino, offset }
    }

    /// Bytes that wait for writeback, including bytes on their way to the devices.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        let dirty = self.dirty.lock();
        dirty.bytes() + dirty.writing_bytes()
    }

    /// Whether any bytes wait for writeback or are on their way.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.dirty_bytes() > 0
    }

    /// Takes the first failure of background writes. Each failure is reported once.
    pub fn take_error(&self) -> Option<Error> {
        self.dirty.lock().error.take()
    }

    /// Keeps a failure of background writes for the next fsync.
    pub fn keep_error(&self, error: &Error) {
        let mut dirty = self.dirty.lock();
        if dirty.error.is_none() {
            dirty.error = Some(error.clone());
        }
    }
}
