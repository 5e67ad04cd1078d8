//! Changes by each user take set-id bits and file capabilities away, as on Linux's btrfs.
//!
//! One table of operations, users and modes runs here and on Linux's own btrfs. The results must be
//! equal: the return value of the operation, the mode, and whether the capability is still there.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::Path;
use std::thread;

use io_uring::{IoUring, opcode, types};
use rustix::fs::{FallocateFlags, Gid, OFlags, Uid, XattrFlags};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use rustix::pipe::{SpliceFlags, pipe, splice};
use rustix::thread::CapabilitySet;

use crate::linux::Linux;
use crate::mounted::mounted_with;

const OWNER: u32 = 1000;
const GROUP: u32 = 2000;
/// Another group that some users are in.
const CLUB: u32 = 2001;
const STRANGER: u32 = 3000;

const LEN: usize = 16 << 10;
const BLOCK: usize = 4 << 10;

const CAPABILITY: &str = "security.capability";
/// Version 2, effective: `CAP_NET_RAW`.
const RAW_NET: [u8; 20] = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The modes of the files, and whether they have a capability.
const FILES: [(u32, bool); 8] = [
    (0o4755, false),
    (0o2755, false),
    (0o2745, false),
    (0o6755, true),
    (0o6777, true),
    (0o2767, false),
    (0o6767, true),
    (0o0777, true),
];

/// A user: name, id, group, other groups, and, for root, whether it keeps `CAP_FSETID`.
#[derive(Clone, Copy)]
struct User(&'static str, u32, u32, &'static [u32], bool);

const USERS: [User; 6] = [
    User("root", 0, 0, &[], true),
    User("root without FSETID", 0, 0, &[], false),
    User("owner", OWNER, GROUP, &[CLUB], false),
    User("owner outside", OWNER, CLUB, &[STRANGER], false),
    User("member", STRANGER, STRANGER, &[CLUB, GROUP], false),
    User("stranger", STRANGER, STRANGER, &[], false),
];

/// The objects of an operation: the file's path, descriptors that root opened, and a file to copy
/// from.
struct Case<'a> {
    path: &'a Path,
    file: &'a mut File,
    direct: &'a File,
    source: &'a File,
}

type Done = std::io::Result<()>;
type Operation = (&'static str, fn(&mut Case<'_>) -> Done);

const OPERATIONS: [Operation; 30] = [
    ("write", |case| case.file.write_all(b"text")),
    ("write into the middle", |case| case.file.write_all_at(b"text", 5000)),
    ("write by path", |case| OpenOptions::new().append(true).open(case.path)?.write_all(b"text")),
    ("direct write", |case| {
        let buffer = Aligned([7; BLOCK]);
        case.direct.write_all_at(&buffer.0, BLOCK as u64)
    }),
    ("direct write behind the end", |case| {
        let buffer = Aligned([7; BLOCK]);
        case.direct.write_all_at(&buffer.0, LEN as u64)
    }),
    ("asynchronous direct write", |case| write_by_ring(case.direct, BLOCK as u64)),
    ("asynchronous direct write behind the end", |case| write_by_ring(case.direct, LEN as u64)),
    ("mmap", |case| write_by_map(case.file)),
    ("splice", |case| {
        let (from, into) = pipe()?;
        rustix::io::write(&into, b"spliced")?;
        splice(from, None, &*case.file, Some(&mut 100), 7, SpliceFlags::empty())?;
        Ok(())
    }),
    ("sendfile", |case| {
        case.file.seek(SeekFrom::Start(0))?;
        rustix::fs::sendfile(&*case.file, case.source, Some(&mut 0), 100)?;
        Ok(())
    }),
    ("copy_file_range", |case| copy(case, 0, BLOCK)),
    ("copy_file_range of parts", |case| copy(case, 100, 50)),
    ("ftruncate to less", |case| case.file.set_len(100)),
    ("ftruncate to the same", |case| case.file.set_len(LEN as u64)),
    ("ftruncate to more", |case| case.file.set_len(2 * LEN as u64)),
    ("truncate", |case| OpenOptions::new().write(true).open(case.path)?.set_len(0)),
    ("O_TRUNC", |case| File::create(case.path).map(drop)),
    ("fallocate", |case| allocate(case, FallocateFlags::empty())),
    ("fallocate, keep size", |case| allocate(case, FallocateFlags::KEEP_SIZE)),
    ("punch hole", |case| allocate(case, FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE)),
    ("zero range", |case| allocate(case, FallocateFlags::ZERO_RANGE)),
    ("zero range, keep size", |case| {
        allocate(case, FallocateFlags::KEEP_SIZE | FallocateFlags::ZERO_RANGE)
    }),
    ("chown to the same", |case| chown(case.path, Some(OWNER), Some(GROUP))),
    ("chown of the owner", |case| chown(case.path, Some(STRANGER), None)),
    ("chown of the group", |case| chown(case.path, None, Some(CLUB))),
    ("chmod", |case| fs::set_permissions(case.path, Permissions::from_mode(0o2751))),
    ("chmod with all", |case| fs::set_permissions(case.path, Permissions::from_mode(0o6755))),
    ("a list", |case| set_list(case.path, true)),
    ("a list like the mode", |case| set_list(case.path, false)),
    ("an attribute", |case| {
        Ok(rustix::fs::setxattr(case.path, "user.x", b"1", XattrFlags::empty())?)
    }),
];

