//! The commands of ioctl(2) for fs-verity, which are commands of all file systems.
//!
//! # Place
//!
//! Linux's FUSE knows both commands. To the argument of `FS_IOC_ENABLE_VERITY` it appends the salt
//! and the signature, which the program keeps in memory of its own. For `FS_IOC_MEASURE_VERITY`,
//! the answer may have as many bytes as the program asks for. The layouts are those of the kernel's
//! `include/uapi/linux/fsverity.h`, in the machine's byte order.

use crate::Errno;

/// Length of the fixed part of the argument, in bytes.
const FIXED_LEN: usize = 128;
/// The most bytes of a salt.
const SALT_MAX: usize = 32;
/// The most bytes of a signature.
const SIGNATURE_MAX: usize = 16_384 - 256;

/// The argument of `FS_IOC_ENABLE_VERITY`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnableVerity<'a> {
    /// The number of the hash function.
    pub algorithm: u32,
    /// Bytes of a block.
    pub block_size: u32,
    /// The salt.
    pub salt: &'a [u8],
    /// The signature.
    pub signature: &'a [u8],
}

impl<'a> EnableVerity<'a> {
    /// The number of the command.
    pub const COMMAND: u32 = 0x4080_6685;

    /// Reads the argument.
    ///
    /// # Errors
    ///
    /// `EINVAL` for another version, for reserved fields that are not zero and for an argument that
    /// is too short. `EMSGSIZE` for a salt or a signature that is too long.
    pub fn parse(argument: &'a [u8]) -> Result<Self, Errno> {
        let (fixed, behind) = argument.split_at_checked(FIXED_LEN).ok_or(Errno::EINVAL)?;
        let u32_at = |at: usize| {
            fixed[at..].first_chunk().map_or(0, |bytes: &[u8; 4]| u32::from_ne_bytes(*bytes))
        };
        let (version, algorithm, block_size) = (u32_at(0), u32_at(4), u32_at(8));
        let (salt_len, signature_len) = (u32_at(12) as usize, u32_at(24) as usize);
        let reserved = fixed[28..32].iter().chain(&fixed[40..]);
        if version != 1 || reserved.into_iter().any(|byte| *byte != 0) {
            return Err(Errno::EINVAL);
        }
        if salt_len > SALT_MAX || signature_len > SIGNATURE_MAX {
            return Err(Errno::EMSGSIZE);
        }
        let (salt, behind) = behind.split_at_checked(salt_len).ok_or(Errno::EINVAL)?;
        let signature = behind.get(..signature_len).ok_or(Errno::EINVAL)?;
        Ok(Self { algorithm, block_size, salt, signature })
    }
}

/// The command `FS_IOC_MEASURE_VERITY`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasureVerity;

impl MeasureVerity {
    /// The number of the command.
    pub const COMMAND: u32 = 0xc004_6686;

    /// The answer: the number of the hash function, and the digest.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an argument that is too short; `EOVERFLOW` if the program has no room for the
    /// digest.
    pub fn answer(argument: &[u8], algorithm: u16, digest: &[u8]) -> Result<Vec<u8>, Errno> {
        let room = argument.get(2..4).and_then(|bytes| bytes.first_chunk()).ok_or(Errno::EINVAL)?;
        let len = u16::try_from(digest.len()).map_err(|_| Errno::EOVERFLOW)?;
        if u16::from_ne_bytes(*room) < len {
            return Err(Errno::EOVERFLOW);
        }
        let mut answer = Vec::with_capacity(4 + digest.len());
        answer.extend_from_slice(&algorithm.to_ne_bytes());
        answer.extend_from_slice(&len.to_ne_bytes());
        answer.extend_from_slice(digest);
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argument(salt: &[u8], signature: &[u8]) -> Vec<u8> {
        let mut bytes = [0; FIXED_LEN];
        let numbers = [(0, 1), (4, 2), (8, 4096), (12, salt.len()), (24, signature.len())];
        for (at, number) in numbers {
            bytes[at..at + 4].copy_from_slice(&(number as u32).to_ne_bytes());
        }
        bytes[16..24].fill(0xee);
        bytes[32..40].fill(0xee);
        [&bytes[..], salt, signature].concat()
    }

    /// The appended parts are found, and odd arguments are refused as Linux refuses them.
    #[test]
    fn arguments_are_read() {
        let bytes = argument(b"salt", b"signature");
        let read = EnableVerity::parse(&bytes).expect("it is right");
        assert_eq!((read.algorithm, read.block_size), (2, 4096));
        assert_eq!((read.salt, read.signature), (&b"salt"[..], &b"signature"[..]));
        for len in 0..bytes.len() {
            assert_eq!(EnableVerity::parse(&bytes[..len]), Err(Errno::EINVAL), "{len}");
        }
        for at in [0, 28, 40, 127] {
            let mut odd = bytes.clone();
            odd[at] = 9;
            assert_eq!(EnableVerity::parse(&odd), Err(Errno::EINVAL), "{at}");
        }
        for odd in [argument(&[1; 33], b""), argument(b"", &[1; SIGNATURE_MAX + 1])] {
            assert_eq!(EnableVerity::parse(&odd), Err(Errno::EMSGSIZE));
        }
    }

    /// A digest goes only where it has room.
    #[test]
    fn digests_are_answered() {
        let room = |len: u16| [[0, 0], len.to_ne_bytes()].concat();
        let answer = MeasureVerity::answer(&room(64), 1, &[7; 32]).expect("there is room");
        assert_eq!(answer[..2], 1_u16.to_ne_bytes());
        assert_eq!(answer[2..4], 32_u16.to_ne_bytes());
        assert_eq!(answer[4..], [7; 32]);
        assert_eq!(MeasureVerity::answer(&room(31), 1, &[7; 32]), Err(Errno::EOVERFLOW));
        assert_eq!(MeasureVerity::answer(&[0; 3], 1, &[7; 32]), Err(Errno::EINVAL));
    }
}
