//! What a count came to, and what has come since.

use buttress_format::{Generation, header::ITEM_LEN};

use super::parts::Parts;
use crate::transaction::Transaction;

/// What was counted of a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count {
    /// Nodes that a commit of what there was then makes.
    pub(crate) nodes: u64,
    /// The same by what makes them.
    pub(crate) parts: Parts,
    /// Operations changed no item of trees that are counted whole.
    pub(crate) is_of_files: bool,
    /// The transaction was frozen when it was counted: nothing came since.
    pub(crate) is_whole: bool,
    /// What there was: items in the overlay and their bytes, how many had another length, and
    /// bytes of references and of checksums.
    pub(crate) items: u64,
    pub(crate) bytes: u64,
    pub(crate) resized: u64,
    pub(crate) added: u64,
    pub(crate) sums: u64,
    pub(crate) chunks: u64,
    /// The trees that it was held against, and bytes of nodes of the commit that was under way.
    pub(crate) roots: Generation,
    pub(crate) below: u64,
    /// The commit has made its nodes.
    pub(crate) is_settled: bool,
}

impl Count {
    /// Nodes, items that came since, and bytes that are to be reserved beside them.
    pub(crate) fn now(&self, transaction: &Transaction) -> (u64, u64, u64) {
        if self.is_settled {
            return (self.nodes, 0, 0);
        }
        let overlay = &transaction.overlay;
        let items = overlay.items().saturating_sub(self.items)
            + overlay.resized().saturating_sub(self.resized)
            + (transaction.chunks.lock().len() as u64).saturating_sub(self.chunks);
        let grown = overlay.bytes().saturating_sub(self.bytes);
        let added = transaction.refs.added().saturating_sub(self.added);
        let sums = csum_bytes(transaction).saturating_sub(self.sums);
        (self.nodes, items, 2 * (grown + added + sums))
    }
}

/// Bytes that come to the checksum tree at most: a removal may cut an item in two.
pub(crate) fn csum_bytes(transaction: &Transaction) -> u64 {
    transaction.sums.planned() + ITEM_LEN as u64 * transaction.refs.dropped()
}