#[repr(align(4096))]
struct Aligned([u8; BLOCK]);

fn allocate(case: &Case<'_>, how: FallocateFlags) -> Done {
    Ok(rustix::fs::fallocate(&*case.file, how, 5000, 8000)?)
}

fn copy(case: &Case<'_>, at: u64, len: usize) -> Done {
    let (mut from, mut to) = (at, at);
    rustix::fs::copy_file_range(case.source, Some(&mut from), &*case.file, Some(&mut to), len)?;
    Ok(())
}

/// Makes a write by io_uring, which the kernel sends without waiting for the answer.
fn write_by_ring(file: &File, at: u64) -> Done {
    let (mut ring, buffer) = (IoUring::new(1)?, Aligned([7; BLOCK]));
    let fd = types::Fd(file.as_raw_fd());
    let write = opcode::Write::new(fd, buffer.0.as_ptr(), BLOCK as u32).offset(at);
    // SAFETY: the memory lives until the write is done, because the next line waits for the write.
    unsafe { ring.submission().push(&write.build()) }.expect("there is room");
    ring.submit_and_wait(1)?;
    match ring.completion().next().expect("it is done").result() {
        error if error < 0 => Err(std::io::Error::from_raw_os_error(-error)),
        count if count == BLOCK as i32 => Ok(()),
        _ => Err(std::io::ErrorKind::WriteZero.into()),
    }
}

fn write_by_map(file: &File) -> Done {
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping anywhere, of as many bytes as the file has.
    let start = unsafe { mmap(std::ptr::null_mut(), LEN, both, MapFlags::SHARED, file, 0)? };
    // SAFETY: the bytes are within the mapping, and only this thread uses the mapping.
    unsafe {
        start.cast::<u8>().write_volatile(7);
        msync(start, LEN, MsyncFlags::SYNC)?;
        munmap(start, LEN)?;
    }
    Ok(())
}

/// Sets an access list. An extended list has an entry for one more user, which a mode cannot
/// express.
fn set_list(path: &Path, is_extended: bool) -> Done {
    const NO_ID: u32 = u32::MAX;
    let mut entries = vec![(1_u16, 7_u16, NO_ID), (4, 5, NO_ID), (0x20, 5, NO_ID)];
    if is_extended {
        entries.insert(1, (2, 7, 7777));
        entries.insert(3, (0x10, 7, NO_ID));
    }
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    Ok(rustix::fs::setxattr(path, "system.posix_acl_access", &bytes, XattrFlags::empty())?)
}

