//! Commands of ioctl(2) that are not of btrfs alone: inode flags, as `lsattr` and `chattr` read and
//! change them, the label, and fs-verity.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering;

use buttress_fs::{FileKind, InodeFlags, InodeId};
use buttress_protocol::Errno;
use buttress_protocol::verity::{EnableVerity, MeasureVerity};

use super::rights::{Capability, Rights};
use super::{Caller, FrontEnd, Node, place, refuse};
use crate::errno::Answer;
use crate::mount_list::Listed;

const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
const GET_LABEL: u32 = 0x8100_9431;
const SET_LABEL: u32 = 0x4100_9432;
const GET_EXTENDED: u32 = 0x801c_581f;
const SET_EXTENDED: u32 = 0x401c_5820;

/// Length of the argument of the extended commands. Its first four bytes are flags.
const EXTENDED_LEN: usize = 28;

/// One flag in its three numberings: on disk, by the plain commands, and by the extended ones.
struct Flag {
    disk: u64,
    plain: u32,
    extended: u32,
}

const NOCOW: u32 = 0x0080_0000;

const FLAGS: [Flag; 9] = [
    Flag { disk: InodeFlags::NODATACOW, plain: NOCOW, extended: 0 },
    Flag { disk: InodeFlags::NOCOMPRESS, plain: 0x400, extended: 0 },
    Flag { disk: InodeFlags::SYNC, plain: 0x8, extended: 0x20 },
    Flag { disk: InodeFlags::IMMUTABLE, plain: 0x10, extended: 0x8 },
    Flag { disk: InodeFlags::APPEND, plain: 0x20, extended: 0x10 },
    Flag { disk: InodeFlags::NODUMP, plain: 0x40, extended: 0x80 },
    Flag { disk: InodeFlags::NOATIME, plain: 0x80, extended: 0x40 },
    Flag { disk: InodeFlags::DIRSYNC, plain: 0x0001_0000, extended: 0 },
    Flag { disk: InodeFlags::COMPRESS, plain: 0x4, extended: 0 },
];

/// How the plain command shows fs-verity. No command changes the flag.
const VERITY: u32 = 0x0010_0000;

/// Whether a command may take minutes: it reads a whole file.
pub(crate) fn may_take_minutes(command: u32) -> bool {
    command == EnableVerity::COMMAND
}

/// Whether a command waits for a commit: the label changes between two commits.
pub(crate) fn waits_for_commit(command: u32) -> bool {
    command == SET_LABEL
}

