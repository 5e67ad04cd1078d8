//! Stripe items: where each copy of a range of data lies on the devices.
//!
//! # On disk
//!
//! ```text
//! key      (logical address, RAID_STRIPE, length), in the stripe tree
//! content  for each copy: number of the device, byte offset on the device; 8 bytes each
//! ```
//!
//! Early drafts, of Linux 6.7 to 6.10, put eight bytes before the copies. Such an item does not
//! parse, since its length is no multiple of 16.

use crate::bytes::{Reader, Writer};
use crate::{DeviceId, Error, Key, Kind, Result, header::ITEM_LEN, limits::STRIPE_LEN};
use crate::{Extent, Logical};

/// The place of one copy.
///
/// Plain data: the fields do not depend on each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stride {
    /// The device.
    pub device: DeviceId,
    /// The offset of the first byte on the device, in bytes.
    pub offset: u64,
}

/// The places of a range of data: one for each copy, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripeItem(pub Vec<Stride>);

impl StripeItem {
    /// The most copies of a byte, which RAID1C4 has.
    pub const COPIES_MAX: usize = 4;
    /// The most bytes that an item takes in a leaf.
    pub const BYTES_MAX: u64 = (ITEM_LEN + Self::COPIES_MAX * 16) as u64;

    /// Reads an item.
    ///
    /// # Errors
    ///
    /// When the item is empty, or its length is not a multiple of 16.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let found = bytes.len();
        if found == 0 || !found.is_multiple_of(16) {
            let expected = found.next_multiple_of(16).max(16);
            return Err(Error::Length { what: "stripe item", expected, found });
        }
        let mut r = Reader::new("stripe item", bytes);
        let mut strides = Vec::with_capacity(found / 16);
        while r.left() > 0 {
            strides.push(Stride { device: DeviceId(r.u64()?), offset: r.u64()? });
        }
        Ok(Self(strides))
    }

    /// The item's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(self.0.len() * 16);
        for stride in &self.0 {
            w.u64(stride.device.0).u64(stride.offset);
        }
        w.0
    }

    /// The key of the item of a range.
    #[must_use]
    pub fn key(range: Extent) -> Key {
        Key::new(range.start.0, Kind::RAID_STRIPE, range.len)
    }

    /// The range that an item with this key describes. `None` if the key is of another kind, or if
    /// the range is empty or ends past the end of all addresses.
    #[must_use]
    pub fn range(key: &Key) -> Option<Extent> {
        let start = Logical(key.objectid);
        let is_one = key.kind == Kind::RAID_STRIPE && key.offset > 0;
        let is_one = is_one && start.checked_add(key.offset).is_some();
        is_one.then(|| Extent::new(start, key.offset))
    }

    /// The most bytes in leaves that the items of a range of `len` bytes take. Items end at the
    /// ends of stripe units, so a range may begin and end within one.
    #[must_use]
    pub fn bytes_max(len: u64) -> u64 {
        (len / STRIPE_LEN + 2) * Self::BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_round_trip() {
        let item = StripeItem(vec![
            Stride { device: DeviceId(1), offset: 1 << 20 },
            Stride { device: DeviceId(2), offset: 5 << 20 },
        ]);
        let bytes = item.to_bytes();
        assert_eq!(bytes.len(), 32);
        assert_eq!(StripeItem::parse(&bytes).as_ref(), Ok(&item));
        for cut in [0, 8, 15, 24, 31] {
            assert!(StripeItem::parse(&bytes[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn keys_give_ranges_within_all_addresses() {
        let range = Extent::new(Logical(4096), 8192);
        assert_eq!(StripeItem::range(&StripeItem::key(range)), Some(range));
        let key = |start, kind, len| Key::new(start, kind, len);
        assert_eq!(StripeItem::range(&key(4096, Kind::RAID_STRIPE, 0)), None);
        assert_eq!(StripeItem::range(&key(4096, Kind::EXTENT_ITEM, 4096)), None);
        assert_eq!(StripeItem::range(&key(u64::MAX - 1, Kind::RAID_STRIPE, 4096)), None);
    }
}