/// Makes this thread, and no other, work for a user.
fn become_user(User(_, uid, gid, groups, keeps): User) {
    let groups: Vec<Gid> = groups.iter().map(|&group| Gid::from_raw(group)).collect();
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    rustix::thread::set_thread_groups(&groups).expect("root may");
    rustix::thread::set_thread_res_gid(gid, gid, gid).expect("root may");
    rustix::thread::set_thread_res_uid(uid, uid, uid).expect("root may");
    if uid.is_root() && !keeps {
        let mut sets = rustix::thread::capabilities(None).expect("ours");
        sets.effective.remove(CapabilitySet::FSETID);
        rustix::thread::set_capabilities(None, sets).expect("fewer are always granted");
    }
}

/// The mode of a file, and whether it has a capability.
fn look(path: &Path) -> String {
    let mode = fs::metadata(path).expect("attributes").mode() & 0o7777;
    let has_capability = rustix::fs::getxattr(path, CAPABILITY, &mut [0_u8; 64]).is_ok();
    format!("{mode:o}{}", if has_capability { " with capability" } else { "" })
}

/// Runs the table below a directory. Returns a line for each case, and the state of its file.
fn run(top: &Path) -> Vec<(String, String)> {
    fs::set_permissions(top, Permissions::from_mode(0o755)).expect("a mode");
    fs::write(top.join("source"), [5; LEN]).expect("a file");
    let source = File::open(top.join("source")).expect("a file");
    let cases = USERS.iter().flat_map(|user| {
        FILES.iter().flat_map(move |file| OPERATIONS.iter().map(move |work| (*user, *file, *work)))
    });
    cases
        .enumerate()
        .map(|(number, (user, (mode, has_capability), (name, operate)))| {
            let path = top.join(number.to_string());
            fs::write(&path, [1; LEN]).expect("a file");
            chown(&path, Some(OWNER), Some(GROUP)).expect("an owner");
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("a mode");
            let mut opened = OpenOptions::new();
            let mut opened = |flags: OFlags| {
                let flags = flags.bits().cast_signed();
                opened.read(true).write(true).custom_flags(flags).open(&path).expect("root may")
            };
            let (mut file, direct) = (opened(OFlags::empty()), opened(OFlags::DIRECT));
            if has_capability {
                rustix::fs::setxattr(&path, CAPABILITY, &RAW_NET, XattrFlags::empty())
                    .expect("a capability");
            }
            let (file, direct, source) = (&mut file, &direct, &source);
            let mut case = Case { path: &path, file, direct, source };
            let done = thread::scope(|scope| {
                let work = scope.spawn(|| {
                    become_user(user);
                    operate(&mut case)
                });
                work.join().expect("no panic")
            });
            let error = done.err().map(|error| error.raw_os_error());
            let about = format!("{name} by {}, {mode:o}, {has_capability}", user.0);
            (about, format!("{error:?}: {}", look(&path)))
        })
        .collect()
}

/// Each operation by each user leaves the same bits of each mode as in Linux, in memory and on
/// disk.
#[test]
fn changes_take_privileges_as_linux_does() {
    for options in ["writeback_cache", "nowriteback_cache"] {
        let Some(mount) = mounted_with(options) else { return };
        let Some(linux) = Linux::mounted("defaults") else { return };
        let (ours, theirs) = (run(&mount.path("")), run(linux.path()));
        let differ: Vec<String> = ours
            .iter()
            .zip(&theirs)
            .filter(|(ours, theirs)| ours != theirs)
            .map(|((about, ours), (_, theirs))| format!("{about}: {ours}, Linux {theirs}"))
            .collect();
        assert!(differ.is_empty(), "{options}: {} differ:\n{}", differ.len(), differ.join("\n"));
        let mount = mount.again();
        for (number, (about, _)) in ours.iter().enumerate() {
            let name = number.to_string();
            let (on_disk, shown) = (look(&mount.path(&name)), look(&linux.path().join(&name)));
            assert_eq!(on_disk, shown, "{options}: {about}");
        }
    }
}
