//! The commands of ioctl(2) that Linux's btrfs has, as calls: their numbers, their arguments and
//! their answers.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

pub(crate) const SNAP_CREATE: u64 = 0x5000_9401;
pub(crate) const SYNC: u64 = 0x9408;
pub(crate) const SUBVOL_CREATE: u64 = 0x5000_940e;
pub(crate) const SNAP_DESTROY: u64 = 0x5000_940f;
pub(crate) const TREE_SEARCH: u64 = 0xd000_9411;
pub(crate) const INO_LOOKUP: u64 = 0xd000_9412;
pub(crate) const DEFAULT_SUBVOL: u64 = 0x4008_9413;
pub(crate) const WAIT_SYNC: u64 = 0x4008_9416;
pub(crate) const SNAP_CREATE_V2: u64 = 0x5000_9417;
pub(crate) const SUBVOL_CREATE_V2: u64 = 0x5000_9418;
pub(crate) const START_SYNC: u64 = 0x8008_9418;
pub(crate) const GETFLAGS: u64 = 0x8008_9419;
pub(crate) const SETFLAGS: u64 = 0x4008_941a;
pub(crate) const DEV_INFO: u64 = 0xd000_941e;
pub(crate) const FS_INFO: u64 = 0x8400_941f;
pub(crate) const GET_FEATURES: u64 = 0x8018_9439;
pub(crate) const SUBVOL_INFO: u64 = 0x81f8_943c;
pub(crate) const ROOTREF: u64 = 0xd000_943d;
pub(crate) const INO_LOOKUP_USER: u64 = 0xd000_943e;
pub(crate) const SNAP_DESTROY_V2: u64 = 0x5000_943f;
pub(crate) const GETVERSION: u64 = 0x8008_7601;
pub(crate) const SET_RECEIVED: u64 = 0xc0c8_9425;
pub(crate) const DEV_STATS: u64 = 0xc408_9434;
pub(crate) const TRIM: u64 = 0xc018_5879;

pub(crate) const GET_INODE_FLAGS: u64 = 0x8008_6601;
pub(crate) const SET_INODE_FLAGS: u64 = 0x4008_6602;
/// The flag of an inode without copy-on-write.
pub(crate) const NOCOW: u64 = 0x0080_0000;

pub(crate) const READ_ONLY: u64 = 1 << 1;
pub(crate) const INHERIT: u64 = 1 << 2;
pub(crate) const BY_ID: u64 = 1 << 4;

/// The kind of a root item, and the place of the number of references in it.
pub(crate) const ROOT_ITEM: u32 = 132;
pub(crate) const ROOT_REFS_AT: usize = 216;

/// The object id of orphan items.
pub(crate) const ORPHAN: u64 = u64::MAX - 4;

/// Calls a command with an argument, which the answer overwrites. Returns the number of an error.
#[expect(unsafe_code, reason = "the commands have no names in rustix")]
pub(crate) fn call(file: &File, command: u64, argument: &mut [u8]) -> Result<(), i32> {
    let len = (command >> 16 & 0x3fff) as usize;
    assert!(argument.len() >= len, "{command:x}");
    // SAFETY: the command reads and writes no more bytes than its number tells, and the argument
    // has that many.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), command, argument.as_mut_ptr()) };
    let error = std::io::Error::last_os_error();
    // Linux answers some commands with a number above zero.
    if done >= 0 { Ok(()) } else { Err(error.raw_os_error().expect("of the system")) }
}

/// Calls a command that takes or gives a number.
pub(crate) fn number(file: &File, command: u64, value: u64) -> Result<u64, i32> {
    let mut bytes = value.to_ne_bytes();
    call(file, command, &mut bytes).map(|()| u64::from_ne_bytes(bytes))
}

/// An argument with numbers at the front and a text somewhere.
pub(crate) fn argument(numbers: &[u64], text: (usize, &[u8])) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    for (at, number) in numbers.iter().enumerate() {
        bytes[at * 8..at * 8 + 8].copy_from_slice(&number.to_ne_bytes());
    }
    let (at, text) = text;
    bytes[at..at + text.len()].copy_from_slice(text);
    bytes
}

pub(crate) fn named(file: &File, command: u64, name: &[u8]) -> Result<(), i32> {
    call(file, command, &mut argument(&[], (8, name)))
}

/// Calls a command with the argument of the second version: a descriptor, flags, the length of a
/// record, a name.
pub(crate) fn second(
    file: &File,
    command: u64,
    words: (i32, u64, u64),
    name: &[u8],
) -> Result<(), i32> {
    let (descriptor, flags, len) = words;
    let numbers = [i64::from(descriptor).cast_unsigned(), 0, flags, len];
    call(file, command, &mut argument(&numbers, (56, name)))
}

pub(crate) fn snapshot(dir: &File, source: &File, name: &[u8], flags: u64) -> Result<(), i32> {
    second(dir, SNAP_CREATE_V2, (source.as_raw_fd(), flags, 0), name)
}

pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).expect("an end");
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// The path of an inode number in a tree.
pub(crate) fn path_of(file: &File, tree: u64, ino: u64) -> Result<(u64, String), i32> {
    let mut bytes = argument(&[tree, ino], (0, b""));
    call(file, INO_LOOKUP, &mut bytes).map(|()| (word(&bytes, 0), text(&bytes[16..])))
}

pub(crate) fn path_for_users(file: &File, dir: u64, tree: u64) -> Result<(String, String), i32> {
    let mut bytes = argument(&[dir, tree], (0, b""));
    call(file, INO_LOOKUP_USER, &mut bytes).map(|()| (text(&bytes[16..272]), text(&bytes[272..])))
}

/// The number and the properties of the subvolume that a file is in.
pub(crate) fn subvolume(file: &File) -> (u64, String) {
    let mut bytes = vec![0; 504];
    call(file, SUBVOL_INFO, &mut bytes).expect("facts");
    let is_set = |at: usize, len: usize| bytes[at..at + len].iter().any(|&byte| byte != 0);
    let uuids = [296, 312, 328].map(|at| is_set(at, 16));
    let numbers = [344, 352, 360, 368].map(|at| word(&bytes, at) != 0);
    let times = [376, 392, 408, 424].map(|at| is_set(at, 16));
    let (above, dir, flags) = (word(&bytes, 264), word(&bytes, 272), word(&bytes, 288));
    let name = text(&bytes[8..264]);
    let about = format!("{name:?} {above} {dir} {flags} {uuids:?} {numbers:?} {times:?}");
    (word(&bytes, 0), about)
}

pub(crate) fn refs(file: &File, from: u64) -> String {
    let mut bytes = argument(&[from], (0, b""));
    let done = call(file, ROOTREF, &mut bytes);
    let count = usize::from(bytes[4088]);
    let all: Vec<_> =
        (0..count).map(|at| (word(&bytes, 8 + at * 16), word(&bytes, 16 + at * 16))).collect();
    format!("{done:?} next {} {all:?}", word(&bytes, 0))
}

/// The request of a search: tree, objects, kinds, offsets, least transaction, number of items.
pub(crate) type Search = (u64, [u64; 2], [u32; 2], [u64; 2], u64, u32);

/// The keys and lengths of the items that a search shows, and the bytes of references.
pub(crate) fn search(file: &File, (tree, objects, kinds, offsets, since, count): Search) -> String {
    let [low, high] = objects;
    let numbers = [tree, low, high, offsets[0], offsets[1], since, u64::MAX];
    let mut bytes = argument(&numbers, (0, b""));
    for (at, value) in [(56, kinds[0]), (60, kinds[1]), (64, count)] {
        bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    if let Err(error) = call(file, TREE_SEARCH, &mut bytes) {
        return format!("Err({error})");
    }
    let half = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let (mut said, mut at) = (String::new(), 104);
    for _ in 0..half(64) {
        let (kind, len) = (half(at + 24), half(at + 28) as usize);
        assert!(word(&bytes, at) != 0, "a transaction wrote it");
        // Deleted subvolumes, which have no references, are dropped at some later time.
        if kind == ROOT_ITEM && half(at + 32 + ROOT_REFS_AT) == 0 {
            at += 32 + len;
            continue;
        }
        // The item of a subvolume's root has the number of a transaction in its key.
        let offset = if kind == ROOT_ITEM { 0 } else { word(&bytes, at + 16) };
        said += &format!(" ({} {kind} {offset}) {len}", word(&bytes, at + 8));
        if matches!(kind, 84 | 96 | 144 | 156) {
            let name = &bytes[at + 32 + len.saturating_sub(4)..at + 32 + len];
            said += &format!(" {}", String::from_utf8_lossy(name));
        }
        at += 32 + len;
    }
    said
}

/// The answer to a request for `wanted` error counts of a device.
pub(crate) fn device_errors(
    file: &File,
    id: u64,
    wanted: u64,
    flags: u64,
) -> Result<Vec<u64>, i32> {
    // The kernel does not change the words that have no count.
    let mut bytes = argument(&[id, wanted, flags, 7, 7, 7, 7, 7, 7], (0, b""));
    call(file, DEV_STATS, &mut bytes).map(|()| (0..9).map(|at| word(&bytes, at * 8)).collect())
}

/// Records the origin of a received subvolume. Returns the answer, and whether it has a time and a
/// transaction.
pub(crate) fn received(file: &File, uuid: u8) -> Result<String, i32> {
    let mut bytes = argument(&[0, 0, 77, 0, 1_000_000_000, 5], (0, b""));
    bytes[..16].fill(uuid);
    call(file, SET_RECEIVED, &mut bytes)?;
    let facts = subvolume(file);
    Ok(format!("{:?} {} {facts:?}", &bytes[..24], word(&bytes, 24) > 0 && word(&bytes, 48) > 0))
}

/// Trims a range of addresses, and returns whether anything was free.
pub(crate) fn trim(file: &File, from: u64, len: u64, least: u64) -> Result<bool, i32> {
    let mut bytes = argument(&[from, len, least], (0, b""));
    call(file, TRIM, &mut bytes).map(|()| word(&bytes, 8) > 0)
}

pub(crate) fn open(path: impl AsRef<Path>) -> File {
    File::open(path).expect("it is there")
}
