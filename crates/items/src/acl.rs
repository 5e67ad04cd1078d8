//! Access control lists. They are stored as attributes. An operation reads them only when it
//! creates an inode in a directory with a default list.
//!
//! # On disk
//!
//! ```text
//! u32 version = 2, then entries: u16 tag, u16 permissions, u32 id
//! tags: 1 owner, 2 user, 4 owning group, 8 group, 16 mask, 32 others
//! ```
//!
//! This crate parses lists itself: `exacl` and `posix-acl` call libacl, which reads a list from a
//! file and not from bytes.

use crate::attr::{FileKind, InodeId, mode};
use crate::batch::{Batch, Change};
use crate::error::Result;
use crate::xattr_items;

/// The attribute with the list that new inodes of a directory get.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";
const ACCESS: &[u8] = b"system.posix_acl_access";

const HEAD_LEN: usize = 4;
const ENTRY_LEN: usize = 8;
const OWNER: u16 = 1;
const OWNING_GROUP: u16 = 4;
const MASK: u16 = 16;
const OTHERS: u16 = 32;

/// Gives a new inode the lists that follow from its directory's default list. Returns the inode's
/// mode.
pub fn inherit(
    list: &[u8],
    bits: u32,
    kind: FileKind,
    id: InodeId,
    batch: &mut Batch,
) -> Result<u32> {
    if kind == FileKind::Directory {
        add(batch, id, DEFAULT, list);
    }
    let Some((access, bits, minimal)) = masked(list, bits) else { return Ok(bits) };
    if !minimal {
        add(batch, id, ACCESS, &access);
    }
    Ok(bits)
}

fn add(batch: &mut Batch, id: InodeId, name: &[u8], value: &[u8]) {
    // The two names have different hashes, so each has its own item.
    batch.set(
        xattr_items::key(id.ino, name),
        Change::Names(vec![xattr_items::attribute(name, value)]),
    );
}

/// Removes from a list the permissions that the mode does not grant, and from the mode the
/// permissions that the list does not grant. Returns the list, the mode, and whether the list adds
/// nothing to the mode. `None` if the bytes are no list.
fn masked(list: &[u8], bits: u32) -> Option<(Vec<u8>, u32, bool)> {
    if list.len() < HEAD_LEN || !(list.len() - HEAD_LEN).is_multiple_of(ENTRY_LEN) {
        return None;
    }
    let mut list = list.to_vec();
    let entries = || (HEAD_LEN..list.len()).step_by(ENTRY_LEN);
    let tag = |list: &[u8], at: usize| u16::from_le_bytes([list[at], list[at + 1]]);
    // If there is a mask, the group bits of the mode stand for the mask, not for the owning group's
    // entry.
    let has_mask = entries().any(|at| tag(&list, at) == MASK);
    let mut granted = bits & !0o777;
    for at in entries().collect::<Vec<_>>() {
        let shift = match tag(&list, at) {
            OWNER => 6,
            MASK => 3,
            OWNING_GROUP if !has_mask => 3,
            OTHERS => 0,
            _ => continue,
        };
        let permissions = u32::from(u16::from_le_bytes([list[at + 2], list[at + 3]]));
        let kept = permissions & (bits >> shift) & 0o7;
        granted |= kept << shift;
        let [low, high] = (kept as u16).to_le_bytes();
        list[at + 2] = low;
        list[at + 3] = high;
    }
    let minimal = list.len() <= HEAD_LEN + 3 * ENTRY_LEN;
    Some((list, granted | bits & mode::TYPE, minimal))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(tag: u16, permissions: u16, id: u32) -> Vec<u8> {
        let mut bytes = tag.to_le_bytes().to_vec();
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
        bytes
    }

    /// The requested mode limits owner, mask and others. Named entries do not change, because the
    /// mask limits them.
    #[test]
    fn a_mask_is_cut_by_the_group_bits() {
        let mut list = 2u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in
            [(1, 7, !0), (2, 7, 1000), (4, 5, !0), (16, 7, !0), (32, 5, !0)]
        {
            list.extend(entry(tag, permissions, id));
        }
        let (access, bits, minimal) = masked(&list, mode::REGULAR | 0o640).expect("a list");
        assert_eq!(bits, mode::REGULAR | 0o640);
        assert!(!minimal);
        let permissions: Vec<u8> = access[4..].chunks(8).map(|entry| entry[2]).collect();
        assert_eq!(permissions, [6, 7, 5, 4, 0]);
    }
}
