//! Moving what lies in a block group elsewhere, so that the group can go.
//!
//! # Invariants
//!
//! - **L1** A group that is being emptied gives out nothing: what is in it only becomes less.
//! - **L2** Data is copied to a new extent of the same length, and all its users go over in one
//!   transaction: a crash finds the old place or the new one, never both and never neither.
//! - **L3** A node is moved by building it anew with all nodes above it. Trees that share it go on
//!   sharing it: it is built once, and so is a leaf that points to data which was moved.
//! - **L4** The mover finds the users of an extent and sends them to its copy in one handle.
//!   Between the two no other thread changes which extents those inodes have ([`Users::hold`]).
//!   Some users come too late to be seen, by a snapshot that is being cut or a clone that is not
//!   committed. They stay, and the next round over the group finds them.
//!
//! # Place
//!
//! Works while the volume is in use. A leaf that a tree changes while its data moves becomes that
//! tree's own, as by any operation. Subvolumes that are being dropped are moved like others; no
//! step of a drop runs while an extent moves.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use buttress_base::clock;
use buttress_format::{Body, Extent, Ino, Key, Logical, TreeId, limits};
use buttress_space::{Group, SpaceKind};
use buttress_tree::NodePtr;
use buttress_txn::{Cost, Csums, DataRef, Error, Handle, Result, Sent, Urgency, View};

mod ahead;
mod users;

use self::ahead::Ahead;
use self::users::{Use, file_trees, inodes_of, users};
use crate::Maintenance;
use crate::found::{Found, extents};

/// Rounds over a group before giving up. One is enough without other work; each snapshot, or
/// clone, that comes in between costs another.
const ROUNDS_MAX: u32 = 100;
/// The maximum number of searches for the users of one extent before it is left to the next round.
const LOOKS_MAX: u32 = 4;
/// How long readers of old trees may delay the removal of a group.
const READERS_MAX: Duration = Duration::from_secs(60);
const READERS_PERIOD: Duration = Duration::from_millis(5);
/// The number of bytes of data and nodes that are moved between two commits.
const BATCH_BYTES: u64 = 64 << 20;
const BATCH_NODES: usize = 2048;
/// The number of items that are put between two commits. It bounds their memory, however many trees
/// share the files.
const BATCH_ITEMS: usize = 32 << 10;
/// The number of nodes that are requested at once.
const ASKED_NODES: usize = 64;
/// The number of data bytes in one write.
const WRITE_BYTES: u64 = 4 << 20;

/// The owner of the inodes that use moved data; lent to the mover for one call.
pub trait Users {
    /// Runs `work` while no other thread changes which extents these inodes have, or reads what
    /// they had before. Waits for threads that do; they may be making room, or waiting for it.
    ///
    /// # Errors
    ///
    /// Errors of finding an inode, and errors that `work` returns.
    fn hold(
        &self,
        inodes: &BTreeSet<(TreeId, Ino)>,
        work: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()>;

    /// Records that the bytes of an extent without users have changed.
    fn wrote(&self, extent: Extent);
}

/// The volume has no other users.
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
    /// Empties a block group and removes it with its chunk, while the volume is in use. `watch`
    /// is told of bytes that were moved.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] when there is none elsewhere; [`Error::Stopped`] after
    /// [`stop_moving`](Self::stop_moving); what reading met. What was moved until then stays
    /// where it is now.
    pub fn relocate_group(
        &self,
        start: Logical,
        users: &dyn Users,
        watch: &mut dyn FnMut(u64),
    ) -> Result<()> {
        self.engine().check_writable()?;
        self.make_dead_whole()?;
        // Trees that were not used since the mount are changed, too.
        let view = self.engine().view();
        file_trees(&view)?
            .into_iter()
            .try_for_each(|tree| self.engine().reservations().know_height(&view, tree))?;
        drop(view);
        let group = self
            .engine()
            .space()
            .group_at(start)
            .ok_or_else(|| Error::Malformed(format!("there is no block group at {start}")))?;
        // Before it is held: a commit that runs meanwhile must find room for its nodes.
        self.room_without(&group, group.available())?;
        let held = self.engine().hold_read_only(start)?;
        self.room_without(&group, 0)?;
        self.engine().close_windows();
        held.drain();
        // If that fails, the group can be used again as it is.
        self.empty_group(group.range(), users, watch).and_then(|()| self.drop_group(start))
    }

    fn expect_moving(&self) -> Result<()> {
        self.engine().check_writable()?;
        if self.turn().is_stopped() { Err(Error::Stopped) } else { Ok(()) }
    }

