//! The ledgers of the transactions that are not durable yet, and their counts (`count`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::sync::Mutex;
use buttress_format::Generation;

use crate::transaction::Transaction;

mod tally;

use self::tally::Held;
pub(crate) use self::tally::{Count, CountByNow};
use crate::View;
use crate::ledger::{Ledger, Uncountable};
use buttress_space::Space;

/// A ledger, and the trees on which it is based.
#[derive(Debug, Default)]
pub(crate) struct LedgerState {
    /// The committed trees on which the ledger is based; `None` before the first count.
    pub(crate) roots: Option<Generation>,
    /// The trees on which a count has failed, so that no count is tried again on these trees.
    hopeless: Option<Generation>,
    pub(crate) ledger: Ledger,
}

impl LedgerState {
    /// Counts a transaction. If the trees are those of the last count, only the changes since that
    /// count are noted. `None` if the transaction cannot be counted.
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
        // The state is recorded before the ledger takes the changes. An item put in between counts
        // twice rather than not at all.
        let held = Held::of(transaction);
        let mut feed = || -> Result<(), Uncountable> {
            if is_anew {
                self.ledger = Ledger::new(view, space)?;
            }
            self.ledger.feed(view, space, transaction, is_anew)
        };
        if feed().is_err() {
            self.hopeless = Some(roots.generation);
            self.roots = None;
            return None;
        }
        let geometry = view.store().geometry();
        Some(Count {
            nodes: self.ledger.nodes(geometry.leaf_room() as u64),
            rest: self.ledger.rest(space, geometry),
            of_items: self.ledger.nodes_of_items(),
            is_whole: false,
            roots: roots.generation,
            below: 0,
            is_settled: false,
            held,
        })
    }
}

/// The ledger of one transaction, with its last count.
#[derive(Debug, Default)]
pub(crate) struct TransactionLedger {
    /// Unranked: held across reads of nodes.
    pub(crate) work: Mutex<LedgerState>,
    /// Unranked: nothing is taken under it.
    pub(crate) seen: Mutex<Option<Count>>,
    /// Set if the transaction was frozen with changes that are not counted (`count::N4`). The
    /// commit takes these changes out of the transaction, so `is_plain` no longer shows them.
    never: AtomicBool,
}

/// The ledgers of the transactions that are not durable yet: the running one and, during a commit,
/// the frozen one.
#[derive(Debug, Default)]
pub(crate) struct Ledgers {
    /// Unranked: nothing is taken under them.
    slots: [Mutex<Slot>; 2],
    /// A new count of the running transaction should be made soon, before a request has to wait for
    /// it.
    is_due: AtomicBool,
}

/// A transaction's generation, and its ledger.
type Slot = Option<(Generation, Arc<TransactionLedger>)>;

impl Ledgers {
    /// Returns the ledger of a transaction, or an empty one if the transaction has none yet.
    pub(crate) fn of(&self, transaction: &Transaction) -> Arc<TransactionLedger> {
        let generation = transaction.generation;
        let mut slot = self.slots[(generation.0 % 2) as usize].lock();
        match &*slot {
            Some((known, ledger)) if *known == generation => Arc::clone(ledger),
            // The caller has an old view: this transaction is durable by now, and its ledger was
            // dropped.
            Some((known, _)) if *known > generation => Arc::default(),
            _ => {
                let ledger = Arc::<TransactionLedger>::default();
                *slot = Some((generation, Arc::clone(&ledger)));
                ledger
            }
        }
    }

    /// Whether a new count should be made soon.
    pub(crate) fn is_due(&self) -> bool {
        self.is_due.load(Ordering::Relaxed)
    }

    pub(crate) fn set_due(&self, is_due: bool) {
        if self.is_due() != is_due {
            self.is_due.store(is_due, Ordering::Relaxed);
        }
    }
}

impl TransactionLedger {
    /// Records whether the frozen transaction has changes that are not counted.
    pub(crate) fn begin_commit(&self, frozen: &Transaction) {
        self.never.store(!frozen.is_plain(), Ordering::Relaxed);
    }

    /// Whether the transaction was frozen with changes that are not counted (`count::N4`).
    pub(crate) fn is_never(&self) -> bool {
        self.never.load(Ordering::Relaxed)
    }

    /// Records that the commit has made all its nodes. Their number `nodes` replaces the counted
    /// bound.
    pub(crate) fn settle(&self, nodes: u64) {
        if let Some(count) = &mut *self.seen.lock() {
            (count.nodes, count.is_settled) = (nodes, true);
        }
    }
}
