//! POSIX access control lists: the parts that a server must implement.
//!
//! # Place
//!
//! With the ACL support of FUSE on, the kernel reads a file's list as an extended attribute and
//! checks the access of each user. The kernel changes no list when the mode changes, and no mode
//! when the list changes: the server must make both changes. The volume computes the lists of new
//! inodes. This module changes a list after `chmod`, and a mode after a new list. The rules are
//! those of POSIX.1e draft 17 and of acl(5).
//!
//! # On the wire
//!
//! ```text
//! offset  size  field
//!      0     4  version      2
//!      4     8  entry, repeated: tag (2), permissions (2), id (4), sorted by tag, then id
//! ```
//!
//! # Invariants
//!
//! - **A1** A list that parses has exactly one entry for the owner, one for the group, and one for
//!   others. It has a mask if it names any user or group. So every list has mode bits.
//!
//! This is code of our own: `exacl` and `posix-acl` call libacl, which reads the lists of files,
//! not lists in memory.

/// The attribute with the list that controls access to a file.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute of a directory with the list for its new files.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEADER_LEN: usize = 4;
const ENTRY_LEN: usize = 8;
const NO_ID: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tag {
    Owner = 0x01,
    User = 0x02,
    OwningGroup = 0x04,
    Group = 0x08,
    Mask = 0x10,
    Other = 0x20,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: Tag,
    /// Three bits: read 4, write 2, execute 1.
    permissions: u16,
    id: u32,
}

/// A list that satisfies A1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl {
    entries: Vec<Entry>,
}

impl Acl {
    /// Parses the value of an attribute; `None` when it is no valid list.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let (version, rest) = value.split_first_chunk::<HEADER_LEN>()?;
        if u32::from_le_bytes(*version) != VERSION || !rest.len().is_multiple_of(ENTRY_LEN) {
            return None;
        }
        let entries: Vec<Entry> =
            rest.chunks_exact(ENTRY_LEN).map(Entry::parse).collect::<Option<_>>()?;
        let acl = Self { entries };
        acl.is_valid().then_some(acl)
    }

    fn is_valid(&self) -> bool {
        let count = |tag| self.entries.iter().filter(|entry| entry.tag == tag).count();
        let named = count(Tag::User) + count(Tag::Group) > 0;
        let sorted = self.entries.windows(2).all(|pair| {
            let [before, after] = pair else { return true };
            before.tag < after.tag || (before.tag == after.tag && before.id < after.id)
        });
        sorted
            && count(Tag::Owner) == 1
            && count(Tag::OwningGroup) == 1
            && count(Tag::Other) == 1
            && count(Tag::Mask) <= 1
            && (!named || count(Tag::Mask) == 1)
    }

    /// Maps the ids of a list to other ids, and sorts the list again. `None` if an id has no
    /// counterpart, or if the result is no valid list.
    pub(crate) fn with_ids(
        mut self,
        user: impl Fn(u32) -> Option<u32>,
        group: impl Fn(u32) -> Option<u32>,
    ) -> Option<Self> {
        for entry in &mut self.entries {
            match entry.tag {
                Tag::User => entry.id = user(entry.id)?,
                Tag::Group => entry.id = group(entry.id)?,
                _ => {}
            }
        }
        self.entries.sort_by_key(|entry| (entry.tag, entry.id));
        // All ids that this machine does not know map to one id. Keep only the first of the entries
        // that became equal.
        self.entries.dedup_by_key(|entry| (entry.tag, entry.id));
        self.is_valid().then_some(self)
    }

    /// Returns the value of the attribute for this list.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_LEN + self.entries.len() * ENTRY_LEN);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        for entry in &self.entries {
            bytes.extend_from_slice(&(entry.tag as u16).to_le_bytes());
            bytes.extend_from_slice(&entry.permissions.to_le_bytes());
            bytes.extend_from_slice(&entry.id.to_le_bytes());
        }
        bytes
    }

    /// Returns the nine permission bits of this list, for programs that know no lists. The group
    /// bits are those of the mask, if the list has a mask.
    pub(crate) fn mode(&self) -> u32 {
        let group = if self.is_minimal() { Tag::OwningGroup } else { self.group_class() };
        self.bits(Tag::Owner) << 6 | self.bits(group) << 3 | self.bits(Tag::Other)
    }

    /// Returns whether the permission bits alone have the meaning of this list.
    pub(crate) fn is_minimal(&self) -> bool {
        self.entries.len() == 3
    }

    /// Changes the list as `chmod` with these permission bits does.
    pub(crate) fn set_mode(&mut self, mode: u32) {
        let group = self.group_class();
        for entry in &mut self.entries {
            if entry.tag == Tag::Owner {
                entry.permissions = (mode >> 6 & 7) as u16;
            } else if entry.tag == group {
                entry.permissions = (mode >> 3 & 7) as u16;
            } else if entry.tag == Tag::Other {
                entry.permissions = (mode & 7) as u16;
            }
        }
    }

    /// Whether a user that does not own the file has all wanted permissions. An entry that names
    /// the user decides alone. Without such an entry, the entries of the user's groups decide: one
    /// of them must grant all wanted permissions. A user without any such entry gets the
    /// permissions of the entry for others. The mask limits all entries except the entry for
    /// others.
    pub(crate) fn grants(
        &self,
        wanted: u32,
        is_user: impl Fn(u32) -> bool,
        is_in_owning_group: bool,
        is_in_group: impl Fn(u32) -> bool,
    ) -> bool {
        let mask = self.entries.iter().find(|entry| entry.tag == Tag::Mask);
        let mask = mask.map_or(7, |entry| entry.permissions);
        let has_all = |entry: &Entry| u32::from(entry.permissions & mask) & wanted == wanted;
        let named = |entry: &&Entry| entry.tag == Tag::User && is_user(entry.id);
        if let Some(user) = self.entries.iter().find(named) {
            return has_all(user);
        }
        let mut of_groups = self.entries.iter().filter(|entry| match entry.tag {
            Tag::OwningGroup => is_in_owning_group,
            Tag::Group => is_in_group(entry.id),
            _ => false,
        });
        match of_groups.next() {
            Some(first) => has_all(first) || of_groups.any(has_all),
            None => self.bits(Tag::Other) & wanted == wanted,
        }
    }

    /// The entry that the group bits of a mode stand for: the mask, or the owning group if there is
    /// no mask.
    fn group_class(&self) -> Tag {
        let has_mask = self.entries.iter().any(|entry| entry.tag == Tag::Mask);
        if has_mask { Tag::Mask } else { Tag::OwningGroup }
    }

    fn bits(&self, tag: Tag) -> u32 {
        let entry = self.entries.iter().find(|entry| entry.tag == tag);
        u32::from(entry.expect("A1: only tags that a checked list has are asked for").permissions)
    }
}

