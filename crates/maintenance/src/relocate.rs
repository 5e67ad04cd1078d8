//! Moving the content of a block group elsewhere, so that the group can be removed.
//!
//! # Invariants
//!
//! - **L1** A group that is being emptied is read-only: its content can only shrink.
//! - **L2** Data is copied to a new extent of the same length, and all users switch to the new
//!   extent in one transaction. After a crash all users have the old extent, or all have the new
//!   one.
//! - **L3** A node is moved by building it anew, together with all nodes above it. A shared node is
//!   built once, so the trees go on sharing it. A leaf that points to moved data is built anew in
//!   the same way.
//! - **L4** The mover finds the users of an extent and makes these users point to the copy, both in
//!   one handle. Meanwhile no other thread changes the extents of the inodes that use the extent
//!   ([`Users::hold`]). The mover may miss users that a new snapshot or an uncommitted clone adds.
//!   Such users keep the old extent, and the next round over the group finds them.
//!
//! # Place
//!
//! The mover works while the volume is in use. If a tree changes a shared leaf while its data
//! moves, the tree gets its own copy of the leaf, as with any operation. Subvolumes that are being
//! dropped are moved like others. No step of a drop runs while an extent moves.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use buttress_base::clock;
use buttress_format::{Body, Extent, Ino, Key, Logical, StripeItem, TreeId, limits};
use buttress_space::{Group, SpaceKind};
use buttress_tree::NodePtr;
use buttress_txn::{Cost, Csums, DataRef, Error, Handle, MovedExtent, ReserveClass, Result, View};

mod ahead;
mod users;

use self::ahead::Ahead;
use self::users::{ExtentUser, file_trees, inodes_of, users};
use crate::Maintenance;
use crate::bound::{name, steps_through, waits_within};
use crate::found::{FoundExtent, STEP_BYTES, extents};

/// Rounds over a group before giving up. Without other work one round is enough. Each snapshot or
/// clone that is made during a round costs another round.
const ROUNDS_MAX: u64 = 100;
/// The maximum number of searches for the users of one extent before the extent is left to the next
/// round.
const LOOKS_MAX: u32 = 4;
/// How long readers of old trees may delay the removal of a group.
const READERS_MAX: Duration = Duration::from_secs(60);
const READERS_PERIOD: Duration = Duration::from_millis(5);
/// The number of bytes of data and nodes that are moved between two commits.
const BATCH_BYTES: u64 = 64 << 20;
const BATCH_NODES: usize = 2048;
/// The number of items that are put between two commits. The bound limits the memory for these
/// items, however many trees share the files.
const BATCH_ITEMS: usize = 32 << 10;
/// The number of nodes that are requested at once.
const ASKED_NODES: usize = 64;
/// The number of data bytes in one write.
const WRITE_BYTES: u64 = 4 << 20;

/// The layer that owns the inodes which use moved data. The mover borrows that layer for one call.
pub trait Users {
    /// Runs `work` while no other thread changes the extents of these inodes, or reads their old
    /// extents. Waits until such threads are done. These threads may make or await room, so the
    /// caller must reserve all space before.
    ///
    /// # Errors
    ///
    /// Errors of finding an inode, and errors that `work` returns.
    fn hold(
        &self,
        inodes: &BTreeSet<(TreeId, Ino)>,
        work: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()>;

    /// Says that an extent without users was written, so that cached old bytes of its space must be
    /// dropped.
    fn wrote(&self, extent: Extent);
}

/// [`Users`] for a volume without open files.
#[derive(Clone, Copy, Debug)]
pub struct Alone;

impl Users for Alone {
    fn hold(
        &self,
        _: &BTreeSet<(TreeId, Ino)>,
        work: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        work()
    }

    fn wrote(&self, _: Extent) {}
}

impl Maintenance {
    /// Empties a block group and removes it with its chunk, while the volume is in use. `watch` is
    /// called with the number of moved bytes after each extent.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] if other groups lack room for the content; [`Error::Stopped`] after
    /// [`stop_moving`](Self::stop_moving); errors of reading. Content that was moved before the
    /// error stays at its new place.
    pub fn relocate_group(
        &self,
        start: Logical,
        users: &dyn Users,
        watch: &mut dyn FnMut(u64),
    ) -> Result<()> {
        self.engine().check_writable()?;
        self.finish_partial_drops()?;
        // The move also changes trees that were not used since the mount.
        let view = self.engine().view();
        file_trees(&view)?
            .into_iter()
            .try_for_each(|tree| self.engine().reservations().know_height(&view, tree))?;
        drop(view);
        let group = self
            .engine()
            .storage()
            .space()
            .group_at(start)
            .ok_or_else(|| Error::Malformed(format!("there is no block group at {start}")))?;
        // Room is made before the group becomes read-only, since a commit that runs meanwhile must
        // find room for its nodes.
        self.make_room_for_move(&group, group.available())?;
        let held = self.engine().hold_read_only(start)?;
        self.make_room_for_move(&group, 0)?;
        self.engine().allocation().close_windows();
        held.drain();
        // If a step fails, the group can be used again as before.
        self.empty_group(group.range(), users, watch).and_then(|()| self.drop_group(start))
    }

