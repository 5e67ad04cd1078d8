//! fs-verity: the items of a file with content that can never change again.
//!
//! # On disk
//!
//! ```text
//! (ino, VERITY_DESC_ITEM, 0)        length of the descriptor 8 | reserved 16 | encryption 1
//! (ino, VERITY_DESC_ITEM, 1 + at)   bytes of the descriptor from `at` on
//! (ino, VERITY_MERKLE_ITEM, at)     bytes of the Merkle tree from `at` on
//!
//! descriptor  version 1 | hash 1 | log2 of the block size 1 | length of the salt 1
//!             | length of the signature 4 | length of the file 8 | root hash 64 | salt 32
//!             | zeros 144 | signature
//! ```
//!
//! An item has at most [`VERITY_ITEM_MAX`] bytes. A file has a valid descriptor and a whole tree if
//! its inode has [`InodeFlags::RO_VERITY`](crate::InodeFlags::RO_VERITY). Items without that flag
//! are left from an `enable` that did not end.

use crate::bytes::{Fixed, Reader, Writer};
use crate::merkle::{HashKind, MerkleHasher, TreeShape};
use crate::{Error, Result};

/// The most bytes in one item of a descriptor or of a Merkle tree.
pub const VERITY_ITEM_MAX: usize = 2048;

/// The most bytes of a descriptor with its signature.
pub const VERITY_DESCRIPTOR_MAX: usize = 16_384;

/// The most bytes of a salt.
pub const VERITY_SALT_MAX: usize = 32;

/// The first item of a file's descriptor, which says how long the descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerityItem {
    /// Bytes of the descriptor in the items that follow.
    pub size: u64,
}

impl VerityItem {
    /// Bytes on disk.
    pub const LEN: usize = 25;

    /// Reads the item.
    ///
    /// # Errors
    ///
    /// If the item has another length, if the descriptor is encrypted, or if it cannot be as long
    /// as the item says.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new("verity item", bytes);
        let size = r.u64()?;
        r.skip(16)?;
        let encryption = r.u8()?;
        r.end()?;
        if encryption != 0 {
            return Err(r.field("encryption", encryption.into()));
        }
        let range = VerityDescriptor::LEN as u64..=VERITY_DESCRIPTOR_MAX as u64;
        if !range.contains(&size) {
            return Err(r.field("size", size));
        }
        Ok(Self { size })
    }

    /// The item's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        Fixed::new().u64(self.size).zeros(17).done()
    }
}

/// What a file's content was when fs-verity was enabled: the root of its Merkle tree, and how the
/// tree is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerityDescriptor {
    /// The hash function.
    pub hash: HashKind,
    /// Base-2 logarithm of the bytes of a block: 10 to 16.
    pub log_block: u8,
    /// Bytes that are hashed before each block; at most [`VERITY_SALT_MAX`].
    pub salt: Vec<u8>,
    /// Bytes of the file.
    pub data_size: u64,
    /// The hash of the tree's root block; the other bytes are zero. It is the hash of the only
    /// block for a file of one block, and all zeros for an empty file.
    pub root: [u8; 64],
    /// A signature of the file's digest, which this program keeps and does not verify.
    pub signature: Vec<u8>,
}

impl VerityDescriptor {
    /// Bytes of a descriptor without its signature.
    pub const LEN: usize = 256;

