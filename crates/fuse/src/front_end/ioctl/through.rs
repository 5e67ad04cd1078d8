//! Finds the mount through which a command came, if some mounts are read-only.
//!
//! The kernel does not name the mount of a command. The kernel does not refuse the command either:
//! a read-only mount beside writable ones, or a read-only bind mount, passes the command on. So the
//! server looks for the file among the descriptors of the calling process, each of which belongs to
//! a mount.
//!
//! # What must hold
//!
//! - A command is refused only if every descriptor that the process has of the file belongs to a
//!   read-only mount. Where `/proc` hides the process, no command is refused.
//! - The descriptors are looked at only if the process sees a read-only mount of the volume.

use std::collections::HashMap;
use std::fs;

use super::super::{Caller, FrontEnd, Node, place};

/// The number of a device, and whether the mount is read-only.
type Mount = (u64, bool);

impl FrontEnd {
    /// Whether the caller has a file open by read-only mounts alone.
    pub(super) fn is_by_read_only_mount(&self, caller: Caller, node: &Node) -> bool {
        let (Some(mounts), true) = (self.mounts(), caller.task != 0) else { return false };
        let id = node.inode.id();
        let process = format!("/proc/{}", caller.task);
        let list = fs::read(format!("{process}/mountinfo")).unwrap_or_default();
        let list = parse_mounts(&String::from_utf8_lossy(&list));
        let is_ours = |device: u64, number| mounts.place_on(device, number) == Some(place(id));
        if !list.values().any(|(_, read_only)| *read_only) {
            return false;
        }
        let mut found = false;
        for entry in fs::read_dir(format!("{process}/fdinfo")).into_iter().flatten().flatten() {
            let Ok(text) = fs::read_to_string(entry.path()) else { continue };
            let Some((mount, number)) = parse_descriptor(&text) else { continue };
            let Some((device, read_only)) = list.get(&mount) else { continue };
            if is_ours(*device, number) {
                if !read_only {
                    return false;
                }
                found = true;
            }
        }
        found
    }
}

/// The mounts that a process sees, by their numbers.
fn parse_mounts(list: &str) -> HashMap<u64, Mount> {
    let parse = |line: &str| {
        let mut words = line.split(' ');
        let number = words.next()?.parse().ok()?;
        let (major, minor) = words.nth(1)?.split_once(':')?;
        let device = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
        let options = words.nth(2)?;
        Some((number, (device, options.split(',').any(|option| option == "ro"))))
    };
    list.lines().filter_map(parse).collect()
}

/// The mount and the inode number of an open descriptor.
fn parse_descriptor(text: &str) -> Option<(u64, u64)> {
    let field = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse::<u64>().ok()
    };
    Some((field("mnt_id:")?, field("ino:")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The options of the mount count, and not those of the file system at the end of a line.
    #[test]
    fn mounts_and_descriptors_are_parsed() {
        let list = "36 35 0:41 /sub /mnt\\040a ro,nosuid shared:1 - fuse.buttress /a rw\n\
                    37 35 0:41 / /mnt rw,relatime - fuse.buttress /a ro,user_id=0\nbroken";
        let mounts = parse_mounts(list);
        let device = rustix::fs::makedev(0, 41);
        assert_eq!(mounts, HashMap::from([(36, (device, true)), (37, (device, false))]));
        let text = "pos:\t0\nflags:\t0100000\nmnt_id:\t36\nino:\t256\n";
        assert_eq!(parse_descriptor(text), Some((36, 256)));
        assert_eq!(parse_descriptor("pos:\t0\nmnt_id:\t36\n"), None);
    }
}
