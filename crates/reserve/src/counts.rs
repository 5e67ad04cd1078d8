//! The counts of the transactions that are not durable yet (`count`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::sync::Mutex;
use buttress_format::Generation;

use crate::transaction::Transaction;

mod tally;

pub(crate) use self::tally::{Count, Known};
use crate::View;
use crate::ledger::{Ledger, Unknown};
use buttress_space::Space;

/// The ledger of a transaction, and the trees on which it is based.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// `None` before the first count.
    pub(crate) roots: Option<Generation>,
    /// The trees on which a count was not possible, so that none is tried again.
    hopeless: Option<Generation>,
    pub(crate) ledger: Ledger,
}

impl Work {
    /// Counts a transaction, or its new changes since the last count.
    pub(crate) fn count(
        &mut self,
        space: &Space,
        view: &View,
        transaction: &Transaction,
    ) -> Option<Count> {
        let roots = view.roots();
        if self.hopeless == Some(roots.generation) || !transaction.is_plain() {
            return None;
        }
        let is_anew = self.roots.replace(roots.generation) != Some(roots.generation);
        // Items put during the count are counted twice.
        let mut count = Count::begin(transaction, roots.generation);
        let mut feed = || -> Result<(), Unknown> {
            if is_anew {
                self.ledger = Ledger::new(view.store(), roots, space)?;
            }
            self.ledger.feed(view, space, transaction, is_anew)
        };
        if feed().is_err() {
            self.hopeless = Some(roots.generation);
            self.roots = None;
            return None;
        }
        let geometry = view.store().geometry();
        count.nodes = self.ledger.nodes(geometry.leaf_room() as u64);
        count.rest = self.ledger.rest(space, geometry);
        count.of_items = self.ledger.nodes_of_items();
        Some(count)
    }
}

/// The count of a transaction's nodes.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    /// Unranked: held across reads of nodes.
    pub(crate) work: Mutex<Work>,
    /// Unranked: nothing is taken under it.
    pub(crate) seen: Mutex<Option<Count>>,
    /// The transaction was frozen with uncounted changes, which its commit takes out (`count::N4`).
    pub(crate) never: AtomicBool,
}

/// The counts of the transactions that are not durable yet: the running one, and a frozen one
/// before it. Counts of older ones are not kept.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Unranked: nothing is taken under them.
    slots: [Mutex<Slot>; 2],
    /// A count of the running transaction is due before it is needed.
    is_due: AtomicBool,
}

/// A transaction, and its count.
type Slot = Option<(Generation, Arc<Counted>)>;

impl Counts {
    /// The count of a transaction's nodes.
    pub(crate) fn of(&self, transaction: &Transaction) -> Arc<Counted> {
        let generation = transaction.generation;
        let mut slot = self.slots[(generation.0 % 2) as usize].lock();
        match &*slot {
            Some((known, counted)) if *known == generation => Arc::clone(counted),
            // The caller's view is of a transaction that is durable by now.
            Some((known, _)) if *known > generation => Arc::default(),
            _ => {
                let counted = Arc::<Counted>::default();
                *slot = Some((generation, Arc::clone(&counted)));
                counted
            }
        }
    }

    /// Whether a count is due before it is needed.
    pub(crate) fn is_due(&self) -> bool {
        self.is_due.load(Ordering::Relaxed)
    }

    pub(crate) fn set_due(&self, is_due: bool) {
        if self.is_due() != is_due {
            self.is_due.store(is_due, Ordering::Relaxed);
        }
    }
}

impl Counted {
    /// Whether the transaction was frozen with uncounted changes (`count::N4`).
    pub(crate) fn is_never(&self) -> bool {
        self.never.load(Ordering::Relaxed)
    }

    /// Records that the transaction is settled, and how many nodes it has.
    pub(crate) fn settle(&self, nodes: u64) {
        if let Some(count) = &mut *self.seen.lock() {
            (count.nodes, count.is_settled) = (nodes, true);
        }
    }
}
