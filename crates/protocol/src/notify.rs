//! Notifications: messages from the server that are no answers.
//!
//! Each function returns a whole message, which the caller writes to the device.

use zerocopy::IntoBytes;

use crate::layout::{InvalEntry, InvalInode, OutHead, Prune};

const INVAL_INODE: i32 = 2;
const INVAL_ENTRY: i32 = 3;
const PRUNE: i32 = 9;

/// Tells the kernel to drop the attributes and cached pages of an inode. The kernel writes dirty
/// pages first. A negative `offset` keeps the pages. A `len` of zero means up to the end of the
/// file.
#[must_use]
pub fn inval_inode(node: u64, offset: i64, len: i64) -> Vec<u8> {
    message(INVAL_INODE, &[InvalInode { node, offset, len }.as_bytes()])
}

/// Tells the kernel to forget a name.
#[must_use]
pub fn inval_entry(directory: u64, name: &[u8]) -> Vec<u8> {
    let name_len = u32::try_from(name.len()).unwrap_or(u32::MAX);
    let fixed = InvalEntry { directory, name_len, flags: 0 };
    message(INVAL_ENTRY, &[fixed.as_bytes(), name, &[0]])
}

/// Tells the kernel to forget nodes that no program uses, with their names. The kernel keeps nodes
/// in use. Needs Linux 6.18.
#[must_use]
pub fn prune(nodes: &[u64]) -> Vec<u8> {
    let count = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
    let fixed = Prune { count, padding: 0, spare: 0 };
    message(PRUNE, &[fixed.as_bytes(), nodes.as_bytes()])
}

fn message(kind: i32, parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = OutHead::new(0, Ok(parts.iter().map(|part| part.len()).sum()));
    bytes.error = kind;
    let mut message = bytes.as_bytes().to_vec();
    parts.iter().for_each(|part| message.extend_from_slice(part));
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_their_length() {
        for message in [inval_inode(7, -1, 0), inval_entry(7, b"name"), prune(&[7, 8])] {
            let len = u32::from_ne_bytes(message[..4].try_into().expect("four bytes"));
            assert_eq!(len as usize, message.len());
        }
        assert_eq!(inval_entry(7, b"name").len(), 16 + 16 + 5);
        assert_eq!(prune(&[7, 8]).len(), 16 + 16 + 2 * 8);
    }
}
