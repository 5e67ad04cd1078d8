//! Makes a transaction durable: freeze, merge, settle, write, publish.
//!
//! # Invariants
//!
//! - **W1** Only one commit runs at a time. Operations go on in the next transaction and wait only
//!   for the freeze (`txn::T2`).
//! - **W2** A commit writes the new superblock to its first copy only. The next commit writes this
//!   superblock to the other copies. So the order is: nodes to every mirror, and the last
//!   superblock to its other copies; flush; the new superblock to its first copy; flush. Before the
//!   last flush nothing that the old superblock reaches is overwritten (`txn::T6`, `txn::T8`).
//! - **W3** The first failure after the freeze latches the volume read-only with its cause; nothing
//!   is written from then on.
//! - **W4** A commit runs without the token of its thread (`base::interrupt`). If a killed program
//!   ended it, the volume would be read-only (W3), and other callers share it.
//! - **G1** (of `reserve::ledger`) A commit makes no more nodes than were counted. Debug builds
//!   check this bound.
//!
//! # Failure
//!
//! A crash at any point leaves the last superblock that became durable, and everything that this
//! superblock reaches.

mod addresses;
mod cluster;
mod drops;
mod groups;
mod moves;
mod owners;
mod quota;
mod quota_change;
mod quota_counts;
mod reach;
mod rebuild;
mod settle;
mod sharing;
mod subvolumes;
mod superblock;
mod trail;

pub use drops::drop_min;
pub(crate) use owners::Owners;

use std::sync::{Arc, atomic::Ordering};

use buttress_base::{clock, interrupt};
use buttress_format::{Generation, Logical};
use buttress_space::SpaceKind;
use buttress_tree::Node;

use self::settle::Settled;
use crate::commits::CommitState;
use crate::reserve::QuotaLimits;
use crate::unwritten::UnwrittenBarrier;
use crate::{Allocation, Engine, Error, Result, View, found_log, transaction::Transaction};

impl Engine {
    /// Makes all changes durable that were put before the call. Callers that arrive together share
    /// a commit.
    ///
    /// # Errors
    ///
    /// [`Error::Aborted`] with the first cause once a commit has failed; [`Error::ReadOnly`].
    pub fn commit(&self) -> Result<Generation> {
        self.commit_cut(|| ())
    }

    /// Runs `change`, which must change something, and commits at once. No other commit and no log
    /// comes between the change and its commit.
    pub fn commit_after<R>(&self, change: impl FnOnce() -> R) -> Result<R> {
        let _suspended = interrupt::suspend_cancel();
        self.check_writable()?;
        let barred = self.allocation().unwritten().bar();
        let mut state = self.commits().lock();
        self.check_writable()?;
        let changed = change();
        self.commit_held(&mut state, barred, || ())?;
        drop(state);
        self.queues().serve_all();
        Ok(changed)
    }

    /// As [`commit`](Self::commit). After the freeze it calls `cut`: all changes that are put from
    /// then on belong to the next transaction. If nothing has to be committed, `cut` is called,
    /// too. If the commit fails before the freeze, `cut` is not called.
    ///
    /// # Errors
    ///
    /// As [`commit`](Self::commit).
    pub fn commit_cut(&self, cut: impl FnOnce()) -> Result<Generation> {
        // The check runs even if there is nothing to commit. Otherwise tests would meet a violation
        // only by chance.
        crate::open_handles::expect_none("handle::H2: a commit is waited for");
        let _suspended = interrupt::suspend_cancel();
        self.commits().check_unlatched()?;
        let is_counted =
            || self.storage().volume().devices().iter().any(|device| device.stats_changed());
        if !self.storage().learning().is_known() && !is_counted() {
            // The groups are not known yet. By `learn::K1`, nothing was changed or written so far.
            cut();
            return Ok(self.commits().published());
        }
        self.check_writable()?;
        let wanted = self.commits().peek().generation();
        let barred = self.allocation().unwritten().bar();
        let mut state = self.commits().lock();
        if self.commits().published() >= wanted {
            cut();
            return Ok(self.commits().published());
        }
        self.check_writable()?;
        self.commits().set_wanted(false);
        let is_counted = is_counted();
        let is_logged = found_log::has_log(&state.superblock);
        if self.commits().peek().running().is_empty() && !is_counted && !is_logged {
            self.reservations().give_cached_back();
            // No tree has changed. But data written in place may still be in the caches of the
            // devices, so flush the devices.
            cut();
            self.storage().volume().flush().map_err(|error| self.latch(error.into()))?;
            return Ok(self.commits().published());
        }
        self.commit_held(&mut state, barred, cut)?;
        self.queues().serve_all();
        Ok(self.commits().published())
    }