    /// Reads a descriptor with its signature.
    ///
    /// # Errors
    ///
    /// When a field has a value that the format does not allow, or when the signature has another
    /// length than the descriptor says.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new("verity descriptor", bytes);
        let (version, hash, log_block, salt_len) = (r.u8()?, r.u8()?, r.u8()?, r.u8()?);
        let (sig_len, data_size) = (r.u32()?, r.u64()?);
        let root: [u8; 64] = r.array()?;
        let salt: [u8; VERITY_SALT_MAX] = r.array()?;
        let reserved: [u8; 144] = r.array()?;
        let signature = r.rest().to_vec();
        if version != 1 {
            return Err(r.field("version", version.into()));
        }
        let kind = HashKind::from_disk(hash).ok_or_else(|| r.field("hash", hash.into()))?;
        if !(10..=16).contains(&log_block) {
            return Err(r.field("log_blocksize", log_block.into()));
        }
        if usize::from(salt_len) > VERITY_SALT_MAX {
            return Err(r.field("salt_size", salt_len.into()));
        }
        let (salt, rest) = salt.split_at(salt_len.into());
        if let Some(odd) = rest.iter().chain(&reserved).find(|byte| **byte != 0) {
            return Err(r.field("reserved", (*odd).into()));
        }
        if sig_len as usize != signature.len() {
            return Err(r.field("sig_size", sig_len.into()));
        }
        if data_size > i64::MAX as u64 {
            return Err(r.field("data_size", data_size));
        }
        if let Some(odd) = root[kind.size()..].iter().find(|byte| **byte != 0) {
            return Err(r.field("root_hash", (*odd).into()));
        }
        Ok(Self { hash: kind, log_block, salt: salt.to_vec(), data_size, root, signature })
    }

    /// The descriptor's bytes, with its signature.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = self.signed_len(self.signature.len() as u32);
        w.bytes(&self.signature);
        w.0
    }

    fn signed_len(&self, sig_len: u32) -> Writer {
        let mut w = Writer::with_capacity(Self::LEN);
        w.u8(1).u8(self.hash as u8).u8(self.log_block).u8(self.salt.len() as u8);
        w.u32(sig_len).u64(self.data_size).bytes(&self.root);
        w.bytes(&self.salt).zeros(VERITY_SALT_MAX - self.salt.len()).zeros(144);
        w
    }

    /// The file's digest: the hash of the descriptor without its signature. It names the content,
    /// and is what `fsverity digest` computes.
    #[must_use]
    pub fn digest(&self) -> Vec<u8> {
        self.hash.digest(&self.signed_len(0).0)
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_size(&self) -> usize {
        1 << self.log_block
    }

    /// The root hash without the zeros that follow it.
    #[must_use]
    pub fn root_hash(&self) -> &[u8] {
        &self.root[..self.hash.size()]
    }

    /// What hashes the blocks of the file and of its tree.
    #[must_use]
    pub fn hasher(&self) -> MerkleHasher {
        MerkleHasher::new(self.hash, self.block_size(), &self.salt)
    }

    /// Where the blocks of the tree lie.
    #[must_use]
    pub fn shape(&self) -> TreeShape {
        TreeShape::new(self.hash, self.log_block, self.data_size)
    }
}

/// Joins the items of a descriptor or of a tree: pieces of bytes that must follow one another
/// without gaps.
///
/// # Errors
///
/// [`Error::Field`] with the offset of the first piece that does not follow the one before.
pub fn join_pieces(into: &mut Vec<u8>, at: u64, piece: &[u8]) -> Result<()> {
    if at != into.len() as u64 || piece.is_empty() {
        return Err(Error::Field { what: "verity items", field: "offset", found: at });
    }
    into.extend_from_slice(piece);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> VerityDescriptor {
        let mut root = [0; 64];
        root[..32].fill(7);
        VerityDescriptor {
            hash: HashKind::Sha256,
            log_block: 12,
            salt: b"salt".to_vec(),
            data_size: 4097,
            root,
            signature: vec![1, 2, 3],
        }
    }

    /// A descriptor reads back as it was written, with its signature.
    #[test]
    fn descriptors_are_read_back() {
        let one = sample();
        assert_eq!(VerityDescriptor::parse(&one.to_bytes()), Ok(one.clone()));
        let item = VerityItem { size: one.to_bytes().len() as u64 };
        assert_eq!(VerityItem::parse(&item.to_bytes()), Ok(item));
    }

    /// Every changed byte of a descriptor is refused, or gives another digest or signature.
    #[test]
    fn no_changed_byte_is_missed() {
        let one = sample();
        let bytes = one.to_bytes();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                if let Ok(read) = VerityDescriptor::parse(&changed) {
                    let is_other = read.digest() != one.digest() || read.signature != one.signature;
                    assert!(is_other, "byte {at}, bit {bit}");
                }
            }
        }
        assert!(VerityDescriptor::parse(&bytes[..bytes.len() - 1]).is_err(), "cut short");
        assert!(VerityDescriptor::parse(&[]).is_err());
    }

    /// Lengths that no descriptor has, and encryption, are refused.
    #[test]
    fn odd_items_are_refused() {
        for size in [0, 255, VERITY_DESCRIPTOR_MAX as u64 + 1, u64::MAX] {
            assert!(VerityItem::parse(&VerityItem { size }.to_bytes()).is_err(), "{size}");
        }
        let mut bytes = VerityItem { size: 256 }.to_bytes();
        bytes[24] = 1;
        assert!(VerityItem::parse(&bytes).is_err(), "encrypted");
    }
}