impl Entry {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let [tag_low, tag_high, low, high, id @ ..] = bytes else { return None };
        let tag = match u16::from_le_bytes([*tag_low, *tag_high]) {
            0x01 => Tag::Owner,
            0x02 => Tag::User,
            0x04 => Tag::OwningGroup,
            0x08 => Tag::Group,
            0x10 => Tag::Mask,
            0x20 => Tag::Other,
            _ => return None,
        };
        let permissions = u16::from_le_bytes([*low, *high]);
        if permissions > 7 {
            return None;
        }
        // Only named entries have an id. The id field of other entries is neither compared nor
        // kept.
        let id = match tag {
            Tag::User | Tag::Group => u32::from_le_bytes(id.try_into().ok()?),
            Tag::Owner | Tag::OwningGroup | Tag::Mask | Tag::Other => NO_ID,
        };
        Some(Self { tag, permissions, id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(Tag, u16, u32)]) -> Vec<u8> {
        let entries =
            entries.iter().map(|&(tag, permissions, id)| Entry { tag, permissions, id }).collect();
        Acl { entries }.to_bytes()
    }

    fn named() -> Acl {
        let bytes = list(&[
            (Tag::Owner, 7, NO_ID),
            (Tag::User, 6, 1000),
            (Tag::OwningGroup, 5, NO_ID),
            (Tag::Mask, 6, NO_ID),
            (Tag::Other, 1, NO_ID),
        ]);
        Acl::parse(&bytes).expect("a valid list")
    }

    /// A1: a list is invalid if it lacks an entry, names a user or group without a mask, or is out
    /// of order.
    #[test]
    fn invalid_lists_are_refused() {
        let missing_other = list(&[(Tag::Owner, 7, NO_ID), (Tag::OwningGroup, 5, NO_ID)]);
        let no_mask = list(&[
            (Tag::Owner, 7, 0),
            (Tag::User, 7, 1),
            (Tag::OwningGroup, 5, 0),
            (Tag::Other, 0, 0),
        ]);
        let unsorted = list(&[(Tag::Other, 7, 0), (Tag::OwningGroup, 5, 0), (Tag::Owner, 0, 0)]);
        let wide = list(&[(Tag::Owner, 8, 0), (Tag::OwningGroup, 5, 0), (Tag::Other, 0, 0)]);
        for bytes in
            [&missing_other[..], &no_mask, &unsorted, &wide, b"", b"\x02\0\0\0x", b"\x01\0\0\0"]
        {
            assert_eq!(Acl::parse(bytes), None);
        }
    }

    /// A named user gets the permissions of its entry, and a group member gets the permissions of
    /// one group's entry. The mask limits the permissions of both.
    #[test]
    fn users_have_the_permissions_of_their_entry() {
        let acl = named();
        let user = |wanted| acl.grants(wanted, |id| id == 1000, true, |_| false);
        assert!(user(6) && !user(1));
        let member = |wanted| acl.grants(wanted, |_| false, true, |_| false);
        assert!(member(4) && !member(1), "5 within the mask of 6");
        let other = |wanted| acl.grants(wanted, |_| false, false, |_| false);
        assert!(other(1) && !other(4));
        let groups = Acl::parse(&list(&[
            (Tag::Owner, 7, NO_ID),
            (Tag::OwningGroup, 1, NO_ID),
            (Tag::Group, 2, 5),
            (Tag::Mask, 7, NO_ID),
            (Tag::Other, 7, NO_ID),
        ]));
        let groups = groups.expect("a valid list");
        let member = |wanted| groups.grants(wanted, |_| false, true, |id| id == 5);
        assert!(member(1) && member(2) && !member(3), "no entry alone grants both");
    }

    /// The mask replaces the group bits, and chmod changes the mask.
    #[test]
    fn mode_and_mask() {
        let mut acl = named();
        assert_eq!(acl.mode(), 0o761);
        acl.set_mode(0o640);
        assert_eq!(acl.mode(), 0o640);
        assert_eq!(acl.bits(Tag::OwningGroup), 5, "the owning group's own entry stays");
    }
}
