//! Extended attributes, in the inode and in a block of their own.

use super::inode::Inode;
use super::numbers::{damaged, le16, le32};
use super::opened::Ext4;
use crate::error::{Error, Result};

/// The mark before attributes.
const MAGIC: u32 = 0xea02_0000;

/// The names of access control lists.
const ACCESS: &[u8] = b"system.posix_acl_access";
pub(crate) const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// The bytes of a list's header, in ext4 and in the attribute that programs see.
const ACL_HEAD: usize = 4;

impl Ext4 {
    /// The attributes of an inode, by their whole names. Access control lists have the form in
    /// which programs see them.
    pub(crate) fn attributes(&self, inode: &Inode) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut found = Vec::new();
        if inode.tail.len() > 4 && le32(&inode.tail, 0)? == MAGIC {
            let values = &inode.tail[4..];
            parse(values, values, &mut found)?;
        }
        if inode.attributes != 0 {
            let block = self.block(inode.attributes)?;
            if le32(&block, 0)? != MAGIC {
                return Err(damaged(format!(
                    "the attributes of inode {} are damaged",
                    inode.number
                )));
            }
            parse(&block[32..], &block, &mut found)?;
        }
        Ok(found)
    }
}

/// Adds the attributes of one place. Offsets of values count from the start of `values`.
fn parse(entries: &[u8], values: &[u8], found: &mut Vec<(Vec<u8>, Vec<u8>)>) -> Result<()> {
    let mut at = 0;
    // The list ends with four zeros, or at the end of its space.
    while at + 4 <= entries.len() && le32(entries, at)? != 0 {
        let name_len = usize::from(entries[at]);
        let index = entries.get(at + 1).copied().unwrap_or_default();
        let (offset, size) = (usize::from(le16(entries, at + 2)?), le32(entries, at + 8)? as usize);
        if le32(entries, at + 4)? != 0 {
            return Err(Error::Feature("ea_inode".to_owned()));
        }
        let cut = || damaged("an attribute is cut short");
        let name = entries.get(at + 16..at + 16 + name_len).ok_or_else(cut)?;
        let value = values.get(offset..offset.saturating_add(size)).ok_or_else(cut)?;
        let prefix: &[u8] = match index {
            0 => b"",
            1 => b"user.",
            2 => ACCESS,
            3 => DEFAULT_ACL,
            4 => b"trusted.",
            6 => b"security.",
            7 | 8 => b"system.",
            _ => return Err(damaged("an attribute has an unknown kind of name")),
        };
        let name = [prefix, name].concat();
        let value = match index {
            2 | 3 => acl(value)?,
            _ => value.to_vec(),
        };
        found.push((name, value));
        at += (16 + name_len).next_multiple_of(4);
    }
    Ok(())
}

/// Turns an access control list into the form that programs see: each entry with an identifier.
fn acl(value: &[u8]) -> Result<Vec<u8>> {
    if le32(value, 0)? != 1 {
        return Err(damaged("an access control list has an unknown version"));
    }
    let mut list = 2_u32.to_le_bytes().to_vec();
    let mut at = ACL_HEAD;
    while at < value.len() {
        let tag = le16(value, at)?;
        let has_id = matches!(tag, 0x2 | 0x8);
        let id = if has_id { le32(value, at + 4)? } else { u32::MAX };
        list.extend(tag.to_le_bytes());
        list.extend(le16(value, at + 2)?.to_le_bytes());
        list.extend(id.to_le_bytes());
        at += if has_id { 8 } else { 4 };
    }
    Ok(list)
}