    /// Makes chunks until what is reserved, and what is in a group, fit into groups that give
    /// something out: neither a commit nor writeback may be the first to find out that there is
    /// no room. `leaving` bytes of what is free are about to be given out no more.
    fn room_without(&self, group: &Group, leaving: u64) -> Result<()> {
        let (kind, bytes) = (group.kind(), group.used());
        // No extent in it is longer, and each needs a place as long as it is (L2); Linux sets
        // aside twice the longest at once.
        let whole = if kind == SpaceKind::Data { bytes.min(2 * limits::MAX_EXTENT) } else { 0 };
        let is_tight = || {
            let account = self.engine().space().account(kind);
            let free = account.free().saturating_sub(account.may_use).saturating_sub(leaving);
            match kind {
                SpaceKind::Data => free < bytes,
                _ => free < 2 * bytes + (1 << 20),
            }
        };
        while is_tight() {
            // One that is longer than usual may be more than metadata can spare.
            if !self.engine().add_chunk_for(kind, whole)?
                && (whole == 0 || !self.engine().add_chunk(kind)?)
            {
                let account = self.engine().space().account(kind);
                // Half the chunk may do for nodes, if the rest is not reserved.
                let least = account.free().saturating_sub(account.may_use).saturating_sub(leaving);
                if kind != SpaceKind::Data && least >= bytes {
                    break;
                }
                return Err(Error::NoSpace("what is in a block group, in another"));
            }
        }
        if kind == SpaceKind::Metadata
            && !self.engine().may_reserve(Cost::default(), Urgency::Normal)
        {
            return Err(Error::NoSpace("metadata in another place"));
        }
        Ok(())
    }

    /// Of a subvolume that Linux dropped in part some nodes are gone that its tree still names:
    /// one step of ours cuts them off. Such a subvolume has no users; it was dead when the volume
    /// was opened.
    fn make_dead_whole(&self) -> Result<()> {
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
        for _ in 0..ROUNDS_MAX {
            // References that were added since the last commit are in no tree yet.
            self.engine().commit()?;
            let mut from = range.start;
            let mut any = false;
            while from < range.end() {
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
        found: &[Found],
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

    /// Copies a data extent elsewhere and sends its users there (L2). Does nothing if it has none
    /// any more, or none that can be seen yet. Returns their number. `left` are the extents to
    /// move, from this one on.
    fn move_data(
        &self,
        old: Extent,
        left: &[Extent],
        ahead: &mut Ahead,
        above: &dyn Users,
    ) -> Result<usize> {
        // As long as this lives the old extent is not given out again, nor is its group gone.
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
            let cost = Cost::of(items, u32::try_from(bytes).unwrap_or(u32::MAX));
            // Before inodes are held: their holder may be making room.
            let mut reservation = Some(self.engine().reserve(cost, Urgency::Normal)?);
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
                        let sent = Sent { old, new, trees, items: Vec::new() };
                        self.send_over(self.engine().begin(reservation), sent, there, &sums, owner);
                        moved = true;
                    }
                } else {
                    count = there.len();
                }
                Ok(())
            })
        });
        if !moved {
            self.engine().free_unused_data(new);
        }
        outcome.map(|()| count)
    }

    /// Changes the users of one extent to another one with the same bytes.
    fn send_over(
        &self,
        handle: Handle<'_>,
        mut sent: Sent,
        users: Vec<Use>,
        sums: &Csums,
        owner: Option<TreeId>,
    ) {
        let Sent { old, new, .. } = sent;
        let mut is_plain = true;
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
            sent.items.push((user.tree, user.key, bytes));
            handle.add_data_ref(new, data_ref);
            handle.drop_data_ref(old, data_ref);
        }
        // The subvolume that made the extent is still charged for it.
        handle.set_data_owner(new.start, owner);
        if is_plain {
            handle.note_sent(sent);
        }
        let sector = u64::from(self.geometry().sectorsize);
        for (at, run) in runs(sums, sector) {
            let len = (run.len() / self.geometry().csum.size()) as u64 * sector;
            handle.insert_csums(Extent::new(new.start.end(at), len), run);
        }
    }

    /// The bytes of an extent in a new one of the same length, checked on their way, and their
    /// checksums.
    fn copy_data(&self, view: &View, old: Extent, above: &dyn Users) -> Result<(Extent, Csums)> {
        let geometry = *self.geometry();
        let (sector, size) = (geometry.sectorsize as usize, geometry.csum.size());
        // Its caller stops it by `watch`, not by a signal to the waiting thread.
        let whole = old.len + self.engine().row_slack();
        let mut reservation =
            buttress_base::interrupt::shielded(|| self.engine().reserve_data(whole))?;
        // In the first chunk a copy of the superblock may lie, and not in two.
        let mut tries = 0..2;
        let new = loop {
            match self.engine().allocate_data(&mut reservation, old.len, old.len, None, 0) {
                Ok(new) => break new,
                // There is enough space, but in pieces. A new chunk is in one piece.
                Err(Error::NoSpace(_))
                    if tries.next().is_some()
                        && self.engine().add_chunk_for(SpaceKind::Data, whole)? => {}
                Err(error) => return Err(error),
            }
        };
        let copy = || -> Result<Csums> {
            let sums = self.engine().read_csums(view, old)?;
            // Rows are written as a whole.
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
        copy().map(|sums| (new, sums)).inspect_err(|_| self.engine().free_unused_data(new))
    }

    /// Removes an empty group and its chunk, and makes that durable.
    fn drop_group(&self, start: Logical) -> Result<()> {
        let begun = clock::now();
        while clock::since(begun) < READERS_MAX {
            self.expect_moving()?;
            self.engine().release_pinned();
            // If the group no longer exists, a commit found it empty and removed it first.
            if self.engine().remove_group(start)? {
                self.engine().commit()?;
                return Ok(());
            }
            // A reader of older roots still holds space that was freed.
            buttress_base::thread::sleep(READERS_PERIOD);
        }
        Err(Error::Busy("an old view still reads what a block group had that was emptied"))
    }
}

/// Runs of sectors that have checksums: where they begin in the extent, and the sums.
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
