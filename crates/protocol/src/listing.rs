//! Listings of directories, written into a buffer of fixed length.

use zerocopy::IntoBytes;

use crate::FileType;
use crate::layout::{Dirent, EntryOut};

/// Entries begin at multiples of this, bytes.
const ALIGN: usize = 8;

/// A listing: whole entries only.
#[derive(Debug)]
pub struct Listing<'a> {
    room: &'a mut [u8],
    len: usize,
}

impl<'a> Listing<'a> {
    /// An empty listing that may fill `room`.
    #[must_use]
    pub fn new(room: &'a mut [u8]) -> Self {
        Self { room, len: 0 }
    }

    /// Length of the listing so far, in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many names fit at most.
    #[must_use]
    pub fn names_left(&self) -> usize {
        self.left(0)
    }

    /// How many names with the data of a lookup fit at most.
    #[must_use]
    pub fn entries_left(&self) -> usize {
        self.left(size_of::<EntryOut>())
    }

    fn left(&self, head: usize) -> usize {
        let shortest = (head + size_of::<Dirent>() + 1).next_multiple_of(ALIGN);
        (self.room.len() - self.len) / shortest
    }

    /// Adds a name. A later listing continues after this name if it begins at `position`. Returns
    /// true if the name did not fit.
    pub fn add_name(&mut self, ino: u64, position: u64, kind: FileType, name: &[u8]) -> bool {
        self.add(&[], ino, position, kind.bits(), name)
    }

    /// Adds a name with the data of a lookup; returns true if the entry did not fit.
    pub fn add_entry(&mut self, entry: &EntryOut, position: u64, name: &[u8]) -> bool {
        self.add(entry.as_bytes(), entry.attr.ino, position, entry.attr.mode, name)
    }

    fn add(&mut self, head: &[u8], ino: u64, position: u64, mode: u32, name: &[u8]) -> bool {
        let whole = (head.len() + size_of::<Dirent>() + name.len()).next_multiple_of(ALIGN);
        let place = self.room.get_mut(self.len..).and_then(|rest| rest.get_mut(..whole));
        let (Some(place), Ok(name_len)) = (place, u32::try_from(name.len())) else { return true };
        let kind = (mode & crate::Attr::KIND) >> 12;
        let dirent = Dirent { ino, position, name_len, kind };
        let mut at = 0;
        for part in [head, dirent.as_bytes(), name] {
            place[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        place[at..].fill(0);
        self.len += whole;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A listing has whole entries only, each at a multiple of eight.
    #[test]
    fn listings_end_where_the_room_does() {
        let mut room = [0xff; 64];
        let mut list = Listing::new(&mut room);
        assert!(!list.add_name(7, 3, FileType::Directory, b"name"));
        assert_eq!(list.len(), 32);
        assert!(!list.add_name(8, 4, FileType::Regular, b"12345678"));
        assert!(list.add_name(9, 5, FileType::Regular, b""));
        assert_eq!(list.len(), 64);
        assert_eq!(&room[16..32], [4, 0, 0, 0, 4, 0, 0, 0, b'n', b'a', b'm', b'e', 0, 0, 0, 0]);
    }
}
