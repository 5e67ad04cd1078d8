//! Checksums, and the hashes that are parts of keys.

use blake2::Digest as _;
use crc_fast::{CrcAlgorithm, Digest};

use crate::{Error, Ino, Result, TreeId};

/// The checksum algorithm of a volume's nodes and data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum CsumType {
    /// CRC-32C, 4 bytes: the default.
    #[default]
    Crc32c = 0,
    /// xxHash, 8 bytes.
    Xxhash64 = 1,
    /// SHA-256, 32 bytes.
    Sha256 = 2,
    /// BLAKE2b-256, 32 bytes.
    Blake2b = 3,
}

impl CsumType {
    /// The algorithm with this number in the superblock.
    ///
    /// # Errors
    ///
    /// [`Error::CsumType`] when the number is not one of the four.
    pub fn from_disk(number: u16) -> Result<Self> {
        match number {
            0 => Ok(Self::Crc32c),
            1 => Ok(Self::Xxhash64),
            2 => Ok(Self::Sha256),
            3 => Ok(Self::Blake2b),
            other => Err(Error::CsumType(other)),
        }
    }

    /// Bytes of one checksum.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::Crc32c => 4,
            Self::Xxhash64 => 8,
            Self::Sha256 | Self::Blake2b => 32,
        }
    }

    /// The name that mkfs accepts.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Crc32c => "crc32c",
            Self::Xxhash64 => "xxhash64",
            Self::Sha256 => "sha256",
            Self::Blake2b => "blake2",
        }
    }

    /// The checksum as it is stored on disk, padded with zeros.
    #[must_use]
    pub fn digest(self, data: &[u8]) -> [u8; 32] {
        let mut out = [0; 32];
        match self {
            Self::Crc32c => out[..4].copy_from_slice(&crc_fast::crc32_iscsi(data).to_le_bytes()),
            Self::Xxhash64 => {
                out[..8].copy_from_slice(&xxhash_rust::xxh64::xxh64(data, 0).to_le_bytes());
            }
            Self::Sha256 => out.copy_from_slice(&sha2::Sha256::digest(data)),
            Self::Blake2b => {
                out.copy_from_slice(&blake2::Blake2b::<blake2::digest::consts::U32>::digest(data));
            }
        }
        out
    }
}

/// CRC-32C of `data`, beginning with `seed`, without the usual inversions. The format uses this
/// checksum as its hash function.
#[must_use]
pub fn crc32c_raw(seed: u32, data: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(seed));
    digest.update(data);
    // A CRC-32 has 32 bits, so the conversion loses no bit.
    !(digest.finalize() as u32)
}

/// Key offset of a name's directory item and of an attribute's item.
#[must_use]
pub fn name_hash(name: &[u8]) -> u64 {
    u64::from(crc32c_raw(0xFFFF_FFFE, name))
}

/// Key offset of an extended inode reference.
#[must_use]
pub fn extref_hash(parent: Ino, name: &[u8]) -> u64 {
    u64::from(crc32c_raw(parent.0 as u32, name))
}

/// Key offset of a keyed data reference. Inline data references are sorted by the same value.
#[must_use]
pub fn extent_data_ref_hash(root: TreeId, ino: Ino, offset: u64) -> u64 {
    let high = u64::from(crc32c_raw(!0, &root.0.to_le_bytes()));
    let low = crc32c_raw(!0, &ino.0.to_le_bytes());
    let low = u64::from(crc32c_raw(low, &offset.to_le_bytes()));
    (high << 31) ^ low
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values from real volumes.
    #[test]
    fn hashes_are_the_formats() {
        assert_eq!(name_hash(b"default"), 2_378_154_706);
    }

    #[test]
    fn digests_have_the_published_values() {
        assert_eq!(CsumType::Crc32c.digest(b"123456789")[..4], 0xE306_9283_u32.to_le_bytes());
        assert_eq!(CsumType::Xxhash64.digest(b"")[..8], 0xEF46_DB37_51D8_E999_u64.to_le_bytes());
        assert_eq!(CsumType::Sha256.digest(b"")[..4], [0xe3, 0xb0, 0xc4, 0x42]);
        assert_eq!(CsumType::Blake2b.digest(b"")[..4], [0x0e, 0x57, 0x51, 0xc0]);
    }
}
