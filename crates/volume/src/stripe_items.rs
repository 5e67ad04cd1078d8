//! The items of the stripe tree that data in a chunk has.
//!
//! # Invariants
//!
//! - **I1** The places of an item are the places of the chunk's layout. A volume without zones
//!   allocates space by address. So at any other place another address would overwrite the data.
//! - **I2** No item crosses a multiple of 64 KiB, counted from the start of its chunk. Linux makes
//!   longer items for data in whole copies. btrfs-progs (6.19) finds an item only by the address at
//!   which the item begins, and asks at these multiples.

use buttress_format::{Extent, Logical, Stride, StripeItem, limits::STRIPE_LEN};

use crate::volume::Volume;

impl Volume {
    /// The places of `at` and of the bytes after it, up to `len` bytes, that are contiguous in
    /// every copy. `None` if the address has no chunk, or its chunk has no items in the stripe
    /// tree.
    #[must_use]
    pub fn stripe_item_at(&self, at: Logical, len: u64) -> Option<(Extent, StripeItem)> {
        let map = self.map_of(Extent::new(at, 1));
        let entry = map.find(at).ok()?;
        if !entry.chunk.flags.has_stripe_items() {
            return None;
        }
        let piece = entry.piece(at, len);
        let stripes = entry.chunk.stripes.get(piece.first_stripe..)?;
        let copies = stripes.iter().take(entry.layout.copies());
        // The sum cannot overflow: the check of the layout computed it, too.
        let place = |stripe: &buttress_format::Stripe| Stride {
            device: stripe.device,
            offset: stripe.offset.saturating_add(piece.offset),
        };
        Some((Extent::new(at, piece.len), StripeItem(copies.map(place).collect())))
    }

    /// The items that a range of data gets (I2). Parts of the range without a chunk, and parts in
    /// chunks without such items, get none.
    #[must_use]
    pub fn stripe_items(&self, range: Extent) -> Vec<(Extent, StripeItem)> {
        let mut items = Vec::new();
        let mut at = range.start;
        while at < range.end() {
            let left = range.end().distance(at);
            let Some(chunk) = self.chunk_at(at) else { break };
            let within = at.distance(chunk.logical);
            let unit = STRIPE_LEN - within % STRIPE_LEN;
            match self.stripe_item_at(at, left.min(unit)) {
                Some((piece, item)) => {
                    at = piece.end();
                    items.push((piece, item));
                }
                None => at = at.end(left.min(chunk.len - within)),
            }
        }
        items
    }
}
