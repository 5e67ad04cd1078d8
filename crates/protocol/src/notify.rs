//! Notifications: messages of a server that answer no request.
//!
//! Each function returns a whole message; the caller writes it to the device.

use zerocopy::IntoBytes;

use crate::layout::{InvalEntry, InvalInode, OutHead, Prune};

const INVAL_INODE: i32 = 2;
const INVAL_ENTRY: i32 = 3;
const PRUNE: i32 = 9;

/// The kernel drops cached pages of an inode, and its attributes. It first writes dirty pages. A
/// negative `offset` keeps the pages; a `len` of zero means up to the end.
#[must_use]
pub fn inval_inode(node: u64, offset: i64, len: i64) -> Vec<u8> {
    message(INVAL_INODE, &[InvalInode { node, offset, len }.as_bytes()])
}

/// The kernel forgets a name.
#[must_use]
pub fn inval_entry(directory: u64, name: &[u8]) -> Vec<u8> {
    let name_len = u32::try_from(name.len()).unwrap_or(u32::MAX);
    let fixed = InvalEntry { directory, name_len, flags: 0 };
    message(INVAL_ENTRY, &[fixed.as_bytes(), name, &[0]])
}

/// The kernel forgets nodes that no program uses, and their names. It keeps nodes in use. This
/// needs Linux 6.18.
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