    /// Commits the running transaction, under the commit lock.
    fn commit_held(
        &self,
        state: &mut CommitState,
        barred: UnwrittenBarrier<'_>,
        cut: impl FnOnce(),
    ) -> Result<()> {
        let started = clock::now();
        crate::open_handles::expect_none("handle::H1: the transaction is frozen");
        self.reservations().let_inodes_finish(|| {
            self.allocation().release_pinned(self.storage());
        });
        let owners = Owners::of(self);
        let frozen = owners.freeze();
        drop(barred);
        cut();
        let outcome = commit_frozen(owners, self.allocation(), self.quota_limits(), state, &frozen);
        self.counters().note_commit(clock::since(started));
        if let Err(error) = outcome {
            return Err(self.latch(error));
        }
        self.allocation().end_log(self.storage());
        if frozen.rebuild.load(Ordering::Relaxed) {
            self.storage().groups().trust_free_space(true);
        }
        self.allocation().release_pinned(self.storage());
        self.storage().remove_empty_groups(self.commits(), self.reservations(), state);
        Ok(())
    }

    /// Makes the volume read-only for good. Returns [`Error::Aborted`] with the cause of the first
    /// failure.
    pub fn latch(&self, error: Error) -> Error {
        let (cause, is_first) = self.commits().health().abort(Arc::new(error));
        if is_first {
            tracing::error!(error = %cause, "the volume is read-only now");
        }
        self.queues().refuse_all();
        Error::Aborted(cause)
    }

    /// Writes the superblock of the last commit to all copies.
    pub fn settle_superblocks(&self) -> Result<()> {
        let state = self.commits().lock();
        self.storage().volume().write_superblocks(&state.superblock)?;
        Ok(())
    }
}

impl Owners<'_> {
    /// Checks that the commit took no more bytes than were counted before the freeze and at the
    /// freeze (G1).
    fn hold_against(
        &self,
        settled: &Settled,
        reserved: Option<u64>,
        counted: Option<(u64, Option<u64>)>,
    ) {
        let taken = settled.taken;

        for (bytes, when) in [(reserved, "while it was running"), (counted.map(|c| c.0), "frozen")]
        {
            let is_enough = bytes.is_none_or(|bytes| taken <= bytes);
            assert!(is_enough, "G1: {bytes:?} bytes were counted {when}, {taken} were made");
        }
        if let Some(of_items) = counted.and_then(|(_, of_items)| of_items) {
            let made = settled.of_items / u64::from(self.storage.store().geometry().nodesize);
            assert!(
                made <= of_items,
                "reserve::ledger::tree::L2: {of_items} item nodes were counted, {made} were made"
            );
        }
    }

    /// Freezes the running transaction and begins the next. Waits only for the open handles.
    pub(crate) fn freeze(self) -> Arc<Transaction> {
        let started = clock::now();
        let frozen = self.commits.alone(|| {
            self.reservations.give_cached_back();
            self.audit();
            let view = self.commits.view();
            let frozen = Arc::clone(view.running());
            let running = Transaction::new(frozen.generation.next());
            self.reservations.begin_commit(&frozen);
            self.commits.show(View::new(
                Arc::clone(self.storage.store()),
                running,
                Some(Arc::clone(&frozen)),
                Arc::clone(view.roots()),
            ));
            frozen
        });
        self.counters.note_freeze(clock::since(started));
        frozen
    }

    /// Compares every account with its groups and its tokens, in debug builds. A volume with many
    /// groups checks only the tokens, since the walk over groups would take too long.
    fn audit(self) {
        #[cfg(debug_assertions)]
        {
            const GROUPS_MAX: usize = 1024;
            self.reservations.audit();
            if self.storage.space().count() > GROUPS_MAX {
                self.storage
                    .space()
                    .audit_tokens()
                    .unwrap_or_else(|difference| panic!("{difference}"));
                return;
            }
            match self.storage.space().audit() {
                Ok(is_done) => self.counters.note_audit(is_done),
                Err(difference) => panic!("{difference}"),
            }
        }
    }

    /// Seals every node and writes all nodes in one sorted batch. Sealing verifies a node again. A
    /// node is sealed in place: copies of all nodes would double the memory of a commit.
    fn write_nodes(self, nodes: Vec<Arc<Node>>) -> Result<Vec<Arc<Node>>> {
        let geometry = self.storage.store().geometry();
        let mut sealed = Vec::with_capacity(nodes.len());
        for node in nodes {
            let (logical, owner) = (node.logical(), node.owner());
            let node = match Arc::try_unwrap(node) {
                Ok(own) => own.into_sealed(geometry),
                Err(shared) => shared.seal(geometry),
            };
            let damaged = |why| buttress_tree::Error::Damaged { logical, owner, why };
            sealed.push(Arc::new(node.map_err(damaged)?));
        }
        let mut batch: Vec<(Logical, &[u8])> =
            sealed.iter().map(|node| (node.logical(), node.bytes())).collect();
        self.counters.note_nodes(batch.len() as u64);
        let gaps = self.storage.row_gaps(&batch);
        batch.extend(gaps.parts());
        self.storage.volume().write_batch(&batch)?;
        Ok(sealed)
    }
}

