//! The result of a count, and the changes since it.

use buttress_format::{Generation, header::ITEM_LEN};

use crate::Costs;
use crate::transaction::Transaction;

/// The content of a transaction at one moment.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// Items in the overlay and their bytes, and how many had another length.
    items: u64,
    bytes: u64,
    resized: u64,
    /// Records that changed, and bytes of references and of checksums.
    records: u64,
    added: u64,
    sums: u64,
    chunks: u64,
}

impl Held {
    fn of(transaction: &Transaction) -> Self {
        let Transaction { overlay, refs, sums, chunks, .. } = transaction;
        Self {
            items: overlay.items(),
            bytes: overlay.bytes(),
            resized: overlay.resized(),
            records: refs.noted(),
            added: refs.added(),
            // A removal may cut an item in two.
            sums: sums.planned() + ITEM_LEN as u64 * refs.dropped(),
            chunks: chunks.lock().len() as u64,
        }
    }
}

/// The result of counting a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count {
    /// The number of nodes that a commit of the transaction made at the moment of the count.
    pub(crate) nodes: u64,
    /// The most nodes that future items make for records, checksums and free space (`ledger::G6`).
    /// `None` if there is no such bound.
    pub(crate) rest: Option<u64>,
    /// The part of `nodes` in trees that operations change. `None` if the commit by itself changes
    /// one of these trees, too.
    pub(crate) of_items: Option<u64>,
    /// The transaction was frozen when it was counted, so no changes came later.
    pub(crate) is_whole: bool,
    /// The committed trees on which the count is based. `below` is the need of the commit that was
    /// under way then, in bytes.
    pub(crate) roots: Generation,
    pub(crate) below: u64,
    /// Whether the commit has made its nodes.
    pub(crate) is_settled: bool,
    held: Held,
}

impl Count {
    /// Begins a count without nodes. Records what the transaction holds now; later changes are
    /// measured from there.
    pub(crate) fn begin(transaction: &Transaction, roots: Generation) -> Self {
        Self {
            nodes: 0,
            rest: None,
            of_items: None,
            is_whole: false,
            roots,
            below: 0,
            is_settled: false,
            held: Held::of(transaction),
        }
    }

    /// Adds the changes since this count: items of operations, items that commits add for them in
    /// other trees, and bytes.
    pub(crate) fn with_changes(self, transaction: &Transaction) -> Known {
        let since = if self.is_settled { Costs::default() } else { self.since(transaction) };
        Known { count: self, since }
    }

    fn since(&self, transaction: &Transaction) -> Costs {
        let (then, now) = (self.held, Held::of(transaction));
        let more = |of: fn(&Held) -> u64| of(&now).saturating_sub(of(&then));
        Costs {
            items: more(|held| held.items) + more(|held| held.resized) + more(|held| held.chunks),
            commit_items: 3 * more(|held| held.records),
            bytes: more(|held| held.bytes) + more(|held| held.added) + more(|held| held.sums),
        }
    }
}

/// A count, and what came since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) count: Count,
    pub(crate) since: Costs,
}

impl Known {
    /// The paths of `levels` nodes that a new count may save: one for each item put since. Items
    /// that commits add in other trees cost at most `rest` nodes together.
    pub(crate) fn paths(&self, levels: u64) -> u64 {
        let most = self.count.rest.map_or(u64::MAX, |rest| rest.div_ceil(levels));
        self.since.items + self.since.commit_items.min(most)
    }
}
