//! A running or paused balance: one item of the root tree.
//!
//! # On disk
//!
//! ```text
//! (BALANCE, TEMPORARY_ITEM, 0)   flags 8 | data 136 | metadata 136 | system 136 | unused 32
//! each of the three              profiles 8 | usage 8, or from 4 and to 4 | device 8 | device range 16
//!                                address range 16 | target 8 | flags 8 | limit 8, or from 4 and to 4
//!                                stripes from 4 | to 4 | unused 48
//! ```

use crate::{
    Key, Kind, Result,
    bytes::{Reader, Writer},
    ids,
};

/// The recorded filter of block groups of one kind. A field is valid if its flag is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BalanceArgs {
    /// Bits of profiles, which may include [`BalanceArgs::SINGLE`].
    pub profiles: u64,
    /// Percent in use: an upper limit, or a range with the minimum in the lower 32 bits and the
    /// maximum in the upper.
    pub usage: u64,
    /// Only groups with a stripe on this device.
    pub devid: u64,
    /// Only groups with a stripe in this range of a device, the end excluded.
    pub drange: (u64, u64),
    /// Only groups in this range of addresses, the end excluded.
    pub vrange: (u64, u64),
    /// The profile to convert to.
    pub target: u64,
    /// Flags, from the constants of this type.
    pub flags: u64,
    /// The largest number of groups, or a range with the minimum in the lower 32 bits and the
    /// maximum in the upper.
    pub limit: u64,
    /// Least and greatest number of stripes, both included.
    pub stripes: (u32, u32),
}

#[allow(missing_docs, reason = "the names are the fields'")]
impl BalanceArgs {
    pub const PROFILES: u64 = 1;
    pub const USAGE: u64 = 1 << 1;
    pub const DEVID: u64 = 1 << 2;
    pub const DRANGE: u64 = 1 << 3;
    pub const VRANGE: u64 = 1 << 4;
    pub const LIMIT: u64 = 1 << 5;
    pub const LIMIT_RANGE: u64 = 1 << 6;
    pub const STRIPES_RANGE: u64 = 1 << 7;
    pub const CONVERT: u64 = 1 << 8;
    pub const SOFT: u64 = 1 << 9;
    pub const USAGE_RANGE: u64 = 1 << 10;
    /// Stands for the single profile in [`Self::profiles`]. Block group flags have no bit for it.
    pub const SINGLE: u64 = 1 << 48;

    fn read(r: &mut Reader<'_>) -> Result<Self> {
        let args = Self {
            profiles: r.u64()?,
            usage: r.u64()?,
            devid: r.u64()?,
            drange: (r.u64()?, r.u64()?),
            vrange: (r.u64()?, r.u64()?),
            target: r.u64()?,
            flags: r.u64()?,
            limit: r.u64()?,
            stripes: (r.u32()?, r.u32()?),
        };
        r.skip(48)?;
        Ok(args)
    }

    fn write(&self, w: &mut Writer) {
        w.u64(self.profiles).u64(self.usage).u64(self.devid);
        w.u64(self.drange.0).u64(self.drange.1).u64(self.vrange.0).u64(self.vrange.1);
        w.u64(self.target).u64(self.flags).u64(self.limit);
        w.u32(self.stripes.0).u32(self.stripes.1).zeros(48);
    }
}

/// A running or paused balance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BalanceItem {
    /// Flags, from the constants of this type.
    pub flags: u64,
    /// Filter of data groups.
    pub data: BalanceArgs,
    /// Filter of metadata groups.
    pub metadata: BalanceArgs,
    /// Filter of system groups, which hold the chunk tree.
    pub system: BalanceArgs,
}

impl BalanceItem {
    /// The key of the item.
    pub const KEY: Key = Key::new(ids::BALANCE, Kind::TEMPORARY_ITEM, 0);
    /// Bytes on disk.
    pub const LEN: usize = 8 + 3 * 136 + 32;
    /// Data is balanced.
    pub const DATA: u64 = 1;
    /// System groups are balanced.
    pub const SYSTEM: u64 = 2;
    /// Metadata is balanced.
    pub const METADATA: u64 = 4;
    /// The balance may reduce the redundancy of metadata.
    pub const FORCE: u64 = 8;

    /// Reads an item.
    ///
    /// # Errors
    ///
    /// If the item does not have [`Self::LEN`] bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new("balance", bytes);
        let item = Self {
            flags: r.u64()?,
            data: BalanceArgs::read(&mut r)?,
            metadata: BalanceArgs::read(&mut r)?,
            system: BalanceArgs::read(&mut r)?,
        };
        r.skip(32)?;
        r.end()?;
        Ok(item)
    }

    /// The item's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(Self::LEN);
        w.u64(self.flags);
        for args in [&self.data, &self.metadata, &self.system] {
            args.write(&mut w);
        }
        w.zeros(32);
        w.0
    }
}
