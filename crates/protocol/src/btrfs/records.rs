//! Arguments that come back with some of their fields changed.
//!
//! # What must hold
//!
//! - An answer has the length of its argument. Bytes that the command does not set keep their
//!   values.

use super::{DeviceErrors, Fields, Origin};
use crate::{Errno, WireTime};

/// Length of the argument about the error counts of a device, in bytes.
const ERRORS_LEN: usize = 1032;
/// Offsets of the number of wanted counts, the flags and the counts.
const ERRORS_WANTED_AT: usize = 8;
const ERRORS_FLAGS_AT: usize = 16;
const ERRORS_COUNTS_AT: usize = 24;
/// Flag: the counts become zero.
const ERRORS_RESET: u64 = 1;
/// Length of the argument about a received subvolume, in bytes.
const ORIGIN_LEN: usize = 200;
/// Offsets of the transactions and the times, of the sender and of the receiver.
const ORIGIN_TRANSACTION_AT: usize = 16;
const ORIGIN_OWN_TRANSACTION_AT: usize = 24;
const ORIGIN_TIME_AT: usize = 32;
const ORIGIN_OWN_TIME_AT: usize = 48;
/// Offset of the length in the argument of a trim, and the length of that argument.
const TRIM_LEN_AT: usize = 8;
const TRIM_LEN: usize = 24;

impl<'a> DeviceErrors<'a> {
    pub(super) fn read(fields: &Fields<'a>) -> Result<Self, Errno> {
        let given = fields.0.get(..ERRORS_LEN).ok_or(Errno::EINVAL)?;
        let reset = fields.u64(ERRORS_FLAGS_AT)? & ERRORS_RESET != 0;
        Ok(Self { id: fields.u64(0)?, reset, given })
    }

    /// The answer with the counts of the device, as many as the argument asks for.
    #[must_use]
    pub fn answer(&self, counts: &[u64; 5]) -> Vec<u8> {
        let mut bytes = self.given.to_vec();
        let wanted = Fields(self.given).u64(ERRORS_WANTED_AT).unwrap_or(0).min(5);
        put(&mut bytes, ERRORS_WANTED_AT, wanted);
        for (index, count) in counts.iter().enumerate().take(wanted as usize) {
            put(&mut bytes, ERRORS_COUNTS_AT + index * 8, *count);
        }
        bytes
    }
}

impl<'a> Origin<'a> {
    pub(super) fn read(fields: &Fields<'a>) -> Result<Self, Errno> {
        let given = fields.0.get(..ORIGIN_LEN).ok_or(Errno::EINVAL)?;
        let sec = fields.u64(ORIGIN_TIME_AT)?.cast_signed();
        let time = WireTime { sec, nsec: fields.u32(ORIGIN_TIME_AT + 8)? };
        let transaction = fields.u64(ORIGIN_TRANSACTION_AT)?;
        Ok(Self { uuid: fields.array(0)?, transaction, time, given })
    }

    /// The answer with transaction and time of the reception.
    #[must_use]
    pub fn answer(&self, transaction: u64, time: WireTime) -> Vec<u8> {
        let mut bytes = self.given.to_vec();
        put(&mut bytes, ORIGIN_OWN_TRANSACTION_AT, transaction);
        put(&mut bytes, ORIGIN_OWN_TIME_AT, time.sec.cast_unsigned());
        let nsec = ORIGIN_OWN_TIME_AT + 8;
        bytes[nsec..nsec + 4].copy_from_slice(&time.nsec.to_ne_bytes());
        bytes
    }
}

/// The answer to a trim: the argument, with the number of bytes that were trimmed as its length.
#[must_use]
pub fn trimmed(argument: &[u8], len: u64) -> Vec<u8> {
    let mut bytes = argument.to_vec();
    bytes.resize(TRIM_LEN, 0);
    put(&mut bytes, TRIM_LEN_AT, len);
    bytes
}

fn put(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only wanted counts are written. A larger number than five is cut to five.
    #[test]
    fn counts_are_as_many_as_are_wanted() {
        let mut given = vec![9; ERRORS_LEN];
        put(&mut given, ERRORS_WANTED_AT, 2);
        let few = DeviceErrors { id: 1, reset: false, given: &given }.answer(&[1, 2, 3, 4, 5]);
        assert_eq!(Fields(&few).u64(ERRORS_COUNTS_AT + 8), Ok(2));
        assert_eq!(few[ERRORS_COUNTS_AT + 16..], given[ERRORS_COUNTS_AT + 16..]);
        put(&mut given, ERRORS_WANTED_AT, u64::MAX);
        let all = DeviceErrors { id: 1, reset: false, given: &given }.answer(&[1, 2, 3, 4, 5]);
        assert_eq!(Fields(&all).u64(ERRORS_WANTED_AT), Ok(5));
        assert_eq!(Fields(&all).u64(ERRORS_COUNTS_AT + 32), Ok(5));
        assert_eq!(all.len(), ERRORS_LEN);
    }
}