    fn expect_moving(&self) -> Result<()> {
        self.engine().check_writable()?;
        if self.turn().is_stopped() { Err(Error::Stopped) } else { Ok(()) }
    }

    /// Makes chunks until reserved space and the content of the group fit into groups that can be
    /// allocated from. Otherwise a lack of room would first appear in a commit or in writeback.
    /// `leaving` bytes of free space are about to become read-only.
    fn make_room_for_move(&self, group: &Group, leaving: u64) -> Result<()> {
        let (kind, bytes) = (group.kind(), group.used());
        // Each extent needs a free run of its own length (L2). An extent is at most twice as long
        // as the usual maximum; Linux preallocates extents of that length.
        let whole = if kind == SpaceKind::Data { bytes.min(2 * limits::MAX_EXTENT) } else { 0 };
        let is_tight = || {
            let account = self.engine().storage().space().account(kind);
            let free = account.free().saturating_sub(account.may_use).saturating_sub(leaving);
            match kind {
                SpaceKind::Data => free < bytes,
                _ => free < 2 * bytes + (1 << 20),
            }
        };
        // The need may grow while chunks are made, by the space that others reserve.
        let others = self.engine().storage().space().account(kind).may_use;
        let parts = [bytes, bytes, whole, leaving, others, 1 << 20];
        let needed = parts.into_iter().fold(0, u64::saturating_add);
        let most = steps_through(needed.saturating_mul(2), limits::STRIPE_LEN);
        let mut bound = self.loops().begin(name::ROOM, most);
        while is_tight() {
            bound.step()?;
            // The devices may have no room for a chunk that is longer than usual, since they keep
            // room for metadata. In that case the usual length is tried.
            if !self.engine().storage().add_chunk_for(
                self.engine().commits(),
                self.engine().reservations(),
                kind,
                whole,
            )? && (whole == 0 || !self.engine().add_chunk(kind)?)
            {
                let account = self.engine().storage().space().account(kind);
                // No chunk can be made. The move of metadata then goes on if the free space beyond
                // reservations holds the group's nodes once.
                let least = account.free().saturating_sub(account.may_use).saturating_sub(leaving);
                if kind != SpaceKind::Data && least >= bytes {
                    break;
                }
                return Err(Error::NoSpace("what is in a block group, in another"));
            }
        }
        if kind == SpaceKind::Metadata
            && !self.engine().reservations().may_reserve(Cost::default(), ReserveClass::Normal)
        {
            return Err(Error::NoSpace("metadata in another place"));
        }
        Ok(())
    }

    /// Linux may have dropped a part of a subvolume. The tree of that subvolume then still has
    /// pointers to freed nodes, and one step of a drop removes these pointers. No thread uses such
    /// a subvolume: it was dead when the volume was opened.
    fn finish_partial_drops(&self) -> Result<()> {
        for tree in self.dead_subvolumes()? {
            let item = self.engine().view().committed_root_item(tree)?;
            if item.is_some_and(|item| item.drop_progress != Key::MIN) {
                self.drop_step(&[tree])?;
            }
        }
        Ok(())
    }

    fn empty_group(
        &self,
        range: Extent,
        users: &dyn Users,
        watch: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let mut rounds = self.loops().begin(name::ROUNDS, ROUNDS_MAX);
        for _ in 0..ROUNDS_MAX {
            rounds.step()?;
            // References that were added since the last commit are in no tree yet.
            self.engine().commit()?;
            let mut from = range.start;
            let mut any = false;
            let mut lists = self.loops().begin(name::LISTS, steps_through(range.len, STEP_BYTES));
            while from < range.end() {
                lists.step()?;
                let view = self.engine().view();
                let (found, next) = extents(&view, from, range.end())?;
                drop(view);
                any |= !found.is_empty();
                self.move_some(&found, users, watch)?;
                from = next;
            }
            if !any {
                return Ok(());
            }
        }
        let what = "something in a block group cannot be moved";
        Err(Error::Extents { at: range.start, what })
    }

