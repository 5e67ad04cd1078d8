//! Extended attributes. Access lists and file capabilities get special handling.

use buttress_fs::{ErrorKind, NameError, SetAttr, XattrFlags, mode};
use buttress_protocol::Errno;

use super::content::CAPABILITY;
use super::{Caller, FrontEnd, Node, refuse};
use crate::Options;
use crate::acl::{self, Acl};
use crate::errno::Answer;

/// Kinds of attributes that Linux keeps in a btrfs. Linux could not read other kinds.
const NAMESPACES: [&[u8]; 5] =
    [b"user.", b"trusted.", b"security.", b"system.posix_acl_", b"btrfs."];

const CREATE: i32 = 1;
const REPLACE: i32 = 2;
const ROOT_UID: u32 = 0;

impl FrontEnd {
    /// Answers `getxattr` with the value.
    pub(crate) fn getxattr(&self, id: u64, name: &[u8]) -> Answer<Vec<u8>> {
        let node = self.node(id)?;
        let is_capability = name == CAPABILITY;
        if is_capability && node.lacks_capability() {
            return Err(Errno::ENODATA);
        }
        match node.inode.xattr(name) {
            Ok(value) => Ok(self.shown_list(name, value)),
            Err(error) => {
                let absent = error.kind() == ErrorKind::Name(NameError::NoAttribute);
                if is_capability && absent {
                    node.set_lacks_capability(true);
                }
                Err(refuse(error))
            }
        }
    }

    /// Answers `setxattr`.
    pub(crate) fn setxattr(
        &self,
        caller: Caller,
        id: u64,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Answer<()> {
        if !NAMESPACES.iter().any(|prefix| name.starts_with(prefix)) {
            return Err(Errno::EOPNOTSUPP);
        }
        let node = self.node(id)?;
        let is_list = name == acl::ACCESS || name == acl::DEFAULT;
        let written = is_list.then(|| self.written_list(value)).transpose()?;
        let value = written.as_deref().unwrap_or(value);
        if name == acl::ACCESS {
            return self.set_access_list(caller, &node, value);
        }
        let flags = XattrFlags { create: flags & CREATE != 0, replace: flags & REPLACE != 0 };
        node.inode.set_xattr(name, value, flags).map_err(refuse)?;
        unlearn(&node, name);
        Ok(())
    }

    /// Sets an access list, and the mode with it. A list that has the same meaning as a mode is not
    /// stored. As with `chmod`, the set-group-id bit is cleared if the caller is not in the group.
    fn set_access_list(&self, caller: Caller, node: &Node, value: &[u8]) -> Answer<()> {
        let list = Acl::parse(value).ok_or(Errno::EINVAL)?;
        let mut bits = node.inode.attr().mode & !0o777 | list.mode();
        if bits & mode::SETGID != 0 && !self.may_set_group_id(node, caller) {
            bits &= !mode::SETGID;
        }
        if list.is_minimal() {
            match node.inode.remove_xattr(acl::ACCESS) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Name(NameError::NoAttribute) => {}
                Err(error) => return Err(refuse(error)),
            }
        } else {
            node.inode
                .set_xattr(acl::ACCESS, &list.to_bytes(), XattrFlags::default())
                .map_err(refuse)?;
        }
        let set = SetAttr { mode: Some(bits), ..SetAttr::default() };
        node.inode.set_attr(&set).map_err(refuse)?;
        Ok(())
    }

    /// Returns an access list with the ids of this machine, and any other value unchanged.
    fn shown_list(&self, name: &[u8], value: Vec<u8>) -> Vec<u8> {
        let Options { users, groups, .. } = &self.options;
        let is_mapped = !users.is_identity() || !groups.is_identity();
        if !is_mapped || (name != acl::ACCESS && name != acl::DEFAULT) {
            return value;
        }
        let list = Acl::parse(&value);
        let shown = list
            .and_then(|list| list.with_ids(|id| Some(users.show(id)), |id| Some(groups.show(id))));
        shown.map_or(value, |list| list.to_bytes())
    }

    /// A list with the ids of the volume.
    fn written_list(&self, value: &[u8]) -> Answer<Vec<u8>> {
        let Options { users, groups, .. } = &self.options;
        let list = Acl::parse(value).ok_or(Errno::EINVAL)?;
        let list = list.with_ids(|id| users.write(id), |id| groups.write(id));
        Ok(list.ok_or(Errno::EOVERFLOW)?.to_bytes())
    }

    /// Answers `removexattr`.
    pub(crate) fn removexattr(&self, id: u64, name: &[u8]) -> Answer<()> {
        let node = self.node(id)?;
        node.inode.remove_xattr(name).map_err(refuse)?;
        unlearn(&node, name);
        Ok(())
    }

    /// Answers `listxattr` with the names, each closed by a zero byte. Only root may see `trusted`
    /// names.
    pub(crate) fn listxattr(&self, caller: Caller, id: u64) -> Answer<Vec<u8>> {
        let names = self.node(id)?.inode.list_xattrs().map_err(refuse)?;
        let mut list = Vec::new();
        for name in names {
            if caller.uid == ROOT_UID || !name.starts_with(b"trusted.") {
                list.extend_from_slice(&name);
                list.push(0);
            }
        }
        Ok(list)
    }
}

/// Forgets all that was learnt about an attribute that has changed.
fn unlearn(node: &Node, name: &[u8]) {
    if name == CAPABILITY {
        node.set_lacks_capability(false);
    } else if name == acl::DEFAULT {
        node.unlearn_default_list();
    }
}