fn commit_frozen(
    owners: Owners<'_>,
    allocation: &Allocation,
    quota_limits: &QuotaLimits,
    state: &mut CommitState,
    frozen: &Transaction,
) -> Result<()> {
    let Owners { storage, reservations, counters, .. } = owners;
    let reserved = reservations.closer_need(frozen);
    let counted = reservations.count_if_crowded(frozen);
    let mut settled = settle::settle(owners, frozen, state)?;
    if cfg!(debug_assertions) {
        owners.hold_against(&settled, reserved, counted);
    }
    tracing::debug!(
        generation = %frozen.generation,
        nodes = settled.nodes.len(),
        rounds = settled.rounds,
        taken = settled.taken,
        counted = counted.map(|(bytes, _)| bytes),
        "settled"
    );
    let account = storage.space().account(SpaceKind::Metadata);
    let reserve = account.global_reserve - account.for_copies;
    let of_reserve = reserve.saturating_sub(account.free());
    counters.note_settled(settled.rounds, of_reserve);
    // The commit has addresses for all its nodes and allocates no more. Serve waiting
    // reservations now, because writing the nodes may take most of the commit's time.
    reservations.settled(frozen, settled.nodes.len() as u64);
    let nodes = owners.write_nodes(std::mem::take(&mut settled.nodes))?;
    storage.volume().write_other_superblocks(&state.superblock)?;
    storage.volume().flush_and_commit(&settled.state.superblock)?;
    publish(owners, allocation, quota_limits, state, settled, nodes);
    Ok(())
}

/// Makes the trees of a durable transaction visible to readers.
fn publish(
    Owners { storage, commits, reservations, .. }: Owners<'_>,
    allocation: &Allocation,
    quota_limits: &QuotaLimits,
    state: &mut CommitState,
    settled: Settled,
    nodes: Vec<Arc<Node>>,
) {
    for node in nodes {
        storage.store().remember(node);
    }
    let old = commits.view();
    let roots = Arc::new(settled.state.roots.clone());
    let generation = roots.generation;
    *state = settled.state;
    let mut devices = storage.devices();
    for chunk in &settled.removed {
        for stripe in &chunk.stripes {
            devices.give(stripe.device, stripe.offset, chunk.stripe_bytes());
        }
    }
    drop(devices);
    // Views of the old roots may still read the space that this commit freed. This space stays
    // pinned until these views are gone.
    allocation.pinned().push(old.roots(), settled.pinned);
    commits.show(View::new(Arc::clone(storage.store()), Arc::clone(old.running()), None, roots));
    drop(old);
    commits.publish(state);
    quota_limits.publish(generation, &settled.quota_news);
    reservations.published(&state.roots, settled.trees, generation);
}