    fn move_some(
        &self,
        found: &[FoundExtent],
        users: &dyn Users,
        watch: &mut dyn FnMut(u64),
    ) -> Result<()> {
        // A step of a drop may take its turn between two batches.
        let turn = self.turn().take();
        let (mut bytes, mut nodes, mut items) = (0, 0, 0);
        let mut asked = Vec::new();
        let mut ahead = Ahead::new(file_trees(&self.engine().view())?.into());
        let data: Vec<Extent> =
            found.iter().filter(|one| one.level.is_none()).map(|one| one.extent).collect();
        let mut left = &data[..];
        for one in found {
            self.expect_moving()?;
            match one.level {
                None => {
                    items += self.move_data(one.extent, left, &mut ahead, users)?;
                    left = &left[1..];
                    bytes += one.extent.len;
                }
                Some(level) => {
                    let logical = one.extent.start;
                    asked.push(NodePtr { logical, generation: one.generation, level });
                    nodes += 1;
                }
            }
            watch(one.extent.len);
            let is_full = bytes >= BATCH_BYTES || nodes >= BATCH_NODES || items >= BATCH_ITEMS;
            if is_full || asked.len() >= ASKED_NODES {
                self.engine().move_nodes(&asked)?;
                asked.clear();
            }
            if is_full {
                self.engine().commit()?;
                (bytes, nodes, items) = (0, 0, 0);
            }
        }
        self.engine().move_nodes(&asked)?;
        self.engine().commit()?;
        drop(turn);
        self.turn().give_way();
        Ok(())
    }

    /// Copies a data extent elsewhere and makes its users point to the copy (L2). Does nothing if
    /// no users of the extent are found. Returns the number of users. `left` has all extents that
    /// have not been moved yet. This call moves the first of these extents.
    fn move_data(
        &self,
        old: Extent,
        left: &[Extent],
        ahead: &mut Ahead,
        above: &dyn Users,
    ) -> Result<usize> {
        // While this view lives, the old extent is not allocated again and its group is not
        // removed.
        let view = self.engine().view();
        let seen = ahead.users(&view, left)?;
        if seen.is_empty() {
            return Ok(0);
        }
        let (mut inodes, mut count) = (inodes_of(&seen), seen.len());
        let (new, sums) = self.copy_data(&view, old, above)?;
        drop(view);
        let (mut moved, mut seen) = (false, Some(seen));
        let outcome = (0..LOOKS_MAX).try_for_each(|_| -> Result<()> {
            if moved {
                return Ok(());
            }
            let items = u32::try_from(count).unwrap_or(u32::MAX).saturating_mul(7) + 8;
            let bytes = (sums.sectors() * self.geometry().csum.size() + 64 * count) as u64;
            let stripes = match self.engine().commits().has_stripe_tree() {
                true => StripeItem::bytes_max(new.len),
                false => 0,
            };
            let cost = Cost::of(items, u32::try_from(bytes + stripes).unwrap_or(u32::MAX));
            // Space is reserved before inodes are held, since threads that make room may need the
            // same inodes.
            let mut reservation = Some(self.engine().reserve(cost, ReserveClass::Normal)?);
            let held = std::mem::take(&mut inodes);
            above.hold(&held, &mut || {
                let view = self.engine().view();
                let there = match seen.take() {
                    Some(seen) if ahead.is_so(&view, old, &seen) => seen,
                    _ => users(&view, ahead.trees(), old)?,
                };
                let owner = buttress_txn::data_owner(&view, old)?;
                drop(view);
                inodes = inodes_of(&there);
                if there.len() <= count && inodes.is_subset(&held) {
                    if let Some(reservation) = reservation.take().filter(|_| !there.is_empty()) {
                        let trees = Arc::clone(ahead.trees());
                        let extent = MovedExtent { old, new, trees, items: Vec::new() };
                        self.redirect_users(
                            self.engine().begin(reservation),
                            extent,
                            there,
                            &sums,
                            owner,
                        );
                        moved = true;
                    }
                } else {
                    count = there.len();
                }
                Ok(())
            })
        });
        if !moved {
            self.engine().allocation().free_unused_data(self.engine().storage(), new);
        }
        outcome.map(|()| count)
    }