impl FrontEnd {
    /// Answers `ioctl` for the commands on flags and on the label. Before the kernel changes flags
    /// by a plain command, it reads them by the extended command.
    pub(crate) fn ioctl(
        &self,
        caller: Caller,
        id: u64,
        command: u32,
        argument: &[u8],
    ) -> Answer<Vec<u8>> {
        let wanted =
            || argument.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes)).ok_or(Errno::EINVAL);
        match command {
            GET_FLAGS => {
                let flags = self.flags(id)?;
                let verity = if flags & InodeFlags::RO_VERITY == 0 { 0 } else { VERITY };
                Ok((shown(flags, |flag| flag.plain) | verity).to_ne_bytes().to_vec())
            }
            GET_EXTENDED => {
                let mut answer =
                    shown(self.flags(id)?, |flag| flag.extended).to_ne_bytes().to_vec();
                answer.resize(EXTENDED_LEN, 0);
                Ok(answer)
            }
            GET_LABEL => Ok(self.fs.label().to_vec()),
            SET_LABEL => {
                if !Rights::of(caller).has(Capability::SysAdmin) {
                    return Err(Errno::EPERM);
                }
                let label = argument.split(|byte| *byte == 0).next().unwrap_or_default();
                self.fs.set_label(label).map(|()| Vec::new()).map_err(refuse)
            }
            SET_FLAGS => {
                let known = if self.flags(id)? & InodeFlags::RO_VERITY == 0 { 0 } else { VERITY };
                self.set_flags(caller, id, wanted()? & !known, |flag| flag.plain)
            }
            MeasureVerity::COMMAND => self.measure_verity(id, argument),
            EnableVerity::COMMAND => self.enable_verity(caller, id, argument),
            SET_EXTENDED => self.set_flags(caller, id, wanted()?, |flag| flag.extended),
            _ => Err(Errno::ENOTTY),
        }
    }

    fn flags(&self, id: u64) -> Answer<u64> {
        Ok(self.node(id)?.inode.attr().flags)
    }

    fn set_flags(
        &self,
        caller: Caller,
        id: u64,
        wanted: u32,
        number: impl Fn(&Flag) -> u32,
    ) -> Answer<Vec<u8>> {
        const PRIVILEGED: u64 = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
        let node = self.node(id)?;
        let attr = node.inode.attr();
        let known = FLAGS.iter().fold(0, |all, flag| all | number(flag));
        if wanted & !known != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let flags = FLAGS.iter().fold(attr.flags, |flags, flag| match number(flag) {
            0 => flags,
            bit if wanted & bit != 0 => flags | flag.disk,
            _ => flags & !flag.disk,
        });
        let changed = flags ^ attr.flags;
        let rights = Rights::of(caller);
        let is_allowed = changed & PRIVILEGED == 0 || rights.has(Capability::LinuxImmutable);
        if !is_allowed || !self.is_owner(&rights, &attr) {
            return Err(Errno::EPERM);
        }
        // A file that is overwritten in place has no checksums, so the flag can be changed only
        // while the file is empty. For a file with content, Linux ignores the flag silently; an
        // error is more helpful.
        let is_file = attr.kind == FileKind::Regular;
        if is_file && changed & InodeFlags::NODATACOW != 0 && attr.size != 0 {
            return Err(Errno::EINVAL);
        }
        if changed != 0 {
            node.inode.set_flags(flags).map_err(refuse)?;
            // The kernel does not know that new flags change `ctime`, and would show the old
            // `ctime`.
            self.notifier_threads.doubt_attributes(id);
            if is_file && self.keeps_writes() {
                node.shows_old_change.store(true, Ordering::Relaxed);
            }
        }
        Ok(Vec::new())
    }

    /// Makes the kernel forget the names of a closed file for which it shows an old `ctime`. With
    /// its write-back cache on, the kernel ignores the server's times for a regular file that it
    /// knows. But once a closed file has no cached names, the kernel forgets the file. The next
    /// lookup then asks for all attributes.
    pub(super) fn show_anew(&self, node: &Node) {
        let is_open = node.openers.load(Ordering::Relaxed) > 0;
        if is_open || !node.shows_old_change.swap(false, Ordering::Relaxed) {
            return;
        }
        let Ok(mut places) = node.inode.places() else { return };
        if places.len() > 1 {
            // While the kernel forgets one name, a program may find the file by another name. So
            // the kernel forgets all names a second time.
            places.extend_from_within(..);
        }
        let is_mounted_on = |(_, name): &(InodeId, Vec<u8>)| is_mount_point(name);
        // When the kernel forgets a name, it unmounts any file system on that name.
        if places.iter().any(is_mounted_on) {
            return;
        }
        let of = |(dir, name)| (self.nodes.id_of(place(dir)), name);
        self.notifier_threads.forget_names(places.into_iter().map(of).collect());
    }
}

/// Whether any mount point ends with this name. Also true if the list of mounts cannot be read.
fn is_mount_point(name: &[u8]) -> bool {
    let Ok(all) = Listed::all() else { return true };
    all.iter().any(|mount| mount.point.file_name() == Some(OsStr::from_bytes(name)))
}

fn shown(flags: u64, number: impl Fn(&Flag) -> u32) -> u32 {
    let set = FLAGS.iter().filter(|flag| flags & flag.disk != 0);
    set.fold(0, |all, flag| all | number(flag))
}
