//! The result of a count, and the changes since then.

use buttress_format::{Generation, header::ITEM_LEN};

use crate::Cost;
use crate::transaction::Transaction;

/// The content of a transaction when it was counted. The later changes are the difference between
/// the present content and this content.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    /// Items in the overlay, their bytes, and the number of items put again with another length.
    items: u64,
    bytes: u64,
    resized: u64,
    /// Changed extent records, the bytes of their references, and the bytes of checksum items.
    records: u64,
    added: u64,
    sums: u64,
    chunks: u64,
}

impl Held {
    pub(super) fn of(transaction: &Transaction) -> Self {
        let Transaction { overlay, refs, sums, chunks, .. } = transaction;
        Self {
            items: overlay.items(),
            bytes: overlay.bytes(),
            resized: overlay.resized(),
            records: refs.noted(),
            added: refs.added(),
            // Removing the checksums of an extent may cut a checksum item in two, which adds an
            // item header.
            sums: sums.planned() + ITEM_LEN as u64 * refs.dropped(),
            chunks: chunks.lock().len() as u64,
        }
    }
}

/// The result of counting a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count {
    /// The most nodes that a commit would make if no changes came after the count. Once the commit
    /// is settled, this is the number of nodes that it made.
    pub(crate) nodes: u64,
    /// The most nodes that later items may add in the extent, checksum and free-space trees
    /// (`ledger::G6`). `None` if their number is unbounded.
    pub(crate) rest: Option<u64>,
    /// The part of `nodes` in trees that operations change. `None` if operations also changed a
    /// tree that commits change on their own.
    pub(crate) of_items: Option<u64>,
    /// Whether the transaction was already frozen when it was counted, so that no changes can
    /// follow.
    pub(crate) is_whole: bool,
    /// The committed trees on which the count is based, and the bytes that the commit under way at
    /// that time still needed.
    pub(crate) roots: Generation,
    pub(crate) below: u64,
    /// Whether the commit has made all nodes of the transaction.
    pub(crate) is_settled: bool,
    /// The content of the transaction that was counted.
    pub(super) held: Held,
}

impl Count {
    /// Adds the changes since this count: items of operations, the items that commits add because
    /// of the operations, and bytes.
    pub(crate) fn with_changes(self, transaction: &Transaction) -> CountByNow {
        let (then, now) = (self.held, Held::of(transaction));
        let more = |of: fn(&Held) -> u64| of(&now).saturating_sub(of(&then));
        let since = Cost {
            items: more(|held| held.items) + more(|held| held.resized) + more(|held| held.chunks),
            commit_items: 3 * more(|held| held.records),
            bytes: more(|held| held.bytes) + more(|held| held.added) + more(|held| held.sums),
        };
        CountByNow { count: self, since: if self.is_settled { Cost::default() } else { since } }
    }
}

/// A count, and the cost of the changes since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountByNow {
    pub(crate) count: Count,
    pub(crate) since: Cost,
}

impl CountByNow {
    /// The number of paths, each of `levels` nodes, by which a new count may lower the bound. Each
    /// item put since the last count counts as one path. Items that commits add cost at most `rest`
    /// nodes together.
    pub(crate) fn paths(&self, levels: u64) -> u64 {
        let most = self.count.rest.map_or(u64::MAX, |rest| rest.div_ceil(levels));
        self.since.items + self.since.commit_items.min(most)
    }
}