    /// Makes the users of one extent point to another extent with the same bytes.
    fn redirect_users(
        &self,
        handle: Handle<'_>,
        mut extent: MovedExtent,
        users: Vec<ExtentUser>,
        sums: &Csums,
        owner: Option<TreeId>,
    ) {
        let MovedExtent { old, new, .. } = extent;
        let mut is_plain = true;
        if users.iter().any(|user| matches!(user.item.body, Body::Regular(_))) {
            handle.note_written(new);
        }
        for user in users {
            is_plain &= user.tree.is_fs_tree() && handle.is_untouched(user.tree, &user.key);
            let mut item = user.item;
            if let Body::Regular(region) | Body::Prealloc(region) = &mut item.body {
                region.disk = new.start;
            }
            let data_ref =
                DataRef { root: user.tree, ino: Ino(user.key.objectid), offset: user.offset };
            let bytes: Arc<[u8]> = item.to_bytes().into();
            handle.put(user.tree, user.key, &bytes);
            extent.items.push((user.tree, user.key, bytes));
            handle.add_data_ref(new, data_ref);
            handle.drop_data_ref(old, data_ref);
        }
        // Simple quotas still charge the subvolume that made the extent.
        handle.set_data_owner(new.start, owner);
        if is_plain {
            handle.note_moved_extent(extent);
        }
        let sector = u64::from(self.geometry().sectorsize);
        for (at, run) in runs(sums, sector) {
            let len = (run.len() / self.geometry().csum.size()) as u64 * sector;
            handle.insert_csums(Extent::new(new.start.end(at), len), run);
        }
    }

    /// Copies the bytes of an extent to a new extent of the same length, and verifies them. Returns
    /// the new extent and the checksums.
    fn copy_data(&self, view: &View, old: Extent, above: &dyn Users) -> Result<(Extent, Csums)> {
        let geometry = *self.geometry();
        let (sector, size) = (geometry.sectorsize as usize, geometry.csum.size());
        // Only the caller may stop a move, so a signal to the thread does not end the wait for
        // space.
        let whole = old.len + self.engine().storage().row_slack();
        let mut reservation =
            buttress_base::interrupt::without_cancel(|| self.engine().reserve_data(whole))?;
        // A superblock copy may cut the free space of the first new chunk into pieces, but not the
        // free space of a second chunk.
        let mut tries = 0..2;
        let new = loop {
            match self.engine().allocate_data(&mut reservation, old.len, old.len, None, 0) {
                Ok(new) => break new,
                // There is enough free space, but only in shorter runs. A new chunk is one run.
                Err(Error::NoSpace(_))
                    if tries.next().is_some()
                        && self.engine().storage().add_chunk_for(
                            self.engine().commits(),
                            self.engine().reservations(),
                            SpaceKind::Data,
                            whole,
                        )? => {}
                Err(error) => return Err(error),
            }
        };
        let copy = || -> Result<Csums> {
            let sums = self.engine().read_csums(view, old)?;
            // Rows with parity are written as a whole.
            let row = self.volume().row_bytes(new.start).unwrap_or(1);
            let step = WRITE_BYTES.next_multiple_of(row);
            for within in (0..old.len).step_by(step as usize) {
                let mut bytes = vec![0; (old.len - within).min(step) as usize];
                let first = (within / sector as u64) as usize;
                self.volume().read_verified_by(
                    old.start.end(within),
                    &mut bytes,
                    sector,
                    |at, bytes| match sums.sector(first + at / sector) {
                        Some(sum) if geometry.csum.digest(bytes)[..size] != *sum => Err("checksum"),
                        _ => Ok(()),
                    },
                )?;
                self.volume().write(new.start.end(within), &bytes)?;
            }
            above.wrote(new);
            Ok(sums)
        };
        copy().map(|sums| (new, sums)).inspect_err(|_| {
            self.engine().allocation().free_unused_data(self.engine().storage(), new);
        })
    }

    /// Removes an empty group and its chunk, and makes the removal durable.
    fn drop_group(&self, start: Logical) -> Result<()> {
        let begun = clock::now();
        let most = waits_within(READERS_MAX, READERS_PERIOD);
        let mut waits = self.loops().begin(name::READERS, most);
        while clock::since(begun) < READERS_MAX {
            waits.step()?;
            self.expect_moving()?;
            self.engine().allocation().release_pinned(self.engine().storage());
            // If the group no longer exists, a commit found it empty and removed it first.
            if self.engine().storage().remove_group(self.engine().commits(), start)? {
                self.engine().commit()?;
                return Ok(());
            }
            // A reader of older roots still holds space that was freed.
            buttress_base::thread::sleep(READERS_PERIOD);
        }
        Err(Error::Busy("an old view still reads what a block group had that was emptied"))
    }
}

/// Runs of sectors that have checksums. Each run has its offset in the extent, and its checksums.
fn runs(sums: &Csums, sector: u64) -> Vec<(u64, Vec<u8>)> {
    let mut found: Vec<(u64, Vec<u8>)> = Vec::new();
    let mut open = false;
    for index in 0..sums.sectors() {
        match sums.sector(index) {
            Some(sum) => {
                if !open {
                    found.push((index as u64 * sector, Vec::new()));
                }
                if let Some((_, run)) = found.last_mut() {
                    run.extend_from_slice(sum);
                }
                open = true;
            }
            None => open = false,
        }
    }
    found
}
